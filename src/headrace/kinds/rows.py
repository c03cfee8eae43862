"""Views of events one by one: neither GROUP BY nor aggregates.

    rows_SHAPE    one row per event: keys, then TICK

A row is told apart by its event's partition and offset, the first two keys. It comes once and never
changes, so there is nothing to fetch and nothing to compute: the public columns are keys, and the
rows of a tick are its changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.kinds.calculator import conformed, quoted
from headrace.kinds.contract import TICK, Changes, Delta, KindInput, Steps
from headrace.kinds.state_table import BIGINT, INT, column_of, shape_of
from headrace.model.plan import BoundColumn, BoundView
from headrace.model.tables import SCHEMA, VIEW, TableDefinition, TableDelta

__all__ = ["RowsKind"]


class RowsKind:
    feed_is_rows = True

    def __init__(self, view: BoundView) -> None:
        assert view.plan.is_rows
        self.shape = shape_of("rows", view)
        self.key = view.keys[:2]
        columns = (BoundColumn(VIEW, INT), *view.keys, BoundColumn(TICK, BIGINT))
        key = (VIEW, *(column.name for column in self.key))
        self._table = TableDefinition(self.shape, columns, key, ((VIEW, TICK),))
        self.tables = (self._table,)
        self.public = tuple(
            BoundColumn(f"f{index}", column.type) for index, (column, _) in enumerate(view.finals)
        )
        self._shown = tuple(_key_of(view, column, sql) for column, sql in view.finals)

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._select_sql(view, self._shown, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        key = [column.name for column in self.key]
        return self._select_sql(view, [*self._shown, *key, TICK], [*names, *hidden, TICK])

    def _select_sql(self, view: int, columns: Sequence[str], names: Sequence[str]) -> str:
        pairs = zip(columns, names, strict=True)
        named = ", ".join(f"{quoted(column)} AS {quoted(name)}" for column, name in pairs)
        return f"SELECT {named} FROM {SCHEMA}.{self._table.name} WHERE {VIEW} = {view}"

    def merge(self, given: KindInput) -> Steps:
        yield from ()
        rows = given.partials
        if rows.num_rows == 0:
            return Delta((), None)
        tick = pa.repeat(pa.scalar(given.tick, pa.int64()), rows.num_rows)
        put = conformed(rows.append_column(TICK, tick), self._table.schema)
        return Delta((TableDelta(self._table.name, put=put),), self._changes(put))

    def _changes(self, rows: pa.Table) -> Changes:
        schema = pa.schema([(column.name, column.type.arrow) for column in self.public])
        shown = [rows.column(name) for name in self._shown]
        after = pa.Table.from_arrays(shown, schema=schema)
        yes = pa.repeat(pa.scalar(True), rows.num_rows)
        no = pa.repeat(pa.scalar(False), rows.num_rows)
        views = rows.column(VIEW).combine_chunks()
        key = rows.select([column.name for column in self.key])
        return Changes(views, key, after, after, no, yes)


def _key_of(view: BoundView, final: BoundColumn, sql: str) -> str:
    key = column_of(view.keys, final, sql)
    assert key is not None, f"view {view.name}: {final.name} is no column of its events"
    return key.name
