"""The log as Spark sees it when a view is proven: one plain table of events, read once.

Nothing of this is the ticks' own way of reading. A row is an event with its place in the log, or,
with `IS_EVENT` false, a mere step of the watermark: an event that the view does not take, or how
far the partition had come before the first offset that is read. Such a row has no values, so that
no expression can fail on it. The watermark before each event is computed by Spark, from the rows
before it in the log's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.log.contract import NO_EVENT_TIME, RECEIVED_AT, LogBatch
from headrace.model.definitions import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EVENT_TIME", "IS_EVENT", "OFFSET", "PARTITION", "WATERMARK", "LogTable"]

PARTITION = "_partition"
OFFSET = "_offset"
EVENT_TIME = "_event_time"
IS_EVENT = "_is_event"
WATERMARK = "_watermark"
PIECE_EVENTS = 250_000  # what one task reads
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class _Piece:
    partition: int
    start: int
    end: int
    is_first: bool


@dataclass(frozen=True)
class LogTable:
    """The events from `starts` up to `ends` of a stream's partitions, with the stream's `columns`.
    `left_out` are the offsets of events that the view does not take, by partition."""

    log_directory: Path
    stream: Stream
    columns: tuple[str, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    left_out: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def frame(self, spark: SparkSession, with_watermark: bool) -> DataFrame:
        pieces = list(self._pieces())
        names = [*self.columns, PARTITION, OFFSET, EVENT_TIME, RECEIVED_AT, IS_EVENT]
        table = self

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from table.read(pieces[number])

        tasks = spark.range(0, len(pieces), 1, max(1, len(pieces)))
        found = tasks.mapInArrow(read, self._ddl())
        if not with_watermark:
            return found.where(IS_EVENT).select(*(f"`{name}`" for name in names))
        before = (
            f"max(unix_micros({EVENT_TIME})) OVER (PARTITION BY {PARTITION} ORDER BY {OFFSET} "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        watermark = f"{before} - {self.stream.delay_microseconds}L AS {WATERMARK}"
        return found.selectExpr("*", watermark).where(IS_EVENT)

    def _ddl(self) -> str:
        columns = [f"`{c.name}` {c.type}" for c in self.stream.columns if c.name in self.columns]
        places = f"{PARTITION} INT, {OFFSET} BIGINT, {EVENT_TIME} TIMESTAMP, "
        return ", ".join([*columns, f"{places}{RECEIVED_AT} TIMESTAMP, {IS_EVENT} BOOLEAN"])

    def _pieces(self) -> Iterator[_Piece]:
        for partition, end in self.ends.items():
            begin = self.starts.get(partition, 0)
            for start in range(begin, end, PIECE_EVENTS):
                stop = min(end, start + PIECE_EVENTS)
                yield _Piece(partition, start, stop, is_first=start == begin)

    def read(self, piece: _Piece) -> Iterator[pa.RecordBatch]:
        """Runs in Spark's workers."""
        from headrace.log.embedded import open_reader

        clock = self.stream.event_time or RECEIVED_AT
        stored = list(dict.fromkeys([*self.columns, clock, RECEIVED_AT]))
        reader = open_reader(self.log_directory, [self.stream])
        is_first = piece.is_first
        for found in reader.read_history(
            self.stream.name, piece.partition, piece.start, piece.end, stored
        ):
            if is_first and found.maximum_before != NO_EVENT_TIME:
                yield self._step(piece.partition, found)
            is_first = False
            whole = self._rows(piece.partition, found, clock)
            for start in range(0, whole.num_rows, BATCH_ROWS):
                yield whole.slice(start, BATCH_ROWS)

    def _rows(self, partition: int, found: LogBatch, clock: str) -> pa.RecordBatch:
        rows = found.batch.num_rows
        offsets = np.arange(found.base_offset, found.base_offset + rows)
        taken = ~np.isin(offsets, self.left_out.get(partition, ()))
        is_event = pa.array(taken)
        all_taken = bool(taken.all())
        arrays = [
            found.batch.column(column.name)
            if all_taken
            else _blanked(found.batch.column(column.name), taken)
            for column in self.stream.columns
            if column.name in self.columns
        ]
        places = [pa.array(np.full(rows, partition, dtype=np.int32)), pa.array(offsets)]
        times = [found.batch.column(clock), found.batch.column(RECEIVED_AT)]
        return self._batch([*arrays, *places, *times, is_event])

    def _step(self, partition: int, found: LogBatch) -> pa.RecordBatch:
        """How far the partition had come before the first event that is read."""
        time = pa.array([found.maximum_before], pa.timestamp("us", "UTC"))
        nothing = [pa.nulls(1, c.type.arrow) for c in self.stream.columns if c.name in self.columns]
        place = [pa.array([partition], pa.int32()), pa.array([found.base_offset - 1], pa.int64())]
        return self._batch([*nothing, *place, time, time, pa.array([False])])

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        columns = [c.name for c in self.stream.columns if c.name in self.columns]
        names = [*columns, PARTITION, OFFSET, EVENT_TIME, RECEIVED_AT, IS_EVENT]
        return pa.RecordBatch.from_arrays(list(arrays), names=names)


def _blanked(values: pa.Array, taken: np.ndarray) -> pa.Array:
    """The values of events that are taken, null elsewhere."""
    return values.take(pa.array(np.arange(len(values)), mask=~taken))
