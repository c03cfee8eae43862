"""Duplicates against the definition, said once more as a loop over the log: random events, tick
boundaries, restarts, ticks that are lost, and readings of what was judged before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tampering import in_tables

from headrace.engine.dedup import Verdict, find_duplicates
from headrace.log.contract import Group, LogReader, PartitionBatch, Range, stored_schema
from headrace.log.embedded.backend import EmbeddedAddress, open_writer
from headrace.model.definitions import Column, Deduplication, Stream
from headrace.model.settings import EngineSettings, GatewaySettings, LogSettings, StoreSettings
from headrace.model.types import parse_type
from headrace.store import dedup_keys as seen
from headrace.store.contract import Store, StreamCounts, StreamWrite, TickWrite
from headrace.store.opening import open_store

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = 1_000_000
PARTITIONS = 2
Event = Mapping[str, Any]


def stream_of(within: int, delay: int, columns: tuple[str, ...]) -> Stream:
    return Stream(
        "readings",
        (
            Column("name", parse_type("STRING")),
            Column("amount", parse_type("DECIMAL(20, 2)")),
            Column("sent", parse_type("TIMESTAMP")),
            Column("level", parse_type("DOUBLE")),
            Column("at", parse_type("TIMESTAMP"), nullable=False),
        ),
        event_time="at",
        delay_microseconds=delay * SECOND,
        deduplication=Deduplication(columns, within * SECOND),
        partitions=PARTITIONS,
    )


def duplicates_by_definition(stream: Stream, events: Sequence[Event]) -> list[int]:
    """The offsets of one partition's duplicates."""
    assert stream.deduplication is not None
    within = dt.timedelta(microseconds=stream.deduplication.within_microseconds)
    delay = dt.timedelta(microseconds=stream.delay_microseconds)
    accepted: list[tuple[Any, dt.datetime, dt.datetime]] = []
    highest: dt.datetime | None = None
    found = []
    for offset, event in enumerate(events):
        key = tuple(event[name] for name in stream.deduplication.columns)
        watermark = None if highest is None else highest - delay
        highest = event["at"] if highest is None else max(highest, event["at"])
        if any(
            key == other
            and abs(event["at"] - at) <= within
            and (watermark is None or mark >= watermark - 2 * within)
            for other, at, mark in accepted
        ):
            found.append(offset)
        else:
            accepted.append((key, event["at"], highest))
    return found


@dataclass
class Judged:
    """A stream's log with a store that can be closed and opened again."""

    directory: Path
    stream: Stream
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    store: Store | None = None
    generation: int = 0

    def append(self, events: Sequence[Event], *partitions: int) -> None:
        """The same events to each of these partitions."""
        self.directory.mkdir(parents=True, exist_ok=True)
        writer = open_writer(self.directory, [self.stream], LogSettings(), GatewaySettings())
        rows = [{"_received_at": 0, **event} for event in events]
        batch = pa.RecordBatch.from_pylist(rows, schema=stored_schema(self.stream))
        writer.append(Group(tuple(PartitionBatch(self.stream.name, p, batch) for p in partitions)))
        writer.close()
        for partition in partitions:
            self.ends[partition] += len(events)

    def open(self, name: str = "store") -> None:
        self.store = open_store(self.directory / f"{name}.duckdb", StoreSettings())
        self.store.open_stream(self.stream)
        self.generation = self.store.claim()

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store = None

    @property
    def reached(self) -> Mapping[int, int]:
        progress = self.opened.streams().get(self.stream.name)
        return progress.next_offsets if progress is not None else {}

    @property
    def reader(self) -> LogReader:
        return EmbeddedAddress(self.directory).open([self.stream])

    def judge(self, ranges: Sequence[Range]) -> Verdict:
        return find_duplicates(self.reader, self.opened, self.stream, ranges, self.reached)

    def waiting(self, rows: int) -> list[Range]:
        starts = {p: self.reached.get(p, 0) for p in range(PARTITIONS)}
        return [
            self.reader.cut(self.stream.name, p, start, self.ends[p], rows)
            for p, start in starts.items()
            if start < self.ends[p]
        ]

    def tick(self, ranges: Sequence[Range], verdict: Verdict) -> None:
        advanced = sum(r.rows for r in ranges)
        duplicate = sum(map(len, verdict.duplicates.values()))
        assert verdict.dedup_keys is not None
        write = StreamWrite(
            self.stream.name,
            {**self.reached, **{r.partition: r.end for r in ranges}},
            StreamCounts(advanced, verdict.dedup_keys.num_rows, duplicate),
            verdict.dedup_keys,
            verdict.duplicates,
            verdict.dedup_keys_since,
        )
        number = self.opened.last_tick() + 1
        self.opened.commit(TickWrite(number, self.generation, 0, (), (write,)))

    def drain(self, rows: int) -> None:
        while ranges := self.waiting(rows):
            self.tick(ranges, self.judge(ranges))

    def recorded(self, partition: int, start: int, end: int) -> list[int]:
        return self.opened.duplicates(self.stream.name, partition, start, end).tolist()

    def kept_marks(self, partition: int) -> list[int]:
        rows = in_tables(
            self.opened, f"SELECT mark FROM {{books}}.dedup_keys_0 WHERE partition = {partition}"
        )
        return [row[0] for row in rows]


@contextmanager
def patched(**values: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(seen, name, value)
        yield


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from([None, "", "a", "b", "ä", "a longer name than fits inline"]),
            "amount": st.sampled_from([None, Decimal("1.50"), Decimal("-1.50")]),
            "sent": st.sampled_from([None, EPOCH]),
            "level": st.sampled_from([None, 0.0, -0.0, 1.5]),
            "at": st.integers(0, 120).map(lambda s: EPOCH + dt.timedelta(seconds=s)),
        }
    ),
    max_size=25,
)
KEYS = (("name",), ("name", "amount"), ("sent", "level"), ("name", "at"))


@pytest.mark.contract
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    batches=st.lists(EVENTS, min_size=1, max_size=4),
    within=st.sampled_from([0, 1, 5, 20, 500]),
    delay=st.sampled_from([0, 3, 40]),
    columns=st.sampled_from(KEYS),
    collide=st.booleans(),
    indexed=st.sampled_from([0, 5, 1 << 24]),
    data=st.data(),
)
def test_duplicates_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[Event]],
    within: int,
    delay: int,
    columns: tuple[str, ...],
    collide: bool,
    indexed: int,
    data: st.DataObject,
) -> None:
    stream = stream_of(within, delay, columns)
    judged = Judged(tmp_path_factory.mktemp("log"), stream)
    judged.append([{**_EMPTY}], *range(PARTITIONS))  # which begin together
    log: list[list[Event]] = [[{**_EMPTY}] for _ in range(PARTITIONS)]
    rows = st.sampled_from([1, 3, 10, 100])
    hash_sql = "hash({}) % 2" if collide else seen.HASH_SQL
    with patched(HASH_SQL=hash_sql, INDEXED_ROWS_MAX=indexed, PRUNE_TICKS=2):
        judged.open()
        for number, events in enumerate(batches):
            partition = number % PARTITIONS
            judged.append(events or [{**_EMPTY}], partition)
            log[partition] += events or [{**_EMPTY}]
            for action in data.draw(st.lists(st.sampled_from(ACTIONS), max_size=3)):
                ranges = judged.waiting(data.draw(rows))
                if action == "restart":
                    judged.close()
                    judged.open()
                elif ranges and action == "lose":
                    judged.judge(ranges)
                elif ranges:
                    judged.tick(ranges, judged.judge(ranges))
        judged.drain(data.draw(rows))
        expected = [duplicates_by_definition(stream, events) for events in log]
        _check_record(judged, expected, data)
        _check_kept(judged, log)
        judged.close()
        judged.open("replayed")
        judged.drain(data.draw(rows))
        expected = [duplicates_by_definition(stream, events) for events in log]
        _check_record(judged, expected, data)
        judged.close()


_EMPTY: Event = {"name": None, "amount": None, "sent": None, "level": None, "at": EPOCH}
ACTIONS = ("tick", "tick", "lose", "restart")


def _check_record(judged: Judged, expected: Sequence[Sequence[int]], data: st.DataObject) -> None:
    """Counts, the record, and what a view that is behind would leave out."""
    totals = judged.opened.streams()["readings"].totals
    assert totals.duplicate == sum(map(len, expected))
    assert totals.accepted == sum(judged.ends) - totals.duplicate
    for partition, offsets in enumerate(expected):
        end = judged.ends[partition]
        assert judged.recorded(partition, 0, end) == offsets
        start, stop = sorted(data.draw(st.tuples(st.integers(0, end), st.integers(0, end))))
        behind = judged.judge([judged.reader.cut(judged.stream.name, partition, start, stop)])
        wanted = [offset for offset in offsets if start <= offset < stop]
        assert behind.excluded.get(partition, np.zeros(0)).tolist() == wanted
        assert behind.dedup_keys is None


def _check_kept(judged: Judged, log: list[list[Event]]) -> None:
    """Some events far ahead, and nothing is kept of what came before them."""
    ahead = {**_EMPTY, "at": EPOCH + dt.timedelta(days=1)}
    for _ in range(4):  # the first moves the watermark, which the next see
        judged.append([ahead], 0)
        log[0].append(ahead)
        judged.drain(1)
    assert set(judged.kept_marks(0)) == {int(ahead["at"].timestamp()) * SECOND}


@pytest.mark.contract
def test_an_event_within_the_interval_of_the_watermark_meets_all_it_may_equal(
    tmp_path: Path,
) -> None:
    """The bound of what is kept is no closer than the definition needs."""
    stream = stream_of(within=10, delay=5, columns=("name",))
    judged = Judged(tmp_path, stream)
    at = [0, 25, 10]  # W = 20 before the last: it is as far behind as `within`
    judged.append([{**_EMPTY, "name": "ab"[s == 25], "at": _time(s)} for s in at], 0)
    judged.open()
    judged.drain(1)
    assert judged.recorded(0, 0, 3) == [2]
    judged.close()


@pytest.mark.contract
def test_a_very_late_event_sent_twice_is_recognised(tmp_path: Path) -> None:
    stream = stream_of(within=10, delay=5, columns=("name",))
    judged = Judged(tmp_path, stream)
    at = [100_000, 7, 7]
    judged.append([{**_EMPTY, "at": _time(s)} for s in at], 0)
    judged.open()
    judged.drain(1)
    assert judged.recorded(0, 0, 3) == [2]
    judged.close()


@pytest.mark.contract
def test_another_definition_is_judged_anew(tmp_path: Path) -> None:
    judged = Judged(tmp_path, stream_of(within=10, delay=5, columns=("name",)))
    judged.append([{**_EMPTY, "level": level, "at": _time(0)} for level in (1.0, 2.0, 1.0)], 0)
    judged.open()
    judged.drain(10)
    assert judged.recorded(0, 0, 3) == [1, 2]
    judged.close()
    judged.stream = stream_of(within=10, delay=5, columns=("level",))
    judged.open()
    assert judged.reached == {}
    judged.close()
    judged.open()
    assert judged.reached == {}, "durably"
    judged.drain(10)
    assert judged.recorded(0, 0, 3) == [2]
    judged.close()


VIEWED = """
CREATE STREAM readings (name STRING, level BIGINT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 3 SECONDS
LATE REVISE
DEDUPLICATE BY (name, level) WITHIN INTERVAL WITHIN_SECONDS SECONDS
PARTITION BY (name) INTO 2 PARTITIONS;
CREATE MATERIALIZED VIEW totals AS
SELECT name, count(*) AS events, sum(level) AS total FROM readings GROUP BY name;
"""
ADDED = """
CREATE MATERIALIZED VIEW high AS
SELECT count(*) AS events, sum(level) AS total FROM readings WHERE level > 2;
"""


@pytest.mark.parametrize(("rows_max", "within"), [(7, 10), (1_000, 300)])
def test_views_hold_what_was_accepted(
    make_rig: Callable[..., Any], rows_max: int, within: int
) -> None:
    """Over a crash, a view that is added later and one that is rebuilt."""
    viewed = VIEWED.replace("WITHIN_SECONDS", str(within))
    rig = make_rig(viewed, engine=EngineSettings(tick_rows_max=rows_max))
    random = Random(rows_max)
    rig.start()
    log: list[list[Event]] = [[], []]
    for number, action in enumerate(["tick", "crash", "tick", "add", "tick", "rebuild"]):
        events = [
            {"name": random.choice([None, "a", "b"]), "level": random.randrange(6), "at": _time(s)}
            for s in (random.randrange(10 * number, 10 * number + 30) for _ in range(12))
        ]
        rig.append("readings", events, partition=number % 2)
        log[number % 2] += events
        if action == "tick":
            rig.engine.step()
        elif action == "rebuild":
            rig.control.rebuild("totals")
            rig.engine.rebuild_what_was_asked()
        else:
            rig.lose_store()
            if action == "add":
                rig.redefine(viewed + ADDED)
            rig.start()
    rig.settle()
    (stream,) = rig.project.streams
    gone = [set(duplicates_by_definition(stream, events)) for events in log]
    kept = [
        e for part, dups in zip(log, gone, strict=True) for i, e in enumerate(part) if i not in dups
    ]
    found = {row["name"]: (row["events"], row["total"]) for row in rig.rows("totals")}
    assert found == {
        name: (len(mine), sum(mine))
        for name in {event["name"] for event in kept}
        for mine in [[event["level"] for event in kept if event["name"] == name]]
    }
    totals = rig.store.streams()["readings"].totals
    assert (totals.accepted, totals.duplicate) == (len(kept), sum(map(len, gone)))
    for entry in rig.store.catalog().values():
        assert (entry.totals.read, entry.totals.duplicate) == (totals.accepted, totals.duplicate)
    high = [event["level"] for event in kept if event["level"] > 2]
    assert rig.rows("high") == [{"events": len(high), "total": sum(high)}]
    assert totals.duplicate > 5


def _time(seconds: int) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)
