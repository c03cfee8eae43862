"""What a view asks of the pass: one GROUP BY of its own, and one per count(DISTINCT …)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot import expressions as exp

from headrace.model.definitions import LOOKUP, Column, Stream
from headrace.model.plan import LATE, PANE, REJECTED_WINDOWS, EventGroup, Partial, Sliding, ViewPlan
from headrace.model.types import DataType
from headrace.spark.event_annotations import ANNOTATION
from headrace.spark.leaf import POSITION_COLUMNS, unscaled_column
from headrace.spark.windows import late_keys, pane_keys, sets_aside, window_partials

__all__ = [
    "VALUE",
    "Grouping",
    "column_name",
    "expressions_of",
    "groupings_of",
    "is_hashable",
    "looked_up_among",
    "name_as_bigint",
    "needed_columns",
    "with_beyond",
]

TEXTS_MAX = 1_000  # that were parsed, kept
VALUE = "value"  # the extra key of a distinct grouping
_FIXED_WIDTH = frozenset(
    ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"]
)


@dataclass(frozen=True)
class Grouping:
    """One GROUP BY: a view's own, or the values of one of its distincts. Where each event is a row
    of its own (`is_single`) nothing is grouped, and the keys are just columns."""

    view: str
    distinct: str | None
    where: str | None
    keys: tuple[tuple[str, str], ...]
    partials: tuple[Partial, ...]
    is_single: bool = False


def groupings_of(plan: ViewPlan, stream: Stream) -> tuple[Grouping, ...]:
    keys = [*((key.name, key.sql) for key in plan.keys), *pane_keys(plan)]
    late = late_keys(plan, stream)
    partials = (*window_partials(plan), *plan.partials)
    is_single = plan.is_rows or isinstance(plan.window, (Sliding, EventGroup))
    if is_single:  # one row per event has room for the values that are to be distinct
        keys += [(distinct.name, distinct.input) for distinct in plan.distincts]
    main = Grouping(plan.view, None, plan.where, (*keys, *late), partials, is_single=is_single)
    if is_single:
        return (main,)
    late = late if sets_aside(stream) else []
    distincts = [
        Grouping(
            plan.view,
            distinct.name,
            _both(plan.where, f"({distinct.input}) IS NOT NULL"),
            (*keys, *late, (VALUE, distinct.input)),
            (),
        )
        for distinct in plan.distincts
    ]
    return (main, *distincts)


def with_beyond(table: pa.Table, stream: Stream) -> pa.Table:
    """Adds REJECTED_WINDOWS (and LATE) behind LATE where it follows from the stream's policy."""
    names = table.column_names
    if PANE not in names or REJECTED_WINDOWS in names:
        return table
    zeros = pa.array(np.zeros(table.num_rows, dtype=np.int32))
    late = table.column(LATE) if LATE in names else zeros
    place = names.index(PANE) + 1
    if LATE not in names:
        table = table.add_column(place, LATE, late)
    beyond = late if sets_aside(stream) else zeros
    return table.add_column(table.column_names.index(LATE) + 1, REJECTED_WINDOWS, beyond)


def _both(where: str | None, condition: str) -> str:
    return condition if where is None else f"({where}) AND {condition}"


def expressions_of(grouping: Grouping) -> list[str]:
    """Every expression whose type decides how the pass is laid out."""
    keys = [sql for _, sql in grouping.keys]
    return keys + [text for p in grouping.partials for text in (p.input, *p.order)]


def needed_columns(stream: Stream, groupings: Iterable[Grouping]) -> tuple[str, ...]:
    """The columns (of the stream, the position, annotations and look-ups) that the groupings
    mention, in fixed order."""
    mentioned: set[str] = set()
    for grouping in groupings:
        texts = expressions_of(grouping)
        if grouping.where is not None:
            texts.append(grouping.where)
        for text in texts:
            parsed = sqlglot.parse_one(text, dialect="spark")
            mentioned |= {column.parts[0].name.lower() for column in parsed.find_all(exp.Column)}
    names = [c.name for c in stream.columns if c.name.lower() in mentioned]
    for column in stream.columns:
        unscaled = unscaled_column(column)
        if unscaled is not None and unscaled.lower() in mentioned:
            names.append(unscaled)
    annotations = sorted(name for name in mentioned if name.startswith((ANNOTATION, LOOKUP)))
    return (*names, *(name for name in POSITION_COLUMNS if name in mentioned), *annotations)


def looked_up_among(names: Iterable[str], plans: Iterable[ViewPlan]) -> tuple[Column, ...]:
    """Those of the columns that come from the look-ups of these views."""
    known = {c.name: c for plan in plans for join in plan.joins for c in join.columns}
    return tuple(known[name] for name in names if name in known)


@lru_cache(TEXTS_MAX)
def column_name(sql: str) -> str:
    """Of the column that the expression is, in lower case; "" for any other expression."""
    return _name_of(sqlglot.parse_one(sql, dialect="spark"))


@lru_cache(TEXTS_MAX)
def name_as_bigint(sql: str) -> str:
    """Of the column that the expression casts to BIGINT; "" for any other expression."""
    parsed = sqlglot.parse_one(sql, dialect="spark")
    is_cast = isinstance(parsed, exp.Cast) and parsed.to.is_type("bigint")
    return _name_of(parsed.this) if is_cast else ""


def _name_of(parsed: exp.Expr) -> str:
    is_column = isinstance(parsed, exp.Column) and len(parsed.parts) == 1
    return parsed.name.lower() if is_column else ""


def is_hashable(grouping: Grouping, types: Mapping[str, DataType]) -> bool:
    """Whether Spark can aggregate it in a hash map: only buffers of fixed width fit there."""
    for partial in grouping.partials:
        if partial.function in ("min_by", "max_by"):
            return False
        of_type = types[partial.input]
        if partial.function in ("min", "max") and not (
            of_type.is_decimal or of_type.name in _FIXED_WIDTH
        ):
            return False
    return True
