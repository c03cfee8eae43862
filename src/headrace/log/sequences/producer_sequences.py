"""One producer's number line: which numbers came, which did not, and in what order.

A line begins at the lowest number received. A number below it may or may not have been sent, so it
does not count as missing; every number between the lowest and the highest that has not come does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice

import msgspec

from headrace.log.contract import NO_EVENT_TIME, Gap, LineReport
from headrace.log.sequences.ranges import Ranges

__all__ = ["LineRecord", "NumberLine"]


class LineRecord(msgspec.Struct, array_like=True, frozen=True):
    """A line as a checkpoint keeps it. `intervals` are first, end, first, end, …; `noticed` has
    one time for each interval, when the gap before it was noticed."""

    stream: str
    producer: str
    epoch: int
    intervals: list[int]
    noticed: list[int] = []
    late_fills: int = 0
    duplicates: int = 0
    first_received: int = 0
    last_received: int = 0
    last_event_time: int = NO_EVENT_TIME
    accepted: list[int] = []


class NumberLine:
    """Intervals [first, end), sorted, with a gap between any two. What it counts follows from the
    order of add() alone, so that a replay of the same calls counts the same."""

    __slots__ = (
        "accepted",
        "duplicates",
        "ends",
        "first_received",
        "firsts",
        "last_event_time",
        "last_received",
        "late_fills",
        "noticed",
        "present",
    )

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ends: list[int] = []
        self.noticed: list[int] = []
        self.present = 0
        self.late_fills = 0
        self.duplicates = 0
        self.first_received = 0
        self.last_received = 0
        self.last_event_time = NO_EVENT_TIME
        self.accepted = Ranges()

    @classmethod
    def from_record(cls, record: LineRecord) -> NumberLine:
        line = cls()
        line.firsts, line.ends = list(record.intervals[0::2]), list(record.intervals[1::2])
        line.noticed = list(record.noticed) or [0] * len(line.firsts)
        line.present = sum(line.ends) - sum(line.firsts)
        line.late_fills, line.duplicates = record.late_fills, record.duplicates
        line.first_received, line.last_received = record.first_received, record.last_received
        line.last_event_time = record.last_event_time
        line.accepted = Ranges(record.accepted)
        return line

    def record(self, stream: str, producer: str, epoch: int) -> LineRecord:
        flat = [number for pair in zip(self.firsts, self.ends, strict=True) for number in pair]
        return LineRecord(
            stream,
            producer,
            epoch,
            flat,
            list(self.noticed),
            self.late_fills,
            self.duplicates,
            self.first_received,
            self.last_received,
            self.last_event_time,
            self.accepted.flat,
        )

    @property
    def missing(self) -> int:
        if not self.ends:
            return 0
        return self.ends[-1] - self.firsts[0] - self.present - self.accepted.count

    def held(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [first, end) is here already, as intervals."""
        for position in range(bisect_right(self.ends, first), len(self.firsts)):
            if self.firsts[position] >= end:
                break
            yield max(first, self.firsts[position]), min(end, self.ends[position])

    def would_open(self, first: int, end: int) -> bool:
        """Whether adding [first, end) makes one more interval."""
        low, high = self._touched(first, end)
        return low >= high

    def add(self, first: int, end: int, received: int, event_time: int) -> None:
        """Numbers seen before are duplicates; new ones below the highest are late fills."""
        again = sum(high - low for low, high in self.held(first, end))
        self.duplicates += again
        if self.ends and first < self.ends[-1]:
            self.late_fills += min(end, self.ends[-1]) - first - again
        self.present += end - first - again
        if not self.firsts:
            self.first_received = received
        self.last_received = max(self.last_received, received)
        self.last_event_time = max(self.last_event_time, event_time)
        self.accepted.remove(first, end)
        self._merge(first, end, received)

    def accept(self, first: int, end: int) -> None:
        """What of [first, end) is missing now does not count any more."""
        for position in range(1, len(self.firsts)):
            low, high = max(first, self.ends[position - 1]), min(end, self.firsts[position])
            if low < high:
                self.accepted.add(low, high)

    def _merge(self, first: int, end: int, received: int) -> None:
        """A gap that is filled in part was noticed when the whole was."""
        low, high = self._touched(first, end)
        noticed = received
        if low < high:
            first, end = min(first, self.firsts[low]), max(end, self.ends[high - 1])
            noticed = self.noticed[low]
        elif 0 < low < len(self.firsts):
            noticed = self.noticed[low]  # it parts a gap in two
        elif low == 0 and self.firsts:
            self.noticed[0] = received  # a lower number than the lowest so far
        self.firsts[low:high] = [first]
        self.ends[low:high] = [end]
        self.noticed[low:high] = [noticed]

    def _touched(self, first: int, end: int) -> tuple[int, int]:
        """Positions of the intervals that overlap or adjoin [first, end)."""
        return bisect_left(self.ends, first), bisect_right(self.firsts, end)

    def report(self, epoch: int, gaps_max: int) -> LineReport:
        """Its gaps from the lowest on, at most `gaps_max`."""
        gaps = (
            Gap(low, high - 1, self.noticed[i])
            for i in range(1, len(self.firsts))
            for low, high in self.accepted.outside(self.ends[i - 1], self.firsts[i])
        )
        shown = tuple(islice(gaps, gaps_max))
        return LineReport(
            epoch,
            self.firsts[0],
            self.ends[-1] - 1,
            self.present,
            self.missing,
            shown,
            next(gaps, None) is not None,
            self.late_fills,
            self.duplicates,
            self.first_received,
            self.last_received,
            None if self.last_event_time == NO_EVENT_TIME else self.last_event_time,
            self.accepted.count,
        )
