"""The change feed: per tick and shape, the public rows before and after, as one Arrow IPC message.

Rows before and after are paired and stand beside the row's key, so that whoever follows a view
knows which row became which. Where the rows of a kind are only ever added, they are the feed
themselves, and the book only says which ticks had some. Kept are at most `ticks_max` ticks and
`rows_max` rows over all views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import arrow_table, conformed, quoted, text_literal
from headrace.kinds.contract import Changes
from headrace.model.errors import ChangesExpiredError
from headrace.model.tables import TableDelta
from headrace.store.backend import SCHEMA
from headrace.store.books import FEED, LEDGER, NUMBERS, rows_of
from headrace.store.catalog import StoredView
from headrace.store.contract import ViewChange

__all__ = [
    "LOWEST_TICK",
    "Retention",
    "ShapeChanges",
    "TickChanges",
    "read_changes",
]

LOWEST_TICK = "lowest_change_tick"  # the number in the books: from there on the feed is whole
COMPRESSED_ROWS_MIN = 64
READ_ROWS_MAX = 50_000  # a read ends with the tick that reaches so many rows
# Compressing 24 columns of 200 rows took 60 µs on one thread, and 330 with others called in.
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_PLAIN = pa.ipc.IpcWriteOptions()
_VIEWS, _WAS, _IS = "views", "was", "is"


def _encoded(changes: Changes) -> bytes:
    """Columns by their place: the view's number, two flags, the key, the row before and after."""
    parts = (*changes.key.columns, *changes.before.columns, *changes.after.columns)
    names = [_VIEWS, _WAS, _IS, *map(str, range(len(parts)))]
    columns = [changes.views, changes.was_shown, changes.is_shown, *parts]
    table = pa.Table.from_arrays(columns, names=names).combine_chunks()
    sink = pa.BufferOutputStream()
    options = _LZ4 if table.num_rows >= COMPRESSED_ROWS_MIN else _PLAIN
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _decoded(stored: bytes, view: StoredView, tick: int) -> ViewChange:
    table = pa.ipc.open_stream(pa.py_buffer(stored)).read_all()
    table = table.filter(pc.is_in(table.column(_VIEWS), pa.array(view.numbers, pa.int32())))
    schema, count = view.public_schema, len(view.columns)
    after = pa.Table.from_arrays(table.columns[len(table.columns) - count :], names=schema.names)
    before = pa.Table.from_arrays(
        table.columns[len(table.columns) - 2 * count : len(table.columns) - count],
        names=schema.names,
    )
    return ViewChange(
        view.entry.view,
        tick,
        conformed(before.filter(table.column(_WAS)), schema),
        conformed(after.filter(table.column(_IS)), schema),
    )


class _ViewRows:
    """The changes of one shape and tick by view. They are sorted once, for all views."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        numbers = changes.views.to_numpy(zero_copy_only=False)
        self._order = np.argsort(numbers, kind="stable")
        self.views, self._starts = np.unique(numbers[self._order], return_index=True)
        self._ends = np.append(self._starts[1:], len(numbers))
        shown = [
            part.to_numpy(zero_copy_only=False)[self._order].astype(np.int64)
            for part in (changes.was_shown, changes.is_shown)
        ]
        self._was, self._is = (np.add.reduceat(part, self._starts) for part in shown)

    @property
    def rows(self) -> int:
        """Before and after, of all views."""
        return int(self._was.sum() + self._is.sum())

    def growth(self) -> dict[int, int]:
        """By how many rows each view has become longer."""
        return dict(zip(self.views.tolist(), (self._is - self._was).tolist(), strict=True))

    def changes_of(self, views: Sequence[StoredView], tick: int) -> list[ViewChange]:
        if not views:
            return []
        changes, order = self._changes, pa.array(self._order)
        before, after = changes.before.take(order), changes.after.take(order)
        was, now = changes.was_shown.take(order), changes.is_shown.take(order)
        places = {view: place for place, view in enumerate(self.views.tolist())}
        found = []
        for view in views:
            if (place := places.get(view.number)) is None:
                continue
            start, end = self._starts[place], self._ends[place]
            part = slice(int(start), int(end))
            names = view.public_schema.names
            found.append(
                ViewChange(
                    view.entry.view,
                    tick,
                    before[part].filter(was[part]).rename_columns(names),
                    after[part].filter(now[part]).rename_columns(names),
                )
            )
        return found


@dataclass(frozen=True)
class ShapeChanges:
    """What a tick changed of the views of one shape."""

    shape: str
    feed_is_rows: bool
    changes: Changes


class TickChanges:
    """What a tick changed, of all shapes."""

    def __init__(self, shapes: Sequence[ShapeChanges]) -> None:
        self._shapes = [(shape, _ViewRows(shape.changes)) for shape in shapes]

    def without(self, views: Sequence[int]) -> TickChanges:
        """Those of other views than these."""
        if not views:
            return self
        numbers, left = pa.array(views, pa.int32()), []
        for shape, _ in self._shapes:
            mask = pc.invert(pc.is_in(shape.changes.views, numbers))
            if (changes := shape.changes.filter(mask)).num_rows:
                left.append(replace(shape, changes=changes))
        return TickChanges(left)

    @property
    def rows(self) -> int:
        """Before and after, of all views."""
        return sum(rows.rows for _, rows in self._shapes)

    def growth(self) -> dict[int, int]:
        """By how many rows readers see more of each view, by its number."""
        grown: dict[int, int] = {}
        for _, rows in self._shapes:
            grown.update(rows.growth())
        return grown

    def feed(self, tick: int) -> list[TableDelta]:
        if not self._shapes:
            return []
        columns = {
            "tick": [tick] * len(self._shapes),
            "shape": [shape.shape for shape, _ in self._shapes],
            "views": [rows.views.tolist() for _, rows in self._shapes],
            "rows": [rows.rows for _, rows in self._shapes],
            "changes": [
                None if shape.feed_is_rows else _encoded(shape.changes) for shape, _ in self._shapes
            ],
        }
        return [TableDelta(FEED.name, put=rows_of(FEED, columns), are_keys_new=True)]

    def of(self, views: Sequence[StoredView], tick: int) -> list[ViewChange]:
        """Of those of the views that changed, in their order."""
        found = {
            change.view: change
            for shape, rows in self._shapes
            for change in rows.changes_of([v for v in views if v.shape == shape.shape], tick)
        }
        return [found[view.entry.view] for view in views if view.entry.view in found]


class Retention:
    """Which ticks the feed still holds. `lowest_tick` and later are kept whole."""

    def __init__(self, ticks_max: int, rows_max: int) -> None:
        self._ticks_max = ticks_max
        self._rows_max = rows_max
        self._kept: deque[tuple[int, int]] = deque()
        self._rows = 0
        self.lowest_tick = 0

    def load(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.lowest_tick = _lowest_tick(connection)
        kept = connection.execute(
            f"SELECT l.tick, coalesce(sum(f.rows), 0)::BIGINT FROM {SCHEMA}.{LEDGER.name} l"
            f" LEFT JOIN {SCHEMA}.{FEED.name} f USING (tick)"
            f" WHERE l.tick >= {self.lowest_tick} GROUP BY l.tick ORDER BY l.tick"
        ).fetchall()
        self._kept = deque((int(tick), int(rows)) for tick, rows in kept)
        self._rows = sum(rows for _, rows in self._kept)

    def add(self, tick: int, rows: int) -> None:
        self._kept.append((tick, rows))
        self._rows += rows

    @property
    def is_exceeded(self) -> bool:
        """By more than an eighth, so that pruning is rare."""
        return (
            len(self._kept) > self._ticks_max + self._ticks_max // 8
            or self._rows > self._rows_max + self._rows_max // 8
        )

    def shrunk_lowest_tick(self) -> int:
        """The lowest tick that may stay, by both bounds; does not change what is recorded."""
        ticks, rows, lowest = len(self._kept), self._rows, self.lowest_tick
        for tick, tick_rows in self._kept:
            if ticks <= self._ticks_max and rows <= self._rows_max:
                break
            ticks, rows, lowest = ticks - 1, rows - tick_rows, tick + 1
        return lowest

    def shrink(self, lowest_tick: int) -> None:
        while self._kept and self._kept[0][0] < lowest_tick:
            self._rows -= self._kept.popleft()[1]
        self.lowest_tick = lowest_tick


def _lowest_tick(connection: duckdb.DuckDBPyConnection) -> int:
    found = connection.execute(
        f"SELECT value FROM {SCHEMA}.{NUMBERS.name} WHERE name = {text_literal(LOWEST_TICK)}"
    ).fetchall()
    return int(found[0][0]) if found else 0


def read_changes(
    connection: duckdb.DuckDBPyConnection, view: StoredView, after_tick: int, limit_ticks: int
) -> list[ViewChange]:
    """In one snapshot, so that pruning cannot come in between.

    `after_tick` 0 asks from the view's creation on. A tick before the creation, or before a copy
    took the view's place that nobody can follow, names rows that the feed cannot continue.
    """
    first = max(after_tick, view.created_tick) + 1
    lowest = max(_lowest_tick(connection), view.feed_from)
    if first < lowest or 0 < after_tick < view.created_tick:
        reason = "is no longer kept" if first < lowest else "is older than the view's rebuild"
        raise ChangesExpiredError(
            f"the change feed of {view.entry.view} after tick {after_tick} {reason}",
            hint="read the view anew and go on from the tick of that answer",
        )
    shapes = ", ".join(map(text_literal, sorted(view.shapes)))
    found = connection.execute(
        f"WITH next AS (SELECT tick, changes, rows FROM {SCHEMA}.{FEED.name}"
        f" WHERE shape IN ({shapes}) AND tick >= {first}"
        f" AND list_has_any(views, {list(view.numbers)}) ORDER BY tick LIMIT {int(limit_ticks)})"
        " SELECT tick, changes FROM next"
        " QUALIFY sum(rows) OVER (ORDER BY tick ROWS UNBOUNDED PRECEDING) - rows"
        f" < {READ_ROWS_MAX} ORDER BY tick"
    ).fetchall()
    added = _rows_by_tick(connection, view, [tick for tick, stored in found if stored is None])
    return [added[t] if s is None else _decoded(s, view, t) for t, s in found]


def _rows_by_tick(
    connection: duckdb.DuckDBPyConnection, view: StoredView, ticks: Sequence[int]
) -> dict[int, ViewChange]:
    """The last column of `rows_sql` is the tick that added the row."""
    if not ticks:
        return {}
    names = ", ".join([*map(quoted, view.hidden), "_added_in"])
    public = ", ".join(quoted(name) for name, _ in view.columns)
    rows = arrow_table(
        connection,
        f"SELECT {public}, _added_in FROM {view.rows_sql} AS rows({public}, {names})"
        f" WHERE _added_in BETWEEN {ticks[0]} AND {ticks[-1]}",
    )
    added, schema = rows.column("_added_in"), view.public_schema
    return {
        tick: ViewChange(
            view.entry.view,
            tick,
            schema.empty_table(),
            conformed(rows.filter(pc.equal(added, tick)), schema),
        )
        for tick in ticks
    }
