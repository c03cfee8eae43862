"""What the writer remembers about producers: their number lines, and when each was heard from.

Bounded: beyond `producers_max` the least recently used is forgotten, with what it had missing; a
number of it that comes again is then a new one.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.log.contract import (
    GAPS_MAX,
    GAPS_TOTAL_MAX,
    LINES_MAX,
    Completeness,
    ProducerRange,
    ProducerReport,
)
from headrace.log.sequences.event_sequence_streams import EventSequenceStreams
from headrace.log.sequences.producer_sequences import LineRecord, NumberLine
from headrace.log.sequences.watermark_origin import WatermarkOrigins
from headrace.model.errors import ProducerGapsError

__all__ = ["Producers", "WriterRecord"]

INTERVALS_TOTAL_MAX = 1_000_000

_Line = tuple[str, str, int]  # stream (lower case), producer, epoch
_Writer = tuple[str, str]


class WriterRecord(msgspec.Struct, array_like=True, frozen=True):
    """A producer on a stream as a checkpoint keeps it; its lines are kept apart."""

    stream: str
    producer: str
    heard: int
    epoch: int
    resets: int
    is_retired: bool = False


@dataclass(slots=True)
class _Known:
    """`epoch` is the highest seen, -1 before the first number."""

    heard: int = 0
    epoch: int = -1
    resets: int = 0
    is_retired: bool = False
    epochs: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Sums:
    producers: int = 0
    missing: int = 0
    late_fills: int = 0
    duplicates: int = 0
    resets: int = 0


class Producers:
    """For each producer, epoch and stream the set of sequence numbers present, as intervals.

    A set, not a high-water mark: a request that another overtook is still taken in later.
    """

    def __init__(
        self, producers_max: int, intervals_max: int, sequences: EventSequenceStreams | None = None
    ) -> None:
        self._producers_max = producers_max
        self._intervals_max = intervals_max
        # Least recently used first. A plain dictionary walks past all it has lost to find that one.
        self._lines: OrderedDict[_Line, NumberLine] = OrderedDict()
        self._writers: OrderedDict[_Writer, _Known] = OrderedDict()
        self._changed: dict[_Line, None] = {}
        self._changed_writers: dict[_Writer, None] = {}
        self._intervals_total = 0
        self._sums: dict[str, _Sums] = {}
        self.watermark_origins = WatermarkOrigins()
        self.event_sequences = sequences or EventSequenceStreams((), producers_max, intervals_max)

    def __len__(self) -> int:
        return len(self._lines)

    def present(self, wanted: ProducerRange) -> list[tuple[int, int]]:
        line = self._lines.get(_line(wanted))
        return [] if line is None else list(line.held(wanted.first, wanted.first + wanted.count))

    def check(self, ranges: Iterable[ProducerRange]) -> None:
        """Raises ProducerGapsError if a range would leave a producer with too many gaps. What is
        said of a producer without numbers opens none."""
        added: dict[_Line, int] = {}
        for item in ranges:
            if item.count <= 0 or item.mark:
                continue
            key = _line(item)
            line = self._lines.get(key)
            opens = line is None or line.would_open(item.first, item.first + item.count)
            count = added[key] = added.get(key, 0) + opens
            intervals = 0 if line is None else len(line.firsts)
            if count and intervals + count > self._intervals_max:
                raise ProducerGapsError(
                    f"producer {item.producer} (epoch {item.epoch}) has left "
                    f"{intervals - 1} gaps in its sequence numbers on {item.stream}, "
                    f"the most that are kept",
                    hint="send the missing numbers, or start over with a higher epoch",
                )

    def add(self, ranges: Iterable[ProducerRange], received: int) -> None:
        for item in ranges:
            if item.mark:
                self._decide(item)
                continue
            if item.partition >= 0:
                self.watermark_origins.put(
                    item.stream, item.partition, item.event_time_microseconds, item.producer
                )
                continue
            if item.count <= 0:
                self.heard(item.stream, item.producer, received)
                continue
            key = _line(item)
            self._touch(key[:2], received, item.epoch)
            line = self._lines.pop(key, None) or NumberLine()
            self._lines[key] = line
            self._changed.pop(key, None)
            self._changed[key] = None
            intervals, missing = len(line.firsts), line.missing
            late_fills, duplicates = line.late_fills, line.duplicates
            line.add(item.first, item.first + item.count, received, item.event_time_microseconds)
            self._intervals_total += len(line.firsts) - intervals
            sums = self._sums[key[0]]
            sums.missing += line.missing - missing
            sums.late_fills += line.late_fills - late_fills
            sums.duplicates += line.duplicates - duplicates
        self._evict()

    def heard(self, stream: str, producer: str, received: int) -> None:
        self._touch((stream.lower(), producer), received, None)
        self.event_sequences.heard(stream, producer, received)
        self._evict()

    def knows(self, stream: str, producer: str) -> bool:
        known = (stream.lower(), producer) in self._writers
        return known or self.event_sequences.knows(stream, producer)

    def _decide(self, item: ProducerRange) -> None:
        """Of a producer that is not known nothing can be decided."""
        low = item.stream.lower()
        is_retired = item.mark == "retired"
        self.event_sequences.decide(item)
        known = self._writers.get((low, item.producer))
        if known is None:
            return
        if is_retired:
            known.is_retired = True
            self._changed_writers[low, item.producer] = None
            return
        for epoch in known.epochs if item.epoch < 0 else known.epochs & {item.epoch}:
            key = (low, item.producer, epoch)
            line = self._lines[key]
            missing = line.missing
            line.accept(item.first, item.first + item.count)
            self._sums[low].missing += line.missing - missing
            self._changed[key] = None

    def completeness(self, stream: str) -> Completeness:
        sums = self._sums.get(stream.lower())
        if sums is None:
            return Completeness()
        return Completeness(
            sums.producers, sums.missing, sums.late_fills, sums.duplicates, sums.resets
        )

    def reports(self, stream: str, after: str, limit: int) -> list[ProducerReport]:
        """The next `limit` producers of the stream by name."""
        low = stream.lower()
        names = (name for of, name in self._writers if of == low and name > after)
        found: list[ProducerReport] = []
        gaps_left = GAPS_TOTAL_MAX
        for name in heapq.nsmallest(limit, names):
            found.append(self._report(low, name, min(GAPS_MAX, gaps_left)))
            gaps_left -= sum(len(line.gaps) for line in found[-1].lines)
            gaps_left = max(gaps_left, 0)
        return found

    def _report(self, stream: str, producer: str, gaps_max: int) -> ProducerReport:
        known = self._writers[stream, producer]
        epochs = sorted(known.epochs, reverse=True)
        lines = tuple(
            self._lines[stream, producer, epoch].report(epoch, gaps_max)
            for epoch in epochs[:LINES_MAX]
        )
        return ProducerReport(
            producer,
            known.heard,
            known.resets,
            lines,
            len(epochs) > LINES_MAX,
            is_retired=known.is_retired,
        )

    def quiet_since(self, limits: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
        """Looks at the least recently heard first and stops at the first that no limit reaches."""
        wanted = {stream.lower(): (stream, limit) for stream, limit in limits.items()}
        newest = max(limits.values(), default=0)
        found: dict[str, list[tuple[str, int]]] = {stream: [] for stream in limits}
        for (of, producer), known in self._writers.items():
            if known.heard >= newest:
                break
            stream, limit = wanted.get(of, ("", 0))
            if known.heard < limit and not known.is_retired:
                found[stream].append((producer, known.heard))
        return found

    def load(self, lines: Iterable[LineRecord], writers: Iterable[WriterRecord]) -> None:
        """Put in what a checkpoint holds, each in the place of an older one."""
        for record in lines:
            key = (record.stream, record.producer, record.epoch)
            old = self._remove_line(key) or NumberLine()
            line = self._lines[key] = NumberLine.from_record(record)
            self._touch(key[:2], record.last_received, record.epoch)
            self._intervals_total += len(line.firsts)
            sums = self._sums[record.stream]
            sums.missing += line.missing
            sums.late_fills += line.late_fills - old.late_fills
            sums.duplicates += line.duplicates - old.duplicates
        for writer in writers:
            known = self._touch((writer.stream, writer.producer), writer.heard, None)
            self._sums[writer.stream].resets += writer.resets - known.resets
            known.epoch, known.resets = writer.epoch, writer.resets
            known.is_retired = writer.is_retired
        self._changed, self._changed_writers = {}, {}
        self._evict()

    def settle(self) -> None:
        """After the last checkpoint: the least recently heard first, which quiet_since() relies on.
        What was decided on a producer put it last."""
        by_time = sorted(self._writers.items(), key=lambda item: item[1].heard)
        self._writers = OrderedDict(by_time)

    def take_changed(self, everything: bool) -> tuple[list[LineRecord], list[WriterRecord]]:
        """What changed since the last call (or all), least recently used first."""
        lines = self._lines if everything else self._changed
        writers = self._writers if everything else self._changed_writers
        records = [self._lines[key].record(*key) for key in lines if key in self._lines]
        known = [(key, self._writers[key]) for key in writers if key in self._writers]
        self._changed, self._changed_writers = {}, {}
        return records, [
            WriterRecord(*key, k.heard, k.epoch, k.resets, k.is_retired) for key, k in known
        ]

    def _touch(self, key: _Writer, heard: int, epoch: int | None) -> _Known:
        """A higher epoch than the highest so far is a reset; a lower one is merely late."""
        sums = self._sums.setdefault(key[0], _Sums())
        known = self._writers.pop(key, None)
        if known is None:
            known = _Known()
            sums.producers += 1
        self._writers[key] = known
        self._changed_writers.pop(key, None)
        self._changed_writers[key] = None
        known.heard = max(known.heard, heard)
        known.is_retired = False
        if epoch is not None:
            if 0 <= known.epoch < epoch:
                known.resets += 1
                sums.resets += 1
            known.epoch = max(known.epoch, epoch)
            known.epochs.add(epoch)
        return known

    def _evict(self) -> None:
        while len(self._lines) > self._producers_max or (
            self._intervals_total > INTERVALS_TOTAL_MAX and len(self._lines) > 1
        ):
            self._remove_line(next(iter(self._lines)))
        while len(self._writers) > self._producers_max:
            key = next(iter(self._writers))
            for epoch in list(self._writers[key].epochs):
                self._remove_line((*key, epoch))
            del self._writers[key]
            self._sums[key[0]].producers -= 1

    def _remove_line(self, key: _Line) -> NumberLine | None:
        line = self._lines.pop(key, None)
        if line is not None:
            self._intervals_total -= len(line.firsts)
            self._sums[key[0]].missing -= line.missing
            self._writers[key[:2]].epochs.discard(key[2])
        return line


def _line(item: ProducerRange) -> _Line:
    return item.stream.lower(), item.producer, item.epoch
