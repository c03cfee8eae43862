"""Units of the calendar and time zones, checked without Spark."""

from __future__ import annotations

from functools import cache
from zoneinfo import available_timezones

from headrace.compile.faults import closest

__all__ = ["UNITS", "zone_hint"]

UNITS = ("day", "week", "month", "quarter", "year")
_UNUSABLE = {"Factory", "localtime", "ROC"}  # the first two are of no place; Java has no ROC


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones() - _UNUSABLE)


def zone_hint(name: str) -> str | None:
    """What to write instead; None for the name of a zone."""
    if name in _zones():
        return None
    return closest(name, _zones()) or "a zone's name is written as 'Europe/Berlin' or 'UTC'"
