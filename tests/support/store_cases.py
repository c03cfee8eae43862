"""Views made by hand, as the compiler would bind them, and ticks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.model.plan import (
    BoundColumn,
    BoundDistinct,
    BoundView,
    Distinct,
    Expression,
    Partial,
    SessionWindow,
    ViewPlan,
    Window,
)
from headrace.model.types import parse_type
from headrace.store.contract import Counts, Store, StoreDeadLetter, TickWrite, ViewWrite

Opener = Callable[..., Store]
SECOND = 1_000_000
TUMBLING = Window(3 * SECOND, 3 * SECOND, 0, 3 * SECOND)
HOPPING = Window(10 * SECOND, 4 * SECOND, 1 * SECOND, 2 * SECOND)


def bound_view(
    name: str,
    *,
    keys: Mapping[str, str] | None = None,
    window: Window | SessionWindow | None = None,
    partials: Sequence[tuple[str, str, str, str]] = (("n", "count", "BIGINT", 'sum("n")'),),
    distincts: Mapping[str, str] | None = None,
    finals: Sequence[tuple[str, str, str]] = (),
    having: str | None = None,
    is_global: bool = False,
    fingerprint: str = "f1",
) -> BoundView:
    """`partials` are (name, function, type, combine), `finals` are (name, type, store SQL)."""
    keys, distincts = keys or {}, distincts or {}
    plan = ViewPlan(
        view=name,
        stream="events",
        where=None,
        keys=tuple(Expression(key, key) for key in keys),
        window=window,
        partials=tuple(Partial(p, function, p, combine) for p, function, _, combine in partials),
        distincts=tuple(Distinct(d, d) for d in distincts),
        finals=tuple(Expression(final, sql) for final, _, sql in finals),
        having=having,
        is_global=is_global,
        fingerprint=fingerprint,
        sql=f"SELECT … {name}",
    )
    return BoundView(
        plan=plan,
        keys=tuple(BoundColumn(key, parse_type(type_)) for key, type_ in keys.items()),
        partials=tuple(BoundColumn(p, parse_type(type_)) for p, _, type_, _ in partials),
        distincts=tuple(BoundDistinct(d, parse_type(type_)) for d, type_ in distincts.items()),
        finals=tuple((BoundColumn(f, parse_type(type_)), sql) for f, type_, sql in finals),
        having=having,
    )


def sales(name: str = "sales", **changes: Any) -> BoundView:
    """sum, count and maximum by user."""
    settings: dict[str, Any] = {
        "keys": {"user": "STRING"},
        "partials": (
            ("total", "sum", "DECIMAL(28,2)", 'sum("total")'),
            ("n", "count", "BIGINT", 'sum("n")'),
            ("most", "max", "DECIMAL(18,2)", 'max("most")'),
        ),
        "finals": (
            ("user", "STRING", '"user"'),
            ("income", "DECIMAL(28,2)", '"total"'),
            ("payments", "BIGINT", '"n"'),
            ("most", "DECIMAL(18,2)", '"most"'),
        ),
    }
    return bound_view(name, **{**settings, **changes})


def windowed_sales(name: str = "sales", window: Window = TUMBLING, **changes: Any) -> BoundView:
    finals = (
        ("window_start", "TIMESTAMP", '"window_start"'),
        ("window_end", "TIMESTAMP", '"window_end"'),
        ("user", "STRING", '"user"'),
        ("income", "DECIMAL(28,2)", '"total"'),
        ("payments", "BIGINT", '"n"'),
    )
    return sales(name, **{"window": window, "finals": finals, **changes})


def partial_table(view: BoundView, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows may have `_beyond` behind `_late`, or not."""
    pane = [("_pane", pa.int64()), ("_late", pa.int32())] if view.plan.window else []
    fields = [
        *((column.name, column.type.arrow) for column in view.keys),
        *pane,
        ("_rows", pa.int64()),
        *((column.name, column.type.arrow) for column in view.partials),
    ]
    if rows and len(rows[0]) > len(fields):
        fields.insert(fields.index(pane[-1]) + 1, ("_beyond", pa.int32()))
    schema = pa.schema(fields)
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return _applied_wholly(view, pa.Table.from_arrays(arrays, schema=schema))


def _applied_wholly(view: BoundView, table: pa.Table) -> pa.Table:
    """What is not said of lateness: not late, and set aside from no window."""
    for name in ("_late", "_beyond"):
        if view.plan.window and name not in table.column_names:
            table = table.append_column(name, pa.array([0] * table.num_rows, pa.int32()))
    return table


def value_table(view: BoundView, name: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows may have `_beyond` behind `_pane`, or not."""
    pane = [("_pane", pa.int64())] if view.plan.window else []
    if pane and rows and len(rows[0]) > len(view.keys) + 2:
        pane.append(("_beyond", pa.int32()))
    value = next(d.type.arrow for d in view.distincts if d.name == name)
    schema = pa.schema(
        [*((column.name, column.type.arrow) for column in view.keys), *pane, ("value", value)]
    )
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return _applied_wholly(view, pa.Table.from_arrays(arrays, schema=schema))


def view_write(
    view: BoundView,
    rows: Sequence[Sequence[Any]] | None,
    *,
    values: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    offsets: Mapping[int, int] | None = None,
    counts: Counts | None = None,
    watermark: int | None = None,
    dead: tuple[StoreDeadLetter, ...] = (),
) -> ViewWrite:
    number = len(rows or ())
    return ViewWrite(
        view.name,
        None if rows is None else partial_table(view, rows),
        {name: value_table(view, name, v) for name, v in (values or {}).items()},
        offsets or {},
        counts or Counts(read=number, applied=number),
        watermark,
        dead,
    )


def tick_write(store: Store, generation: int, *views: ViewWrite) -> TickWrite:
    even = tuple(_made_even(store, write) for write in views)
    return TickWrite(store.last_tick() + 1, generation, 1_700_000_000_000_000, even)


def _made_even(store: Store, write: ViewWrite) -> ViewWrite:
    """Offsets and counts that say the same, where the test cares for one of them or for none."""
    entry = store.catalog().get(write.view)
    if entry is None:
        return write
    before, counts = entry.next_offsets, write.counts
    if not write.next_offsets:
        return replace(write, next_offsets={0: before.get(0, 0) + counts.read})
    moved = sum(end - before.get(p, 0) for p, end in write.next_offsets.items())
    if counts.read == moved:
        return write
    return replace(write, counts=Counts(read=moved, applied=moved))


def rows_of(store: Store, sql: str) -> list[tuple[Any, ...]]:
    result = store.query(sql)
    table = pa.Table.from_batches(list(result.batches), schema=result.schema)
    return [tuple(row.values()) for row in table.to_pylist()]
