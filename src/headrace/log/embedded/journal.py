"""The journal: one entry per group commit, one write and one fdatasync whatever the group touches.

An entry is a head of 64 bytes, the notes (receipts and what else is not a frame), and the frames
exactly as the segments get them. Files are allocated ahead and used again, so an fdatasync has no
new file size to record; entries of an earlier use are told apart by their group number, which
only ever grows. A random salt in the file's head enters every checksum: bytes that a client sent
cannot pass for an entry.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.log.embedded.frames import (
    HEADER_BYTES,
    FrameHeader,
    fsync_directory,
    padding,
    parse_frame_header,
    write_all,
)
from headrace.model.errors import LogCorruptError

__all__ = [
    "Entry",
    "Frame",
    "Journal",
    "JournalFile",
    "encode_entry",
    "journal_files",
    "read_journal_file",
]

_SUFFIX = ".journal"
_SPARE = "spare"
_FILE_MAGIC = 0x4A524448  # "HDRJ"
_ENTRY_MAGIC = 0x45524448  # "HDRE"
_FORMAT = 2
_FORMATS_READ = (0, 1, 2)  # files of format 1 say 0
_FILE_HEAD = struct.Struct("<IIqqQI28x")  # magic, crc, file number, first group, salt, format
_ENTRY_HEAD = struct.Struct("<IIqqII32x")  # magic, crc, length, group, notes length, frames
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class Frame(NamedTuple):
    """`packed` is the header's bytes; header, payload and padding together are the frame."""

    header: FrameHeader
    packed: bytes
    payload: Any


class Entry(NamedTuple):
    group: int
    notes: bytes
    frames: list[Frame]


@dataclass(frozen=True)
class JournalFile:
    """What was found in one file: entries in order, and where they end."""

    number: int
    first_group: int
    salt: int
    entries: list[Entry]
    position: int
    size: int


class Journal:
    """Appends entries to the current file. The caller keeps group numbers and rotates."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._descriptor = -1
        self._size = 0
        self.salt = 0
        self.position = 0
        self.number = 0

    def start_file(self, number: int, first_group: int, bytes_min: int = 0) -> None:
        """Switch to an empty file. Durable before it returns; on OSError the old one goes on."""
        file = self._directory / f"{number:020d}{_SUFFIX}"
        spare = self._directory / f"{_SPARE}{_SUFFIX}"
        if spare.exists() and not file.exists():
            spare.rename(file)
        size = max(self._bytes_max, HEADER_BYTES + bytes_min)
        salt = secrets.randbits(64)
        descriptor = os.open(file, _FLAGS, 0o644)
        try:
            size = max(size, os.fstat(descriptor).st_size)
            os.posix_fallocate(descriptor, 0, size)
            head = bytearray(_FILE_HEAD.pack(_FILE_MAGIC, 0, number, first_group, salt, _FORMAT))
            struct.pack_into("<I", head, 4, zlib.crc32(head))
            write_all(descriptor, [head], 0)
            os.fsync(descriptor)
            fsync_directory(self._directory)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size, self.salt = descriptor, size, salt
        self.position, self.number = HEADER_BYTES, number

    def continue_file(self, found: JournalFile) -> None:
        """Go on after the entries found in the newest file, making those durable first."""
        file = self._directory / f"{found.number:020d}{_SUFFIX}"
        self._descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        os.fsync(self._descriptor)
        self._size, self.salt = found.size, found.salt
        self.position, self.number = found.position, found.number

    def has_room(self, length: int) -> bool:
        return self.position + length <= self._size

    def write(self, buffers: Sequence[Any]) -> int:
        """Write an entry behind the last one; returns where it ends. It counts after `sync`."""
        return write_all(self._descriptor, buffers, self.position)

    def sync(self, position: int) -> None:
        """Make what was written durable up to `position`."""
        os.fdatasync(self._descriptor)
        self.position = position

    def erase(self, position: int) -> None:
        """Durably make the entry at `position`, which must be the last, unreadable."""
        write_all(self._descriptor, [bytes(HEADER_BYTES)], position)
        os.fdatasync(self._descriptor)
        self.position = position

    def recycle(self, number: int) -> None:
        """A checkpoint covers this file: keep it as the spare one, or remove it."""
        file = self._directory / f"{number:020d}{_SUFFIX}"
        spare = self._directory / f"{_SPARE}{_SUFFIX}"
        if not file.exists():
            return
        if spare.exists() or file.stat().st_size > 2 * self._bytes_max:
            file.unlink()
        else:
            file.rename(spare)
        fsync_directory(self._directory)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def encode_entry(salt: int, group: int, notes: bytes, frames: Sequence[Frame]) -> list[Any]:
    """The buffers of an entry. Payloads are passed on as they are: their own checksums, which
    the headers carry, cover them."""
    length = HEADER_BYTES + len(notes) + len(padding(len(notes)))
    length += sum(frame.header.frame_bytes for frame in frames)
    head = bytearray(_ENTRY_HEAD.pack(_ENTRY_MAGIC, 0, length, group, len(notes), len(frames)))
    checksum = zlib.crc32(notes, zlib.crc32(head, salt & 0xFFFFFFFF))
    buffers: list[Any] = [head, notes, padding(len(notes))]
    for frame in frames:
        checksum = zlib.crc32(frame.packed, checksum)
        buffers += (frame.packed, frame.payload, padding(frame.header.length))
    struct.pack_into("<I", head, 4, checksum)
    return buffers


def journal_files(directory: Path) -> list[int]:
    """Numbers of the journal files, ascending, the spare one left out."""
    if not directory.exists():
        return []
    names = [file.name.removesuffix(_SUFFIX) for file in directory.glob(f"*{_SUFFIX}")]
    return sorted(int(name) for name in names if name != _SPARE)


def read_journal_file(directory: Path, number: int) -> JournalFile | None:
    """All whole entries of a file; None if the file was never begun (its head is not its own).

    Raises LogCorruptError if a later entry stands behind one that fails its checksum: entries
    are written one after the other, so only the last can be torn.
    """
    file = directory / f"{number:020d}{_SUFFIX}"
    with file.open("rb") as handle:
        if os.fstat(handle.fileno()).st_size < HEADER_BYTES:
            return None
        data = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
    head = bytearray(data[:HEADER_BYTES])
    magic, crc, own_number, first_group, salt, file_format = _FILE_HEAD.unpack(head)
    struct.pack_into("<I", head, 4, 0)
    if magic != _FILE_MAGIC or zlib.crc32(head) != crc or own_number != number:
        return None
    if file_format not in _FORMATS_READ:
        raise LogCorruptError(
            f"{file} has format {file_format}, this version reads up to {_FORMAT}",
            hint="use the version of Headrace that wrote it",
        )
    view = memoryview(data)
    entries: list[Entry] = []
    position = HEADER_BYTES
    while (found := _read_entry(view, position, first_group + len(entries), salt)) is not None:
        entry, position = found
        entries.append(entry)
    expected = first_group + len(entries)
    for later in _later_groups(data, view, position, salt):
        if later > expected:
            raise LogCorruptError(
                f"{file}: the entry of group {expected} at byte {position} is damaged, "
                f"but group {later} follows it",
                hint="keep a copy of the log's directory and restore it from a backup",
            )
    return JournalFile(number, first_group, salt, entries, position, len(data))


def _read_entry(view: memoryview, position: int, group: int, salt: int) -> tuple[Entry, int] | None:
    head = bytearray(view[position : position + HEADER_BYTES])
    if len(head) < HEADER_BYTES:
        return None
    magic, crc, length, own_group, notes_length, frame_count = _ENTRY_HEAD.unpack(head)
    end = position + length
    if magic != _ENTRY_MAGIC or own_group != group or end > len(view):
        return None
    struct.pack_into("<I", head, 4, 0)
    position += HEADER_BYTES
    notes = bytes(view[position : position + notes_length])
    checksum = zlib.crc32(notes, zlib.crc32(head, salt & 0xFFFFFFFF))
    position += notes_length + len(padding(notes_length))
    frames: list[Frame] = []
    for _ in range(frame_count):
        header = parse_frame_header(view, position)
        if header is None or position + header.frame_bytes > end:
            return None
        packed = bytes(view[position : position + HEADER_BYTES])
        payload = view[position + HEADER_BYTES : position + HEADER_BYTES + header.length]
        if zlib.crc32(payload) != header.payload_crc:
            return None
        checksum = zlib.crc32(packed, checksum)
        frames.append(Frame(header, packed, payload))
        position += header.frame_bytes
    if checksum != crc or position != end:
        return None
    return Entry(group, notes, frames), end


def _later_groups(data: mmap.mmap, view: memoryview, position: int, salt: int) -> Iterator[int]:
    """Group numbers of the whole entries behind `position`."""
    magic = _ENTRY_MAGIC.to_bytes(4, "little")
    found = data.find(magic, position + HEADER_BYTES)
    while found >= 0:
        if found % HEADER_BYTES == 0 and found + HEADER_BYTES <= len(data):
            group = _ENTRY_HEAD.unpack(data[found : found + HEADER_BYTES])[3]
            if _read_entry(view, found, group, salt) is not None:
                yield group
        found = data.find(magic, found + 4)
