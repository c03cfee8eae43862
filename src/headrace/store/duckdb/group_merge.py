"""Merging a tick's events into a view by event group, see group_schema.py.

1. The keys that the tick touches, each with the time from which on its groups are found anew.
2. Their events from then on, old and new, in order: which of them form a group is found in Python,
   for all keys at once (event_groups.py).
3. One statement combines the events of each group and holds it against the groups as they were:
   only those whose events are others are written, and those that are no more are taken back.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import arrow_table
from headrace.kinds.event_group import KEY, Groups, find_groups
from headrace.model.plan import BEYOND, CLOSES, OPENS, PANE
from headrace.store.contract import ViewWrite
from headrace.store.duckdb.finality import Passing
from headrace.store.duckdb.group_schema import EventGroupSchema
from headrace.store.duckdb.merge import Merged, ViewMerge

__all__ = ["EventGroupMerge", "groups_of"]


def groups_of(schema: EventGroupSchema, events: pa.Table) -> Groups:
    """`events` are those of `near_events_sql`."""
    keys, times = (events.column(name).to_numpy() for name in (KEY, PANE))
    opens, closes = (events.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES))
    return find_groups(keys, times, opens, closes, schema.timeout)


class EventGroupMerge(ViewMerge):
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        computing: duckdb.DuckDBPyConnection,
        schema: EventGroupSchema,
    ) -> None:
        self._groups = schema
        self._grouped_name = f"_grouped_{schema.number}"
        self._touched_name = f"_touched_{schema.number}"
        super().__init__(connection, computing, schema)

    def _prepare_merge(self) -> None:
        self._grouped = self._slot(self._grouped_name, self._groups.grouped_schema)
        self._touched = self._slot(self._touched_name, self._groups.touched_schema)
        merge = self._groups.group_sql(self._grouped_name, self._old_name)
        self._computing.execute(f"PREPARE _merge_{self.schema.number} AS {merge}")

    def _forget_merge(self) -> None:
        super()._forget_merge()
        for name in (self._grouped_name, self._touched_name):
            self._connection.unregister(name)
            self._computing.unregister(name)

    def compute(self, write: ViewWrite) -> pa.Table | None:
        if write.partials is None or write.partials.num_rows == 0:
            return None
        self._recent_known()
        events = self._near(write.partials)
        if events is None:
            return None
        low = self._low()
        groups = groups_of(self._groups, events)
        numbers = pa.array(groups.numbers(events.num_rows))
        grouped = events.append_column(self._groups.group_number, numbers)
        self._grouped.fill(grouped.filter(pc.greater_equal(numbers, 0)))
        old = self._groups.near_groups_sql(self._touched_name, low)
        self._old.fill(arrow_table(self._connection, old))
        result = arrow_table(self._computing, f"EXECUTE _merge_{self.schema.number}")
        return self._without_gone(result)

    def near_events(self, partials: pa.Table) -> pa.Table | None:
        """See the contract. `clear` follows."""
        return self._near(partials, with_settled=True)

    def _near(self, partials: pa.Table, *, with_settled: bool = False) -> pa.Table | None:
        """What is applied is never in a group that is settled: merging need not know of them."""
        self._stage.fill(partials)
        if self._stage.table.filter(_applied(self._stage.table)).num_rows == 0:
            return None
        schema, low = self._groups, self._low()
        touched = schema.touched_keys_sql(self._stage_name, low)
        self._touched.fill(arrow_table(self._connection, touched))
        near = schema.near_events_sql(
            self._stage_name, self._touched_name, low, with_settled=with_settled
        )
        found = arrow_table(self._connection, near)
        return found.rename_columns([*found.column_names[:-1], KEY])

    def _low(self) -> int:
        stage = self._stage.table
        low: int = pc.min(stage.filter(_applied(stage)).column(PANE)).as_py()
        return low

    def _without_gone(self, result: pa.Table) -> pa.Table:
        """Rows that are no more are not public: they have only a row before."""
        schema = self._groups
        gone, passed = result.column(schema.gone), result.column(schema.passed)
        for name, value in (
            (schema.passes, pc.and_(result.column(schema.passes), pc.invert(gone))),
            (schema.changed, pc.if_else(gone, passed, result.column(schema.changed))),
        ):
            result = result.set_column(result.column_names.index(name), name, value)
        return result

    def write(self, result: pa.Table, tick: int, passing: Passing) -> Merged:
        merged = super().write(result, tick, passing)
        self._connection.execute(self._groups.insert_events_sql(self._stage_name))
        return merged

    def _kept(self, result: pa.Table) -> pa.Table:
        return result.filter(pc.invert(result.column(self._groups.gone)))

    def _may_wait(self, rows: int, tick: int) -> bool:
        """What is no more has no place in what stands in for the table's rows."""
        return False

    def clear(self) -> None:
        super().clear()
        self._grouped.clear()
        self._touched.clear()

    def _load_recent(self) -> None:
        self._count_rows()


def _applied(stage: pa.Table) -> pa.ChunkedArray:
    return pc.less_equal(stage.column(BEYOND), 0)
