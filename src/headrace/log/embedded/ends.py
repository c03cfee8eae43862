"""The `ends` file: where each partition starts and ends, and the highest event time in it, for
readers in any process.

Two copies of all slots and a version that says which copy is current. The writer fills the other
copy and then moves the version on, so a reader always finds one whole copy, also when the writer
is killed in between, and a group that touches many partitions appears at once. Each copy has a
checksum over its version and its slots, so a copy read while being replaced is recognised.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.log.contract import NO_EVENT_TIME
from headrace.log.embedded.frames import fsync_directory
from headrace.model.errors import LogError

__all__ = ["EndsReader", "EndsWriter"]

ENDS_NAME = "ends"
_MAGIC = b"HDRENDS2"
_MAGIC_BEFORE = b"HDRENDS1"  # without the maximum; the writer replaces such a file
_HEAD_BYTES = 64
_LAYOUT, _VERSION, _USED, _CAPACITY, _MOVED = 1, 2, 3, 4, 5  # numbers of 8-byte words
_SLOT = struct.Struct("<qqq")
_SLOT_BEFORE = struct.Struct("<qq")
_CAPACITY_MIN = 1_024
_ATTEMPTS_MAX = 10_000

Slot = tuple[int, int, int]
Slots = tuple[Slot, ...]
EMPTY_SLOT: Slot = (0, 0, NO_EVENT_TIME)


def _copy_bounds(capacity: int, version: int, slot_bytes: int) -> tuple[int, int]:
    first = _HEAD_BYTES + (version & 1) * (capacity * slot_bytes + 8)
    return first, first + capacity * slot_bytes


def _checksum(version: int, slots: bytes | bytearray) -> int:
    return zlib.crc32(slots, zlib.crc32(version.to_bytes(8, "little")))


class EndsWriter:
    """Publishes (start, end, maximum) per slot. Slots keep their number for ever; a larger layout
    may move the file, and readers of the old one are told."""

    def __init__(self, directory: Path, layout_number: int, slot_count: int) -> None:
        self._file = directory / ENDS_NAME
        old = EndsReader(directory)
        self.published: Slots = old.try_slots() or ()
        self._version, self._capacity = old.version, old.capacity
        is_fitting = old.is_current and old.capacity >= slot_count
        old.close()
        self._values = bytearray(_SLOT.pack(*EMPTY_SLOT) * slot_count)
        for slot, values in enumerate(self.published[:slot_count]):
            _SLOT.pack_into(self._values, slot * _SLOT.size, *values)
        if is_fitting:
            self._map = _writable(self._file)
            self._words = memoryview(self._map).cast("q")
            self._begin(layout_number)
        else:
            least = 1 << (slot_count - 1).bit_length()
            self._capacity = max(_CAPACITY_MIN, self._capacity, least)
            self._move(layout_number)

    def publish(self, changed: Mapping[int, Slot]) -> None:
        """All of `changed` becomes visible at once."""
        for slot, values in changed.items():
            _SLOT.pack_into(self._values, slot * _SLOT.size, *values)
        self._write_copy()
        self._words[_VERSION] = self._version

    def close(self) -> None:
        self._map.flush()
        self._words.release()
        self._map.close()

    def _write_copy(self) -> None:
        self._version += 1
        first, last = _copy_bounds(self._capacity, self._version, _SLOT.size)
        self._map[first : first + len(self._values)] = bytes(self._values)
        self._words[last >> 3] = _checksum(self._version, self._values)

    def _begin(self, layout_number: int) -> None:
        self._write_copy()
        self._words[_USED] = len(self._values) // _SLOT.size
        self._words[_LAYOUT] = layout_number
        self._words[_VERSION] = self._version

    def _move(self, layout_number: int) -> None:
        """A new file takes the old one's place when it says all that the old one said."""
        before = _writable(self._file) if self._file.exists() else None
        temporary = self._file.with_name(".ends.new")
        head = bytearray(_HEAD_BYTES)
        head[:8] = _MAGIC
        struct.pack_into("<q", head, _CAPACITY * 8, self._capacity)
        with temporary.open("wb") as handle:
            handle.write(bytes(head) + bytes(2 * (self._capacity * _SLOT.size + 8)))
            handle.flush()
            os.fsync(handle.fileno())
        self._map = _writable(temporary)
        self._words = memoryview(self._map).cast("q")
        self._begin(layout_number)
        self._map.flush()
        temporary.replace(self._file)
        fsync_directory(self._file.parent)
        if before is not None:
            struct.pack_into("<q", before, _MOVED * 8, 1)
            before.close()


def _writable(file: Path) -> mmap.mmap:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


class _Attached(NamedTuple):
    """One file as it is mapped. `is_current`: with maxima."""

    map: mmap.mmap
    words: memoryview
    capacity: int
    is_current: bool


class EndsReader:
    """Reads what was published. Before any writer ran there is nothing: `slots` is empty. For any
    number of threads: one that is still in a file that has moved reads it to the end."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / ENDS_NAME
        self._attached = self._attach()
        self._seen: tuple[int, Slots] = (-1, ())

    @property
    def version(self) -> int:
        """Moves on whenever something is published."""
        return self._word(_VERSION)

    @property
    def layout_number(self) -> int:
        """Moves on whenever the writer knows more streams than before."""
        return self._word(_LAYOUT)

    @property
    def capacity(self) -> int:
        return self._word(_CAPACITY)

    @property
    def is_current(self) -> bool:
        attached = self._newest()
        return attached is not None and attached.is_current

    def slots(self) -> Slots:
        """Raises LogError if no whole copy is there, which only a power cut can cause and the
        next opening of the writer repairs."""
        slots = self.try_slots()
        if slots is None:
            raise LogError(
                f"{self._file} is damaged", hint="start the gateway: it repairs the file"
            )
        return slots

    def try_slots(self) -> Slots | None:
        """As slots(), but None for a damaged file."""
        attached = self._newest()
        if attached is None:
            return ()
        words, capacity = attached.words, attached.capacity
        for _ in range(_ATTEMPTS_MAX):
            version, (seen, known) = words[_VERSION], self._seen
            if version == seen:
                return known
            if version == 0:
                return ()
            form = _SLOT if attached.is_current else _SLOT_BEFORE
            first, last = _copy_bounds(capacity, version, form.size)
            raw = attached.map[first : first + words[_USED] * form.size]
            if _checksum(version, raw) == words[last >> 3]:
                slots: Slots = tuple(form.iter_unpack(raw))
                if not attached.is_current:
                    slots = tuple((start, end, NO_EVENT_TIME) for start, end, *_ in slots)
                self._seen = (version, slots)
                return slots
        return None

    def close(self) -> None:
        """The map goes when the last thread that reads it has left it."""
        self._attached = None

    def _word(self, number: int) -> int:
        attached = self._newest()
        return int(attached.words[number]) if attached is not None else 0

    def _newest(self) -> _Attached | None:
        attached = self._attached
        if attached is None or attached.words[_MOVED]:
            attached = self._attached = self._attach() or attached
        return attached

    def _attach(self) -> _Attached | None:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        if data[:8] not in (_MAGIC, _MAGIC_BEFORE):
            raise LogError(
                f"{self._file} is not an ends file",
                hint="remove it and start gateway and engine anew",
            )
        words = memoryview(data).cast("q")
        return _Attached(data, words, int(words[_CAPACITY]), data[:8] == _MAGIC)
