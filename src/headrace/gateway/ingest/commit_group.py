"""The second half of a group commit: who is a retry, which partition each event goes to, and the
one Group that is appended.

A retry is judged against what the log holds and against what came earlier in the same group, in
the order the requests were taken from the queue; only one thread ever does this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.gateway.ingest.decoding import Entry, StreamRows, positions_of_rows
from headrace.gateway.ingest.numbering import newest_event_times, newest_senders
from headrace.gateway.ingest.partitioning import partition_of_text, partitions_of_rows
from headrace.gateway.ingest.requests import (
    JSON_HEADERS,
    RETRIED_HEADERS,
    EventsRequest,
    ProducerKey,
    answer_body,
    with_covers,
)
from headrace.http.problems import Response
from headrace.log.contract import (
    CLOCK_OFFSET,
    NO_EVENT_TIME,
    QUALITY,
    DeadLetter,
    Group,
    LogWriter,
    PartitionBatch,
    ProducerRange,
    Receipt,
    repeat_note,
    stored_schema,
)
from headrace.model.covers import Covers, Ends
from headrace.model.definitions import Stream
from headrace.model.errors import RequestError

__all__ = ["Draft", "GroupBuilder", "MeasuredClockOffsets"]

Outcome = tuple[EventsRequest, "Response | RequestError"]


class MeasuredClockOffsets(NamedTuple):
    """What the clocks gave for the events of one request, of the producer it names, if any."""

    stream: str
    producer: str
    clock_offsets: npt.NDArray[np.int64]
    qualities: npt.NDArray[np.int8]


@dataclass(slots=True)
class Draft:
    """A group ready to be appended. `fresh` outcomes hold only if the append succeeds, and say
    nothing yet of what they cover, which `GroupBuilder.covered` adds then; `settled`
    ones (refusals, and retries of what is durable already) hold in any case. By stream: how many
    records were `retried` of what is in this group or, in part, before it, were `retried_before`
    as a whole request, and were `refused`."""

    group: Group
    fresh: list[Outcome]
    settled: list[Outcome]
    retried: dict[str, int]
    retried_before: dict[str, int]
    refused: dict[str, int]
    clock_offsets: list[MeasuredClockOffsets]


@dataclass(slots=True)
class _Making:
    batches: list[PartitionBatch] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    fresh: list[Outcome] = field(default_factory=list)
    settled: list[Outcome] = field(default_factory=list)
    retried: dict[str, int] = field(default_factory=dict)
    retried_before: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    clock_offsets: list[MeasuredClockOffsets] = field(default_factory=list)
    by_key: dict[bytes, Receipt] = field(default_factory=dict)
    ranges: dict[tuple[str, str, int], list[tuple[int, int]]] = field(default_factory=dict)


class GroupBuilder:
    """Turns decoded rows into groups. One thread at a time."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._turns: dict[str, int] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def build(self, all_rows: list[StreamRows]) -> Draft:
        making = _Making()
        for rows in all_rows:
            making.settled.extend(rows.refused)
            self._add_stream(rows, making)
        return Draft(
            Group(tuple(making.batches), tuple(making.receipts), tuple(making.dead)),
            making.fresh,
            making.settled,
            making.retried,
            making.retried_before,
            making.refused,
            making.clock_offsets,
        )

    def covered(self, fresh: list[Outcome]) -> list[Outcome]:
        """The outcomes of a group that is durable, each with what it covers: all that its stream
        holds now, which is what the group's receipts say. So it does not matter which of a
        request's events were stored, or were there before."""
        tokens: dict[str, str] = {}
        outcomes: list[Outcome] = []
        for request, outcome in fresh:
            if not isinstance(outcome, RequestError):
                token = tokens.get(request.stream)
                if token is None:
                    token = self._token(request.stream, self._writer.ends(request.stream))
                    tokens[request.stream] = token
                outcome = with_covers(outcome, token)
            outcomes.append((request, outcome))
        return outcomes

    def _token(self, stream: str, ends: Ends) -> str:
        return Covers(self._writer.identity(), {stream: ends}).text()

    def _add_stream(self, rows: StreamRows, making: _Making) -> None:
        stream = rows.stream
        dropped: list[npt.NDArray[np.int64]] = []
        kept_counts: list[int] = []
        for entry, newest in zip(rows.entries, newest_event_times(rows), strict=True):
            kept = entry.end - entry.start
            if entry.request.retry_key is None and not entry.rejected:
                response: Response = (200, JSON_HEADERS, answer_body(kept, []))
                making.fresh.append((entry.request, response))
            else:
                lost = self._add_entry(stream, entry, newest, making)
                if lost is None:  # a retry or a refusal: none of it is stored
                    lost = np.arange(entry.start, entry.end)
                if len(lost):
                    dropped.append(lost)
                    kept -= len(lost)
            kept_counts.append(kept)
        if sum(kept_counts):
            self._add_rows(rows, kept_counts, dropped, making)

    def _add_entry(
        self, stream: Stream, entry: Entry, newest: int, making: _Making
    ) -> npt.NDArray[np.int64] | None:
        """The rows of the entry that are stored already; None if nothing of it is to be stored."""
        request = entry.request
        key = receipt_key(stream, request, entry.count)
        if key is not None:
            in_group = making.by_key.get(key)
            first = in_group or self._writer.receipt(key)
            if first is not None:
                self._settle_repeat(stream, entry, first, in_group is not None, making)
                return None
        lost = np.empty(0, dtype=np.int64)
        rejected = entry.rejected
        ranges: tuple[ProducerRange, ...] = ()
        retried = 0
        if isinstance(request.retry_key, ProducerKey) and entry.count:
            line = request.retry_key
            wanted = _numbers(stream, line, entry.count, newest)
            present = self._present(wanted, making)
            if present.any():
                retried = int(present.sum())
                lost = entry.start + np.flatnonzero(present[positions_of_rows(entry)])
                rejected = [r for r in rejected if not present[r.position]]
            making.ranges.setdefault((stream.name, line.producer, line.epoch), []).append(
                (line.first, line.first + entry.count)
            )
            ranges = (wanted,)
        accepted = entry.end - entry.start - len(lost)
        body = answer_body(accepted, [(r.position, r.reason) for r in rejected], retried)
        received = request.received_at_microseconds
        if key is not None:
            receipt = Receipt(key, entry.digest, body, received, ranges, stream.name)
            making.by_key[key] = receipt
            making.receipts.append(receipt)
        making.dead.extend(
            DeadLetter(
                stream.name,
                r.position,
                r.reason,
                r.raw,
                received,
                sent_at_microseconds=request.sent_at_microseconds,
            )
            for r in rejected
        )
        if retried:
            _add(making.retried, stream, retried)
        making.fresh.append((request, (200, JSON_HEADERS, body)))
        return lost

    def _settle_repeat(
        self, stream: Stream, entry: Entry, first: Receipt, in_group: bool, making: _Making
    ) -> None:
        """A retry within the group is as durable as the group; one from before it is already."""
        if first.digest != entry.digest:
            refusal = RequestError(
                422,
                "key-reused",
                "this key or sequence number was used before with another body",
                hint="take a new idempotency key for a new request; a producer that starts over "
                "takes a higher epoch",
            )
            making.settled.append((entry.request, refusal))
            _add(making.refused, stream, entry.count)
            return
        _add(making.retried if in_group else making.retried_before, stream, entry.count)
        line = entry.request.retry_key
        if isinstance(line, ProducerKey) and entry.count:
            again = _numbers(stream, line, entry.count)
            making.receipts.append(repeat_note(entry.request.received_at_microseconds, again))
        response: Response = (200, RETRIED_HEADERS, first.answer)
        if in_group:
            making.fresh.append((entry.request, response))
        else:
            # A receipt that an older version wrote does not say what was reached.
            token = self._token(stream.name, first.reached or self._writer.ends(stream.name))
            making.settled.append((entry.request, with_covers(response, token)))

    def _present(self, wanted: ProducerRange, making: _Making) -> npt.NDArray[np.bool_]:
        present = np.zeros(wanted.count, dtype=np.bool_)
        intervals = list(self._writer.present(wanted))
        intervals += making.ranges.get((wanted.stream, wanted.producer, wanted.epoch), [])
        for first, end in intervals:
            present[max(first - wanted.first, 0) : max(end - wanted.first, 0)] = True
        return present

    def _add_rows(
        self,
        rows: StreamRows,
        kept_counts: list[int],
        dropped: list[npt.NDArray[np.int64]],
        making: _Making,
    ) -> None:
        stream = rows.stream
        batch = rows.batches[0]
        if len(rows.batches) > 1:
            batch = pa.concat_batches(rows.batches)
        if dropped:
            keep = np.ones(batch.num_rows, dtype=np.bool_)
            keep[np.concatenate(dropped)] = False
            batch = batch.filter(pa.array(keep))
        requests = [entry.request for entry in rows.entries]
        if stream.clocks is not None:
            making.clock_offsets += _measured(stream, batch, requests, kept_counts)
        received = np.repeat(
            np.array([r.received_at_microseconds for r in requests], dtype=np.int64), kept_counts
        )
        batch = self._with_received(stream, batch, received)
        sent = newest_senders(stream, requests, kept_counts)
        for partition, part, rows_of_part in _split(
            batch, self._partitions(stream, requests, kept_counts, batch)
        ):
            producer = sent(part, rows_of_part)
            making.batches.append(PartitionBatch(stream.name, partition, part, producer))

    def _with_received(
        self, stream: Stream, batch: pa.RecordBatch, received: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        schema = self._schemas.get(stream.name)
        if schema is None:
            schema = self._schemas[stream.name] = stored_schema(stream)
        stamps = pa.Array.from_buffers(
            schema[-1].type, len(received), [None, pa.py_buffer(received)], 0
        )
        return pa.RecordBatch.from_arrays([*batch.columns, stamps], schema=schema)

    def _partitions(
        self,
        stream: Stream,
        requests: list[EventsRequest],
        kept_counts: list[int],
        batch: pa.RecordBatch,
    ) -> npt.NDArray[np.uint8] | int:
        """By the PARTITION BY columns, else by producer, else by turns per request."""
        if stream.partitions == 1:
            return 0
        if stream.partition_by:
            names = [c.name.lower() for c in stream.columns]
            columns = [batch.column(names.index(name.lower())) for name in stream.partition_by]
            return partitions_of_rows(columns, stream.partitions)
        chosen = []
        for request in requests:
            if isinstance(request.retry_key, ProducerKey):
                chosen.append(partition_of_text(request.retry_key.producer, stream.partitions))
            else:
                turn = self._turns.get(stream.name, 0)
                self._turns[stream.name] = (turn + 1) % stream.partitions
                chosen.append(turn)
        if len(set(chosen)) == 1:
            return chosen[0]
        return np.repeat(np.array(chosen, dtype=np.uint8), kept_counts)


def _add(counts: dict[str, int], stream: Stream, count: int) -> None:
    counts[stream.name] = counts.get(stream.name, 0) + count


def _measured(
    stream: Stream, batch: pa.RecordBatch, requests: list[EventsRequest], kept_counts: list[int]
) -> Iterator[MeasuredClockOffsets]:
    clock_offsets, qualities = batch.column(CLOCK_OFFSET), batch.column(QUALITY).to_numpy()
    start = 0
    for request, count in zip(requests, kept_counts, strict=True):
        if count:
            key = request.retry_key
            known = clock_offsets.slice(start, count).drop_null().to_numpy()
            judged = qualities[start : start + count]
            producer = key.producer if isinstance(key, ProducerKey) else ""
            yield MeasuredClockOffsets(stream.name, producer, known, judged)
            start += count


def _numbers(
    stream: Stream, line: ProducerKey, count: int, newest: int = NO_EVENT_TIME
) -> ProducerRange:
    return ProducerRange(stream.name, line.producer, line.epoch, line.first, count, newest)


def receipt_key(stream: Stream, request: EventsRequest, count: int) -> bytes | None:
    """What a retry is found by. For a producer the number of records is part of it: the same
    numbers in other batches are judged number by number."""
    retry_key = request.retry_key
    if retry_key is None:
        return None
    if isinstance(retry_key, ProducerKey):
        text = f"p\0{stream.name}\0{retry_key.epoch}\0{retry_key.first}\0{count}\0"
        text += retry_key.producer
    else:
        text = f"k\0{stream.name}\0{retry_key}"
    encoded = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _split(
    batch: pa.RecordBatch, partitions: npt.NDArray[np.uint8] | int
) -> list[tuple[int, pa.RecordBatch, npt.NDArray[np.int64] | None]]:
    """The rows of each partition, and their places in the batch; None for all of them."""
    if isinstance(partitions, int):
        return [(partitions, batch, None)]
    counts = np.bincount(partitions)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch, None)]
    order = np.argsort(partitions, kind="stable")
    ordered = batch.take(pa.array(order))
    parts: list[tuple[int, pa.RecordBatch, npt.NDArray[np.int64] | None]] = []
    start = 0
    for partition in present:
        count = int(counts[partition])
        places = order[start : start + count]
        parts.append((int(partition), ordered.slice(start, count), places))
        start += count
    return parts
