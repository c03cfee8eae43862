"""The log contract; tests/log/test_conformance.py runs against every backend.

A log holds streams; a stream has numbered partitions; a partition is a sequence of events with
offsets 0, 1, 2, … without holes. Offsets never change meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.model.definitions import Stream

__all__ = [
    "RECEIVED_AT",
    "Appended",
    "DeadLetter",
    "Group",
    "LogBatch",
    "LogReader",
    "LogWriter",
    "PartitionBatch",
    "ProducerRange",
    "Receipt",
    "stored_schema",
]

RECEIVED_AT = "_received_at"  # TIMESTAMP, when the gateway had the request; in every stream
NO_EVENT_TIME = -(2**63)  # the running maximum before the first event of a partition


def stored_schema(stream: Stream) -> pa.Schema:
    """The Arrow schema of a stream's events in the log: its columns in order, then RECEIVED_AT."""
    columns = [pa.field(c.name, c.type.arrow, nullable=c.nullable) for c in stream.columns]
    received = pa.field(RECEIVED_AT, pa.timestamp("us", "UTC"), nullable=False)
    return pa.schema([*columns, received])


@dataclass(frozen=True)
class PartitionBatch:
    """Events for one partition, in order. The batch has the stream's stored schema."""

    stream: str
    partition: int
    batch: pa.RecordBatch


@dataclass(frozen=True)
class ProducerRange:
    """Sequence numbers first … first + count - 1 of one producer's number line on one stream."""

    stream: str
    producer: str
    epoch: int
    first: int
    count: int


@dataclass(frozen=True)
class Receipt:
    """What must be remembered about one request, so that its retry gets the same answer.

    `key` is unique per request (stream and idempotency key, or stream, producer, epoch and first
    sequence number); `digest` is a digest of the body as the client meant it; `answer` is the
    response body; `ranges` are the sequence numbers now present in the log.
    """

    key: bytes
    digest: bytes
    answer: bytes
    received_at_microseconds: int
    ranges: tuple[ProducerRange, ...] = ()


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be accepted. `position` counts from 0 within its request."""

    stream: str
    position: int
    reason: str
    raw: bytes
    received_at_microseconds: int
    number: int = -1  # given by the log when appended; identifies the letter ever after


@dataclass(frozen=True)
class Group:
    """One group commit: stored whole or not at all, with one fsync whatever it touches."""

    batches: tuple[PartitionBatch, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    dead: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True)
class Appended:
    """`base_offsets[i]` is the offset of the first event of `group.batches[i]`."""

    base_offsets: tuple[int, ...]
    dead_numbers: tuple[int, ...]


@dataclass(frozen=True)
class LogBatch:
    """Consecutive events of a partition, zero-copy where the backend can.

    `maximum_before` is the highest event time (microseconds) of all events before `base_offset`
    in the partition, NO_EVENT_TIME if there are none.
    """

    base_offset: int
    maximum_before: int
    batch: pa.RecordBatch = field(repr=False)


class LogReader(Protocol):
    """Readers never block writers and take no lock. Any number may be open in any process."""

    def starts(self, stream: str) -> tuple[int, ...]:
        """The first offset still held, per partition."""

    def ends(self, stream: str) -> tuple[int, ...]:
        """The offset after the last durable event, per partition. Cheap: called many times a
        second. Never decreases, also over a crash of the writer."""

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        """Exactly the events start ≤ offset < end, in order, with only the named columns.

        Raises LogOffsetError if start is before starts() or end after ends(); LogCorruptError
        if bytes fail their checksum (checked when asked for through `verify`, not on each read).
        """

    def oldest(self, stream: str) -> tuple[int, ...]:
        """The first offset that can still be read, per partition: starts(), or earlier where the
        archive goes on without a hole."""

    def read_history(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[LogBatch]:
        """As read(), going back into the archive for what the log no longer holds."""

    def size_bytes(self, stream: str, partition: int, start: int, end: int) -> int:
        """About how many bytes of the log read() of that range will touch; used to size ticks.
        Archived events count nothing."""

    def dead_letters(self, stream: str | None, after: int, limit: int) -> Sequence[DeadLetter]:
        """Dead letters with number > after, ascending, resolved ones left out."""

    def close(self) -> None: ...


class LogWriter(Protocol):
    """At most one per log, held by a lock; opening a second raises LogLockedError."""

    def append(self, group: Group) -> Appended:
        """Returns only when the group is durable and visible to readers. Raises LogFullError
        (nothing stored) when a stream is at its size limit and its views hold the rest."""

    def receipt(self, key: bytes) -> Receipt | None:
        """The receipt kept for a key, within the stated bounds of number and age."""

    def present(self, wanted: ProducerRange) -> Sequence[tuple[int, int]]:
        """Which of the wanted sequence numbers are already stored, as (first, end) intervals."""

    def resolve_dead_letters(self, numbers: Sequence[int]) -> None:
        """Durably mark dead letters as dealt with (re-submitted or discarded)."""

    def retain(self, now_microseconds: int) -> Mapping[str, int]:
        """Apply every stream's retention, never passing the hold; gives bytes freed per stream."""

    def close(self) -> None:
        """Everything appended is durable already; releases the lock."""
