"""A set of whole numbers as sorted intervals, for the few that someone decided on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

__all__ = ["Ranges"]


class Ranges:
    """Intervals [first, end), with a gap between any two."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, flat: Sequence[int] = ()) -> None:
        """`flat` is first, end, first, end, …"""
        self._firsts, self._ends = list(flat[0::2]), list(flat[1::2])

    @property
    def flat(self) -> list[int]:
        return [n for pair in zip(self._firsts, self._ends, strict=True) for n in pair]

    @property
    def count(self) -> int:
        return sum(self._ends) - sum(self._firsts)

    def add(self, first: int, end: int) -> None:
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high], self._ends[low:high] = [first], [end]

    def remove(self, first: int, end: int) -> None:
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low >= high:
            return
        outer = [(self._firsts[low], first), (end, self._ends[high - 1])]
        left = [(a, b) for a, b in outer if a < b]
        self._firsts[low:high] = [a for a, _ in left]
        self._ends[low:high] = [b for _, b in left]

    def outside(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [first, end) is not in the set."""
        for place in range(bisect_right(self._ends, first), len(self._firsts)):
            if self._firsts[place] >= end:
                break
            if first < self._firsts[place]:
                yield first, self._firsts[place]
            first = self._ends[place]
        if first < end:
            yield first, end
