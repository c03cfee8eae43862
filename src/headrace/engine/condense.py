"""Grouping once by everything any view asks for, before each view groups what is left.

Where events repeat the same few keys (users, statuses, windows), one GROUP BY over all keys and
conditions of all views leaves far fewer rows than events, and the views' own groupings over those
cost next to nothing. Where it does not leave fewer, it is only more work: the prepared plan
watches how much it condenses and goes without it when that is too little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import expressions as exp

from headrace.engine.groupings import Grouping, is_hashable
from headrace.engine.source import OFFSET
from headrace.model.plan import BEYOND, LATE, PANE, PANE_END, Partial
from headrace.model.types import DataType

__all__ = ["COUNTER", "Condensed", "condense", "is_condensable"]

# A grouping of its own that counts the condensed rows.
COUNTER = Grouping(view="", distinct=None, where=None, keys=(), partials=())
_OWN_KEYS = (PANE, PANE_END, LATE, BEYOND)  # they cannot fail
_AGAIN = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Condensed:
    """`select` and `by` make the condensed rows; `groupings` (COUNTER is the last) and `types`
    stand over those rows instead of over events."""

    select: str
    by: str
    groupings: tuple[Grouping, ...]
    types: Mapping[str, DataType]


def is_condensable(grouping: Grouping, types: Mapping[str, DataType]) -> bool:
    """Whether its partials can be aggregated twice without a change of value or type."""
    return (
        grouping.distinct is None
        and is_hashable(grouping, types)
        and all(OFFSET not in sql for _, sql in grouping.keys)
        and all(
            p.function in _AGAIN and not (p.function == "sum" and types[p.input].is_decimal)
            for p in grouping.partials
        )
    )


def condense(groupings: Sequence[Grouping], types: Mapping[str, DataType]) -> Condensed:
    by: dict[str, str] = {}  # expression over events → column
    aggregates: dict[str, str] = {"count(1)": "n"}
    above: dict[str, DataType] = {"n": DataType("BIGINT")}

    def key(sql: str, of_type: DataType) -> str:
        name = by.setdefault(sql, f"k{len(by)}")
        above[name] = of_type
        return name

    def aggregate(partial: Partial, where: str | None) -> str:
        source = _guarded(partial.input, where)
        name = aggregates.setdefault(f"{partial.function}({source})", f"p{len(aggregates)}")
        above[name] = _aggregate_type(partial.function, types[partial.input])
        return name

    condensed = [
        Grouping(
            view=grouping.view,
            distinct=None,
            where=key(grouping.where, DataType("BOOLEAN")) if grouping.where else None,
            keys=tuple(
                (
                    name,
                    key(sql if name in _OWN_KEYS else _guarded(sql, grouping.where), types[sql]),
                )
                for name, sql in grouping.keys
            ),
            partials=tuple(
                replace(p, function=_AGAIN[p.function], input=aggregate(p, grouping.where))
                for p in grouping.partials
            ),
            rows="n",
        )
        for grouping in groupings
    ]
    columns = [f"{sql} AS {name}" for sql, name in (by | aggregates).items()]
    return Condensed(
        select=", ".join(columns),
        by=", ".join(by),
        groupings=(*condensed, COUNTER),
        types=above,
    )


def _guarded(sql: str, where: str | None) -> str:
    """An expression that may fail is not evaluated for events that the view's WHERE keeps out."""
    if where is None or isinstance(sqlglot.parse_one(sql, dialect="spark"), exp.Column):
        return sql
    if sql.startswith("`_unscaled_"):
        return sql  # whole-number halves of a decimal cannot fail
    return f"IF({where}, {sql}, NULL)"


def _aggregate_type(function: str, of_type: DataType) -> DataType:
    if function == "count" or (function == "sum" and of_type.is_integer):
        return DataType("BIGINT")
    return DataType("DOUBLE") if function == "sum" else of_type
