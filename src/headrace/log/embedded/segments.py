"""Segments, the writer's side: the files of one partition.

`BASE.segment` is a head (with the Arrow schema) and frames, `BASE.index` has an entry for each
frame. Nothing here calls fsync while appending: until a checkpoint, the journal holds the same
frames. A segment of format 1 is read, and never appended to: the partition goes on in a new one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.log.contract import NO_EVENT_TIME
from headrace.log.embedded.frames import (
    HEADER_BYTES,
    FrameHeader,
    fsync_directory,
    padding,
    replace_file,
    write_all,
)
from headrace.log.embedded.index import index_entry, index_head
from headrace.model.errors import LogCorruptError, LogError

__all__ = [
    "SEGMENT_SUFFIX",
    "PartitionFiles",
    "Segment",
    "SegmentHead",
    "index_file",
    "parse_head",
    "segment_bases",
    "segment_file",
]

SEGMENT_SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
_MAGIC = 0x53524448  # "HDRS"
_FORMAT = 2
_FORMATS_READ = (1, 2)
_INDEX_HEAD = index_head(_FORMAT)
# magic, format, schema length, crc, base, maximum, slot, received
_HEAD = struct.Struct("<IIIIqqqq16x")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
Mark = tuple[int, int, int, int, int, int, "Segment | None"]


class SegmentHead(NamedTuple):
    """`maximum` is the highest event time before the segment, `received` when the newest event
    before it was received; frames begin at `frames_position`."""

    base_offset: int
    maximum: int
    received: int
    slot: int
    schema: bytes
    frames_position: int
    format: int


@dataclass
class Segment:
    """`received` is the newest received time in it, `size` its bytes with head and index."""

    base_offset: int
    end: int
    size: int
    received: int


def segment_file(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{SEGMENT_SUFFIX}"


def index_file(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{INDEX_SUFFIX}"


def segment_bases(directory: Path) -> list[int]:
    """Base offsets of the segments in a directory, ascending; none if it does not exist."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 (a Path per entry costs more than the call)
    except FileNotFoundError:
        return []
    return sorted(int(name[:20]) for name in names if name.endswith(SEGMENT_SUFFIX))


def make_head(base_offset: int, maximum: int, received: int, slot: int, schema: bytes) -> bytes:
    head = bytearray(
        _HEAD.pack(_MAGIC, _FORMAT, len(schema), 0, base_offset, maximum, slot, received)
    )
    head += schema + padding(len(schema))
    struct.pack_into("<I", head, 12, zlib.crc32(head))
    return bytes(head)


def parse_head(data: Any, file: Path) -> SegmentHead:
    """Raises LogCorruptError when the head is cut short or fails its checksum, LogError when it is
    whole and of a format that is not known."""
    raw = bytes(data[:HEADER_BYTES])
    if len(raw) == HEADER_BYTES:
        magic, version, length, crc, base, maximum, slot, received = _HEAD.unpack(raw)
        whole = bytes(data[: HEADER_BYTES + length + len(padding(length))])
        if magic == _MAGIC and zlib.crc32(whole[:12] + b"\0\0\0\0" + whole[16:]) == crc:
            if version not in _FORMATS_READ:
                raise LogError(
                    f"{file} has format {version}, this version reads up to {_FORMAT}",
                    hint="use the version of Headrace that wrote it",
                )
            schema = whole[HEADER_BYTES : HEADER_BYTES + length]
            return SegmentHead(base, maximum, received, slot, schema, len(whole), version)
    raise LogCorruptError(f"the head of {file} is damaged", hint="restore the file from a backup")


class PartitionFiles:
    """Appends frames to the last segment of a partition and starts the next when it is full.

    `segments` ends with the active one. `maximum` is the highest event time so far, `received`
    when the newest event was received, which frames without events repeat. A failed `append` may
    leave bytes behind the last frame: `rollback` to the mark taken before it removes them.
    """

    def __init__(self, directory: Path, slot: int, schema: bytes, segment_bytes_max: int) -> None:
        self.directory = directory
        self.slot = slot
        self.schema = schema
        self.segment_bytes_max = segment_bytes_max
        self.segments: list[Segment] = []
        self.end = 0
        self.maximum = NO_EVENT_TIME
        self.received = NO_EVENT_TIME
        self.unsynced: set[Path] = set()
        self._active = directory
        self._descriptor = -1
        self._index_descriptor = -1
        self._position = 0
        self._index_position = 0

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def start(self) -> int:
        return self.segments[0].base_offset if self.segments else self.end

    @property
    def bounds(self) -> tuple[int, int, int]:
        """What readers are shown."""
        return self.start, self.end, self.maximum

    @property
    def has_begun(self) -> bool:
        """Whether an event or an advance has come."""
        return self.maximum != NO_EVENT_TIME

    def adopt(
        self,
        segments: list[Segment],
        head: SegmentHead,
        newest: FrameHeader | None,
        frames_end: int,
    ) -> None:
        """Continue after the last of the segments found by recovery, which has this head and last
        frame; its frames end at `frames_end`. Its index must be whole."""
        self.segments = segments
        last = segments[-1]
        self.end = last.end
        self.maximum = newest.maximum_after if newest else head.maximum
        self.received = max(last.received, head.received)
        self._open(last.base_offset)
        self._position = frames_end
        self._index_position = os.fstat(self._index_descriptor).st_size
        if head.schema != self.schema or head.format != _FORMAT:
            self.roll()

    def append(self, header: FrameHeader, packed: bytes, payload: Any) -> None:
        if not self.segments or (
            self._position + header.frame_bytes > self.segment_bytes_max
            and self.segments[-1].end > self.segments[-1].base_offset
        ):
            self.roll()
        entry = index_entry(header, self._position, _FORMAT)
        position = write_all(
            self._descriptor, [packed, payload, padding(header.length)], self._position
        )
        write_all(self._index_descriptor, [entry], self._index_position)
        last = self.segments[-1]
        last.size += position - self._position + len(entry)
        last.end = header.end
        last.received = max(last.received, header.received)
        self._position = position
        self._index_position += len(entry)
        self.end, self.maximum = header.end, header.maximum_after
        self.received = max(self.received, header.received)
        self.unsynced.add(self._active)

    def roll(self) -> None:
        """Close the active segment and start one at the current end. An active segment without a
        frame is replaced, which is how a changed schema gets into an empty one."""
        mark = self.mark()
        try:
            self._start_segment()
        except OSError:
            self.rollback(mark)
            raise

    @property
    def advances_bytes(self) -> int:
        """The size of an active segment that has frames, but no event; else 0."""
        last = self.segments[-1] if self.segments else None
        has_frames = self._index_position > len(_INDEX_HEAD)
        if last is None or not has_frames or last.end > last.base_offset:
            return 0
        return last.size

    def forget_advances(self) -> None:
        """Begin such a segment anew: its head says what the advances raised. Readers have none of
        its frames yet, since those of an end come with the event behind them."""
        head = make_head(self.end, self.maximum, self.received, self.slot, self.schema)
        replace_file(segment_file(self.directory, self.end), [head])
        self._position, self._index_position = len(head), len(_INDEX_HEAD)
        self.segments[-1] = _empty_segment(self.end, head)
        try:
            self._open(self.end)
            os.ftruncate(self._index_descriptor, len(_INDEX_HEAD))
        except OSError:
            self._close_descriptors()  # the next append fails, and its rollback opens them
            raise

    def _start_segment(self) -> None:
        head = make_head(self.end, self.maximum, self.received, self.slot, self.schema)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.segments and self.segments[-1].base_offset == self.end:
            replace_file(segment_file(self.directory, self.end), [head])
            self.segments.pop()
        self._open(self.end)
        os.ftruncate(self._index_descriptor, 0)
        os.ftruncate(self._descriptor, 0)
        self._position = write_all(self._descriptor, [head], 0)
        self._index_position = write_all(self._index_descriptor, [_INDEX_HEAD], 0)
        self.segments.append(_empty_segment(self.end, head))
        self.unsynced.add(segment_file(self.directory, self.end))

    def mark(self) -> Mark:
        """What `rollback` needs to return to this moment."""
        last = self.segments[-1] if self.segments else None
        copy = Segment(last.base_offset, last.end, last.size, last.received) if last else None
        reached = (self.end, self.maximum, self.received)
        return len(self.segments), *reached, self._position, self._index_position, copy

    def rollback(self, mark: Mark) -> None:
        count, end, self.maximum, self.received, position, index_position, last = mark
        self._close_descriptors()
        started = {segment.base_offset for segment in self.segments[count:]} | {self.end, end}
        for base_offset in started - {last.base_offset if last else -1}:
            self._remove(base_offset)
        self.end = end
        self.segments = self.segments[: max(count - 1, 0)]
        if last is None:
            return
        self.segments.append(last)
        self._open(last.base_offset)
        os.ftruncate(self._descriptor, position)
        os.ftruncate(self._index_descriptor, index_position)
        self._position, self._index_position = position, index_position

    def take_unsynced(self) -> set[Path]:
        """The segments written since the last call: a checkpoint must fsync them."""
        taken, self.unsynced = self.unsynced, set()
        return taken

    def remove_first(self, before_unlink: Callable[[], None] | None = None) -> None:
        """Remove the oldest segment for good; the active one cannot be removed. The segment that
        becomes the first is durable before. `before_unlink` runs with the new start in place."""
        if len(self.segments) < 2:
            raise ValueError("the active segment stays")
        sync_segments({segment_file(self.directory, self.segments[1].base_offset)})
        removed = self.segments.pop(0)
        if before_unlink is not None:
            before_unlink()
        self._remove(removed.base_offset)
        fsync_directory(self.directory)

    def close(self) -> None:
        self._close_descriptors()

    def _open(self, base_offset: int) -> None:
        self._close_descriptors()
        self._index_descriptor = os.open(index_file(self.directory, base_offset), _FLAGS, 0o644)
        self._active = segment_file(self.directory, base_offset)
        self._descriptor = os.open(self._active, _FLAGS, 0o644)

    def _remove(self, base_offset: int) -> None:
        segment_file(self.directory, base_offset).unlink(missing_ok=True)
        index_file(self.directory, base_offset).unlink(missing_ok=True)

    def _close_descriptors(self) -> None:
        for descriptor in (self._descriptor, self._index_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._index_descriptor = -1


def _empty_segment(base_offset: int, head: bytes) -> Segment:
    return Segment(base_offset, base_offset, len(head) + len(_INDEX_HEAD), NO_EVENT_TIME)


def sync_segments(files: Iterable[Path]) -> None:
    """fsync segments with their indexes and directories. One that retention removed is skipped."""
    directories: set[Path] = set()
    for file in files:
        for part in (file, file.with_suffix(INDEX_SUFFIX)):
            try:
                descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        directories.add(file.parent)
    for directory in directories:
        fsync_directory(directory)
        fsync_directory(directory.parent)
        fsync_directory(directory.parent.parent)
