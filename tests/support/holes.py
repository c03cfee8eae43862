"""Logs whose offsets have holes, as those of other backends do: what computes with them fails."""

from __future__ import annotations

from headrace.log.contract import Range

__all__ = ["CountedLog", "dense", "sparse"]


def sparse(number: int) -> int:
    """The offset of the event with this number in its partition: 0, 4, 6, 10, 12, …"""
    return 3 * number + number % 2


def dense(offset: int) -> int:
    """The number of the first event at the offset or behind it."""
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
        return Range(partition, start, sparse(dense(start) + rows_max), rows_max)

    def events(self, wanted: Range) -> list[tuple[int, int]]:
        return [(wanted.partition, n) for n in range(dense(wanted.start), dense(wanted.end))]
