"""Logs whose offsets have holes, as those of other backends do: what computes with them fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.log.contract import Appended, Group, LogAddress, LogBatch, LogReader, Range, Receipt
from headrace.model.definitions import Stream
from headrace.model.errors import LogOffsetError

__all__ = ["CountedLog", "HolesAddress", "HolesReader", "HolesWriter", "behind", "dense", "sparse"]


def sparse(number: int) -> int:
    """The offset of the event with this number in its partition: 0, 4, 6, 10, 12, …"""
    return 3 * number + number % 2


def behind(count: int) -> int:
    """The offset behind so many events: 0, 1, 5, 7, 11, … The next one may come later."""
    return sparse(count - 1) + 1 if count else 0


def dense(offset: int) -> int:
    """How many events are before the offset."""
    number = offset // 3
    return number if sparse(number) >= offset else number + 1


class CountedLog:
    """As much of a reader as counting needs. Each partition has all the events one can think of."""

    def offset(self, number: int) -> int:
        return sparse(number)

    def rows_of(self, stream: str, partition: int, start: int, end: int) -> int:
        return max(0, dense(end) - dense(start))

    def cut(
        self, stream: str, partition: int, start: int, end: int, rows_max: int | None = None
    ) -> Range:
        rows = self.rows_of(stream, partition, start, end)
        if rows_max is None or rows <= rows_max:
            return Range(partition, start, end, rows)
        return Range(partition, start, behind(dense(start) + rows_max), rows_max)

    def events(self, wanted: Range) -> list[tuple[int, int]]:
        return [(wanted.partition, n) for n in range(dense(wanted.start), dense(wanted.end))]


@dataclass(frozen=True)
class HolesAddress:
    """Of another log, whose offsets are shown with holes between them."""

    inner: LogAddress

    def open(self, streams: Sequence[Stream]) -> LogReader:
        return HolesReader(self.inner.open(streams))


class HolesReader:
    def __init__(self, inner: LogReader) -> None:
        self._inner = inner
        self.address = HolesAddress(inner.address)

    def __getattr__(self, name: str) -> Any:
        """What knows nothing of offsets."""
        if name not in ("version", "identity", "maxima", "position", "dead_letters", "close"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def starts(self, stream: str) -> tuple[int, ...]:
        return tuple(map(behind, self._inner.starts(stream)))

    def ends(self, stream: str) -> tuple[int, ...]:
        return tuple(map(behind, self._inner.ends(stream)))

    def oldest(self, stream: str) -> tuple[int, ...]:
        return tuple(map(behind, self._inner.oldest(stream)))

    def cut_at(self, stream: str, position: int) -> tuple[int, ...]:
        return tuple(map(behind, self._inner.cut_at(stream, position)))

    def maximum(self, stream: str, partition: int, offset: int) -> int:
        self._check(stream, partition, offset)
        return self._inner.maximum(stream, partition, dense(offset))

    def advances(self, stream: str, partition: int, start: int, end: int) -> list[Any]:
        inner = self._inner.advances(stream, partition, dense(start), dense(end))
        found = [replace(item, offset=behind(item.offset)) for item in inner]
        return [item for item in found if start <= item.offset <= end]

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        self._check(stream, partition, start, end)
        return map(_shown, self._inner.read(stream, partition, dense(start), dense(end), columns))

    def read_history(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        inner = self._inner.read_history(stream, partition, dense(start), dense(end), columns)
        return map(_shown, inner)

    def rows_of(self, stream: str, partition: int, start: int, end: int) -> int:
        return self._inner.rows_of(stream, partition, dense(start), dense(end))

    def cut(
        self, stream: str, partition: int, start: int, end: int, rows_max: int | None = None
    ) -> Range:
        found = self._inner.cut(stream, partition, dense(start), dense(end), rows_max)
        is_all = found.end >= dense(end)
        stop = max(start, end) if is_all else behind(found.end)
        return Range(partition, start, stop, found.rows)

    def size_bytes(self, stream: str, partition: int, start: int, end: int) -> int:
        return self._inner.size_bytes(stream, partition, dense(start), dense(end))

    def set_retention_floor(self, next_offsets: Mapping[str, tuple[int, ...]]) -> None:
        self._inner.set_retention_floor(
            {stream: tuple(map(dense, offsets)) for stream, offsets in next_offsets.items()}
        )

    def set_needed(self, stream: str, partition: int, upto: int, offsets: Any) -> None:
        numbers = np.array([dense(int(offset)) for offset in offsets], dtype=np.int64)
        self._inner.set_needed(stream, partition, dense(upto), numbers)

    def compacted(self, stream: str) -> tuple[tuple[int, int], ...]:
        return tuple((behind(upto), rows) for upto, rows in self._inner.compacted(stream))

    def _check(self, stream: str, partition: int, *offsets: int) -> None:
        ends = self.ends(stream)
        if partition < len(ends) and not all(0 <= o <= ends[partition] for o in offsets):
            raise LogOffsetError(f"offsets {offsets} are not in {stream} partition {partition}")


class HolesWriter:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def ends(self, stream: str) -> tuple[int, ...]:
        return tuple(map(behind, self._inner.ends(stream)))

    def append(self, group: Group) -> Appended:
        done = self._inner.append(group)
        starts, ends = map(behind, done.base_offsets), map(behind, done.ends)
        return replace(done, base_offsets=tuple(starts), ends=tuple(ends))

    def receipt(self, key: bytes) -> Receipt | None:
        kept = self._inner.receipt(key)
        return kept and replace(kept, reached=tuple(map(behind, kept.reached)))


def _shown(found: LogBatch) -> LogBatch:
    runs = tuple((row, sparse(number)) for row, number in enumerate(found.offsets.tolist()))
    return replace(found, offset_runs=runs)
