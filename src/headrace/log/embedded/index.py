"""The index of a segment: one entry for each frame, so that readers find offsets and positions
without touching the segment.

`BASE.index` begins with a head of 16 bytes (the magic, the format, the size of an entry), and
entries of 56 bytes follow. Beside a segment of format 1 it has no head, and entries of 40 bytes
without position and kind; such an index stays as it is. Its positions are read from the headers of
the segment's frames, which have always had them.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.log.embedded.frames import FrameHeader, parse_frame_header
from headrace.model.errors import LogCorruptError

__all__ = ["Index", "IndexEntry", "index_entry", "index_head", "newest_entry"]

_MAGIC = b"HDRINDEX"
_FORMAT = 2
_HEAD = struct.Struct("<8sII")  # magic, format, bytes of an entry
# base offset, place in the segment, maximum before, received, position, rows, length, kind
_ENTRY = struct.Struct("<qqqqqIII4x")
_ENTRY_BEFORE = struct.Struct("<qqqqII")  # format 1: without position and kind
_ROWS = np.dtype({"names": ["rows"], "formats": ["<u4"], "offsets": [40], "itemsize": _ENTRY.size})


class IndexEntry(NamedTuple):
    """One frame: where it stands in the segment's file (`place`), and what its header says."""

    base_offset: int
    place: int
    maximum_before: int
    received: int
    position: int
    rows: int
    length: int
    kind: int

    @property
    def end(self) -> int:
        return self.base_offset + self.rows


def index_head(file_format: int) -> bytes:
    """What the index of a segment of this format begins with."""
    return b"" if file_format == 1 else _HEAD.pack(_MAGIC, file_format, _ENTRY.size)


def index_entry(header: FrameHeader, place: int, file_format: int) -> bytes:
    first = (header.base_offset, place, header.maximum_before, header.received)
    if file_format == 1:
        return _ENTRY_BEFORE.pack(*first, header.rows, header.length)
    return _ENTRY.pack(*first, header.position, header.rows, header.length, header.kind)


def newest_entry(raw: bytes, file: Path) -> tuple[int, int] | None:
    """Of a whole index, the offset where its last frame ends and when that was received."""
    form, begins = _form(raw, file)
    if len(raw) - begins < form.size:
        return None
    base, _, _, received, *rest = form.unpack(raw[-form.size :])
    rows = rest[1] if form is _ENTRY else rest[0]
    return base + rows, received


def _form(raw: bytes, file: Path) -> tuple[struct.Struct, int]:
    """What the entries of an index that begins like this are made of, and where they begin."""
    if raw[: len(_MAGIC)] != _MAGIC or len(raw) < _HEAD.size:
        return _ENTRY_BEFORE, 0
    _, file_format, _ = _HEAD.unpack_from(raw)
    if file_format != _FORMAT:
        raise LogCorruptError(
            f"{file} has format {file_format}, this version reads up to {_FORMAT}",
            hint="use the version of Headrace that wrote it",
        )
    return _ENTRY, _HEAD.size


class Index:
    """What a reader has taken in of an index that grows. `end` is where its last frame ends."""

    def __init__(self, file: Path, base_offset: int) -> None:
        self._file = file
        self._entries = bytearray()  # in the bytes of the newest format, whatever the file has
        self._form = _ENTRY
        self._read_bytes = 0
        self._lock = threading.Lock()
        self.count = 0
        self.end = base_offset

    def refresh(self, published: int, segment: Any) -> None:
        """Take in the frames that begin before the offset `published`: what the writer puts behind
        them may still be taken back. `segment` gives the bytes of the segment."""
        with self._lock, self._file.open("rb", buffering=0) as handle:
            if not self.count:  # the file may have been made anew since it was looked at last
                self._form, self._read_bytes = _form(handle.read(_HEAD.size), self._file)
            handle.seek(self._read_bytes)
            fresh = handle.read()
            size = self._form.size
            count = len(fresh) // size
            while count and self._form.unpack_from(fresh, (count - 1) * size)[0] >= published:
                count -= 1
            if not count:
                return
            fresh = fresh[: count * size]
            self._read_bytes += len(fresh)
            self._entries += (
                fresh if self._form is _ENTRY else self._with_positions(fresh, segment())
            )
            self.count += count
            self.end = self.entry(self.count - 1).end

    def entry(self, number: int) -> IndexEntry:
        return IndexEntry._make(_ENTRY.unpack_from(self._entries, number * _ENTRY.size))

    def entries(self, first: int, last: int) -> Iterator[tuple[int, ...]]:
        """As plain tuples in the order of IndexEntry: there may be many."""
        return _ENTRY.iter_unpack(self._raw(first, last))

    def find(self, offset: int) -> int:
        """The number of the frame that holds the offset."""
        return max(self._after(offset, 0) - 1, 0)

    def rows(self, start: int, end: int) -> int:
        """How many events the frames have from `start` up to `end`, which the index must cover."""
        first, last = self.find(start), self.find(end - 1)
        counted = int(np.frombuffer(self._raw(first, last), _ROWS)["rows"].sum(dtype=np.int64))
        return counted - (start - self.entry(first).base_offset) - (self.entry(last).end - end)

    def end_at(self, position: int) -> int | None:
        """Where the last frame up to this position ends; None if all of them come later."""
        found = self._after(position, 4)
        return self.entry(found - 1).end if found else None

    def _after(self, value: int, field: int) -> int:
        """How many frames have at most this value in a field that ascends."""
        size, entries = _ENTRY.size, self._entries

        def of(number: int) -> int:
            return int(_ENTRY.unpack_from(entries, number * size)[field])

        return bisect_right(range(self.count), value, key=of)

    def _raw(self, first: int, last: int) -> bytes:
        return bytes(self._entries[first * _ENTRY.size : (last + 1) * _ENTRY.size])

    def _with_positions(self, raw: bytes, frames: Any) -> bytes:
        entries: list[bytes] = []
        for base, place, *_ in _ENTRY_BEFORE.iter_unpack(raw):
            header = parse_frame_header(frames, place)
            if header is None or header.base_offset != base:
                raise LogCorruptError(
                    f"{self._file} names a frame at byte {place} that its segment does not have",
                    hint="restore the file from a backup",
                )
            entries.append(index_entry(header, place, _FORMAT))
        return b"".join(entries)
