"""What a view asks of the pass: one GROUP BY of its own, and one per count(DISTINCT …)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import expressions as exp

from headrace.engine.source import EVENT_TIME, POSITION_COLUMNS, WATERMARK, unscaled_column
from headrace.model.definitions import Stream
from headrace.model.plan import LATE, PANE, Partial, ViewPlan
from headrace.model.types import DataType

__all__ = ["VALUE", "Grouping", "expressions_of", "groupings_of", "is_hashable", "needed_columns"]

VALUE = "value"  # the extra key of a distinct grouping
_FIXED_WIDTH = frozenset(
    ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"]
)


@dataclass(frozen=True)
class Grouping:
    """One GROUP BY: a view's own, or the values of one of its distincts. `rows` is the expression
    whose sum is the number of events, when a row stands for several."""

    view: str
    distinct: str | None
    where: str | None
    keys: tuple[tuple[str, str], ...]
    partials: tuple[Partial, ...]
    rows: str | None = None


def groupings_of(plan: ViewPlan) -> tuple[Grouping, ...]:
    keys = [(key.name, key.sql) for key in plan.keys]
    late: list[tuple[str, str]] = []
    if plan.window is not None:
        keys.append((PANE, _pane_sql(plan)))
        late.append((LATE, _late_sql(plan)))
    main = Grouping(plan.view, None, plan.where, (*keys, *late), plan.partials)
    distincts = [
        Grouping(
            plan.view,
            distinct.name,
            _both(plan.where, f"({distinct.input}) IS NOT NULL"),
            (*keys, (VALUE, distinct.input)),
            (),
        )
        for distinct in plan.distincts
    ]
    return (main, *distincts)


def _both(where: str | None, condition: str) -> str:
    return condition if where is None else f"({where}) AND {condition}"


def _pane_sql(plan: ViewPlan) -> str:
    assert plan.window is not None
    window = plan.window
    micros = f"unix_micros(`{EVENT_TIME}`)"
    shifted = (
        micros if not window.origin_microseconds else f"{micros} - {window.origin_microseconds}L"
    )
    return f"{micros} - pmod({shifted}, {window.pane_microseconds}L)"


def _late_sql(plan: ViewPlan) -> str:
    """How many windows over the event's pane end at or before the watermark. The first of them
    starts at the smallest s ≡ origin (mod slide) with s + size > event time."""
    assert plan.window is not None
    window = plan.window
    size, slide = window.size_microseconds, window.slide_microseconds
    micros = f"unix_micros(`{EVENT_TIME}`)"
    newest = f"({micros} - pmod({micros} - {window.origin_microseconds}L, {slide}L))"
    if size == slide:
        return f"IF({newest} + {size}L <= `{WATERMARK}`, 1, 0)"
    # Windows over the event: starts newest, newest - slide, … while start + size > event time.
    windows = f"(({newest} + {size}L - {micros} - 1L) DIV {slide}L + 1L)"
    first_end = f"({newest} - ({windows} - 1L) * {slide}L + {size}L)"
    passed = f"((`{WATERMARK}` - {first_end}) DIV {slide}L + 1L)"
    return f"CAST(IF(`{WATERMARK}` < {first_end}, 0L, least({windows}, {passed})) AS INT)"


def expressions_of(grouping: Grouping) -> list[str]:
    """Every expression whose type decides how the pass is laid out."""
    keys = [sql for _, sql in grouping.keys]
    return keys + [text for p in grouping.partials for text in (p.input, *p.order)]


def needed_columns(stream: Stream, groupings: Iterable[Grouping]) -> tuple[str, ...]:
    """The columns (of the stream and the position) that the groupings mention, in fixed order."""
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
    return (*names, *(name for name in POSITION_COLUMNS if name in mentioned))


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
