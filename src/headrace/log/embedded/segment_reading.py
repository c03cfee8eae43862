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
from headrace.log.embedded.index import Index
from headrace.log.embedded.layout import Layout, read_layout
from headrace.log.embedded.segments import (
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
    position: int
    maximum_before: int
    rows: int
    payload: pa.Buffer
    schema: pa.Schema | None
    is_advanced: bool


class _OpenSegment:
    """One segment's map and index, grown on demand."""

    def __init__(self, directory: Path, base_offset: int) -> None:
        self._file = segment_file(directory, base_offset)
        self._buffer = _map(self._file)
        self.index = Index(index_file(directory, base_offset), base_offset)
        head = parse_head(memoryview(self._buffer), self._file)
        self.schema = pa.ipc.read_schema(pa.py_buffer(head.schema)) if head.schema else None

    def refresh(self, published: int) -> None:
        """Take in the frames that begin before the offset `published`."""
        self.index.refresh(published, lambda: memoryview(_map(self._file)))

    def frames(self, start: int, end: int) -> Iterator[IndexedFrame]:
        """Frames that overlap [start, end), which the index must cover. Those without events are
        passed over: the frame behind them has the maximum they raised."""
        index = self.index
        first, last = index.find(start), index.find(end - 1)
        is_advanced = first > 0 and not index.entry(first - 1).rows
        for base, place, maximum, _, position, rows, length, _ in index.entries(first, last):
            if not rows:
                is_advanced = True
                continue
            if place + HEADER_BYTES + length > self._buffer.size:
                self._buffer = _map(self._file)
            if place + HEADER_BYTES + length > self._buffer.size:
                raise LogCorruptError(
                    f"{self._file} ends before offset {base + rows}",
                    hint="restore the file from a backup",
                )
            payload = self._buffer.slice(place + HEADER_BYTES, length)
            yield IndexedFrame(base, position, maximum, rows, payload, self.schema, is_advanced)
            is_advanced = False

    def size_bytes(self, start: int, end: int) -> int:
        """About the bytes of [start, end): frames at the edges count in proportion."""
        index = self.index
        first, last = index.entry(index.find(start)), index.entry(index.find(end - 1))
        if first == last:
            return first.length * (end - start) // max(first.rows, 1)
        skipped = first.length * (start - first.base_offset) // max(first.rows, 1)
        unread = last.length * (last.end - end) // max(last.rows, 1)
        return last.place + last.length - first.place - skipped - unread


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
            stop = min(end, segment.index.end)
            yield from segment.frames(start, stop)
            start = stop

    def size_bytes(self, start: int, end: int) -> int:
        total = 0
        while start < end:
            segment = self._segment_of(start, end)
            stop = min(end, segment.index.end)
            total += segment.size_bytes(start, stop)
            start = stop
        return total

    def rows(self, start: int, end: int) -> int:
        """How many events [start, end) has: counted by the index where the range begins or ends
        within a segment, and by the segments' names where it spans them."""
        total = 0
        while start < end:
            segment = self._segment_of(start, end)
            stop = min(end, segment.index.end)
            total += segment.index.rows(start, stop)
            whole = [base for base in self._bases if stop <= base <= end]
            if whole and whole[0] == stop:
                total += whole[-1] - stop
                stop = whole[-1]
            start = stop
        return total

    def end_at(self, position: int, start: int, end: int) -> int:
        """The offset after the last event in [start, end) whose position is not above the given
        one; `start` if all come later."""
        if start == end:
            return end
        self._segment_of(start, end)  # brings the list of segments up to date
        bases = [base for base in self._bases if base < end]
        held = bases[max(bisect_right(bases, start) - 1, 0) :]
        found = bisect_right(
            held, position, key=lambda base: self._segment_of(base, end).index.entry(0).position
        )
        if not found:
            return start
        # Its last frames may have come since it was looked at, so it is asked for the last of them.
        last = held[found] if found < len(held) else end
        reached = self._segment_of(last - 1, end).index.end_at(position)
        return start if reached is None else min(max(reached, start), end)

    def _segment_of(self, offset: int, published: int) -> _OpenSegment:
        for is_fresh in (False, True):
            if is_fresh or not self._bases:
                self._bases = segment_bases(self._directory)
            position = bisect_right(self._bases, offset) - 1
            if position < 0:
                raise FileNotFoundError(f"no segment with offset {offset} in {self._directory}")
            try:
                segment = self._files.open_segment(self._directory, self._bases[position])
                if segment.index.end <= offset:
                    segment.refresh(published)
            except FileNotFoundError:
                if is_fresh:
                    raise
                continue  # removed since the folder was listed
            if segment.index.end > offset:
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
