"""The keys a de-duplicated stream has accepted, and the duplicates it has found.

    _headrace.deduplicated    a row per stream: its number and what its verdicts rest on
    _headrace.seen_N          a row per accepted event: id, partition, time, mark, key0, key1, …
    _headrace.duplicates      see duplicates.py

`time` is the event time, `mark` the partition's highest event time when the event was accepted,
both in microseconds. Ids ascend in the order of acceptance. Keys are compared by their columns,
NULLs equal; hashes only narrow what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kinds.calculator import Slot, arrow_table, store_type
from headrace.model.definitions import Column, Stream
from headrace.model.errors import StoreError
from headrace.store.contract import KnownKeys, StreamWrite
from headrace.store.dedup_index import ROWS_MAX, SeenIndex, packed
from headrace.store.duckdb.duplicate_record import DuplicateRecord

__all__ = [
    "HASH",
    "MARK_TIME",
    "PARTITION",
    "SINCE",
    "TIME",
    "SeenKeys",
    "SeenStreams",
    "events_schema",
    "key_columns",
    "seen_schema",
]

PARTITION, TIME, SINCE, MARK_TIME, HASH = "partition", "time", "since", "mark", "hash"
TABLES = (
    "CREATE TABLE IF NOT EXISTS _headrace.deduplicated (number BIGINT, stream VARCHAR,"
    " definition VARCHAR)",
)
PRUNE_TICKS = 16  # small ticks leave it to every so many
PRUNE_ROWS_MIN = 50_000
INDEXED_ROWS_MAX = ROWS_MAX
HASH_SQL = "hash({})"

Booleans = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


def key_columns(stream: Stream) -> tuple[Column, ...]:
    """By name: the order in which they are written says nothing."""
    assert stream.deduplication is not None
    wanted = {name.lower() for name in stream.deduplication.columns}
    found = [column for column in stream.columns if column.name.lower() in wanted]
    return tuple(sorted(found, key=lambda column: column.name))


def _key_name(index: int) -> str:
    return f"key{index}"


def events_schema(stream: Stream) -> pa.Schema:
    """What is asked about events: `since` is the lowest mark that an accepted event may have to
    count against this one."""
    numbers = [(PARTITION, pa.int32()), (TIME, pa.int64()), (SINCE, pa.int64())]
    return pa.schema([*numbers, *_keys(stream)])


def seen_schema(stream: Stream) -> pa.Schema:
    """What is written of events that were accepted; `hash` as `KnownKeys` gave it."""
    numbers = [(PARTITION, pa.int32()), (TIME, pa.int64()), (MARK_TIME, pa.int64())]
    return pa.schema([*numbers, (HASH, pa.uint64()), *_keys(stream)])


def _keys(stream: Stream) -> list[tuple[str, pa.DataType]]:
    return [(_key_name(i), c.type.arrow) for i, c in enumerate(key_columns(stream))]


def definition_of(stream: Stream) -> str:
    """Everything that verdicts depend on, beside the log."""
    assert stream.deduplication is not None
    keys = ", ".join(f"{column.name} {column.type}" for column in key_columns(stream))
    return (
        f"({keys}) within {stream.deduplication.within_microseconds}"
        f" delay {stream.delay_microseconds} at {stream.event_time} {stream.clocks}"
    )


@dataclass(frozen=True)
class Written:
    """What a tick's transaction did, to be handed to `accept` once it is durable."""

    rows: pa.Table | None
    next_id: int
    since: Mapping[int, int]
    lowest: int | None


class SeenKeys:
    """Of one stream. `write` runs inside the tick's transaction; what is kept in memory moves on
    with `accept`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, number: int, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream
        self._table = f"_headrace.seen_{number}"
        self._keys = [name for name, _ in _keys(stream)]
        self._asked_name, self._pairs_name = f"_asked_{number}", f"_pairs_{number}"
        self._seen_name, self._since_name = f"_seen_rows_{number}", f"_since_{number}"
        asked = events_schema(stream)
        self._asked = self._slot(self._asked_name, _with(asked, "number"))
        self._pairs = self._slot(self._pairs_name, _with(asked, "number", "id"))
        self._seen = self._slot(self._seen_name, _with(seen_schema(stream), "id"))
        self._since = self._slot(
            self._since_name, pa.schema([(PARTITION, pa.int32()), (SINCE, pa.int64())])
        )
        self.duplicates = DuplicateRecord(connection, number)
        self._index: SeenIndex | None = None
        self._next_id = 0
        self._due: Mapping[int, int] = {}  # marks below need not be kept
        self._unpruned_ticks = 0

    def _slot(self, name: str, schema: pa.Schema) -> Slot:
        slot = Slot(schema)
        self._connection.register(name, slot)
        return slot

    def create(self) -> None:
        """Anew and empty; texts are not worth compressing, which would be most of the writing."""
        columns = [
            f"{_key_name(i)} {store_type(column.type)}"
            + (" USING COMPRESSION uncompressed" if column.type.name == "STRING" else "")
            for i, column in enumerate(key_columns(self._stream))
        ]
        self._connection.execute(f"DROP TABLE IF EXISTS {self._table}")
        self._connection.execute(
            f"CREATE TABLE {self._table} (id BIGINT, {PARTITION} INTEGER, {TIME} BIGINT,"
            f" {MARK_TIME} BIGINT, {', '.join(columns)})"
        )
        self.duplicates.clear()
        self.forget()

    def forget(self) -> None:
        """What is remembered is read anew from the table."""
        self._index = None
        self._due = {}

    # What is asked

    def known(self, events: pa.Table) -> KnownKeys:
        """Raises StoreError for more events than can be told apart at once."""
        rows = events.num_rows
        if rows > ROWS_MAX:
            raise StoreError(
                f"{rows} events cannot be de-duplicated in one tick, only {ROWS_MAX}",
                hint="lower engine.tick_rows_max",
            )
        index = self._loaded()
        hashes = self._hashes(events)
        entries = packed(hashes, np.arange(rows))
        is_known = np.zeros(rows, dtype=np.bool_)
        places, ids = index.find(entries)
        if len(places):
            is_known[self._matching(events, places, ids)] = True
        if index.floor:
            is_known[self._matching_below(events, index.floor)] = True
        return KnownKeys(hashes, is_known, self._groups(events, _repeated(entries, ~is_known)))

    def _loaded(self) -> SeenIndex:
        if self._index is None:
            ends = self._connection.execute(
                f"SELECT coalesce(max(id), -1) + 1 FROM {self._table}"
            ).fetchall()
            self._next_id = int(ends[0][0])
            self._index = SeenIndex(max(0, self._next_id - INDEXED_ROWS_MAX))
            self._fill(self._index)
        return self._index

    def _fill(self, index: SeenIndex) -> None:
        stored = arrow_table(
            self._connection,
            f"SELECT id, {self._hash_sql()} AS hash FROM {self._table} WHERE id >= {index.floor}",
        )
        index.load(stored.column("hash").to_numpy(), stored.column("id").to_numpy())

    def _hash_sql(self) -> str:
        return HASH_SQL.format(", ".join([PARTITION, *self._keys]))

    def _hashes(self, events: pa.Table) -> npt.NDArray[np.uint64]:
        sql = f"SELECT number, {self._hash_sql()} AS h FROM {self._asked_name}"
        found = self._ask(self._asked, _numbered(events, np.arange(events.num_rows)), sql)
        hashes = np.empty(events.num_rows, dtype=np.uint64)
        hashes[found.column("number").to_numpy()] = found.column("h").to_numpy()
        return hashes

    def _ask(self, slot: Slot, rows: pa.Table, sql: str) -> pa.Table:
        slot.fill(rows)
        try:
            return arrow_table(self._connection, sql)
        finally:
            slot.clear()

    def _matching(self, events: pa.Table, places: Numbers, ids: Numbers) -> Numbers:
        """Which events equal one of the stored rows that have the same hash."""
        pairs = _numbered(events.take(pa.array(places)), places).append_column("id", pa.array(ids))
        low, high = int(ids.min()), int(ids.max())
        sql = (
            f"SELECT DISTINCT e.number FROM {self._pairs_name} e JOIN {self._table} s"
            f" ON s.id = e.id WHERE s.id BETWEEN {low} AND {high} AND {self._same_sql()}"
        )
        found: Numbers = self._ask(self._pairs, pairs, sql).column(0).to_numpy()
        return found

    def _matching_below(self, events: pa.Table, floor: int) -> Numbers:
        """The same for rows that the index does not hold: by a scan of the table."""
        sql = (
            f"SELECT DISTINCT e.number FROM {self._asked_name} e JOIN {self._table} s"
            f" ON {self._same_sql()} WHERE s.id < {floor}"
        )
        rows = _numbered(events, np.arange(events.num_rows))
        found: Numbers = self._ask(self._asked, rows, sql).column(0).to_numpy()
        return found

    def _same_sql(self) -> str:
        assert self._stream.deduplication is not None
        within = self._stream.deduplication.within_microseconds
        keys = [f"s.{key} IS NOT DISTINCT FROM e.{key}" for key in self._keys]
        times = f"s.{TIME} BETWEEN e.{TIME} - {within} AND e.{TIME} + {within}"
        both = f"s.{PARTITION} = e.{PARTITION} AND s.{MARK_TIME} >= e.{SINCE}"
        return " AND ".join([both, times, *keys])

    def _groups(self, events: pa.Table, places: Numbers) -> Numbers:
        groups = np.full(events.num_rows, -1, dtype=np.int64)
        if len(places):
            by = ", ".join([PARTITION, *self._keys])
            sql = f"SELECT number, min(number) OVER (PARTITION BY {by}) FROM {self._asked_name}"
            found = self._ask(self._asked, _numbered(events.take(pa.array(places)), places), sql)
            groups[found.column(0).to_numpy()] = found.column(1).to_numpy()
        return groups

    # What is written

    def write(self, write: StreamWrite) -> Written:
        self._loaded()
        rows = write.seen
        first = self._next_id
        if rows is not None and rows.num_rows:
            ids = np.arange(first, first + rows.num_rows)
            self._seen.fill(rows.append_column("id", pa.array(ids)))
            try:
                self._connection.execute(
                    f"INSERT INTO {self._table} BY NAME"
                    f" SELECT * EXCLUDE ({HASH}) FROM {self._seen_name}"
                )
            finally:
                self._seen.clear()
        self.duplicates.add(write.duplicates)
        if write.oldest:
            self.duplicates.forget(write.oldest)
        added = rows.num_rows if rows is not None else 0
        due = {**self._due, **write.seen_since}
        lowest = self._prune(due) if self._is_due(added) else None
        return Written(rows, first + added, due, lowest)

    def _is_due(self, added: int) -> bool:
        self._unpruned_ticks += 1
        if added < PRUNE_ROWS_MIN and self._unpruned_ticks < PRUNE_TICKS:
            return False
        self._unpruned_ticks = 0
        return True

    def _prune(self, since: Mapping[int, int]) -> int | None:
        """Rows whose mark is too low to count against any event to come. The lowest id that is
        left, if any has gone."""
        if not since:
            return None
        self._since.fill(
            pa.table(
                {
                    PARTITION: pa.array(list(since), pa.int32()),
                    SINCE: pa.array(list(since.values()), pa.int64()),
                }
            )
        )
        try:
            deleted = self._connection.execute(
                f"DELETE FROM {self._table} t USING {self._since_name} b WHERE"
                f" t.{PARTITION} = b.{PARTITION} AND t.{MARK_TIME} < b.{SINCE}"
                f" AND t.{MARK_TIME} < {max(since.values())}"
            ).fetchall()
        finally:
            self._since.clear()
        return self._lowest() if deleted[0][0] else None

    def _lowest(self) -> int:
        found = self._connection.execute(f"SELECT min(id) FROM {self._table}").fetchall()
        return self._next_id if found[0][0] is None else int(found[0][0])

    def accept(self, written: Written) -> None:
        if self._index is None:
            return  # it will be read from the table
        self._due = written.since
        if written.lowest is not None:
            self._index.forget(written.lowest)
        if written.rows is not None:
            self._index.add(written.rows.column(HASH).to_numpy(), self._next_id)
        self._next_id = written.next_id


class SeenStreams:
    """The de-duplicated streams of a store, once opened."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        for statement in TABLES:
            connection.execute(statement)
        self._opened: dict[str, SeenKeys] = {}

    def open(self, stream: Stream) -> bool:
        """Make the stream known; in a transaction. False when its verdicts so far do not hold for
        the definition as it is now: they are gone, and its events must be judged anew."""
        stored = self._connection.execute(
            "SELECT number, definition FROM _headrace.deduplicated WHERE stream = ?",
            [stream.name],
        ).fetchall()
        if stream.deduplication is None:
            return not stored or self._remove(stream.name, stored[0][0])
        definition = definition_of(stream)
        if stored and stored[0][1] == definition:
            self._opened[stream.name] = SeenKeys(self._connection, stored[0][0], stream)
            return True
        if stored:
            self._remove(stream.name, stored[0][0])
        number = self._free_number()
        self._connection.execute(
            "INSERT INTO _headrace.deduplicated VALUES (?, ?, ?)",
            [number, stream.name, definition],
        )
        keys = self._opened[stream.name] = SeenKeys(self._connection, number, stream)
        keys.create()
        return False

    def _free_number(self) -> int:
        found = self._connection.execute(
            "SELECT coalesce(max(number), -1) + 1 FROM _headrace.deduplicated"
        ).fetchall()
        return int(found[0][0])

    def _remove(self, stream: str, number: int) -> bool:
        self._connection.execute("DELETE FROM _headrace.deduplicated WHERE stream = ?", [stream])
        self._connection.execute(f"DROP TABLE IF EXISTS _headrace.seen_{number}")
        DuplicateRecord(self._connection, number).clear()
        self._opened.pop(stream, None)
        return False

    def write(self, streams: Sequence[StreamWrite]) -> Mapping[str, Written]:
        """In the tick's transaction; `accept` follows once that is durable."""
        return {s.stream: self[s.stream].write(s) for s in streams if s.stream in self}

    def accept(self, written: Mapping[str, Written]) -> None:
        for stream, one in written.items():
            self[stream].accept(one)

    def __getitem__(self, stream: str) -> SeenKeys:
        return self._opened[stream]

    def __contains__(self, stream: str) -> bool:
        return stream in self._opened

    def forget(self) -> None:
        for keys in self._opened.values():
            keys.forget()


def _with(schema: pa.Schema, *numbers: str) -> pa.Schema:
    return pa.schema([*schema, *((name, pa.int64()) for name in numbers)])


def _numbered(events: pa.Table, numbers: Numbers) -> pa.Table:
    return events.append_column("number", pa.array(numbers, pa.int64()))


def _repeated(entries: npt.NDArray[np.uint64], among: Booleans) -> Numbers:
    """The numbers whose part of the hash is there more than once, `among` those asked for."""
    numbers = (entries & np.uint64(ROWS_MAX - 1)).astype(np.int64)
    asked = among[numbers]
    numbers, hashes = numbers[asked], entries[asked] // np.uint64(ROWS_MAX)
    same = hashes[1:] == hashes[:-1]
    repeated = np.zeros(len(numbers), dtype=np.bool_)
    repeated[1:] |= same
    repeated[:-1] |= same
    return np.sort(numbers[repeated])
