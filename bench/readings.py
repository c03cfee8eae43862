"""Readings of sensors: eight columns, and as many keys as a figure asks for.

The first readings come from every sensor once, so that all keys are stored; after that each is of
any sensor, all alike. They are out of order, and one in a hundred is late, as the shop's events
are. Bodies may go to one stream or to many by turns; `written` says which stream got what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.events import CHUNK_EVENTS, START_MICROSECONDS, delays, mixed, tables

__all__ = ["SCHEMA", "Readings", "create_stream", "events_of", "written"]

ROOMS = tuple(f"room-{number:03}" for number in range(100))
STATUSES = ("open", "moving", "stopped", "closed")
NOTES = tuple(f"note {number:02} of the sensor" for number in range(50))
LEVELS = 1_000
AMOUNTS = pa.array([Decimal(cents) / 100 for cents in range(1, 10_001)], pa.decimal128(18, 2))

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("sensor", pa.int64(), nullable=False),
        pa.field("room", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("level", pa.int64(), nullable=False),
        pa.field("amount", pa.decimal128(18, 2), nullable=False),
        pa.field("note", pa.string(), nullable=False),
        pa.field("read_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def create_stream(name: str, partitions: int) -> str:
    return f"""\
CREATE STREAM {name} (
  id STRING NOT NULL,
  sensor BIGINT NOT NULL,
  room STRING NOT NULL,
  status STRING NOT NULL,
  level BIGINT NOT NULL,
  amount DECIMAL(18, 2) NOT NULL,
  note STRING NOT NULL,
  read_at TIMESTAMP NOT NULL
)
WATERMARK read_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (sensor) INTO {partitions} PARTITIONS;
"""


@dataclass(frozen=True)
class Readings:
    """`rate` is how many readings, of all streams together, share one second of event time."""

    seed: int
    rate: int
    keys: int
    streams: tuple[str, ...] = ("readings",)

    def columns(self, chunk: int) -> pa.RecordBatch:
        random = np.random.default_rng([self.seed, chunk])
        first = chunk * CHUNK_EVENTS
        numbers = np.arange(first, first + CHUNK_EVENTS, dtype=np.int64)
        at = np.maximum(numbers * 1_000_000 // self.rate - delays(random), 0) + START_MICROSECONDS
        drawn = random.integers(0, self.keys, CHUNK_EVENTS)
        sensor = np.where(numbers < self.keys, numbers, drawn)
        return pa.RecordBatch.from_arrays(
            [
                mixed(first),
                pa.array(sensor),
                pa.array(ROOMS).take(pa.array(sensor % len(ROOMS))),
                pa.array(STATUSES).take(pa.array(random.integers(0, len(STATUSES), CHUNK_EVENTS))),
                pa.array(random.integers(0, LEVELS, CHUNK_EVENTS)),
                AMOUNTS.take(pa.array(random.integers(0, len(AMOUNTS), CHUNK_EVENTS))),
                pa.array(NOTES).take(pa.array(random.integers(0, len(NOTES), CHUNK_EVENTS))),
                pa.array(at, pa.timestamp("us", "UTC")),
            ],
            schema=SCHEMA,
        )


def events_of(streams: Sequence[str], events: int, size: int) -> Mapping[str, int]:
    """How many of the first `events` events each stream gets, in bodies of `size`."""
    bodies = events // size
    return {
        stream: (bodies - number + len(streams) - 1) // len(streams) * size
        for number, stream in enumerate(streams)
    }


def written(directory: Path, workload: Readings, events: int, size: int) -> dict[str, list[Path]]:
    """The workload's first `events` events, sent in bodies of `size`, as files by stream."""
    directory.mkdir(parents=True)
    streams = workload.streams
    files: dict[str, list[Path]] = {stream: [] for stream in streams}
    for chunk, batch in enumerate(tables(workload, events)):
        numbers = np.arange(batch.num_rows) + chunk * CHUNK_EVENTS
        turns = numbers // size % len(streams)
        for number, stream in enumerate(streams):
            file = directory / f"{stream}-{chunk:05}.parquet"
            rows = batch.take(pa.array(np.flatnonzero(turns == number)))
            pq.write_table(pa.Table.from_batches([rows]), file)
            files[stream].append(file)
    return files
