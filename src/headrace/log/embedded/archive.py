"""The archive: events that left the log, as Parquet.

`archive/STREAM/partition=P/START-END.parquet` holds the events START ≤ offset < END in order, one
file per segment, with the position of each in a column of its own. The file's metadata has the
format, the highest event time before the events, and where advances raised it. A file of format 1
says no format and has no positions. Any Parquet reader can use the folder.

One of format 3 is a compacted file, which has holes (compacted.py).
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.log.contract import (
    NO_EVENT_TIME,
    NO_POSITION,
    LogBatch,
    clock_column,
    stored_schema,
)
from headrace.log.embedded.compacted import FORMAT, CompactedFile
from headrace.log.embedded.frames import HEADER_BYTES, FrameHeader, fsync_directory
from headrace.log.embedded.layout import stream_folder
from headrace.log.embedded.recovery import scan_segment
from headrace.log.embedded.segments import SegmentHead
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError, LogError, LogOffsetError

__all__ = [
    "archive_directory",
    "archive_segment",
    "archived_file",
    "archived_ranges",
    "check_segment",
    "open_compacted",
    "read_archive",
    "remove_superseded",
    "rows_within",
    "sync_archive",
    "unbroken_from",
]

_MAXIMUM = b"headrace.maximum_before"
_MAXIMA = b"headrace.maxima"  # [[offset, the maximum before it], …] where an advance stands
_FORMAT_NOW = 2
_POSITION = "_position"
_ROWS_PER_GROUP = 65_536
_ATTEMPTS_MAX = 100


def archive_directory(log_directory: Path, stream: str, partition: int) -> Path:
    return log_directory / "archive" / stream_folder(stream) / f"partition={partition}"


def archive_segment(
    log_directory: Path, stream: str, partition: int, segment: Path, end: int
) -> Path:
    """Write a closed segment's events, up to offset `end`, as Parquet; durable under its final
    name when it returns. Doing it again gives the same file. Raises LogCorruptError, and archives
    nothing, if the segment is damaged."""
    head, frames, data = _checked_segment(segment, end)
    directory = archive_directory(log_directory, stream, partition)
    target = archived_file(directory, head.base_offset, end)
    if not target.exists():
        _write_parquet(target, head, frames, pa.py_buffer(data))
    sync_archive(log_directory, directory)
    return target


def sync_archive(log_directory: Path, directory: Path) -> None:
    """Make the names in a partition's archive durable."""
    for folder in (directory, directory.parent, directory.parent.parent, log_directory):
        fsync_directory(folder)


def check_segment(segment: Path, end: int) -> None:
    """Raises LogCorruptError unless a closed segment has all events up to `end`, undamaged."""
    _checked_segment(segment, end)


def _checked_segment(
    segment: Path, end: int
) -> tuple[SegmentHead, Sequence[tuple[FrameHeader, int]], memoryview]:
    head, frames, _, data = scan_segment(segment)
    reached = head.base_offset
    for header, position in frames:
        payload = data[position + HEADER_BYTES : position + HEADER_BYTES + header.length]
        if zlib.crc32(payload) != header.payload_crc:
            break
        reached = header.end
    if reached != end:
        raise LogCorruptError(
            f"{segment} is damaged at offset {reached}", hint="restore the file from a backup"
        )
    return head, frames, data


def _write_parquet(
    target: Path, head: SegmentHead, frames: Sequence[tuple[FrameHeader, int]], whole: pa.Buffer
) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(head.schema))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.new")
    maxima = json.dumps(_maxima(frames)).encode()
    described = schema.append(pa.field(_POSITION, pa.int64(), nullable=False)).with_metadata(
        {
            FORMAT: str(_FORMAT_NOW).encode(),
            _MAXIMUM: str(head.maximum).encode(),
            _MAXIMA: maxima,
        }
    )
    with pq.ParquetWriter(temporary, described, compression="zstd") as writer:
        pending: list[pa.RecordBatch] = []
        rows = 0
        for header, position in frames:
            if not header.rows:
                continue
            payload = whole.slice(position + HEADER_BYTES, header.length)
            batch = pa.ipc.read_record_batch(payload, schema)
            positions = pa.repeat(pa.scalar(header.position, pa.int64()), header.rows)
            pending.append(
                pa.RecordBatch.from_arrays([*batch.columns, positions], schema=described)
            )
            rows += header.rows
            if rows >= _ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(pending, described))
                pending, rows = [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending, described))
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(target)


def _maxima(frames: Sequence[tuple[FrameHeader, int]]) -> list[tuple[int, int]]:
    pairs = itertools.pairwise(header for header, _ in frames)
    return [
        (header.base_offset, header.maximum_before)
        for before, header in pairs
        if header.rows and not before.rows
    ]


def archived_ranges(log_directory: Path, stream: str, partition: int) -> list[tuple[int, int]]:
    """The offset ranges in the archive, ascending. One within another is left out: compaction
    is to remove its file."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(
        _all_ranges(archive_directory(log_directory, stream, partition)),
        key=lambda found: (found[0], -found[1]),
    ):
        if not ranges or end > ranges[-1][1]:
            ranges.append((start, end))
    return ranges


def _all_ranges(directory: Path) -> list[tuple[int, int]]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 (asked with every tick of a changelog)
    except FileNotFoundError:
        return []
    return [
        (int(name[:20]), int(name[21:41]))
        for name in names
        if name.endswith(".parquet") and name[0].isdigit()
    ]


def archived_file(directory: Path, start: int, end: int) -> Path:
    return directory / f"{start:020d}-{end:020d}.parquet"


def open_compacted(log_directory: Path, stream: str, partition: int) -> CompactedFile | None:
    """The compacted file of a partition, if there is one."""
    directory = archive_directory(log_directory, stream, partition)
    for _ in range(_ATTEMPTS_MAX):
        ranges = archived_ranges(log_directory, stream, partition)
        if not ranges:
            return None
        try:
            file = CompactedFile(archived_file(directory, *ranges[0]))
        except FileNotFoundError:
            continue  # a newer one has taken its place in between
        return file if file.is_compacted else None
    raise LogError(f"{directory} changes faster than it can be read", hint="try again")


def remove_superseded(log_directory: Path, stream: str, partition: int) -> int:
    """Remove the files whose events a newer one has, and what a crash left of writing one; gives
    the bytes freed."""
    directory = archive_directory(log_directory, stream, partition)
    kept = {
        archived_file(directory, *found)
        for found in archived_ranges(log_directory, stream, partition)
    }
    freed = 0
    for file in directory.iterdir() if directory.exists() else ():
        if file not in kept:
            freed += 0 if file.name.startswith(".") else file.stat().st_size
            file.unlink()
    return freed


def unbroken_from(ranges: Sequence[tuple[int, int]], start: int) -> int:
    """How far back one can read without a hole: the archive up to where the log starts."""
    for first, last in reversed(ranges):
        if last < start:
            break
        start = min(start, first)
    return start


def rows_within(ranges: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """How many events of [start, end) these archived ranges have."""
    return sum(max(0, min(last, end) - max(first, start)) for first, last in ranges)


def read_archive(
    log_directory: Path, stream: Stream, partition: int, start: int, end: int
) -> Iterator[LogBatch]:
    """Raises LogOffsetError at once if the archive has not all of [start, end)."""
    ranges = [
        (first, last)
        for first, last in archived_ranges(log_directory, stream.name, partition)
        if first < end and last > start
    ]
    reached = start
    for first, last in ranges:
        if first <= reached:
            reached = max(reached, last)
    if reached < end:
        raise LogOffsetError(
            f"the archive of {stream.name} partition {partition} has no offset {reached}",
            hint="only streams with THEN ARCHIVE have one",
        )
    directory = archive_directory(log_directory, stream.name, partition)
    return _read(directory, ranges, stream, start, end)


def _read(
    directory: Path, ranges: list[tuple[int, int]], stream: Stream, start: int, end: int
) -> Iterator[LogBatch]:
    schema = stored_schema(stream)
    for first, last in ranges:
        name = archived_file(directory, first, last)
        with pq.ParquetFile(name) as file:
            metadata = file.schema_arrow.metadata or {}
            file_format = int(metadata.get(FORMAT, 1))
            if file_format > _FORMAT_NOW:
                raise LogCorruptError(
                    f"{name} has format {file_format}, this version reads up to {_FORMAT_NOW}",
                    hint="use the version of Headrace that wrote it",
                )
            maximum = int(metadata.get(_MAXIMUM, NO_EVENT_TIME))
            advanced: list[tuple[int, int]] = json.loads(metadata.get(_MAXIMA, b"[]"))
            base = first
            for batch in file.iter_batches(_ROWS_PER_GROUP):
                low = min(max(start - base, 0), batch.num_rows)
                high = min(max(end - base, 0), batch.num_rows)
                times = batch.column(clock_column(stream))
                if low < high:
                    before = _maximum(times.slice(0, low), _raised(advanced, base + low, maximum))
                    piece = batch.slice(low, high - low)
                    maxima = tuple(
                        (offset - base - low, raised)
                        for offset, raised in advanced
                        if base + low < offset < base + high
                    )
                    offsets, positions = ((0, base + low),), _positions(piece, file_format)
                    found = _with_schema(piece, schema)
                    yield LogBatch(offsets, positions, before, found, maxima)
                base += batch.num_rows
                maximum = _maximum(times, _raised(advanced, base - 1, maximum))


def _positions(batch: pa.RecordBatch, file_format: int) -> tuple[tuple[int, int], ...]:
    if file_format == 1:
        return ((0, NO_POSITION),)
    positions = batch.column(_POSITION).to_numpy()
    rows = [0, *(np.flatnonzero(np.diff(positions)) + 1).tolist()]
    return tuple((row, int(positions[row])) for row in rows)


def _raised(advanced: Sequence[tuple[int, int]], offset: int, maximum: int) -> int:
    """The maximum, with what was raised up to the offset."""
    return max([maximum, *(raised for at, raised in advanced if at <= offset)])


def _maximum(times: pa.Array, before: int) -> int:
    found = pc.max(times).value
    return before if found is None else max(before, found)


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
