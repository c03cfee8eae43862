"""The log as Spark sees it when a view is proven: one plain table of events, read once.

Nothing of this is the ticks' own way of reading. A row is an event with its place in the log, or,
with `IS_EVENT` false, a mere step of the watermark: an event that the view does not take, or how
far the partition had come before an offset, as the log's headers say it (before the first event
that is read, and where a heartbeat or an idle timeout moved it on). Such a row has no values, so
that no expression can fail on it. The watermark before each event is computed by Spark, from the
rows before it in the log's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    Range,
    clock_column,
)
from headrace.model.definitions import Stream
from headrace.model.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "APPLIED_AT",
    "APPLIED_TO",
    "DECISION",
    "IS_EVENT",
    "OFFSET",
    "PARTITION",
    "POSITION",
    "WATERMARK",
    "LogTable",
    "Note",
]

PARTITION = "_partition"
OFFSET = "_offset"
POSITION = "_position"
IS_EVENT = "_is_event"
WATERMARK = "_watermark"
DECISION = "_decision"  # STRING: what an operator said about a late event, if anything
APPLIED_TO = "_applied_to"  # ARRAY<BIGINT>: starts of windows it was applied to afterwards
APPLIED_AT = "_applied_at"  # BIGINT: the offset its partition had come to when that was done
PIECE_EVENTS = 250_000  # what one task reads
BATCH_ROWS = 50_000
_CLOCK_TYPES = {CLOCK_OFFSET: DataType("BIGINT"), QUALITY: DataType("STRING")}
_STARTS = pa.list_(pa.int64())


@dataclass(frozen=True)
class Note:
    """What the ledger says about one event: the decision of an operator about it, the windows
    (their starts, in microseconds) it was applied to after it had been set aside, and the offset
    that its partition had come to by then."""

    decision: str | None = None
    applied_to: tuple[int, ...] | None = None
    applied_at: int | None = None


@dataclass(frozen=True)
class LogTable:
    """The events from `starts` up to `ends` of a stream's partitions. `columns` are names of the
    stream's columns, CLOCK_OFFSET and QUALITY. `left_out` are the offsets of events that the view
    does not take, by partition; `notes` what the ledger says about single events."""

    log: LogAddress
    stream: Stream
    columns: tuple[str, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    left_out: Mapping[int, Sequence[int]] = field(default_factory=dict)
    notes: Mapping[int, Mapping[int, Note]] = field(default_factory=dict)

    def frame(self, spark: SparkSession, with_watermark: bool) -> DataFrame:
        pieces = list(self._pieces())
        table = self

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from table.read(pieces[number])

        tasks = spark.range(0, len(pieces), 1, max(1, len(pieces)))
        found = tasks.mapInArrow(read, self._ddl())
        if not with_watermark:
            return found.where(IS_EVENT)
        before = (
            f"max(unix_micros({EVENT_TIME})) OVER (PARTITION BY {PARTITION} "
            f"ORDER BY {OFFSET}, {IS_EVENT} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        watermark = f"{before} - {self.stream.delay_microseconds}L AS {WATERMARK}"
        return found.selectExpr("*", watermark).where(IS_EVENT)

    def _ddl(self) -> str:
        places = f"{PARTITION} INT, {OFFSET} BIGINT, {POSITION} BIGINT, {EVENT_TIME} TIMESTAMP, "
        columns = [f"`{name}` {self._type(name)}" for name in self.columns]
        notes = f", {DECISION} STRING, {APPLIED_TO} ARRAY<BIGINT>, {APPLIED_AT} BIGINT"
        return ", ".join([*columns, f"{places}{RECEIVED_AT} TIMESTAMP, {IS_EVENT} BOOLEAN{notes}"])

    def _type(self, name: str) -> DataType:
        column = self.stream.column(name)
        return column.type if column is not None else _CLOCK_TYPES[name]

    def _pieces(self) -> Iterator[Range]:
        reader = self.log.open([self.stream])
        for partition, end in self.ends.items():
            start = self.starts.get(partition, 0)
            while start < end:
                piece = reader.cut(self.stream.name, partition, start, end, PIECE_EVENTS)
                yield piece
                start = piece.end

    def read(self, piece: Range) -> Iterator[pa.RecordBatch]:
        """Runs in Spark's workers."""
        clock = clock_column(self.stream)
        own = [n for n in self.columns if n not in _CLOCK_TYPES or self.stream.clocks is not None]
        stored = list(dict.fromkeys([*own, clock, RECEIVED_AT]))
        reader = self.log.open([self.stream])
        for found in reader.read_history(
            self.stream.name, piece.partition, piece.start, piece.end, stored
        ):
            steps = [(0, found.maximum_before), *found.maxima]
            known = [(row, maximum) for row, maximum in steps if maximum != NO_EVENT_TIME]
            if known:
                yield self._steps(piece.partition, found, known)
            whole = self._rows(piece.partition, found, clock)
            for start in range(0, whole.num_rows, BATCH_ROWS):
                yield whole.slice(start, BATCH_ROWS)

    def _rows(self, partition: int, found: LogBatch, clock: str) -> pa.RecordBatch:
        rows = found.batch.num_rows
        offsets = found.offsets
        left_out = self.left_out.get(partition)
        taken = ~np.isin(offsets, left_out) if left_out else np.ones(rows, dtype=np.bool_)
        values = [self._values(found.batch, name) for name in self.columns]
        if not taken.all():
            values = [_blanked(array, taken) for array in values]
        places = [pa.array(np.full(rows, partition, dtype=np.int32)), pa.array(offsets)]
        places.append(pa.array(found.positions))
        times = [found.batch.column(clock), found.batch.column(RECEIVED_AT)]
        return self._batch(
            [*values, *places, *times, pa.array(taken), *self._notes(partition, offsets)]
        )

    def _notes(self, partition: int, offsets: np.ndarray) -> list[pa.Array]:
        notes = self.notes.get(partition, {})
        if not any(offset in notes for offset in (offsets if notes else ())):
            return _no_notes(len(offsets))
        found = [notes.get(int(offset), Note()) for offset in offsets]
        return [
            pa.array([note.decision for note in found], pa.string()),
            pa.array([note.applied_to for note in found], _STARTS),
            pa.array([note.applied_at for note in found], pa.int64()),
        ]

    def _values(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """As the log has them; without a sent time the quality follows from the stream alone."""
        if name not in _CLOCK_TYPES:
            return batch.column(name)
        if self.stream.clocks is not None:
            stored = batch.column(name)
            return stored if name == CLOCK_OFFSET else pa.array(QUALITIES, pa.string()).take(stored)
        if name == CLOCK_OFFSET:
            return pa.nulls(batch.num_rows, pa.int64())
        quality = "received" if self.stream.event_time is None else "exact"
        return pa.array([quality] * batch.num_rows, pa.string())

    def _steps(
        self, partition: int, found: LogBatch, steps: Sequence[tuple[int, int]]
    ) -> pa.RecordBatch:
        count = len(steps)
        times = pa.array([maximum for _, maximum in steps], pa.timestamp("us", "UTC"))
        nothing = [pa.nulls(count, self._type(name).arrow) for name in self.columns]
        offsets = pa.array([found.offsets[row] for row, _ in steps], pa.int64())
        place = [pa.array([partition] * count, pa.int32()), offsets, pa.nulls(count, pa.int64())]
        return self._batch(
            [*nothing, *place, times, times, pa.array([False] * count), *_no_notes(count)]
        )

    def _batch(self, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
        places = [PARTITION, OFFSET, POSITION, EVENT_TIME, RECEIVED_AT, IS_EVENT]
        names = [*self.columns, *places, DECISION, APPLIED_TO, APPLIED_AT]
        return pa.RecordBatch.from_arrays(list(arrays), names=names)


def _no_notes(rows: int) -> list[pa.Array]:
    return [pa.nulls(rows, kind) for kind in (pa.string(), _STARTS, pa.int64())]


def _blanked(values: pa.Array, taken: np.ndarray) -> pa.Array:
    """The values of events that are taken, null elsewhere."""
    return values.take(pa.array(np.arange(len(values)), mask=~taken))
