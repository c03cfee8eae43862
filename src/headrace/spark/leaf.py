"""The leaf of every tick's plan: a Spark task turns offset ranges into Arrow batches.

This runs in Spark's Python workers. The plan is built once; what a tick reads is not in the plan
but in a local property of the job, so the same plan serves every tick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.log.contract import (
    CLOCK_OFFSET,
    EVENT_TIME,
    NO_EVENT_TIME,
    QUALITIES,
    QUALITY,
    RECEIVED_AT,
    LogAddress,
    LogBatch,
    LogReader,
    Range,
    clock_column,
)
from headrace.model.definitions import LOOKUP, Column, Stream
from headrace.model.types import DataType
from headrace.spark.event_annotations import ANNOTATION, EventAnnotations, load_annotations
from headrace.spark.looked_up import load_looked_up

__all__ = [
    "CLOCK_OFFSET",
    "EVENT_TIME",
    "OFFSET",
    "PARTITION",
    "POSITION",
    "POSITION_COLUMNS",
    "QUALITY",
    "RANGES_PROPERTY",
    "WATERMARK",
    "Source",
    "decode_ranges",
    "encode_ranges",
    "source_type",
    "unscaled_column",
]

RANGES_PROPERTY = "headrace.ranges"
PARTITION = "_partition"  # INT
OFFSET = "_offset"  # BIGINT
POSITION = "_position"  # BIGINT, of the group commit in the one order of the log
WATERMARK = "_watermark"  # BIGINT, microseconds: the partition's watermark before this event
BATCH_ROWS_MAX = 100_000
UNSCALED_PRECISION_MAX = 18
_UNSCALED = "_unscaled_"
NO_ANNOTATIONS = EventAnnotations()
POSITION_COLUMNS = (
    PARTITION,
    OFFSET,
    POSITION,
    EVENT_TIME,
    RECEIVED_AT,
    CLOCK_OFFSET,
    QUALITY,
    WATERMARK,
)

_POSITION_TYPES = {
    PARTITION: DataType("INT"),
    OFFSET: DataType("BIGINT"),
    POSITION: DataType("BIGINT"),
    EVENT_TIME: DataType("TIMESTAMP"),
    RECEIVED_AT: DataType("TIMESTAMP"),
    CLOCK_OFFSET: DataType("BIGINT"),
    QUALITY: DataType("STRING"),
    WATERMARK: DataType("BIGINT"),
}


def unscaled_column(column: Column) -> str | None:
    """The name under which a source gives a decimal column as whole numbers (cents for a scale of
    2), and None for a column that does not fit 64 bits or is no decimal."""
    fits = column.type.is_decimal and column.type.precision <= UNSCALED_PRECISION_MAX
    return _UNSCALED + column.name if fits else None


def encode_ranges(tasks: Sequence[Sequence[Range]], annotations_file: str = "") -> str:
    """The job's local property: the ranges of each task, in the order of the plan's numbers, and
    the file with the annotations of their events, if any has one."""
    ranges = [[(r.partition, r.start, r.end, r.rows) for r in task] for task in tasks]
    return json.dumps([annotations_file, ranges])


def decode_ranges(text: str) -> tuple[str, list[list[Range]]]:
    annotations_file, tasks = json.loads(text)
    return annotations_file, [[Range(*item) for item in task] for task in tasks]


def source_type(stream: Stream, name: str, looked_up: Sequence[Column] = ()) -> DataType:
    """Of a column that a source of the stream gives."""
    column = stream.column(name)
    if column is not None:
        return column.type
    if name.startswith(LOOKUP):
        return next(column.type for column in looked_up if column.name == name)
    if name.startswith(ANNOTATION):
        return DataType("TINYINT")
    return DataType("BIGINT") if name.startswith(_UNSCALED) else _POSITION_TYPES[name]


@dataclass(frozen=True)
class Source:
    """One stream's events with just the `columns` that the plan uses, in that order. `looked_up`
    are those among them that come from look-ups, by which their types are known."""

    log: LogAddress
    stream: Stream
    columns: tuple[str, ...]
    looked_up: tuple[Column, ...] = ()

    def type_of(self, name: str) -> DataType:
        return source_type(self.stream, name, self.looked_up)

    def ddl(self) -> str:
        return ", ".join(f"`{name}` {self.type_of(name)}" for name in self.columns)

    def reader_function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """What mapInArrow runs. It takes its numbers from the rows it is given, not from its
        partition id: coalesce puts several partitions into one task."""
        source = self

        def read_ranges(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            file, tasks = decode_ranges(context.getLocalProperty(RANGES_PROPERTY) or '["", []]')
            annotations = load_annotations(file)
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    for wanted in tasks[number]:
                        yield from source.read(wanted, annotations)

        return read_ranges

    def read(
        self, wanted: Range, annotations: EventAnnotations = NO_ANNOTATIONS
    ) -> Iterator[pa.RecordBatch]:
        reader = _reader(self.log, self.stream)
        plain = [name.removeprefix(_UNSCALED) for name in self.columns]
        stored = [name for name in plain if self.stream.column(name) is not None]
        clock = clock_column(self.stream)
        if EVENT_TIME in self.columns or WATERMARK in self.columns:
            stored.append(clock)
        further = (RECEIVED_AT, CLOCK_OFFSET, QUALITY) if self.stream.clocks else (RECEIVED_AT,)
        stored += [name for name in further if name in self.columns]
        stored = list(dict.fromkeys(stored)) or [RECEIVED_AT]
        for found in reader.read_history(
            self.stream.name, wanted.partition, wanted.start, wanted.end, stored
        ):
            complete = self._complete(found, wanted.partition, clock, annotations)
            kept = annotations.kept(wanted.partition, found)
            if kept is not None:
                complete = complete.filter(kept)
            for start in range(0, complete.num_rows, BATCH_ROWS_MAX):
                yield complete.slice(start, BATCH_ROWS_MAX)

    def _complete(
        self, found: LogBatch, partition: int, clock: str, annotations: EventAnnotations
    ) -> pa.RecordBatch:
        rows = found.batch.num_rows
        arrays: list[pa.Array] = []
        looked_up = self._looked_up(found, partition, annotations)
        for name in self.columns:
            if name == PARTITION:
                arrays.append(pa.array(np.full(rows, partition, dtype=np.int32)))
            elif name == OFFSET:
                arrays.append(pa.array(found.offsets))
            elif name == POSITION:
                arrays.append(pa.array(found.positions))
            elif name == EVENT_TIME:
                arrays.append(found.batch.column(clock))
            elif name in (CLOCK_OFFSET, QUALITY):
                arrays.append(self._clock_column(found.batch, name))
            elif name == WATERMARK:
                arrays.append(pa.array(self._watermarks(found, clock)))
            elif name.startswith(ANNOTATION):
                arrays.append(annotations.column(name, partition, found))
            elif name in looked_up:
                arrays.append(looked_up[name])
            elif name.startswith(_UNSCALED):
                arrays.append(_unscaled(found.batch.column(name.removeprefix(_UNSCALED))))
            else:
                column = self.stream.column(name)
                arrays.append(found.batch.column(column.name if column else name))
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    def _looked_up(
        self, found: LogBatch, partition: int, annotations: EventAnnotations
    ) -> dict[str, pa.Array]:
        if not self.looked_up:
            return {}
        known = load_looked_up(annotations.looked_up)
        rows = known.rows(partition, found)
        return {c.name: known.column(c.name, rows, c.type.arrow) for c in self.looked_up}

    def _clock_column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """Skew and quality, also of streams without a sent time."""
        if self.stream.clocks is None:
            known = QUALITIES[0] if self.stream.event_time is not None else QUALITIES[-1]
            value = (
                pa.scalar(None, pa.int64())
                if name == CLOCK_OFFSET
                else pa.scalar(known, pa.string())
            )
            return pa.repeat(value, batch.num_rows)
        stored = batch.column(name)
        return stored if name == CLOCK_OFFSET else pa.array(QUALITIES, pa.string()).take(stored)

    def _watermarks(self, found: LogBatch, clock: str) -> np.ndarray:
        times = found.batch.column(clock).cast(pa.int64()).to_numpy()
        floor = NO_EVENT_TIME + self.stream.delay_microseconds
        return np.maximum(found.maxima_before(times), floor) - self.stream.delay_microseconds


def _unscaled(decimals: pa.Array) -> pa.Array:
    """The whole numbers behind decimals of at most 18 digits: the lower half of their 128 bits."""
    halves = np.frombuffer(decimals.buffers()[1], dtype=np.int64)
    start = 2 * decimals.offset
    values = halves[start : start + 2 * len(decimals) : 2]
    if decimals.null_count == 0:
        return pa.array(np.ascontiguousarray(values))
    return pa.array(values, mask=decimals.is_null().to_numpy(zero_copy_only=False))


_READERS: dict[tuple[LogAddress, str], LogReader] = {}
_READERS_MAX = 64


def _reader(log: LogAddress, stream: Stream) -> LogReader:
    """One reader per worker process and stream: opening costs more than a small tick reads."""
    key = (log, stream.name)
    reader = _READERS.get(key)
    if reader is None:
        if len(_READERS) >= _READERS_MAX:
            _READERS.pop(next(iter(_READERS))).close()
        reader = _READERS[key] = log.open([stream])
    return reader
