"""Idle partitions move on: how far, how often, and correctly after a restart."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.idle import IdleWatch, idle_advances
from headrace.log.contract import (
    NO_EVENT_TIME,
    Group,
    LogReader,
    LogWriter,
    PartitionBatch,
    stored_schema,
)
from headrace.log.embedded.backend import open_reader, open_writer
from headrace.model.definitions import Column, Project, Stream
from headrace.model.settings import Settings
from headrace.model.types import parse_type

NEVER = NO_EVENT_TIME
STREAM = Stream(
    "notes",
    (Column("at", parse_type("TIMESTAMP"), nullable=False),),
    event_time="at",
    delay_microseconds=50,
    idle_microseconds=100,
    partitions=3,
)


@pytest.mark.parametrize(
    ("received", "maxima", "written", "expected"),
    [
        # nothing is idle, or nothing ever came
        ((950, 960, 970), (5, 6, 7), {}, {}),
        ((NEVER, NEVER, NEVER), (NEVER, NEVER, NEVER), {}, {}),
        ((901, 960, 970), (5, 6, 7), {}, {}),
        # to the slowest of the active; one that never had an event is left alone
        ((900, 960, 970), (5, 7, 6), {}, {0: 6}),
        ((900, 960, NEVER), (5, 7, NEVER), {}, {0: 7}),
        ((800, 850, 970), (5, 6, 9), {}, {0: 9, 1: 9}),
        # it is further already
        ((900, 960, 970), (8, 7, 7), {}, {}),
        # all are idle: to the clock less the delay, so the maximum to the clock
        ((100, 200, 300), (5, 6, 7), {}, {0: 1_000, 1: 1_000, 2: 1_000}),
        ((100, NEVER, 300), (5, NEVER, 1_000), {}, {0: 1_000}),
        # one that only ever had an advance is idle
        ((NEVER, 960, 970), (5, 6, 7), {}, {0: 6}),
        # one that follows others is moved on before the interval is over again
        ((100, 960, 970), (5, 7, 6), {0: 899}, {0: 6}),
        # at most one per idle interval
        ((100, 200, 300), (5, 6, 7), {0: 901, 1: 900}, {1: 1_000, 2: 1_000}),
    ],
)
def test_what_is_due(received: Any, maxima: Any, written: Any, expected: dict[int, int]) -> None:
    due = idle_advances(STREAM, 1_000, received, maxima, written)
    assert {one.partition: one.maximum_microseconds for one in due} == expected
    assert {one.reason for one in due} <= {"idle"}


def events(stream: Stream, partition: int, at: int, received: int) -> Group:
    schema = stored_schema(stream)
    arrays = [pa.array([at], schema[0].type), pa.array([received], schema[1].type)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Group((PartitionBatch(stream.name, partition, batch),))


async def watched(directory: Path, stream: Stream, condition: Callable[[LogReader], bool]) -> None:
    """A gateway's watch over the log, until the condition is true."""
    settings = Settings(directory)
    reader = open_reader(settings.log_directory, [stream])
    loop = asyncio.get_running_loop()
    with opened(settings, stream) as writer:
        committer = Committer(settings, Project("p", (stream,)), writer, loop, Metrics())
        committer.start()
        task = loop.create_task(IdleWatch([stream], committer, reader).run())
        try:
            async with asyncio.timeout(60):
                while not condition(reader):
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.to_thread(committer.close)


@contextmanager
def opened(settings: Settings, stream: Stream) -> Iterator[LogWriter]:
    with closing(
        open_writer(settings.log_directory, [stream], settings.log, settings.gateway)
    ) as writer:
        yield writer


def test_a_restart_knows_when_the_last_event_came(tmp_path: Path) -> None:
    """Partition 0 has been idle since before the restart, 1 and 2 have not: an hour is not over."""
    stream = replace(STREAM, idle_microseconds=3_600_000_000)
    settings = Settings(tmp_path)
    now = time.time_ns() // 1000
    with opened(settings, stream) as writer:
        for partition, minutes in ((0, 61), (1, 30), (2, 1)):
            received = now - minutes * 60_000_000
            writer.append(events(stream, partition, received - 5_000_000, received))
    reader = open_reader(settings.log_directory, [stream])
    before = reader.maxima("notes")
    asyncio.run(watched(tmp_path, stream, lambda log: log.maxima("notes") != before))
    assert reader.maxima("notes") == (before[1], before[1], before[2])


def test_all_idle_follow_the_clock_with_one_record_per_interval(tmp_path: Path) -> None:
    stream = replace(STREAM, idle_microseconds=300_000, partitions=2)
    settings = Settings(tmp_path)
    with opened(settings, stream) as writer:
        writer.append(events(stream, 0, 5, 10))
    started = time.time_ns() // 1000
    asyncio.run(watched(tmp_path, stream, lambda log: len(log.advances("notes", 0, 0, 1)) >= 3))
    reader = open_reader(settings.log_directory, [stream])
    records = reader.advances("notes", 0, 0, 1)
    reached = [record.maximum_microseconds for record in records]
    assert all(b - a >= 300_000 for a, b in itertools.pairwise(reached))
    assert reader.maxima("notes")[0] >= started
    assert reader.maxima("notes")[1] == NEVER
