"""The streams of a log whose events carry numbers, and what checkpoints keep of them."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from headrace.log.contract import (
    GAPS_MAX,
    GAPS_TOTAL_MAX,
    Completeness,
    ProducerRange,
    ProducerReport,
)
from headrace.log.sequences.event_sequence_reports import (
    accept,
    quiet_writers,
    sums_of,
    writer_report,
)
from headrace.log.sequences.event_sequences import EventSequences
from headrace.log.sequences.intervals import INTERVAL, of_lines, replaced
from headrace.log.sequences.line_types import KEY, LINE
from headrace.log.sequences.ranges import Ranges
from headrace.model.definitions import Stream

__all__ = ["EventSequenceRecord", "EventSequenceStreams"]


class EventSequenceRecord(msgspec.Struct, array_like=True, frozen=True):
    """What changed on one stream since the record before. `definition` says what was counted: under
    another one, nothing earlier holds any more. `names` are those from `first_key` on; the bytes
    are arrays of KEY, LINE and INTERVAL, and of the places of those two; `accepted` is whole."""

    stream: str
    definition: str
    is_whole: bool = True
    first_key: int = 0
    names: list[str] = []
    key_places: bytes = b""
    keys: bytes = b""
    line_places: bytes = b""
    lines: bytes = b""
    lower: bytes = b""
    accepted: dict[int, list[int]] = {}


class EventSequenceStreams:
    """By name in lower case; for any thread. Streams without NUMBERED BY cost nothing here.
    The lock is its own: counting a large batch must not hold up those who look for a receipt."""

    def __init__(self, streams: Iterable[Stream], keys_max: int, intervals_max: int) -> None:
        self._streams = {
            stream.name.lower(): EventSequences(stream, keys_max, intervals_max)
            for stream in streams
            if stream.numbering is not None
        }
        self._told = dict.fromkeys(self._streams, 0)  # how many names checkpoints have
        self._ended: set[str] = set()  # counted once, and no longer
        self._lock = threading.Lock()

    def __contains__(self, stream: str) -> bool:
        return stream.lower() in self._streams

    def add(self, stream: str, batch: pa.RecordBatch) -> None:
        """The rows of one partition, in the order of the log."""
        known = self._streams.get(stream.lower())
        if known is not None and batch.num_rows:
            with self._lock:
                known.add(batch)

    def heard(self, stream: str, producer: str, received: int) -> None:
        known = self._streams.get(stream.lower())
        if known is not None:
            with self._lock:
                known.heard(producer, received)

    def knows(self, stream: str, producer: str) -> bool:
        known = self._streams.get(stream.lower())
        return known is not None and producer in known.ids

    def decide(self, item: ProducerRange) -> None:
        """That a writer is retired, or that numbers are missed no more."""
        known = self._streams.get(item.stream.lower())
        if known is not None and item.producer in known.ids:
            with self._lock:
                if item.mark == "retired":
                    known.retire(item.producer)
                else:
                    accept(known, item)

    def completeness(self, stream: str) -> Completeness:
        with self._lock:
            return sums_of(self._streams[stream.lower()])

    def with_reports(
        self, stream: str, after: str, limit: int, others: Sequence[ProducerReport]
    ) -> list[ProducerReport]:
        """The next `limit` names of these writers and of the `others`, which come in that order."""
        found = [*others, *self.reports(stream, after, limit)]
        names = set(sorted({report.producer for report in found})[:limit])
        found = [report for report in found if report.producer in names]
        return sorted(found, key=lambda report: (report.producer, report.numbered_by))

    def reports(self, stream: str, after: str, limit: int) -> list[ProducerReport]:
        known = self._streams[stream.lower()]
        found: list[ProducerReport] = []
        gaps_left = GAPS_TOTAL_MAX
        with self._lock:
            for name in heapq.nsmallest(limit, (name for name in known.names if name > after)):
                found.append(writer_report(known, name, min(GAPS_MAX, gaps_left)))
                gaps_left = max(gaps_left - sum(len(line.gaps) for line in found[-1].lines), 0)
        return found

    def quiet_since(self, stream: str, limit: int) -> list[tuple[str, int]]:
        with self._lock:
            return quiet_writers(self._streams[stream.lower()], limit)

    # ----------------------------------------------------------------------------- checkpoints

    def take_changed(self, everything: bool) -> list[EventSequenceRecord]:
        """What changed since the last call, or all."""
        ended, self._ended = self._ended, set()
        records = [EventSequenceRecord(stream, "") for stream in ended]
        with self._lock:
            for stream, known in self._streams.items():
                if known.is_renumbered or everything:
                    known.changed_keys[:] = known.changed_lines[:] = True
                    self._told[stream] = 0
                if known.is_renumbered or known.changed_keys.any() or known.changed_lines.any():
                    records.append(self._record(stream, known))
        return records

    def _record(self, stream: str, known: EventSequences) -> EventSequenceRecord:
        keys, lines = np.flatnonzero(known.changed_keys), np.flatnonzero(known.changed_lines)
        first = self._told[stream]
        record = EventSequenceRecord(
            stream,
            known.definition,
            first == 0,
            first,
            known.names[first:],
            keys.tobytes(),
            known.keys[keys].tobytes(),
            lines.tobytes(),
            known.lines[lines].tobytes(),
            known.lower[of_lines(known.lower, lines)].tobytes(),
            {line: ranges.flat for line, ranges in known.accepted.items()},
        )
        self._told[stream] = len(known.names)
        known.changed_keys[:] = known.changed_lines[:] = False
        known.is_renumbered = False
        return record

    def load(self, records: Sequence[EventSequenceRecord]) -> None:
        """Put in what a checkpoint holds, after those before it."""
        for record in records:
            known = self._streams.get(record.stream)
            if known is None:
                if record.definition:
                    self._ended.add(record.stream)
                else:
                    self._ended.discard(record.stream)
                continue
            if record.is_whole or record.definition != known.definition:
                known.clear()
                self._told[record.stream] = 0
            if record.definition == known.definition:
                _load(record, known)
                self._told[record.stream] = len(known.names)


def _load(record: EventSequenceRecord, known: EventSequences) -> None:
    keys = np.frombuffer(record.key_places, dtype=np.int64)
    lines = np.frombuffer(record.line_places, dtype=np.int64)
    known.add_names(record.names)
    known.keys[keys] = np.frombuffer(record.keys, dtype=KEY)
    missing = max(int(lines.max(initial=-1)) + 1 - len(known.lines), 0)
    known.lines = np.concatenate([known.lines, np.zeros(missing, dtype=LINE)])
    known.lines[lines] = np.frombuffer(record.lines, dtype=LINE)
    lower = np.frombuffer(record.lower, dtype=INTERVAL)
    known.lower = replaced(known.lower, of_lines(known.lower, lines), lower)
    known.accepted = {line: Ranges(flat) for line, flat in record.accepted.items()}
    known.changed_keys = np.zeros(len(known.keys), dtype=np.bool_)
    known.changed_lines = np.zeros(len(known.lines), dtype=np.bool_)
    known.is_renumbered = False
