"""Rows of two computations of the same thing: equal, but for the last digits of doubles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]


def assert_same_rows(found: Iterable[Row], expected: Iterable[Row], what: object) -> None:
    """In any order. Doubles of 1e-9 relative, or an absolute difference that sums of large values
    which cancel out may have."""
    ours, theirs = sorted(found, key=_order), sorted(expected, key=_order)
    assert len(ours) == len(theirs), (what, ours, theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert _is_same(mine, other), (what, mine, other)


def _order(row: Row) -> tuple[list[str], list[float]]:
    """Exact columns first: doubles may differ in their last digits."""
    named = sorted(row.items())
    exact = [f"{name} {_plain(value)}" for name, value in named if not isinstance(value, float)]
    return exact, [round(value, 5) for _, value in named if isinstance(value, float)]


def _plain(value: Any) -> Any:
    """As text it is the same for all that are equal."""
    return value.normalize() if isinstance(value, Decimal) else value


def _is_same(found: Row, expected: Row) -> bool:
    return found.keys() == expected.keys() and all(
        _is_close(found[name], expected[name]) for name in expected
    )


def _is_close(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        are_both_none = math.isnan(found) and math.isnan(expected)
        return are_both_none or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-7)
    return type(found) is type(expected) and bool(found == expected)
