"""Merging one view's partials into its state, inside the tick's transaction.

1. The tick's partial rows fill the stage slot; distinct values not yet seen go to the values
   tables.
2. The old rows they may belong to fill the old slot: the recent rows kept in memory when these
   are known to hold every match, else the matching rows of the state table.
3. One prepared statement combines both by key and computes finals before and after. It reads
   slots only and has a connection of its own, outside the transaction: so its plan is made once
   (within the transaction it would be made anew in every tick, which takes twice as long).
4. The rows so replaced are deleted by id, the new ones inserted with new ids; or, where nobody
   reads the view, some ticks later for several ticks at once (behind.py).

Recent rows are a cache: only this process writes the store, and a merge that is rolled back
leaves them as they were.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Slot, arrow_table, conformed
from headrace.model.plan import PANE, Window
from headrace.store.contract import ViewWrite
from headrace.store.duckdb.changelog import published_rows
from headrace.store.duckdb.deferred_rows import ROWS_MAX, TICKS_MAX, Behind, encode_state
from headrace.store.duckdb.finality import Passing
from headrace.store.duckdb.recent import Recent, starts
from headrace.store.duckdb.schema import WINDOW_START, ViewSchema

__all__ = ["Merged", "ViewMerge"]

RECENT_ROWS_MAX = 4_096
FILTERED_ROWS_MIN = 256  # fewer old rows are merged faster than filtered
CHUNKS_MAX = 8
LITERAL_IDS_MAX = 256
HASHES_MAX = 300  # keys looked up through the index; more are found faster by a scan
READ_SECONDS = 5.0  # a view that was read within them has its rows written in every tick
INDEX_ROWS_MIN = 200_000  # below, a scan is cheap and an index would slow large ticks down


@dataclass(frozen=True)
class Merged:
    """What a merge did, to be handed to `accept` once the transaction is durable."""

    before: pa.Table
    after: pa.Table
    rows: pa.Table
    replaced: pa.Array
    next_id: int
    behind: Behind
    state: bytes | None  # what stands in for the table's rows while these are behind


class ViewMerge:
    """The slots, prepared statements and recent rows of one view.

    `connection` is the writing one; `computing` only ever runs the merge statements.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        computing: duckdb.DuckDBPyConnection,
        schema: ViewSchema,
    ) -> None:
        self._connection = connection
        self._computing = computing
        self.schema = schema
        number = schema.number
        self._stage_name, self._old_name = f"_stage_{number}", f"_old_{number}"
        self._written_name, self._gone_name = f"_written_{number}", f"_gone_{number}"
        distincts = range(len(schema.view.distincts))
        self._value_stage_names = [f"_value_stage_{number}_{i}" for i in distincts]
        self._value_names = [f"_values_{number}_{i}" for i in distincts]
        self._stage = self._slot(self._stage_name, schema.stage_schema)
        self._old = self._slot(self._old_name, schema.old_schema)
        self._written = self._slot(self._written_name, schema.written_schema)
        self._gone = self._slot(self._gone_name, pa.schema([(schema.id, pa.int64())]))
        self._value_stages = [
            self._slot(name, schema.value_stage_schema(i))
            for i, name in enumerate(self._value_stage_names)
        ]
        self._values = [
            self._slot(name, schema.value_schema(i)) for i, name in enumerate(self._value_names)
        ]
        self._prepare()
        self._hashes: list[int] = []
        self._rows = 0
        self._is_indexed = False
        self._recent: Recent | None = None
        self._recent_is_known = False
        self._next_id = -1
        self._behind = self._left = Behind()
        self.behind_since: int | None = None  # the first tick whose rows are not in the table
        self.writings = 0  # how often rows that were behind have been written
        self.read_at = -READ_SECONDS

    def _slot(self, name: str, schema: pa.Schema) -> Slot:
        slot = Slot(schema)
        for connection in (self._connection, self._computing):
            connection.register(name, slot)
        return slot

    def _prepare(self) -> None:
        schema, number = self.schema, self.schema.number
        statements = {f"_insert_{number}": schema.insert_sql(self._written_name)}
        if schema.hash:
            hashes = f"SELECT DISTINCT {schema.hash_sql()} FROM {self._stage_name}"
            statements[f"_hashes_{number}"] = hashes
        for index, name in enumerate(self._value_names):
            statements[f"_insert{name}"] = f"INSERT INTO {schema.values_table(index)} FROM {name}"
        for name, sql in statements.items():
            self._connection.execute(f"PREPARE {name} AS {sql}")
        self._prepared = tuple(statements)
        self._prepare_merge()

    def _prepare_merge(self) -> None:
        merge = self.schema.merge_sql(self._stage_name, self._old_name, self._value_names)
        self._computing.execute(f"PREPARE _merge_{self.schema.number} AS {merge}")

    def _forget_merge(self) -> None:
        self._computing.execute(f"DEALLOCATE _merge_{self.schema.number}")

    def close(self) -> None:
        """The connections forget the view's statements and slots."""
        for name in self._prepared:
            self._connection.execute(f"DEALLOCATE {name}")
        self._forget_merge()
        names = (self._stage_name, self._old_name, self._written_name, self._gone_name)
        for name in (*names, *self._value_stage_names, *self._value_names):
            self._connection.unregister(name)
            self._computing.unregister(name)

    def compute(self, write: ViewWrite) -> pa.Table | None:
        """The rows as they become; None when the tick brought the view none. `write` follows, and
        `clear` in any case. Both raise duckdb.Error when the data cannot be merged; the caller
        rolls back."""
        if write.partials is None or write.partials.num_rows == 0:
            return None
        self._stage.fill(write.partials)
        self._left = self._behind
        self._fill_old()
        self._merge_values(write)
        result = arrow_table(self._computing, f"EXECUTE _merge_{self.schema.number}")
        return result if result.num_rows else None  # none: all were set aside

    def write(self, result: pa.Table, tick: int, passing: Passing) -> Merged:
        """Within the open transaction."""
        schema = self.schema
        replaced = result.column(schema.id).combine_chunks().drop_null()
        kept = self._kept(result)
        was = kept.column(schema.id)
        first = self._next_id_known()
        ids = pa.array(np.arange(first, first + kept.num_rows))
        rows = kept.set_column(len(schema.state), schema.id, ids)
        behind = self._left.plus(rows.select(schema.written_schema.names), replaced)
        state = None
        if self._may_wait(kept.num_rows, tick):
            state = encode_state(behind.tables[-1], was)
            if self.behind_since is None:
                self.behind_since = tick  # before the commit: a reader must not miss it
        else:
            self._put(behind)
            behind = Behind()
        before, after = published_rows(schema, result, passing)
        if schema.emits_on_close:
            after = pa.concat_tables([after, self._closed(passing, first)])
        old = conformed(rows, schema.old_schema)
        return Merged(before, after, old, replaced, first + kept.num_rows, behind, state)

    def _kept(self, result: pa.Table) -> pa.Table:
        """The rows of a result that are to be stored."""
        return result

    def _may_wait(self, rows: int, tick: int) -> bool:
        """Views take turns, so that no tick writes all of them."""
        return (
            rows <= ROWS_MAX
            and self._left.ticks < TICKS_MAX
            and (tick + self.schema.number) % TICKS_MAX != 0
            and time.monotonic() - self.read_at > READ_SECONDS
            and self._recent is not None
            and not self.schema.emits_on_close
        )

    def write_behind(self) -> None:
        """Within a transaction of its own; then `accept_written`."""
        if self._behind.ticks:
            self._put(self._behind)

    def is_behind(self, tick: int) -> bool:
        """Whether the table lacks rows of this tick or earlier ones. From any thread."""
        since = self.behind_since
        return since is not None and since <= tick

    def accept_written(self) -> None:
        self._behind = Behind()
        self.writings += 1  # before the next line: see Views.is_whole
        self.behind_since = None

    def _put(self, behind: Behind) -> None:
        rows, gone = behind.resolved(self.schema.id)
        self._delete(gone)
        self._written.fill(rows)
        self._connection.execute(f"EXECUTE _insert_{self.schema.number}")

    def clear(self) -> None:
        self._hashes = []
        for slot in (self._stage, self._old, self._written, self._gone):
            slot.clear()
        for slot in (*self._value_stages, *self._values):
            slot.clear()

    def _merge_values(self, write: ViewWrite) -> None:
        for index, distinct in enumerate(self.schema.view.distincts):
            values = write.distincts.get(distinct.name)
            if values is None or values.num_rows == 0:
                continue
            self._value_stages[index].fill(values)
            sql = self.schema.fresh_values_sql(index, self._value_stage_names[index])
            fresh = arrow_table(self._connection, sql)
            if fresh.num_rows:
                self._values[index].fill(fresh)
                self._connection.execute(f"EXECUTE _insert{self._value_names[index]}")

    def _fill_old(self) -> None:
        """Every state row that a staged row belongs to, and perhaps more."""
        recent = self._recent_known()
        first = self._first_start() if recent is not None and self.schema.window else None
        if recent is None or (
            recent.from_microseconds is not None
            and first is not None
            and first < recent.from_microseconds
        ):
            if self._left.ticks:
                self._put(self._left)
                self._left = Behind()
            self._old.fill(arrow_table(self._connection, self._touched_sql()))
        elif first is not None and recent.rows.num_rows > FILTERED_ROWS_MIN:
            needed = pc.greater_equal(starts(recent.rows), first)
            self._old.fill(recent.rows.filter(needed))
        else:
            self._old.fill(recent.rows)

    def _touched_sql(self) -> str:
        schema = self.schema
        if not self._is_indexed or self._stage.table.num_rows > HASHES_MAX:
            return schema.touched_sql(self._stage_name)
        found = self._connection.execute(f"EXECUTE _hashes_{schema.number}").fetchall()
        self._hashes = [row[0] for row in found]
        return f"SELECT {schema.old_columns_sql()} FROM {schema.hashed_in_sql(self._hashes)}"

    def _first_start(self) -> int:
        """No window of the staged rows starts earlier."""
        window = self.schema.window
        assert window is not None
        first_pane: int = pc.min(self._stage.table.column(PANE)).as_py()
        if not isinstance(window, Window):
            return first_pane
        return first_pane - (window.size_microseconds - window.pane_microseconds)

    def _delete(self, ids: pa.Array) -> None:
        if len(ids) == 0:
            return
        schema = self.schema
        if self._hashes and len(ids) == self._old.table.num_rows:
            # Every row of these hashes is replaced: no other key shares one.
            self._connection.execute(f"DELETE FROM {schema.hashed_in_sql(self._hashes)}")
            return
        low, high = pc.min(ids).as_py(), pc.max(ids).as_py()
        wanted = f"DELETE FROM {schema.state_table} WHERE {schema.id} BETWEEN {low} AND {high}"
        if high - low + 1 > len(ids):
            if len(ids) <= LITERAL_IDS_MAX:
                wanted += f" AND {schema.id} IN ({', '.join(map(str, ids.to_pylist()))})"
            else:
                self._gone.fill(pa.table({schema.id: ids}))
                wanted += f" AND {schema.id} IN (SELECT {schema.id} FROM {self._gone_name})"
        self._connection.execute(wanted)

    def close_windows(self, passing: Passing) -> Merged | None:
        """What a tick without events for the view publishes of a view that emits on close."""
        if not self.schema.emits_on_close or not passing.has_moved:
            return None
        public, none = self.schema.public_schema.empty_table(), pa.array([], pa.int64())
        rows = self.schema.old_schema.empty_table()
        next_id = self._next_id_known()
        after = self._closed(passing, next_id)
        return Merged(public, after, rows, none, next_id, Behind(), None)

    def _closed(self, passing: Passing, next_id: int) -> pa.Table:
        """The rows whose windows the tick's watermark passed, of those it did not write."""
        schema = self.schema
        if passing.after is None or not passing.has_moved:
            return schema.public_schema.empty_table()
        sql = schema.closed_sql(passing, next_id)
        return conformed(arrow_table(self._connection, sql), schema.public_schema)

    # Recent rows

    @property
    def rows(self) -> int | None:
        return self._rows if self._recent_is_known else None

    def _next_id_known(self) -> int:
        if self._next_id < 0:
            sql = f"SELECT coalesce(max({self.schema.id}), -1) + 1 FROM {self.schema.state_table}"
            self._next_id = self._connection.execute(sql).fetchall()[0][0]
        return self._next_id

    def _recent_known(self) -> Recent | None:
        if not self._recent_is_known:
            self._recent = self._load_recent()
            self._recent_is_known = True
        return self._recent

    def _load_recent(self) -> Recent | None:
        schema = self.schema
        select = f"SELECT {schema.old_columns_sql()} FROM {schema.state_table}"
        self._count_rows()
        index = self._connection.execute(
            f"SELECT 1 FROM duckdb_indexes() WHERE index_name = '{schema.index}'"
        ).fetchall()
        self._is_indexed = bool(index)
        if self._rows <= RECENT_ROWS_MAX:
            return Recent(self._old_rows(select), None)
        if schema.window is None:
            return None
        newest = (
            f"SELECT max({WINDOW_START}) FROM (SELECT {WINDOW_START} FROM {schema.state_table}"
            f" ORDER BY {WINDOW_START} DESC OFFSET {RECENT_ROWS_MAX // 2})"
        )
        sql = f"{select} WHERE {WINDOW_START} > ({newest})"
        bound = self._connection.execute(f"SELECT epoch_us(({newest}))").fetchall()[0][0]
        return Recent(self._old_rows(sql), bound + 1)

    def _count_rows(self) -> None:
        sql = f"SELECT count(*) FROM {self.schema.state_table}"
        self._rows = int(self._connection.execute(sql).fetchall()[0][0])

    def _old_rows(self, sql: str) -> pa.Table:
        return conformed(arrow_table(self._connection, sql), self.schema.old_schema)

    def accept(self, merged: Merged) -> None:
        """The merge is durable: its rows become the recent ones."""
        self._next_id = merged.next_id
        if merged.state is None:
            self.accept_written()
        self._behind = merged.behind
        self._rows += merged.rows.num_rows - len(merged.replaced)
        recent = self._recent
        if recent is None:
            return
        rows, schema = recent.rows, self.schema
        if len(merged.replaced):
            gone = pc.is_in(rows.column(schema.id), value_set=merged.replaced)
            rows = rows.filter(pc.invert(gone))
        added, bound = merged.rows, recent.from_microseconds
        if bound is not None:
            added = added.filter(pc.greater_equal(starts(added), bound))
        rows = pa.concat_tables([rows, added])
        if rows.column(0).num_chunks > CHUNKS_MAX:
            rows = rows.combine_chunks()
        if rows.num_rows <= RECENT_ROWS_MAX:
            self._recent = Recent(rows, bound)
        elif schema.window is None:
            self._recent = None
        else:
            begin = starts(rows)
            order = pc.sort_indices(begin, sort_keys=[("", "descending")])
            last_dropped = begin[order[RECENT_ROWS_MAX // 2].as_py()].as_py()
            kept = rows.filter(pc.greater(begin, last_dropped)).combine_chunks()
            self._recent = Recent(kept, last_dropped + 1)

    def keep_up(self) -> None:
        """Outside any transaction: index a state that has grown large. A reader of an older state
        may stand in the way, or memory be short; then a later call does it."""
        if self.schema.hash is None or self._is_indexed or self._rows < INDEX_ROWS_MIN:
            return
        try:
            self._connection.execute(self.schema.index_statement())
        except (duckdb.TransactionException, duckdb.OutOfMemoryException):
            return
        self._is_indexed = True

    def forget(self) -> None:
        """Whether the last transaction happened is unknown: read everything anew. Whatever was
        behind has been written from the progress rows."""
        self._recent, self._recent_is_known, self._next_id = None, False, -1
        self.accept_written()
