"""The reader of the embedded log: any number, in any process, without a lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.log.contract import (
    NO_EVENT_TIME,
    NO_POSITION,
    Advance,
    DeadLetter,
    LogBatch,
    Range,
    clock_column,
    stored_schema,
)
from headrace.log.embedded.advances import read_advances
from headrace.log.embedded.archive import (
    archived_ranges,
    open_compacted,
    read_archive,
    rows_within,
    unbroken_from,
)
from headrace.log.embedded.compacted import CompactedFile
from headrace.log.embedded.deadletters import read_letters, resolved_numbers
from headrace.log.embedded.ends import EMPTY_SLOT, Slot, Slots
from headrace.log.embedded.layout import (
    COUNTERS_SLOT,
    LETTERS_SLOT,
    RESOLVED_SLOT,
    partition_directory,
)
from headrace.log.embedded.needed import Needed, said_together, write_needed
from headrace.log.embedded.retention_floor import write_retention_floor
from headrace.log.embedded.segment_reading import IndexedFrame, PartitionReader, shared_files
from headrace.model.definitions import RetentionAction, Stream
from headrace.model.errors import LogCorruptError, LogError, LogOffsetError

__all__ = ["EmbeddedAddress", "EmbeddedReader"]

_ROWS_SMALL = 4_096  # frames below are joined with their neighbours
_ROWS_JOINED = 16_384
_ATTEMPTS_MAX = 100


@dataclass(frozen=True)
class EmbeddedAddress:
    """The log's directory, which every process that reads it must see."""

    directory: Path

    def open(self, streams: Sequence[Stream]) -> EmbeddedReader:
        return EmbeddedReader(self, streams)


class EmbeddedReader:
    """Opening one is cheap: maps and indexes are shared by all readers of the process."""

    def __init__(self, address: EmbeddedAddress, streams: Sequence[Stream]) -> None:
        self.address = address
        self._files = shared_files(address.directory)
        self._directory = address.directory
        self._streams = {stream.name.lower(): stream for stream in streams}
        self._schemas = {name: stored_schema(s) for name, s in self._streams.items()}

    def version(self) -> int:
        return self._files.ends.version

    def identity(self) -> str:
        return self._files.layout().identity

    def starts(self, stream: str) -> tuple[int, ...]:
        return tuple(start for start, _, _ in self._bounds(stream))

    def ends(self, stream: str) -> tuple[int, ...]:
        return tuple(end for _, end, _ in self._bounds(stream))

    def maxima(self, stream: str) -> tuple[int, ...]:
        return tuple(maximum for _, _, maximum in self._bounds(stream))

    def maximum(self, stream: str, partition: int, offset: int) -> int:
        _, end, maximum = self._partition(stream, partition)
        if offset == end:
            return maximum
        compacted = self._compacted(stream, partition, offset)
        if compacted is not None:
            with compacted:
                highest = compacted.maximum_before(offset)
            if highest is not None:
                return highest
            return self.maximum(stream, partition, compacted.end)
        found = self.read_history(stream, partition, offset, offset + 1, [])
        return next(iter(found)).maximum_before

    def position(self) -> int:
        return _newest_position(self._files.ends.slots())

    def cut_at(self, stream: str, position: int) -> tuple[int, ...]:
        for _ in range(_ATTEMPTS_MAX):
            slots = self._files.ends.slots()
            bounds = self._bounds(stream, slots)
            if NO_POSITION < _newest_position(slots) <= position:
                return tuple(end for _, end, _ in bounds)
            try:
                return tuple(
                    self._end_at(stream, partition, position, (start, end))
                    for partition, (start, end, _) in enumerate(bounds)
                )
            except FileNotFoundError:
                continue  # retention took a segment in between
        raise LogError("events are dropped faster than they can be read", hint="try again")

    def _end_at(self, stream: str, partition: int, position: int, bounds: tuple[int, int]) -> int:
        start, end = bounds
        found = self._partition_reader(stream, partition).end_at(position, start, end)
        compacted = self._compacted(stream, partition, start - 1) if found == start else None
        if compacted is None:
            return found
        with compacted:
            return compacted.end_at(position)

    def advances(self, stream: str, partition: int, start: int, end: int) -> Sequence[Advance]:
        _, _, maximum = self._partition(stream, partition)
        directory = partition_directory(self._directory, stream, partition)
        return read_advances(directory, stream, partition, (start, end), maximum)

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
        return self._pieces(definition, partition, start, end, schema)

    def rows_of(self, stream: str, partition: int, start: int, end: int) -> int:
        for _ in range(_ATTEMPTS_MAX):
            first, last, _ = self._partition(stream, partition)
            compacted = self._compacted(stream, partition, start)
            archived, low = 0, max(start, first)
            if compacted is not None:
                with compacted:
                    archived = _rows_within(compacted, start, end)
                low = max(low, compacted.end)
            elif start < first:
                ranges = archived_ranges(self._directory, stream, partition)
                archived = rows_within(ranges, start, min(end, first))
            try:
                held = self._partition_reader(stream, partition).rows(low, min(end, last))
            except FileNotFoundError:
                continue  # retention took a segment in between
            return archived + held
        raise LogError("events are dropped faster than they can be counted", hint="try again")

    def cut(
        self, stream: str, partition: int, start: int, end: int, rows_max: int | None = None
    ) -> Range:
        if rows_max is not None:
            compacted = self._compacted(stream, partition, start)
            if compacted is not None:
                with compacted:
                    end = self._end_behind(compacted, stream, partition, (start, end), rows_max)
            else:
                first = start
                if start < self.starts(stream)[partition]:
                    first = max(start, self.oldest(stream)[partition])
                end = min(end, first + rows_max)  # offsets are without holes here
        end = max(start, end)
        return Range(partition, start, end, self.rows_of(stream, partition, start, end))

    def _end_behind(
        self,
        compacted: CompactedFile,
        stream: str,
        partition: int,
        bounds: tuple[int, int],
        rows_max: int,
    ) -> int:
        """Where a range ends that begins in a compacted file and has so many events."""
        start, end = bounds
        if self.rows_of(stream, partition, start, end) <= rows_max:
            return end
        before = compacted.rows_before(start)
        behind = before + rows_max - compacted.events
        if behind > 0:
            return min(end, compacted.end + behind)  # offsets are without holes there
        return compacted.end_of(before + rows_max - 1) if rows_max else start

    def size_bytes(self, stream: str, partition: int, start: int, end: int) -> int:
        start = max(start, self.starts(stream)[partition])
        if start >= end:
            return 0
        self._check_range(stream, partition, start, end)
        return self._partition_reader(stream, partition).size_bytes(start, end)

    def read_archive(self, stream: str, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """As read(), from the archive: events that retention took out of the log. Raises
        LogOffsetError for offsets the archive does not hold."""
        definition = self._stream(stream)
        return read_archive(self._directory, definition, partition, start, end)

    def oldest(self, stream: str) -> tuple[int, ...]:
        return tuple(
            unbroken_from(archived_ranges(self._directory, stream, partition), start)
            for partition, start in enumerate(self.starts(stream))
        )

    def read_history(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        begins = self.starts(stream)[partition]  # before the archive: what leaves after is in both
        compacted = self._compacted(stream, partition, start)
        if compacted is not None:
            with compacted:
                definition = self._stream(stream)
                yield from compacted.read(definition, start, min(end, compacted.end), columns)
            begins = start = compacted.end
        elif start < begins:
            for found in self.read_archive(stream, partition, start, min(end, begins)):
                batch = found.batch if columns is None else found.batch.select(list(columns))
                yield replace(found, batch=batch)
        if end > begins:
            yield from self.read(stream, partition, max(start, begins), end, columns)

    def set_retention_floor(self, next_offsets: Mapping[str, tuple[int, ...]]) -> None:
        with said_together(self._directory):
            write_retention_floor(self._directory, next_offsets)

    def set_needed(
        self, stream: str, partition: int, upto: int, offsets: npt.NDArray[np.int64]
    ) -> None:
        write_needed(self._directory, stream, partition, Needed(upto, offsets))

    def compacted(self, stream: str) -> tuple[tuple[int, int], ...]:
        definition = self._stream(stream)
        if definition.retention.action is not RetentionAction.COMPACT:
            return ((0, 0),) * definition.partitions
        found = []
        for partition in range(definition.partitions):
            compacted = open_compacted(self._directory, stream, partition)
            if compacted is None:
                found.append((0, 0))
            else:
                with compacted:
                    found.append((compacted.upto, compacted.needed))
        return tuple(found)

    def dead_letters(self, stream: str | None, after: int, limit: int) -> Sequence[DeadLetter]:
        for _ in range(_ATTEMPTS_MAX):
            slots = self._files.ends.slots()
            if not slots:
                return []
            try:
                resolved = resolved_numbers(self._files, slots[RESOLVED_SLOT][:2])
                letters = slots[LETTERS_SLOT][:2]
                return read_letters(self._files, letters, resolved, stream, after, limit)
            except FileNotFoundError:
                continue  # the oldest were dropped in between
        raise LogError("dead letters are dropped faster than they can be read", hint="try again")

    @property
    def dead_letters_dropped(self) -> int:
        """How many unresolved dead letters were dropped because there were too many."""
        slots = self._files.ends.slots()
        return slots[COUNTERS_SLOT][0] if slots else 0

    def close(self) -> None:
        """Nothing to do: maps belong to the process and are bounded in number."""

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name.lower())
        if stream is None:
            raise LogError(
                f"there is no stream {name}",
                hint=f"streams are {', '.join(s.name for s in self._streams.values()) or 'none'}",
            )
        return stream

    def _compacted(self, stream: str, partition: int, offset: int) -> CompactedFile | None:
        """The partition's compacted file, open, where it covers the offset: for what it covers it
        is the history, also while the segments are still there."""
        if self._stream(stream).retention.action is not RetentionAction.COMPACT:
            return None
        ranges = archived_ranges(self._directory, stream, partition)
        if not ranges or not ranges[0][0] <= offset < ranges[0][1]:
            return None
        return open_compacted(self._directory, stream, partition)

    def _partition_reader(self, stream: str, partition: int) -> PartitionReader:
        return self._files.partition(partition_directory(self._directory, stream, partition))

    def _bounds(self, name: str, slots: Slots | None = None) -> Slots:
        slots = self._files.ends.slots() if slots is None else slots
        known = self._files.layout().stream(name)
        if known is None or len(slots) < known.slot + known.partitions:
            return (EMPTY_SLOT,) * self._stream(name).partitions
        return slots[known.slot : known.slot + known.partitions]

    def _partition(self, stream: str, partition: int) -> Slot:
        bounds = self._bounds(stream)
        if not 0 <= partition < len(bounds):
            raise LogOffsetError(
                f"stream {stream} has no partition {partition}",
                hint=f"its partitions are 0 to {len(bounds) - 1}",
            )
        return bounds[partition]

    def _check_range(self, stream: str, partition: int, start: int, end: int) -> None:
        first, last, _ = self._partition(stream, partition)
        if start < first or end > last:
            raise LogOffsetError(
                f"{stream} partition {partition} holds offsets {first} to {last}, "
                f"not {start} to {end}",
                hint="older events may be in the archive" if start < first else "",
            )

    def _pieces(
        self, stream: Stream, partition: int, start: int, end: int, schema: pa.Schema
    ) -> Iterator[LogBatch]:
        """Neighbouring small frames come as one batch, copied; large ones as they are mapped."""
        time_column = clock_column(stream)
        small: list[IndexedFrame] = []
        rows = 0
        try:
            for frame in self._partition_reader(stream.name, partition).frames(start, end):
                is_small = frame.rows < _ROWS_SMALL
                if small and (not is_small or frame.schema is not small[0].schema):
                    yield _decoded(small, start, end, schema, time_column)
                    small, rows = [], 0
                if not is_small:
                    yield _decoded([frame], start, end, schema, time_column)
                    continue
                small.append(frame)
                rows += frame.rows
                if rows >= _ROWS_JOINED:
                    yield _decoded(small, start, end, schema, time_column)
                    small, rows = [], 0
            if small:
                yield _decoded(small, start, end, schema, time_column)
        except FileNotFoundError:
            self._check_range(stream.name, partition, start, end)
            raise


def _rows_within(compacted: CompactedFile, start: int, end: int) -> int:
    return max(0, compacted.rows_before(end) - compacted.rows_before(start))


def _newest_position(slots: Slots) -> int:
    return slots[COUNTERS_SLOT][1] - 1 if slots else NO_POSITION


def _decoded(
    frames: list[IndexedFrame], start: int, end: int, schema: pa.Schema, time_column: str
) -> LogBatch:
    """The frames' events within [start, end) as one batch. Frames have one schema."""
    first = frames[0]
    base, maximum = first.base_offset, first.maximum_before
    try:
        if base < start:
            whole = pa.ipc.read_record_batch(first.payload, first.schema)
            before = pc.max(whole.column(time_column).slice(0, start - base)).value
            maximum = max(maximum, before if before is not None else NO_EVENT_TIME)
        batch = _one_batch(frames, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise LogCorruptError(
            f"the events from offset {base} to {frames[-1].base_offset + frames[-1].rows} "
            f"cannot be read: {error}",
            hint="verify the log and restore it from a backup",
        ) from error
    low = max(start - base, 0)  # offsets are without holes here
    high = min(end - base, batch.num_rows)
    if low or high < batch.num_rows:
        batch = batch.slice(low, high - low)
    maxima = tuple(
        (frame.base_offset - base - low, frame.maximum_before)
        for frame in frames[1:]
        if frame.is_advanced
    )
    positions = [(frame.base_offset - base - low, frame.position) for frame in frames]
    positions[0] = (0, first.position)
    return LogBatch(((0, base + low),), tuple(positions), maximum, batch, maxima)


def _one_batch(frames: list[IndexedFrame], schema: pa.Schema) -> pa.RecordBatch:
    stored = frames[0].schema
    assert stored is not None
    if len(frames) == 1:
        batch = pa.ipc.read_record_batch(frames[0].payload, stored)
    else:
        # One pass in C++ over all of them: a stream of messages behind their schema.
        messages = b"".join([stored.serialize(), *(frame.payload for frame in frames)])
        wanted = [stored.get_field_index(name) for name in schema.names]
        options = pa.ipc.IpcReadOptions(
            included_fields=sorted({position for position in wanted if position >= 0}),
            use_threads=False,
        )
        with pa.ipc.open_stream(messages, options=options) as opened:
            batch = pa.concat_batches(list(opened))
    if batch.schema == schema:
        return batch
    if not len(schema):
        return batch.select([])
    arrays = [
        batch.column(position)
        if (position := batch.schema.get_field_index(field.name)) >= 0
        else pa.nulls(batch.num_rows, field.type)  # a column younger than the segment
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
