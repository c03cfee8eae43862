"""Lengths of time as users write them: `5 seconds`, `INTERVAL '1' HOUR`, `1 hour 30 minutes`."""

from __future__ import annotations

import re
from decimal import Decimal

from sqlglot import expressions as exp

__all__ = [
    "IntervalError",
    "format_interval",
    "interval_node",
    "parse_interval",
    "parse_interval_node",
]

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_CALENDAR = ("month", "year", "quarter")
_LONGEST = 365_250 * _UNITS["day"]  # times and lengths added up stay far within 64 bits
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


class IntervalError(ValueError):
    """str(error) says what is wrong with the length of time."""


def parse_interval(text: str) -> int:
    """Microseconds. Raises IntervalError for months and years, whose length is not fixed, and for
    what is longer than a thousand years."""
    body = text.strip()
    if body.lower().startswith("interval"):
        body = body[len("interval") :].replace("'", " ")
    body = body.strip()
    total = Decimal(0)
    position = 0
    while position < len(body):
        match = _PART.match(body, position)
        if match is None:
            break
        total += Decimal(match.group(1)) * _unit(match.group(2))
        position = match.end()
    if position < len(body) or not body:
        raise IntervalError(f"{text!r} is not a length of time")
    if abs(total) > _LONGEST:
        raise IntervalError(f"{text!r} is longer than a thousand years")
    if total != total.to_integral_value():
        raise IntervalError(f"{text!r} is finer than a microsecond")
    return int(total)


def _unit(word: str) -> int:
    name = word.lower().removesuffix("s")
    if name in _CALENDAR:
        raise IntervalError(f"a {name} has no fixed length")
    if name not in _UNITS:
        raise IntervalError(f"{word!r} is not a unit of time")
    return _UNITS[name]


def parse_interval_node(node: exp.Expr) -> int:
    """The length a literal text or an INTERVAL expression says. Raises IntervalError."""
    if isinstance(node, exp.Literal) and node.is_string:
        return parse_interval(node.name)
    if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal):
        unit = node.args.get("unit")
        if unit is None:
            return parse_interval(node.this.name)
        if isinstance(unit, exp.Var):
            return parse_interval(f"{node.this.name} {unit.name}")
    if isinstance(node, exp.Add):  # INTERVAL 1 HOUR 30 MINUTES
        return parse_interval_node(node.this) + parse_interval_node(node.expression)
    raise IntervalError("a length of time must be written as text such as '3 seconds'")


def interval_node(microseconds: int) -> exp.Interval:
    """INTERVAL '1' HOUR: as `format_interval` spells it."""
    count, unit = format_interval(microseconds).split()
    return exp.Interval(
        this=exp.Literal.string(count), unit=exp.Var(this=unit.removesuffix("s").upper())
    )


def format_interval(microseconds: int) -> str:
    """The shortest one-unit spelling: equal lengths give equal text."""
    for name, length in reversed(_UNITS.items()):
        if microseconds and microseconds % length == 0:
            count = microseconds // length
            return f"{count} {name}{'' if count == 1 else 's'}"
    return "0 seconds"
