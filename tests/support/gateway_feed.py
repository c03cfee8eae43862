"""Producers that send through the gateway's own code into a real log, at times that a test says;
and beside it, in plain Python, what must become of each record."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from event_model import Event, Place

from headrace.formats.bodies import BodyKind
from headrace.gateway.ingest.commit_group import GroupBuilder
from headrace.gateway.ingest.conservation import Counts, count_group
from headrace.gateway.ingest.decoding import StreamDecoder
from headrace.gateway.ingest.heartbeats import HeartbeatReader
from headrace.gateway.ingest.idle import idle_advances
from headrace.gateway.ingest.partitioning import partitions_of_rows
from headrace.gateway.ingest.requests import EventsRequest, ProducerKey
from headrace.log.contract import Appended, Group, LogReader, LogWriter
from headrace.model.definitions import Project, Stream
from headrace.model.settings import GatewaySettings

UNIX = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment(microseconds: int) -> dt.datetime:
    return UNIX + dt.timedelta(microseconds=microseconds)


def microseconds(time: dt.datetime) -> int:
    return (time - UNIX) // dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Sent:
    """One request, as a producer may also send it again. `sent_at` is the header."""

    producer: str
    first: int
    records: tuple[Mapping[str, Any], ...]
    sent_at: int | None


def lines_request(stream: str, body: bytes, received: int, **more: Any) -> EventsRequest:
    """Nobody waits for its answer."""
    loop = asyncio.new_event_loop()
    future: Any = loop.create_future()
    loop.close()
    key = more.pop("retry_key", None)
    return EventsRequest(stream, body, BodyKind.LINES, "identity", key, received, future, **more)


class Feed:
    """One stream's way from its producers into the log. Counts are those of the gateway's code."""

    def __init__(self, project: Project, stream: str, writer: LogWriter, reader: LogReader) -> None:
        found = project.stream(stream)
        assert found is not None
        self.stream: Stream = found
        self._writer, self._reader = writer, reader
        self._decoder = StreamDecoder(found, GatewaySettings())
        self._builder = GroupBuilder(writer)
        self._beats = HeartbeatReader(project)
        self._idle_written: dict[int, int] = {}
        self.counts = Counts()

    def send(self, sent: Sequence[Sent], received: int) -> None:
        """All in one group commit."""
        requests = []
        for one in sent:
            body = "\n".join(json.dumps(record, default=_as_text) for record in one.records)
            request = lines_request(
                self.stream.name,
                body.encode(),
                received,
                retry_key=ProducerKey(one.producer, 0, one.first),
                sent_at_microseconds=one.sent_at,
            )
            requests.append((request, request.body))
        rows = [self._decoder.decode(requests)]
        draft = self._builder.build(rows)
        group, appended = draft.group, Appended()
        if group.batches or group.receipts or group.dead:
            appended = self._writer.append(group)
        counts = count_group(rows, draft, appended)[self.stream.name]
        assert counts.is_conserved
        self.counts = self.counts.plus(counts)

    def beat(self, complete_up_to: int, received: int) -> None:
        body = {"stream": self.stream.name, "complete_up_to": moment(complete_up_to).isoformat()}
        asked = self._beats.read(json.dumps(body).encode(), received, lambda stream: None)
        self._writer.append(Group(advances=tuple(asked.advances)))

    def look_for_idle(self, now: int) -> dict[int, int]:
        """As the gateway does every now and then; gives where partitions were moved to."""
        name = self.stream.name
        due = idle_advances(
            self.stream,
            now,
            self._writer.received(name),
            self._reader.maxima(name),
            self._idle_written,
        )
        if due:
            self._writer.append(Group(advances=tuple(due)))
        self._idle_written |= {advance.partition: now for advance in due}
        return {advance.partition: advance.maximum_microseconds for advance in due}


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


@dataclass
class ExpectedLog:
    """What the definitions say of a stream that is partitioned by its column `key`, has `at` and
    `sent_at`, and is de-duplicated."""

    stream: Stream
    events: list[Event] = field(default_factory=list)  # that are no duplicates
    duplicates: list[Place] = field(default_factory=list)
    highest: dict[int, int] = field(default_factory=dict)
    before: dict[Place, int | None] = field(default_factory=dict)  # the highest before each
    numbers: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    counts: Counter[str] = field(default_factory=Counter)
    _ends: Counter[int] = field(default_factory=Counter)
    _accepted: dict[Any, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _before_group: dict[int, int] = field(default_factory=dict)

    def take(self, sent: Sequence[Sent], received: int) -> None:
        """All in one group commit."""
        self._before_group = dict(self.highest)
        for one in sent:
            self._take(one, received)

    def _take(self, sent: Sent, received: int) -> None:
        known = self.numbers[sent.producer]
        highest_number = max(known, default=-1)
        self.counts["received"] += len(sent.records)
        for number, record in enumerate(sent.records, sent.first):
            if number in known:
                self.counts["retried"] += 1
                continue
            known.add(number)
            self.counts["late_fills"] += number < highest_number
            time, quality = self._time(record, sent.sent_at, received)
            if time > received + self.stream.future_microseconds:
                self.counts["dead"] += 1
                continue
            self.counts["appended"] += 1
            self._append(time, {**record, "quality": quality})

    def advance(self, partition: int, maximum: int) -> None:
        self._begin(partition)
        self.highest[partition] = max(maximum, self.highest.get(partition, maximum))

    def _begin(self, partition: int) -> None:
        """One that gets its first is put where the least advanced of the others was."""
        if partition not in self.highest and self._before_group:
            self.highest[partition] = min(self._before_group.values())

    def complete(self, up_to: int) -> None:
        """A heartbeat of the whole stream: no watermark is before that."""
        self._before_group = dict(self.highest)
        for partition in range(self.stream.partitions):
            self.advance(partition, up_to + self.stream.delay_microseconds)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(self._ends[partition] for partition in range(self.stream.partitions))

    @property
    def missing(self) -> int:
        return sum(max(n) - min(n) + 1 - len(n) for n in self.numbers.values() if n)

    def watermark(self, offsets: Sequence[int]) -> int | None:
        """Of a view that stands there."""
        found = [
            self.before.get((partition, offset), self.highest.get(partition))
            for partition, offset in enumerate(offsets)
        ]
        known = [highest for highest in found if highest is not None]
        return min(known) - self.stream.delay_microseconds if known else None

    def _time(
        self, record: Mapping[str, Any], header: int | None, received: int
    ) -> tuple[int, str]:
        clocks = self.stream.clocks
        assert clocks is not None
        occurred = microseconds(record["at"])
        sent = header if record["sent_at"] is None else microseconds(record["sent_at"])
        skew = 0 if sent is None else received - sent
        if abs(skew) > clocks.cap_microseconds:
            return received, "received"
        if abs(skew) > clocks.threshold_microseconds:
            return occurred + skew, "corrected"
        return occurred, "exact"

    def _append(self, time: int, columns: Mapping[str, Any]) -> None:
        keys = [pa.array([columns["key"]], pa.string())]
        partition = int(partitions_of_rows(keys, self.stream.partitions)[0])
        place = (partition, self._ends[partition])
        self._ends[partition] += 1
        self._begin(partition)
        before = self.before[place] = self.highest.get(partition)
        self.advance(partition, time)
        watermark = None if before is None else before - self.stream.delay_microseconds
        if self._is_duplicate(partition, time, watermark, columns):
            self.duplicates.append(place)
        else:
            self.events.append(Event(place, time, watermark, columns))

    def _is_duplicate(
        self, partition: int, time: int, watermark: int | None, columns: Mapping[str, Any]
    ) -> bool:
        rule = self.stream.deduplication
        assert rule is not None
        key = (partition, *(columns[name] for name in rule.columns))
        within = rule.within_microseconds
        for other, mark in self._accepted[key]:
            is_kept = watermark is None or mark >= watermark - 2 * within
            if is_kept and abs(time - other) <= within:
                return True
        self._accepted[key].append((time, self.highest[partition]))
        return False
