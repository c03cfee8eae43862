"""The first half of a group commit: the bodies of many requests to rows, stream by stream.

All JSON records of a stream are decoded together, whichever request they came in; each request
then knows its own stretch of the rows, so a fault stays with the request, and the record, it
belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.formats.arrow_stream import ArrowDecoder, row_as_json
from headrace.formats.bodies import BodyKind, check_not_compressed, frame_records, inflate
from headrace.formats.changes import as_delete
from headrace.formats.cloudevents import frame_cloudevents, with_event_time
from headrace.formats.json_batch import RECORDS_ONE_BY_ONE_MAX, JsonDecoder
from headrace.gateway.ingest.requests import EventsRequest
from headrace.gateway.ingest.times import EventTimes
from headrace.model.definitions import Stream
from headrace.model.errors import RequestError
from headrace.model.settings import GatewaySettings

__all__ = ["Entry", "Rejected", "StreamDecoder", "StreamRows"]

SAMPLE_SECONDS = 0.1
_NEWLINE, _OPEN, _CLOSE = 10, 123, 125
_VECTOR_BYTES_MIN = 4 * 1024
_WHITESPACE = b" \t\r\n"


@dataclass(slots=True)
class Rejected:
    """A record that cannot become an event: its place in the request, the reason, its bytes."""

    position: int
    reason: str
    raw: bytes


@dataclass(slots=True)
class Entry:
    """One decoded request: `count` records, of which the accepted ones are the rows `start` to
    `end` of the stream's rows, in order of position."""

    request: EventsRequest
    count: int
    start: int
    end: int
    digest: bytes
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(slots=True)
class StreamRows:
    """The rows of all entries of one stream, with what its clocks gave, without the received
    column."""

    stream: Stream
    batches: list[pa.RecordBatch]
    entries: list[Entry]
    refused: list[tuple[EventsRequest, RequestError]]
    sampled_unknown_fields: int | None = None  # of the one record that is looked at, if any

    def slice(self, entry: Entry) -> StreamRows:
        """The same with a single entry, for when the group must be stored in pieces."""
        table = pa.Table.from_batches(self.batches) if self.batches else None
        rows = entry.end - entry.start
        batches = table.slice(entry.start, rows).to_batches() if table is not None and rows else []
        alone = Entry(entry.request, entry.count, 0, rows, entry.digest, entry.rejected)
        return StreamRows(self.stream, batches, [alone], [])


class StreamDecoder:
    """Decodes requests of one stream. One thread at a time."""

    def __init__(self, stream: Stream, settings: GatewaySettings) -> None:
        self.stream = stream
        self.json = JsonDecoder(
            stream,
            line_bytes_max=settings.line_bytes_max,
            nesting_max=settings.nesting_max,
        )
        self._arrow = ArrowDecoder(stream)
        self._times = EventTimes(stream)
        self._settings = settings
        self._next_sample = 0.0

    def inflated(self, request: EventsRequest) -> bytes:
        """Raises RequestError; see bodies.inflate."""
        return inflate(request.body, request.encoding, self._settings.inflated_bytes_max)

    def decode(self, requests: Sequence[tuple[EventsRequest, bytes]]) -> StreamRows:
        """Each request comes with its inflated body. Every one ends up in entries or refused."""
        rows = self._decode_together(requests)
        if rows is None:
            rows = self._decode_apart(requests)
        return rows

    def _decode_together(
        self, requests: Sequence[tuple[EventsRequest, bytes]]
    ) -> StreamRows | None:
        """The common case: every body is made of plain lines, every record is good, and none is
        in the far future."""
        bodies: list[bytes] = []
        counts: list[int] = []
        for request, inflated in requests:
            kind = request.kind
            body = inflated.strip(_WHITESPACE)
            if (
                (kind is not BodyKind.LINES and kind is not BodyKind.SNIFF)
                or not body
                or body[0] != _OPEN
                or body[-1] != _CLOSE
                or request.deletes
            ):
                return None
            count = _line_count(body)
            if count > self._settings.request_records_max:
                return None
            bodies.append(body)
            counts.append(count)
        total = sum(counts)
        if total <= RECORDS_ONE_BY_ONE_MAX:
            return None
        lines = bodies[0] if len(bodies) == 1 else b"\n".join(bodies)
        batch = self.json.decode_lines(lines, total)
        if batch is None:
            return None
        counted = [(request, count) for (request, _), count in zip(requests, counts, strict=True)]
        batch = self._times.complete(batch, counted)
        if self._times.beyond(batch, counted) is not None:
            return None
        entries: list[Entry] = []
        start = 0
        for (request, inflated), count in zip(requests, counts, strict=True):
            digest = request.digest(inflated) if request.retry_key is not None else b""
            entries.append(Entry(request, count, start, start + count, digest))
            start += count
        return StreamRows(self.stream, [batch], entries, [], self._sample(bodies[0]))

    def _sample(self, body: bytes) -> int | None:
        """The unknown fields of one record, looked for a few times a second at most."""
        now = time.monotonic()
        if now < self._next_sample:
            return None
        self._next_sample = now + SAMPLE_SECONDS
        return self.json.records.unknown_fields(body.partition(b"\n")[0])

    def _decode_apart(self, requests: Sequence[tuple[EventsRequest, bytes]]) -> StreamRows:
        rows = StreamRows(self.stream, [], [], [])
        flat: list[bytes] = []
        framed: list[tuple[EventsRequest, bytes, list[bytes], dict[int, str]]] = []
        records_of: dict[int, list[bytes]] = {}
        total = 0
        for request, inflated in requests:
            try:
                check_not_compressed(inflated)
                if request.kind is BodyKind.ARROW:
                    total += self._add_arrow(rows, request, inflated, total)
                    continue
                records, faults = self._frame(request, inflated)
                if request.deletes:
                    records = [
                        record if position in faults else as_delete(record)
                        for position, record in enumerate(records)
                    ]
            except RequestError as error:
                rows.refused.append((request, error))
                continue
            framed.append((request, request.digest(inflated), records, faults))
            flat.extend(r for p, r in enumerate(records) if p not in faults)
        decoded = self.json.decode(flat)
        rows.batches.extend(decoded.batches)
        reasons = dict(decoded.rejected)
        at = 0
        for request, digest, records, faults in framed:
            entry = Entry(request, len(records), total, total, digest)
            for position, record in enumerate(records):
                if position in faults:
                    reason: str | None = faults[position]
                else:
                    reason = reasons.get(at)
                    at += 1
                if reason is None:
                    total += 1
                else:
                    raw = record[: self._settings.line_bytes_max]
                    entry.rejected.append(Rejected(position, reason, raw))
            entry.end = total
            rows.entries.append(entry)
            records_of[id(entry)] = records
        if total:
            self._judge_times(rows, records_of)
        return rows

    def _judge_times(self, rows: StreamRows, records_of: dict[int, list[bytes]]) -> None:
        """Give the rows their times, and reject those in the far future."""
        counted = [(entry.request, entry.end - entry.start) for entry in rows.entries]
        own = rows.batches[0] if len(rows.batches) == 1 else pa.concat_batches(rows.batches)
        batch = self._times.complete(own, counted)
        rows.batches = [batch]
        beyond = self._times.beyond(batch, counted)
        if beyond is None:
            return
        rows.batches = [batch.filter(pa.array(~beyond))]
        kept = 0
        for entry in rows.entries:
            places = np.flatnonzero(beyond[entry.start : entry.end])
            records = records_of.get(id(entry))
            for place, position in zip(places, positions_of_rows(entry)[places], strict=True):
                row = entry.start + int(place)
                raw = row_as_json(own, row) if records is None else records[position]
                reason = self._times.reason(batch, row, entry.request.received_at_microseconds)
                raw = raw[: self._settings.line_bytes_max]
                entry.rejected.append(Rejected(int(position), reason, raw))
            entry.rejected.sort(key=lambda rejected: rejected.position)
            entry.start, entry.end = kept, kept + entry.end - entry.start - len(places)
            kept = entry.end

    def _add_arrow(
        self, rows: StreamRows, request: EventsRequest, inflated: bytes, start: int
    ) -> int:
        decoded, count, raws = self._arrow.decode(
            inflated, self._settings.request_records_max, deletes=request.deletes
        )
        rows.batches.extend(decoded.batches)
        accepted = count - len(decoded.rejected)
        limit = self._settings.line_bytes_max
        rejected = [
            Rejected(position, reason, raws[position][:limit])
            for position, reason in decoded.rejected
        ]
        digest = request.digest(inflated)
        rows.entries.append(Entry(request, count, start, start + accepted, digest, rejected))
        return accepted

    def _frame(self, request: EventsRequest, inflated: bytes) -> tuple[list[bytes], dict[int, str]]:
        records_max = self._settings.request_records_max
        event_time = self.stream.event_time
        if request.kind in (BodyKind.CLOUDEVENT, BodyKind.CLOUDEVENTS):
            records, faults, key = frame_cloudevents(
                inflated, request.kind, event_time, records_max
            )
            if request.retry_key is None:
                request.retry_key = key
            return records, faults
        records = frame_records(inflated, request.kind, records_max)
        if request.kind is BodyKind.ONE:
            records = [with_event_time(records[0], event_time, request.time_hint)]
        return records, {}


def _line_count(body: bytes) -> int:
    """numpy counts the newlines of a large body in half the time of bytes.count."""
    if len(body) < _VECTOR_BYTES_MIN:
        return body.count(b"\n") + 1
    return int(np.count_nonzero(np.frombuffer(body, dtype=np.uint8) == _NEWLINE)) + 1


def positions_of_rows(entry: Entry) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The position within its request of each of the entry's rows."""
    positions = np.arange(entry.count)
    if entry.rejected:
        positions = np.delete(positions, [rejected.position for rejected in entry.rejected])
    return positions
