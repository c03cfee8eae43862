"""The keys a de-duplicated stream has accepted, and the duplicates it has found.

    dedup_streams       a row per stream: its number and what its verdicts rest on
    dedup_keys_N        a row per accepted event: id, partition, time, mark, key0, key1, …
    duplicates          see duplicate_record.py

`time` is the event time, `mark` the partition's highest event time when the event was accepted,
both in microseconds. Ids ascend in the order of acceptance. Keys are compared by their columns,
NULLs equal; hashes only narrow what is compared: an index in memory (dedup_index.py) leads from
them to ids, and rows are fetched by their ids.

How a store uses it, on the thread that commits:

    keys = DedupKeys(backend, Calculator(…))
    commit(create=those of keys.definitions() that the backend lacks)
    opened = keys.open(stream)         # for every stream: commit its deltas, create, drop, then
    keys.accept()                      # and where `is_kept` is false forget the stream's progress
    known = keys.known("orders", events)
    deltas = keys.write(tick.streams)  # into the tick's one commit, and once that is durable
    keys.accept()

What was given and never accepted counts for nothing: the tick is written again from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, arrow_table
from headrace.model.definitions import Column, Stream
from headrace.model.errors import StoreError
from headrace.model.plan import BoundColumn
from headrace.model.tables import HIGH, LOW, Fetch, TableDefinition, TableDelta
from headrace.model.types import DataType
from headrace.store.backend import SCHEMA, Backend
from headrace.store.contract import KnownKeys, Offsets, StreamWrite
from headrace.store.dedup_index import ROWS_MAX, DedupIndex, packed
from headrace.store.duplicate_record import DUPLICATES, DuplicateRecord

__all__ = [
    "HASH",
    "MARK_TIME",
    "PARTITION",
    "SINCE",
    "TIME",
    "DedupKeys",
    "OpenedStream",
    "dedup_keys_schema",
    "events_schema",
    "key_columns",
]

PARTITION, TIME, SINCE, MARK_TIME, HASH = "partition", "time", "since", "mark", "hash"
ID, NUMBER = "id", "number"
STREAMS = TableDefinition(
    "dedup_streams",
    (
        BoundColumn("stream", DataType("STRING")),
        BoundColumn(NUMBER, DataType("BIGINT")),
        BoundColumn("definition", DataType("STRING")),
    ),
    key=("stream",),
)
PRUNE_TICKS = 16  # small ticks leave it to every so many
PRUNE_ROWS_MIN = 50_000
INDEXED_ROWS_MAX = ROWS_MAX
HASH_SQL = "hash({})"
_LEAST = -(2**63)  # no mark is lower

Booleans = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


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


def dedup_keys_schema(stream: Stream) -> pa.Schema:
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


def _table(number: int, stream: Stream) -> TableDefinition:
    numbers = ((ID, "BIGINT"), (PARTITION, "INT"), (TIME, "BIGINT"), (MARK_TIME, "BIGINT"))
    return TableDefinition(
        _table_name(number),
        (
            *(BoundColumn(name, DataType(type_)) for name, type_ in numbers),
            *(BoundColumn(_key_name(i), c.type) for i, c in enumerate(key_columns(stream))),
        ),
        key=(ID,),
        is_brief=True,
    )


def _table_name(number: int) -> str:
    return f"dedup_keys_{number}"


@dataclass(frozen=True)
class OpenedStream:
    """What is to be committed. `is_kept` is false when the verdicts so far do not hold for the
    definition as it is now: they go, and the stream's events must be judged anew."""

    is_kept: bool
    deltas: tuple[TableDelta, ...] = ()
    create: tuple[TableDefinition, ...] = ()
    drop: tuple[str, ...] = ()


class DedupKeys:
    """The de-duplicated streams of a store."""

    def __init__(self, backend: Backend, calculator: Calculator) -> None:
        self._backend = backend
        self._calculator = calculator
        self._opened: dict[str, _StreamKeys] = {}
        self._opening: dict[str, _StreamKeys | None] = {}  # None: no longer de-duplicated
        self._written: list[_StreamKeys] = []

    def definitions(self) -> tuple[TableDefinition, ...]:
        """What there must be before a stream is opened; tables of streams come beside them."""
        return (STREAMS, DUPLICATES)

    def open(self, stream: Stream) -> OpenedStream:
        stored = self._stored()
        known = stored.get(stream.name)
        self._opening = {}
        if stream.deduplication is None:
            return OpenedStream(True) if known is None else self._without(stream.name, known[0])
        definition = definition_of(stream)
        if known is not None and known[1] == definition:
            self._opening[stream.name] = self._keys_of(known[0], stream)
            return OpenedStream(True)
        number = max((number for number, _ in stored.values()), default=-1) + 1
        self._opening[stream.name] = self._keys_of(number, stream)
        row = {"stream": [stream.name], NUMBER: [number], "definition": [definition]}
        deltas = [TableDelta(STREAMS.name, _named(stream.name), pa.table(row, STREAMS.schema))]
        drop: tuple[str, ...] = ()
        if known is not None:
            deltas.append(DuplicateRecord(known[0]).clear())
            drop = (_table_name(known[0]),)
        return OpenedStream(False, tuple(deltas), (_table(number, stream),), drop)

    def _stored(self) -> Mapping[str, tuple[int, str]]:
        anything = pa.table({"stream": pa.array([None], pa.string())})
        (rows,) = self._backend.fetch([Fetch(STREAMS.name, (), anything)])
        return {r["stream"]: (r[NUMBER], r["definition"]) for r in rows.to_pylist()}

    def _keys_of(self, number: int, stream: Stream) -> _StreamKeys:
        return _StreamKeys(self._backend, self._calculator, number, stream)

    def _without(self, stream: str, number: int) -> OpenedStream:
        self._opening[stream] = None
        deltas = (TableDelta(STREAMS.name, gone=_named(stream)), DuplicateRecord(number).clear())
        return OpenedStream(False, deltas, drop=(_table_name(number),))

    def __contains__(self, stream: str) -> bool:
        return stream in self._opened

    def known(self, stream: str, events: pa.Table) -> KnownKeys:
        """About events as `events_schema` has them. Raises StoreError for more of them than can be
        told apart at once."""
        return self._opened[stream].known(events)

    def write(self, streams: Sequence[StreamWrite]) -> list[TableDelta]:
        """All that they ask of the tables is one call."""
        self._written = [self._opened[s.stream] for s in streams if s.stream in self._opened]
        asked = [
            self._opened[write.stream].asks(write)
            for write in streams
            if write.stream in self._opened
        ]
        fetches = [fetch for some in asked for fetch in some]
        answers = iter(self._backend.fetch(fetches) if fetches else ())
        return [
            delta
            for keys, some in zip(self._written, asked, strict=True)
            for delta in keys.deltas([next(answers) for _ in some])
        ]

    def accept(self) -> None:
        """What was given last is durable."""
        for stream, keys in self._opening.items():
            replaced = self._opened.pop(stream, None)
            if replaced is not None:
                replaced.close()
            if keys is not None:
                self._opened[stream] = keys
        for keys in self._written:
            keys.accept()
        self._opening, self._written = {}, []

    def forget(self) -> None:
        """What is remembered is read anew from the tables."""
        self._opening, self._written = {}, []
        for keys in self._opened.values():
            keys.forget()

    def duplicates(self, stream: str, partition: int, start: int, end: int) -> Offsets:
        """The offsets start ≤ offset < end that were recorded as duplicates, ascending."""
        record = self._opened[stream].record
        (places,) = self._backend.fetch([record.places(partition, start)])
        wanted = record.offsets(places, end)
        rows = places.slice(0, 0) if wanted is None else self._backend.fetch([wanted])[0]
        return record.within(rows, start, end)


def _named(stream: str) -> pa.Table:
    return pa.table({"stream": [stream]})


class _StreamKeys:
    """Of one stream. What is kept in memory moves on with `accept`."""

    def __init__(
        self, backend: Backend, calculator: Calculator, number: int, stream: Stream
    ) -> None:
        assert stream.deduplication is not None
        self._backend = backend
        self._number = number
        self._within = stream.deduplication.within_microseconds
        self._table = _table(number, stream)
        self._keys = [name for name, _ in _keys(stream)]
        asked = events_schema(stream)
        hashed = pa.schema([*(asked.field(name) for name in (PARTITION, *self._keys))])
        prepare, by = calculator.prepare, ", ".join([PARTITION, *self._keys])
        self._hash = prepare(
            {"rows": _with(hashed, NUMBER)},
            lambda slot: f"SELECT {NUMBER}, {HASH_SQL.format(by)} AS h FROM {slot['rows']}",
        )
        self._grouped = prepare(
            {"rows": _with(hashed, NUMBER)},
            lambda slot: (
                f"SELECT {NUMBER}, min({NUMBER}) OVER (PARTITION BY {by}) FROM {slot['rows']}"
            ),
        )
        stored = self._table.schema
        self._matching = prepare(
            {"pairs": _with(asked, NUMBER, ID), "rows": stored},
            lambda slot: (
                f"SELECT DISTINCT e.{NUMBER} FROM {slot['pairs']} e JOIN {slot['rows']} s"
                f" ON s.{ID} = e.{ID} AND {self._same_sql()}"
            ),
        )
        self._matching_any = prepare(
            {"events": _with(asked, NUMBER), "rows": stored},
            lambda slot: (
                f"SELECT DISTINCT e.{NUMBER} FROM {slot['events']} e JOIN {slot['rows']} s"
                f" ON {self._same_sql()}"
            ),
        )
        self.record = DuplicateRecord(number)
        self._index: DedupIndex | None = None
        self._next_id = 0
        self._due: Mapping[int, int] = {}  # marks below need not be kept
        self._unpruned_ticks = 0
        self._write: _Write | None = None

    def close(self) -> None:
        for statement in (self._hash, self._grouped, self._matching, self._matching_any):
            statement.close()

    def forget(self) -> None:
        self._index, self._write = None, None
        self._due = {}
        self.record = DuplicateRecord(self._number)

    # What is asked

    def known(self, events: pa.Table) -> KnownKeys:
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
            is_known[self._equal(events, places, ids)] = True
        if index.floor:
            is_known[self._equal_below(events, index.floor)] = True
        return KnownKeys(hashes, is_known, self._groups(events, _repeated(entries, ~is_known)))

    def _loaded(self) -> DedupIndex:
        if self._index is None:
            with self._backend.snapshot() as connection:
                ((end,),) = connection.execute(
                    f"SELECT coalesce(max({ID}), -1) + 1 FROM {self._stored}"
                ).fetchall()
                index = DedupIndex(max(0, int(end) - INDEXED_ROWS_MAX))
                by = ", ".join([PARTITION, *self._keys])
                stored = arrow_table(
                    connection,
                    f"SELECT {ID}, {HASH_SQL.format(by)} AS h FROM {self._stored}"
                    f" WHERE {ID} >= {index.floor}",
                )
            index.load(stored.column("h").to_numpy(), stored.column(ID).to_numpy())
            self._index, self._next_id = index, int(end)
        return self._index

    @property
    def _stored(self) -> str:
        return f"{SCHEMA}.{self._table.name}"

    def _hashes(self, events: pa.Table) -> Hashes:
        rows = events.num_rows
        found = self._hash.run(rows=_numbered(events, np.arange(rows)))
        hashes = np.empty(rows, dtype=np.uint64)
        hashes[found.column(NUMBER).to_numpy()] = found.column("h").to_numpy()
        return hashes

    def _equal(self, events: pa.Table, places: Numbers, ids: Numbers) -> Numbers:
        """Which events equal one of the stored rows that have the same hash."""
        wanted = np.unique(ids)
        asked = pa.table(
            {
                ID: wanted,
                LOW: np.full(len(wanted), wanted[0]),
                HIGH: np.full(len(wanted), wanted[-1]),
            }
        )
        (rows,) = self._backend.fetch([Fetch(self._table.name, (ID,), asked, time=ID)])
        pairs = _numbered(events.take(pa.array(places)), places).append_column(ID, pa.array(ids))
        found: Numbers = self._matching.run(pairs=pairs, rows=rows).column(0).to_numpy()
        return found

    def _equal_below(self, events: pa.Table, floor: int) -> Numbers:
        """The same for rows that the index does not hold: by a scan of the table."""
        times = events.column(TIME).to_numpy()
        asked = events.select([PARTITION, *self._keys])
        asked = asked.append_column(LOW, pa.array(times - self._within))
        asked = asked.append_column(HIGH, pa.array(times + self._within))
        fetch = Fetch(self._table.name, (PARTITION, *self._keys), asked, time=TIME)
        (rows,) = self._backend.fetch([fetch])
        below = rows.filter(pc.less(rows.column(ID), floor))
        numbered = _numbered(events, np.arange(events.num_rows))
        found: Numbers = self._matching_any.run(events=numbered, rows=below).column(0).to_numpy()
        return found

    def _same_sql(self) -> str:
        keys = [f"s.{key} IS NOT DISTINCT FROM e.{key}" for key in self._keys]
        times = f"s.{TIME} BETWEEN e.{TIME} - {self._within} AND e.{TIME} + {self._within}"
        both = f"s.{PARTITION} = e.{PARTITION} AND s.{MARK_TIME} >= e.{SINCE}"
        return " AND ".join([both, times, *keys])

    def _groups(self, events: pa.Table, places: Numbers) -> Numbers:
        groups = np.full(events.num_rows, -1, dtype=np.int64)
        if len(places):
            found = self._grouped.run(rows=_numbered(events.take(pa.array(places)), places))
            groups[found.column(0).to_numpy()] = found.column(1).to_numpy()
        return groups

    # What is written

    def asks(self, write: StreamWrite) -> Sequence[Fetch]:
        """What is to be fetched before `deltas`."""
        self._loaded()
        added = 0 if write.dedup_keys is None else write.dedup_keys.num_rows
        due = {**self._due, **{p: m for p, m in write.dedup_keys_since.items() if m > _LEAST}}
        is_pruning = self._is_due(added) and bool(due)
        self._write = _Write(write, self._next_id + added, due, is_pruning)
        pruned = [self._past(due)] if is_pruning else []
        return [*pruned, *self.record.asks(write.duplicates, write.oldest)]

    def deltas(self, answers: Sequence[pa.Table]) -> Sequence[TableDelta]:
        write = self._write
        assert write is not None
        gone = answers[0] if write.is_pruning else None
        put = None
        seen = write.write.dedup_keys
        if seen is not None and seen.num_rows:
            ids = pa.array(np.arange(self._next_id, write.next_id))
            put = seen.drop_columns([HASH]).append_column(ID, ids)
        rows = TableDelta(self._table.name, gone, put, are_keys_new=True)
        return [rows, *self.record.deltas(answers[1 if write.is_pruning else 0 :])]

    def _is_due(self, added: int) -> bool:
        self._unpruned_ticks += 1
        if added < PRUNE_ROWS_MIN and self._unpruned_ticks < PRUNE_TICKS:
            return False
        self._unpruned_ticks = 0
        return True

    def _past(self, since: Mapping[int, int]) -> Fetch:
        """Rows whose mark is too low to count against any event to come."""
        count = len(since)
        asked = {
            PARTITION: pa.array(list(since), pa.int32()),
            LOW: pa.array([None] * count, pa.int64()),
            HIGH: pa.array([mark - 1 for mark in since.values()], pa.int64()),
        }
        name = self._table.name
        return Fetch(name, (PARTITION,), pa.table(asked), time=MARK_TIME, columns=())

    def accept(self) -> None:
        self.record.accept()
        write, self._write = self._write, None
        if self._index is None or write is None:
            return  # it will be read from the table
        self._due = write.due
        if write.is_pruning:
            self._index.forget(self._lowest())
        if write.write.dedup_keys is not None:
            self._index.add(write.write.dedup_keys.column(HASH).to_numpy(), self._next_id)
        self._next_id = write.next_id

    def _lowest(self) -> int:
        with self._backend.snapshot() as connection:
            ((found,),) = connection.execute(f"SELECT min({ID}) FROM {self._stored}").fetchall()
        return self._next_id if found is None else int(found)


@dataclass(frozen=True)
class _Write:
    write: StreamWrite
    next_id: int
    due: Mapping[int, int]
    is_pruning: bool


def _with(schema: pa.Schema, *numbers: str) -> pa.Schema:
    return pa.schema([*schema, *((name, pa.int64()) for name in numbers)])


def _numbered(events: pa.Table, numbers: Numbers) -> pa.Table:
    return events.append_column(NUMBER, pa.array(numbers, pa.int64()))


def _repeated(entries: Hashes, among: Booleans) -> Numbers:
    """The numbers whose part of the hash is there more than once, `among` those asked for."""
    numbers = (entries & np.uint64(ROWS_MAX - 1)).astype(np.int64)
    asked = among[numbers]
    numbers, hashes = numbers[asked], entries[asked] // np.uint64(ROWS_MAX)
    same = hashes[1:] == hashes[:-1]
    repeated = np.zeros(len(numbers), dtype=np.bool_)
    repeated[1:] |= same
    repeated[:-1] |= same
    return np.sort(numbers[repeated])
