"""The reader of the embedded log: any number, in any process, without a lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.log.archive import read_archive
from headrace.log.contract import (
    NO_EVENT_TIME,
    RECEIVED_AT,
    DeadLetter,
    LogBatch,
    stored_schema,
)
from headrace.log.deadletters import read_letters, resolved_numbers
from headrace.log.ends import EndsReader
from headrace.log.layout import (
    COUNTERS_SLOT,
    LETTERS_SLOT,
    RESOLVED_SLOT,
    Layout,
    partition_directory,
    read_layout,
)
from headrace.log.reading import IndexedFrame, shared_files
from headrace.model.definitions import Stream
from headrace.model.errors import LogError, LogOffsetError

__all__ = ["EmbeddedReader"]

_ROWS_SMALL = 4_096  # frames below are joined with their neighbours
_ROWS_JOINED = 16_384
_ATTEMPTS_MAX = 100


class EmbeddedReader:
    """Opening one is cheap: maps and indexes are shared by all readers of the process."""

    def __init__(self, directory: Path, streams: Sequence[Stream]) -> None:
        self._files = shared_files(directory)
        self._directory = directory
        self._streams = {stream.name.lower(): stream for stream in streams}
        self._schemas = {name: stored_schema(s) for name, s in self._streams.items()}
        self._ends = EndsReader(directory)
        self._layout = Layout()

    def starts(self, stream: str) -> tuple[int, ...]:
        return tuple(start for start, _ in self._bounds(stream))

    def ends(self, stream: str) -> tuple[int, ...]:
        return tuple(end for _, end in self._bounds(stream))

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        self._check_range(stream, partition, start, end)
        definition = self._stream(stream)
        schema = self._schemas[stream.lower()]
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        return _joined(self._pieces(definition, partition, start, end, schema), schema)

    def size_bytes(self, stream: str, partition: int, start: int, end: int) -> int:
        self._check_range(stream, partition, start, end)
        if start >= end:
            return 0
        reader = self._files.partition(partition_directory(self._directory, stream, partition))
        return reader.size_bytes(start, end)

    def read_archive(self, stream: str, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """As read(), from the archive: events that retention took out of the log. Raises
        LogOffsetError for offsets the archive does not hold."""
        definition = self._stream(stream)
        return read_archive(self._directory, definition, partition, start, end)

    def dead_letters(self, stream: str | None, after: int, limit: int) -> Sequence[DeadLetter]:
        for _ in range(_ATTEMPTS_MAX):
            slots = self._ends.slots()
            if not slots:
                return []
            try:
                resolved = resolved_numbers(self._files, slots[RESOLVED_SLOT])
                return read_letters(
                    self._files, slots[LETTERS_SLOT], resolved, stream, after, limit
                )
            except FileNotFoundError:
                continue  # the oldest were dropped in between
        raise LogError("dead letters are dropped faster than they can be read", hint="try again")

    @property
    def dead_letters_dropped(self) -> int:
        """How many unresolved dead letters were dropped because there were too many."""
        slots = self._ends.slots()
        return slots[COUNTERS_SLOT][0] if slots else 0

    def close(self) -> None:
        self._ends.close()

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name.lower())
        if stream is None:
            raise LogError(
                f"there is no stream {name}",
                hint=f"streams are {', '.join(s.name for s in self._streams.values()) or 'none'}",
            )
        return stream

    def _bounds(self, name: str) -> tuple[tuple[int, int], ...]:
        slots = self._ends.slots()
        if slots and self._layout.number != self._ends.layout_number:
            self._layout = read_layout(self._directory)
        known = self._layout.stream(name)
        if known is None or len(slots) < known.slot + known.partitions:
            return ((0, 0),) * self._stream(name).partitions
        return slots[known.slot : known.slot + known.partitions]

    def _check_range(self, stream: str, partition: int, start: int, end: int) -> None:
        bounds = self._bounds(stream)
        if not 0 <= partition < len(bounds):
            raise LogOffsetError(
                f"stream {stream} has no partition {partition}",
                hint=f"its partitions are 0 to {len(bounds) - 1}",
            )
        first, last = bounds[partition]
        if start < first or end > last:
            raise LogOffsetError(
                f"{stream} partition {partition} holds offsets {first} to {last}, "
                f"not {start} to {end}",
                hint="older events may be in the archive" if start < first else "",
            )

    def _pieces(
        self, stream: Stream, partition: int, start: int, end: int, schema: pa.Schema
    ) -> Iterator[LogBatch]:
        directory = partition_directory(self._directory, stream.name, partition)
        time_column = stream.event_time or RECEIVED_AT
        if start >= end:
            return
        frames = self._files.partition(directory).frames(start, end)
        try:
            for frame in frames:
                batch = pa.ipc.read_record_batch(frame.payload, frame.schema)
                base, maximum = frame.base_offset, frame.maximum_before
                if base < start:
                    before = pc.max(batch.column(time_column).slice(0, start - base)).value
                    maximum = max(maximum, before if before is not None else NO_EVENT_TIME)
                    batch, base = batch.slice(start - base), start
                if base + batch.num_rows > end:
                    batch = batch.slice(0, end - base)
                yield LogBatch(base, maximum, _projected(batch, frame, schema))
        except FileNotFoundError:
            self._check_range(stream.name, partition, start, end)
            raise


def _projected(batch: pa.RecordBatch, frame: IndexedFrame, schema: pa.Schema) -> pa.RecordBatch:
    """Only the schema's columns; one that is younger than the segment is NULL."""
    if frame.schema == schema:
        return batch
    stored = frame.schema
    assert stored is not None
    arrays = []
    for field in schema:
        position = stored.get_field_index(field.name)
        arrays.append(
            batch.column(position) if position >= 0 else pa.nulls(batch.num_rows, field.type)
        )
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined(pieces: Iterator[LogBatch], schema: pa.Schema) -> Iterator[LogBatch]:
    """Neighbouring small batches as one; large ones pass uncopied."""
    small: list[LogBatch] = []
    rows = 0
    for piece in pieces:
        if piece.batch.num_rows < _ROWS_SMALL:
            small.append(piece)
            rows += piece.batch.num_rows
            if rows < _ROWS_JOINED:
                continue
        if small:
            yield _join(small)
            small, rows = [], 0
        if piece.batch.num_rows >= _ROWS_SMALL:
            yield piece
    if small:
        yield _join(small)


def _join(small: list[LogBatch]) -> LogBatch:
    if len(small) == 1:
        return small[0]
    batch = pa.concat_batches([piece.batch for piece in small])
    return LogBatch(small[0].base_offset, small[0].maximum_before, batch)
