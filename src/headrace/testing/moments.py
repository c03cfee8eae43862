"""Moments as tests write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.formats.json_record import RecordError, read_timestamp
from headrace.model.errors import KitError

__all__ = ["microseconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(given: str | datetime) -> int:
    """Since 1970. A text is RFC 3339; without an offset it is UTC, as is a datetime without zone.
    Raises KitError."""
    if isinstance(given, datetime):
        aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    try:
        return read_timestamp(given)
    except RecordError as error:
        raise KitError(f"not a moment: {error}", hint="2026-01-31T12:00:00Z") from None
