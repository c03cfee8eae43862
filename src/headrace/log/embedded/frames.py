"""Frames: the unit that journal and segments store, byte for byte the same in both.

A frame is a header of 64 bytes, a payload, and zeros up to the next multiple of 64. The header has
a checksum of its own and one of the payload, so a frame can be judged alone. Because both places
hold the same bytes, recovery compares a segment with the journal by comparing headers.

The header, in 64 bytes, little-endian: magic, length and checksum of the payload, checksum of the
header; the offset of the first row; the number of rows; slot (24 bits) and kind (the highest 8
bits); the partition's highest event time before and after the frame; the newest time at which a row
was received; the position, which is the number of the group commit.

A frame's kind says what its payload is. EVENTS is a record batch, or, without rows, an advance.
TABLE_CHANGES and SOURCE_POSITIONS are reserved for the changes of tables and for how far sources
have been taken in. A kind that this version does not know is refused, never skipped.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.errors import LogCorruptError

__all__ = [
    "ALIGNMENT",
    "EVENTS",
    "HEADER_BYTES",
    "SOURCE_POSITIONS",
    "TABLE_CHANGES",
    "FrameHeader",
    "fsync_directory",
    "newest_time",
    "padding",
    "parse_frame_header",
    "replace_file",
    "write_all",
]

ALIGNMENT = 64
HEADER_BYTES = 64
PAYLOAD_BYTES_MAX = 2**31 - 1
EVENTS, TABLE_CHANGES, SOURCE_POSITIONS = 0, 1, 2  # kinds
KINDS_READ = (EVENTS,)
_SLOT_BITS = 24
_MAGIC = 0x46524448  # "HDRF"
_HEADER = struct.Struct("<IIIIqIIqqqq")
_ZEROS = bytes(ALIGNMENT)
_BUFFERS_MAX = 512  # below the kernel's limit of 1,024 per call


class FrameHeader(NamedTuple):
    """`received` is the newest time in the frame; the maxima are those of the event time.
    `position` is the number of the group commit that stored the frame."""

    length: int
    payload_crc: int
    base_offset: int
    rows: int
    slot: int
    maximum_before: int
    maximum_after: int
    received: int
    position: int
    kind: int = EVENTS

    @property
    def end(self) -> int:
        return self.base_offset + self.rows

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.length + len(padding(self.length))

    def pack(self) -> bytes:
        length, crc, base_offset, rows, slot, *rest, kind = self
        slot |= kind << _SLOT_BITS
        packed = bytearray(_HEADER.pack(_MAGIC, length, crc, 0, base_offset, rows, slot, *rest))
        struct.pack_into("<I", packed, 12, zlib.crc32(packed))
        return bytes(packed)


def parse_frame_header(data: Any, position: int = 0) -> FrameHeader | None:
    """None unless a whole header with a right checksum is at that place. Raises LogCorruptError
    for a kind that this version does not know."""
    raw = bytes(data[position : position + HEADER_BYTES])
    if len(raw) < HEADER_BYTES:
        return None
    magic, length, payload_crc, header_crc, base_offset, rows, slot, *rest = _HEADER.unpack(raw)
    before, after, received, position = rest
    if magic != _MAGIC or zlib.crc32(raw[:12] + b"\0\0\0\0" + raw[16:]) != header_crc:
        return None
    kind = slot >> _SLOT_BITS
    if kind not in KINDS_READ:
        raise LogCorruptError(
            f"a frame of group {position} has the kind {kind}, this version reads {KINDS_READ}",
            hint="use the version of Headrace that wrote it",
        )
    slot &= (1 << _SLOT_BITS) - 1
    maxima = (before, after)
    return FrameHeader(
        length, payload_crc, base_offset, rows, slot, *maxima, received, position, kind
    )


def padding(length: int) -> bytes:
    """The zeros that bring `length` to a multiple of the alignment."""
    return _ZEROS[: -length % ALIGNMENT]


def write_all(descriptor: int, buffers: Sequence[Any], position: int) -> int:
    """Write all buffers at `position`; returns the position after them. A short write goes on
    where it stopped, so what is left to fail is an OSError."""
    for first in range(0, len(buffers), _BUFFERS_MAX):
        views = [memoryview(b).cast("B") for b in buffers[first : first + _BUFFERS_MAX]]
        views = [view for view in views if view.nbytes]
        while views:
            written = os.pwritev(descriptor, views, position)
            position += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]
    return position


def fsync_directory(directory: Path) -> None:
    """Make creations, renames and removals in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(file: Path, buffers: Sequence[Any]) -> None:
    """Durably put the buffers in the place of `file`: wholly, or the old content stays."""
    temporary = file.with_name(f".{file.name}.new")
    descriptor = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, buffers, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(file)
    fsync_directory(file.parent)


def newest_time(times: pa.Array) -> int:
    """The highest of the times (microseconds) that a frame's header is to give."""
    if times.null_count:
        return int(pc.max(times).value)
    numbers = np.frombuffer(times.buffers()[1], dtype=np.int64)
    return int(numbers[times.offset : times.offset + len(times)].max())
