"""The keys of de-duplicated streams against plain Python, on every backend."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.kinds.calculator import Calculator
from headrace.model.definitions import Column, Deduplication, Stream
from headrace.model.errors import StoreError
from headrace.model.settings import StoreSettings
from headrace.model.tables import TableDelta
from headrace.model.types import parse_type
from headrace.store import dedup_keys, duplicate_record
from headrace.store.backend import Backend, Commit
from headrace.store.contract import StreamCounts, StreamWrite
from headrace.store.dedup_keys import (
    HASH,
    MARK_TIME,
    PARTITION,
    SINCE,
    TIME,
    DedupKeys,
    OpenedStream,
    dedup_keys_schema,
    events_schema,
)
from headrace.store.duckdb.keyed_tables import DuckBackend
from headrace.store.memory.backend import MemoryBackend

WITHIN = 10
NAMES = [None, "", "a", "b", "ä", "a longer name than fits inline"]
AMOUNTS = [None, Decimal("1.50"), Decimal("-1.50")]
READINGS = Stream(
    "readings",
    (
        Column("name", parse_type("STRING")),
        Column("amount", parse_type("DECIMAL(20, 2)")),
        Column("at", parse_type("TIMESTAMP"), nullable=False),
    ),
    event_time="at",
    deduplication=Deduplication(("amount", "name"), WITHIN),
    partitions=2,
)


@dataclass
class Keys:
    """A backend with its keys, which can be closed and opened again."""

    file: Path | None
    streams: Sequence[Stream]
    backend: Backend = field(init=False)
    keys: DedupKeys = field(init=False)
    generation: int = 0

    def __post_init__(self) -> None:
        if self.file is None:
            self.backend = MemoryBackend(StoreSettings())
        self.open()

    def open(self) -> None:
        if self.file is not None:
            self.backend = DuckBackend(self.file, StoreSettings())
        self.keys = DedupKeys(self.backend, Calculator(self.backend.computing()))
        self.generation = self.backend.claim()
        there = self.backend.definitions()
        lacking = [d for d in self.keys.definitions() if d.name not in there]
        self.backend.commit(Commit(self.generation, create=lacking))
        for stream in self.streams:
            self.open_stream(stream)

    def open_stream(self, stream: Stream) -> OpenedStream:
        opened = self.keys.open(stream)
        self.commit(opened.deltas, create=opened.create, drop=opened.drop)
        return opened

    def commit(self, deltas: Sequence[TableDelta], **more: Any) -> None:
        self.backend.commit(Commit(self.generation, deltas, **more))
        self.keys.accept()

    def reopen(self) -> None:
        """Also what is in memory has nothing left but its tables."""
        if self.file is not None:
            self.backend.close()
        self.open()

    def write(self, *writes: StreamWrite) -> None:
        self.commit(self.keys.write(writes))

    def marks(self, number: int = 0) -> list[int]:
        with self.backend.snapshot() as connection:
            found = connection.execute(f"SELECT mark FROM _headrace.dedup_keys_{number}").fetchall()
        return [row[0] for row in found]

    def recorded(self, partition: int, start: int, end: int) -> list[int]:
        return self.keys.duplicates("readings", partition, start, end).tolist()


@pytest.fixture(params=["duckdb", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Keys]]:
    made: list[Keys] = []

    def open_(*streams: Stream) -> Keys:
        file = tmp_path / "store.duckdb" if request.param == "duckdb" else None
        made.append(Keys(file, streams or (READINGS,)))
        return made[-1]

    yield open_
    for one in made:
        one.backend.close()


Event = Mapping[str, Any]


def event(chance: random.Random, now: int, since: int) -> Event:
    return {
        PARTITION: chance.randrange(2),
        TIME: chance.randrange(now, now + 25),
        SINCE: since,
        "key0": chance.choice(AMOUNTS),
        "key1": chance.choice(NAMES),
    }


def key(row: Event) -> tuple[Any, ...]:
    return row[PARTITION], row["key0"], row["key1"]


def is_known(row: Event, accepted: Sequence[Event]) -> bool:
    return any(
        key(row) == key(other)
        and abs(row[TIME] - other[TIME]) <= WITHIN
        and other[MARK_TIME] >= row[SINCE]
        for other in accepted
    )


def write(
    rows: Sequence[Event], hashes: Sequence[int], stream: Stream = READINGS, **more: Any
) -> StreamWrite:
    given = [{**row, HASH: hash_} for row, hash_ in zip(rows, hashes, strict=True)]
    seen = pa.Table.from_pylist(given, dedup_keys_schema(stream))
    return StreamWrite(stream.name, {}, StreamCounts(), seen, **more)


@pytest.mark.parametrize(
    ("hash_sql", "indexed"),
    [("hash({})", 1 << 24), ("hash({})", 20), ("(hash({}) % 3)::UBIGINT << 24", 1 << 24)],
    ids=["as it is", "a short index", "keys that share their hashes"],
)
def test_what_is_known_is_what_was_accepted(
    opened: Callable[..., Keys],
    seed: int,
    hash_sql: str,
    indexed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedup_keys, "HASH_SQL", hash_sql)
    monkeypatch.setattr(dedup_keys, "INDEXED_ROWS_MAX", indexed)
    monkeypatch.setattr(dedup_keys, "PRUNE_TICKS", 3)
    chance = random.Random(seed)
    store, accepted, now, found = opened(), list[Event](), 0, 0
    for _ in range(30):
        since = max(0, now - 20)
        events = [event(chance, now, since) for _ in range(chance.randrange(1, 9))]
        asked = pa.Table.from_pylist(list(events), events_schema(READINGS))
        known = store.keys.known("readings", asked)
        assert known.is_known.tolist() == [is_known(row, accepted) for row in events]
        found += sum(known.is_known.tolist())
        for i, row in enumerate(events):
            assert known.groups[i] == -1 or not known.is_known[i]
            for j, other in enumerate(events):
                if i != j and not known.is_known[i] and not known.is_known[j]:
                    is_one = known.groups[i] == known.groups[j] != -1
                    assert is_one == (key(row) == key(other))
        new = [i for i, row in enumerate(events) if not known.is_known[i]]
        rows = [{**events[i], MARK_TIME: now + chance.randrange(5)} for i in new]
        now += chance.randrange(12)
        tick = write(
            rows,
            known.hashes[new].tolist(),
            dedup_keys_since={p: max(0, now - 20) for p in range(2)},
        )
        if chance.random() < 0.2:
            store.keys.write([tick])  # a tick that was not stored
        store.write(tick)
        accepted += rows
        if chance.random() < 0.15:
            store.reopen()
        elif chance.random() < 0.1:
            store.keys.forget()
    assert found > 3
    for _ in range(3):
        store.write(write([], [], dedup_keys_since={0: now, 1: now - 1}))
    last = [row for row in accepted if row[MARK_TIME] >= now - row[PARTITION]]
    assert sorted(store.marks()) == sorted(row[MARK_TIME] for row in last)


def test_more_events_than_can_be_told_apart_are_refused(
    opened: Callable[..., Keys], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_keys, "ROWS_MAX", 3)
    chance = random.Random(0)
    events = pa.Table.from_pylist([dict(event(chance, 0, 0))] * 4, events_schema(READINGS))
    with pytest.raises(StoreError, match="4 events cannot be de-duplicated"):
        opened().keys.known("readings", events)


def test_another_definition_begins_anew(opened: Callable[..., Keys]) -> None:
    other = replace(READINGS, name="others")
    store = opened(READINGS, other)
    row = {PARTITION: 0, TIME: 1, SINCE: 0, MARK_TIME: 1, "key0": None, "key1": "a"}
    duplicates = {0: np.array([1, 2])}
    store.write(
        write([row], [7], duplicates=duplicates),
        write([row, row], [7, 7], other, duplicates=duplicates),
    )
    assert store.open_stream(READINGS).is_kept
    assert store.recorded(0, 0, 9) == [1, 2]
    wider = replace(READINGS, deduplication=Deduplication(("name", "amount"), WITHIN + 1))
    assert not store.open_stream(wider).is_kept
    assert store.recorded(0, 0, 9) == []
    tables = set(store.backend.definitions())
    assert tables == {"dedup_streams", "duplicates", "dedup_keys_1", "dedup_keys_2"}
    assert (len(store.marks(1)), len(store.marks(2))) == (2, 0)
    assert store.keys.duplicates("others", 0, 0, 9).tolist() == [1, 2]
    plain = replace(READINGS, deduplication=None)
    assert not store.open_stream(plain).is_kept
    assert store.open_stream(plain).is_kept
    assert "readings" not in store.keys
    assert set(store.backend.definitions()) == {"dedup_streams", "duplicates", "dedup_keys_1"}
    store.write(write([row], [7]))  # says nothing of a stream that is not de-duplicated
    assert not store.open_stream(READINGS).is_kept


def test_the_record_gives_back_what_was_found(
    opened: Callable[..., Keys], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_record, "SHORT_ROWS_MAX", 5)
    monkeypatch.setattr(duplicate_record, "SHORT_BYTES", 40)
    monkeypatch.setattr(duplicate_record, "FORGET_TICKS", 1)
    chance = random.Random(seed)
    other = replace(READINGS, name="others")
    store = opened(READINGS, other)
    expected: list[int] = []
    ticks = 40
    for tick in range(ticks):
        found = [tick * 31 + i for i in sorted(chance.sample(range(31), chance.randrange(6)))]
        expected += found
        duplicates = {0: np.array(found, dtype=np.int64), 1: np.array([tick])}
        store.write(
            write([], [], duplicates=duplicates),
            write([], [], other, duplicates={0: np.array([tick])}),
        )
        if chance.random() < 0.1:
            store.reopen()
    lowest = 0
    for _ in range(20):
        start, end = sorted(chance.randrange(lowest, ticks * 31) for _ in range(2))
        wanted = [offset for offset in expected if start <= offset < end]
        assert store.recorded(0, start, end) == wanted
        assert store.recorded(1, 0, 99) == list(range(ticks))
        lowest = chance.randrange(lowest, start + 1)
        store.write(write([], [], oldest={0: lowest, 1: 0}))
    store.write(write([], [], oldest={0: ticks * 31, 1: 0}))
    assert store.recorded(0, 0, ticks * 31) == []
    assert store.recorded(1, 0, 99) == list(range(ticks))
    assert store.keys.duplicates("others", 0, 0, 99).tolist() == list(range(ticks))
    with store.backend.snapshot() as connection:
        counts = "SELECT count(*) FROM _headrace.duplicates GROUP BY number"
        assert max(row[0] for row in connection.execute(counts).fetchall()) <= ticks // 2


def test_a_record_over_a_wide_range_is_exact(opened: Callable[..., Keys]) -> None:
    store = opened()
    offsets = [5, 2**32 + 4, 2**32 + 5, 2**40]
    store.write(write([], [], duplicates={0: np.array(offsets)}))
    assert store.recorded(0, 0, 2**50) == offsets
