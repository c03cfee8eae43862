"""Merging a tick into a view by session: sessions that an event joins become one.

The old rows are always read from the state table, of which only the part is read that ends late
enough to be reached. A new row takes the place of any number of old ones, whose ends are not its
own: so each old row is gone by itself, and the change feed has all of them before and one after.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import arrow_table
from headrace.model.plan import BEYOND, FIRST, LAST, PANE
from headrace.store.contract import ViewWrite
from headrace.store.duckdb.merge import ViewMerge
from headrace.store.duckdb.recent import Recent
from headrace.store.duckdb.schema import WINDOW_START
from headrace.store.duckdb.session_schema import SessionSchema

__all__ = ["SessionMerge"]


class SessionMerge(ViewMerge):
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        computing: duckdb.DuckDBPyConnection,
        schema: SessionSchema,
    ) -> None:
        super().__init__(connection, computing, schema)
        self._sessions = schema
        keys = [(column.name, column.type.arrow) for column in schema.keys]
        self._asked_name = f"_asked_{schema.number}"
        self._asked = self._slot(self._asked_name, pa.schema(keys)) if keys else None

    def close(self) -> None:
        super().close()
        if self._asked is not None:
            for connection in (self._connection, self._computing):
                connection.unregister(self._asked_name)

    def sessions(self, keys: pa.Table, from_microseconds: int) -> pa.Table:
        """See the contract's `sessions`."""
        if self._asked is not None:
            self._asked.fill(keys)
        return arrow_table(
            self._connection, self._sessions.sessions_sql(self._asked_name, from_microseconds)
        )

    def clear(self) -> None:
        super().clear()
        if self._asked is not None:
            self._asked.clear()

    def compute(self, write: ViewWrite) -> pa.Table | None:
        result = super().compute(write)
        if result is None or result.num_rows == 0:
            return None
        return self._with_gone(result)

    def _fill_old(self) -> None:
        self._recent_known()
        bounds = self._staged_bounds()
        if bounds is not None:
            sql = self._sessions.reached_sql(self._stage_name, *bounds)
            self._old.fill(arrow_table(self._connection, sql))

    def _staged_bounds(self) -> tuple[int, int] | None:
        """The first and the last event of the tick that is applied."""
        stage = self._stage.table
        taken = stage.filter(pc.less_equal(stage.column(BEYOND), 0))
        if taken.num_rows == 0:
            return None
        return pc.min(taken.column(FIRST)).as_py(), pc.max(taken.column(LAST)).as_py()

    def _merge_values(self, write: ViewWrite) -> None:
        """The new values are stored; then all values of the sessions that may be touched fill the
        slots, to be counted."""
        super()._merge_values(write)
        first = pc.min(self._stage.table.column(PANE)).as_py()
        if self._old.table.num_rows:
            start = pc.min(self._old.table.column(WINDOW_START).cast(pa.int64())).as_py()
            first = min(first, start - self._sessions.gap)
        for index, slot in enumerate(self._values):
            sql = self._sessions.reached_values_sql(index, self._stage_name, first)
            slot.fill(arrow_table(self._connection, sql))

    def _with_gone(self, result: pa.Table) -> pa.Table:
        """The new rows, which were nothing before; below them the old rows that became part of
        them, which are nothing after."""
        schema = self._sessions
        absorbed = result.column(schema.absorbed).combine_chunks()
        changed = result.column(schema.changed)
        rows = result.num_rows
        new = _with(result, schema.id, pa.nulls(rows, pa.int64()))
        new = _with(new, schema.passed, _flags(False, rows))
        new = _with(new, schema.absorbed, _flags(False, rows))
        ids = pc.list_flatten(absorbed)
        if len(ids) == 0:
            return new
        gone = self._old.table
        gone = gone.take(pc.index_in(ids, value_set=gone.column(schema.id)))
        parents = pc.list_parent_indices(absorbed)
        is_one = pc.equal(pc.list_value_length(absorbed), 1)
        same = pc.and_(is_one, pc.invert(changed)).take(parents)
        passed = gone.column(schema.passes)
        gone = _with(gone, schema.passes, _flags(False, len(ids)))
        for now, was in zip(schema.after, schema.before, strict=True):
            gone = gone.append_column(was, gone.column(now))
        gone = gone.append_column(schema.passed, passed)
        gone = gone.append_column(schema.absorbed, _flags(True, len(ids)))
        gone = gone.append_column(schema.changed, pc.invert(same))
        return pa.concat_tables([new.select(gone.column_names), gone.cast(_schema(new, gone))])

    def _kept(self, result: pa.Table) -> pa.Table:
        return result.filter(pc.invert(result.column(self._sessions.absorbed)))

    def _may_wait(self, rows: int, tick: int) -> bool:
        """Old rows are read from the table, so they must be in it."""
        return False

    def _load_recent(self) -> Recent | None:
        """None are kept: those that may be reached are too many to be filtered in every tick."""
        self._count_rows()
        return None


def _flags(value: bool, rows: int) -> pa.Array:
    return pa.array(np.full(rows, value))


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def _schema(rows: pa.Table, other: pa.Table) -> pa.Schema:
    return rows.select(other.column_names).schema
