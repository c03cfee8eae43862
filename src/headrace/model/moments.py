"""Moments from microseconds since 1970, as every part of the system says and writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["moment", "moment_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (d.replace(tzinfo=UTC) for d in (datetime.min, datetime.max))  # noqa: DTZ901


def moment(microseconds: int) -> datetime:
    """The watermark behind an event in the first second of the year 1, which devices without a
    clock send, lies before it; no event does, so that year's first moment says the same."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _FIRST if microseconds < 0 else _LAST


def moment_text(microseconds: int) -> str:
    """RFC 3339 in UTC with microseconds, as every moment in an answer is written."""
    return moment(microseconds).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
