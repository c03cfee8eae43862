"""Segments, the readers' side: find offsets through the index, read payloads out of mapped files.

Everything here is shared by all readers of a process: maps and indexes stay open between reads,
so a reader made for one task costs nothing.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.log.embedded.ends import EndsReader
from headrace.log.embedded.frames import HEADER_BYTES
from headrace.log.embedded.layout import Layout, read_layout
from headrace.log.embedded.segments import (
    INDEX,
    INDEX_BYTES,
    index_file,
    parse_head,
    segment_bases,
    segment_file,
)
from headrace.model.errors import LogCorruptError

__all__ = ["IndexedFrame", "LogFiles", "PartitionReader", "shared_files"]

_SEGMENTS_OPEN_MAX = 64  # per log and process
_LOGS_OPEN_MAX = 16  # per process


class IndexedFrame(NamedTuple):
    """`payload` is a piece of the mapped file, which stays mapped while the buffer is in use.
    `is_advanced`: right before it an advance raised the maximum."""

    base_offset: int
    maximum_before: int
    rows: int
    payload: pa.Buffer
    schema: pa.Schema | None
    is_advanced: bool


class _OpenSegment:
    """One segment's map and index, grown on demand.

    Only index entries of frames that begin before an offset known to be published are taken in:
    what the writer puts behind them may still be taken back.
    """

    def __init__(self, directory: Path, base_offset: int) -> None:
        self._file = segment_file(directory, base_offset)
        self._index_file = index_file(directory, base_offset)
        self._buffer = _map(self._file)
        self._index = bytearray()
        self._lock = threading.Lock()
        self.count = 0
        head = parse_head(memoryview(self._buffer), self._file)
        self.end = self.base_offset = head.base_offset
        self.schema = pa.ipc.read_schema(pa.py_buffer(head.schema)) if head.schema else None

    def refresh(self, published: int) -> None:
        """Take in the frames that begin before the offset `published`."""
        with self._lock, self._index_file.open("rb", buffering=0) as handle:
            handle.seek(len(self._index))
            fresh = handle.read()
            entries = [fresh[i : i + INDEX_BYTES] for i in range(0, len(fresh), INDEX_BYTES)]
            while entries and (
                len(entries[-1]) < INDEX_BYTES or INDEX.unpack(entries[-1])[0] >= published
            ):
                entries.pop()
            if entries:
                self._index += b"".join(entries)
                self.count = len(self._index) // INDEX_BYTES
                base, _, _, _, count, _ = self.entry(self.count - 1)
                self.end = base + count

    def entry(self, number: int) -> tuple[int, int, int, int, int, int]:
        return INDEX.unpack_from(self._index, number * INDEX_BYTES)

    def find(self, offset: int) -> int:
        """The number of the frame that holds the offset."""
        found = bisect_right(range(self.count), offset, key=lambda number: self.entry(number)[0])
        return max(found - 1, 0)

    def frames(self, start: int, end: int) -> Iterator[IndexedFrame]:
        """Frames that overlap [start, end), which the index must cover. Those without events are
        passed over: the frame behind them has the maximum they raised."""
        first, last = self.find(start), self.find(end - 1)
        is_advanced = first > 0 and not self.entry(first - 1)[4]
        entries = bytes(self._index[first * INDEX_BYTES : (last + 1) * INDEX_BYTES])
        for base, position, maximum, _, count, length in INDEX.iter_unpack(entries):
            if not count:
                is_advanced = True
                continue
            if position + HEADER_BYTES + length > self._buffer.size:
                self._buffer = _map(self._file)
            if position + HEADER_BYTES + length > self._buffer.size:
                raise LogCorruptError(
                    f"{self._file} ends before offset {base + count}",
                    hint="restore the file from a backup",
                )
            payload = self._buffer.slice(position + HEADER_BYTES, length)
            yield IndexedFrame(base, maximum, count, payload, self.schema, is_advanced)
            is_advanced = False

    def size_bytes(self, start: int, end: int) -> int:
        """About the bytes of [start, end): frames at the edges count in proportion."""
        first, last = self.find(start), self.find(end - 1)
        if first == last:
            _, _, _, _, count, length = self.entry(first)
            return length * (end - start) // max(count, 1)
        base, position, _, _, count, length = self.entry(first)
        last_base, last_position, _, _, last_count, last_length = self.entry(last)
        skipped = length * (start - base) // max(count, 1)
        unread = last_length * (last_base + last_count - end) // max(last_count, 1)
        return last_position + last_length - position - skipped - unread


def _map(file: Path) -> pa.Buffer:
    with file.open("rb") as handle:
        return pa.py_buffer(mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ))


class PartitionReader:
    """Finds the segments of one partition. A segment removed meanwhile raises FileNotFoundError
    unless it is still mapped; the caller then looks at the starts again."""

    def __init__(self, files: LogFiles, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._bases: list[int] = []

    def frames(self, start: int, end: int) -> Iterator[IndexedFrame]:
        """Frames that overlap [start, end), which must be published."""
        while start < end:
            segment = self._segment_of(start, end)
            stop = min(end, segment.end)
            yield from segment.frames(start, stop)
            start = stop

    def size_bytes(self, start: int, end: int) -> int:
        total = 0
        while start < end:
            segment = self._segment_of(start, end)
            stop = min(end, segment.end)
            total += segment.size_bytes(start, stop)
            start = stop
        return total

    def _segment_of(self, offset: int, published: int) -> _OpenSegment:
        for is_fresh in (False, True):
            if is_fresh or not self._bases:
                self._bases = segment_bases(self._directory)
            position = bisect_right(self._bases, offset) - 1
            if position < 0:
                raise FileNotFoundError(f"no segment with offset {offset} in {self._directory}")
            try:
                segment = self._files.open_segment(self._directory, self._bases[position])
                if segment.end <= offset:
                    segment.refresh(published)
            except FileNotFoundError:
                if is_fresh:
                    raise
                continue  # removed since the folder was listed
            if segment.end > offset:
                return segment
        raise LogCorruptError(
            f"offset {offset} is not in {self._directory}",
            hint="restore the log's directory from a backup",
        )


class LogFiles:
    """The open files of one log in this process, at most so many segments at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ends = EndsReader(directory)
        self._layout = Layout()
        self._segments: OrderedDict[tuple[Path, int], _OpenSegment] = OrderedDict()
        self._partitions: dict[Path, PartitionReader] = {}
        self._lock = threading.Lock()

    def layout(self) -> Layout:
        """As the writer last wrote it."""
        if self._layout.number != self.ends.layout_number:
            self._layout = read_layout(self.directory)
        return self._layout

    def partition(self, directory: Path) -> PartitionReader:
        reader = self._partitions.get(directory)
        if reader is None:
            reader = self._partitions.setdefault(directory, PartitionReader(self, directory))
        return reader

    def open_segment(self, directory: Path, base_offset: int) -> _OpenSegment:
        key = (directory, base_offset)
        with self._lock:
            segment = self._segments.get(key)
            if segment is not None:
                self._segments.move_to_end(key)
                return segment
        segment = _OpenSegment(directory, base_offset)
        with self._lock:
            self._segments[key] = segment
            while len(self._segments) > _SEGMENTS_OPEN_MAX:
                self._segments.popitem(last=False)
        return segment


_shared: OrderedDict[tuple[str, int, int], LogFiles] = OrderedDict()
_shared_lock = threading.Lock()


def shared_files(directory: Path) -> LogFiles:
    """The process-wide open files of a log; a directory made anew under the same name is another
    log."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return LogFiles(directory)
    key = (str(directory), status.st_dev, status.st_ino)
    with _shared_lock:
        files = _shared.get(key)
        if files is None:
            files = _shared[key] = LogFiles(directory)
            while len(_shared) > _LOGS_OPEN_MAX:
                _shared.popitem(last=False)
        else:
            _shared.move_to_end(key)
    return files
