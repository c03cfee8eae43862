"""The log contract; tests/log/test_conformance.py runs against every backend.

A log holds streams; a stream has numbered partitions; a partition is a sequence of events with
ascending offsets. Offsets never change meaning, and mean nothing but their order: there may be
holes between them, so only the log can say how many events a range has and where a part of it ends.
None is below 0, which therefore stands for the beginning.

Everything in the log, of all its streams, has a position: what was stored together has the same
one, and what was stored later has a higher one. Positions too can only be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.completeness import WatermarkOrigin
from headrace.model.definitions import Stream

__all__ = [
    "CLOCK_OFFSET",
    "EVENT_TIME",
    "GAPS_MAX",
    "GAPS_TOTAL_MAX",
    "LINES_MAX",
    "NO_POSITION",
    "QUALITIES",
    "QUALITY",
    "RECEIVED_AT",
    "Advance",
    "Appended",
    "Completeness",
    "DeadLetter",
    "Gap",
    "Group",
    "LineReport",
    "LogAddress",
    "LogBatch",
    "LogReader",
    "LogWriter",
    "PartitionBatch",
    "ProducerRange",
    "ProducerReport",
    "Range",
    "Receipt",
    "accept_note",
    "clock_column",
    "heard_note",
    "repeat_note",
    "retire_note",
    "stored_schema",
]

RECEIVED_AT = "_received_at"  # TIMESTAMP, when the gateway had the request; in every stream
LINES_MAX = 20  # number lines in a report, of one producer
NUMBERS_MAX = 2**62  # sequence numbers are below this
GAPS_MAX = 100  # gaps in a report, of one number line
GAPS_TOTAL_MAX = 10_000  # of all; then lines come without gaps, marked as truncated
NO_EVENT_TIME = -(2**63)  # the running maximum before the first event of a partition
NO_POSITION = -1  # of events archived before positions were kept; it is before all others

# Only in streams with clocks, between the stream's own columns and RECEIVED_AT:
EVENT_TIME = "_event_time"  # TIMESTAMP NOT NULL, corrected
CLOCK_OFFSET = "_skew"  # BIGINT, microseconds: received less sent; NULL without a sent time
QUALITY = "_quality"  # TINYINT, a place in QUALITIES: what the event time rests on
QUALITIES = ("exact", "corrected", "received")


def stored_schema(stream: Stream) -> pa.Schema:
    """The Arrow schema of a stream's events in the log: its columns in order, what its clocks
    gave if it has any, then RECEIVED_AT."""
    columns = [pa.field(c.name, c.type.arrow, nullable=c.nullable) for c in stream.columns]
    time = pa.timestamp("us", "UTC")
    if stream.clocks is not None:
        columns.append(pa.field(EVENT_TIME, time, nullable=False))
        columns.append(pa.field(CLOCK_OFFSET, pa.int64()))
        columns.append(pa.field(QUALITY, pa.int8(), nullable=False))
    return pa.schema([*columns, pa.field(RECEIVED_AT, time, nullable=False)])


def clock_column(stream: Stream) -> str:
    """The stored column with the event time, by which watermarks go."""
    return EVENT_TIME if stream.clocks is not None else stream.event_time or RECEIVED_AT


@dataclass(frozen=True)
class PartitionBatch:
    """Events for one partition, in order. The batch has the stream's stored schema. `producer` is
    who sent the newest of them by event time, where that is known."""

    stream: str
    partition: int
    batch: pa.RecordBatch
    producer: str = ""


@dataclass(frozen=True)
class ProducerRange:
    """Sequence numbers first … first + count - 1 of one producer's number line on one stream, and
    the highest event time that came with them. With `count` 0 the producer was only heard, or,
    with a `partition`, is the one that brought it to this event time ("" if nobody is known).

    A `mark` says what was decided instead: of missing numbers (epoch -1: of every epoch) that they
    are `accepted` as such, of the producer that it is `retired`."""

    stream: str
    producer: str
    epoch: int
    first: int
    count: int
    event_time_microseconds: int = NO_EVENT_TIME
    partition: int = -1
    mark: str = ""


@dataclass(frozen=True)
class Receipt:
    """What must be remembered about one request, so that its retry gets the same answer.

    `key` is unique per request (stream and idempotency key, or stream, producer, epoch and first
    sequence number); `digest` is a digest of the body as the client meant it; `answer` is the
    response body; `ranges` are the sequence numbers now present in the log; `stream` is the one
    whose events the request had. `reached` is added by the log when it is appended: the ends of
    that stream's partitions with this group, so that a retry can be told them again.

    One with an empty key is a note: it is not kept for retries, only its ranges count, as durably
    as those of any other (repeat_note, heard_note).
    """

    key: bytes
    digest: bytes
    answer: bytes
    received_at_microseconds: int
    ranges: tuple[ProducerRange, ...] = ()
    stream: str = ""
    reached: tuple[int, ...] = ()


def repeat_note(received_at_microseconds: int, again: ProducerRange) -> Receipt:
    """That stored numbers were sent again: they count as duplicates, and nothing is stored."""
    return Receipt(b"", b"", b"", received_at_microseconds, (again,))


def heard_note(received_at_microseconds: int, stream: str, producer: str) -> Receipt:
    """That a producer was heard from, without numbers."""
    heard = ProducerRange(stream, producer, 0, 0, 0)
    return Receipt(b"", b"", b"", received_at_microseconds, (heard,))


def retire_note(received_at_microseconds: int, stream: str, producer: str) -> Receipt:
    """That nothing more is expected of a producer, until it is heard from again."""
    ended = ProducerRange(stream, producer, 0, 0, 0, mark="retired")
    return Receipt(b"", b"", b"", received_at_microseconds, (ended,))


def accept_note(
    received_at_microseconds: int,
    stream: str,
    producer: str,
    epoch: int = -1,
    first: int = 0,
    count: int = NUMBERS_MAX,
) -> Receipt:
    """That what is missing of these numbers just now is not missed any more. A number of them that
    comes all the same is taken in as any late one."""
    numbers = ProducerRange(stream, producer, epoch, first, count, mark="accepted")
    return Receipt(b"", b"", b"", received_at_microseconds, (numbers,))


@dataclass(frozen=True)
class Gap:
    """Numbers first … last that have not come although a higher one had, and when that was."""

    first: int
    last: int
    noticed_at_microseconds: int


@dataclass(frozen=True)
class LineReport:
    """One number line of a producer. `lowest` is where it begins for the log: what is below was
    never received, and whether it was sent is not known. `gaps` are the lowest ones, without what
    was accepted: `accepted` are numbers that did not come and do not count as missing."""

    epoch: int
    lowest: int
    highest: int
    present: int
    missing: int
    gaps: tuple[Gap, ...]
    gaps_truncated: bool
    late_fills: int
    duplicates: int
    first_received_at_microseconds: int
    last_received_at_microseconds: int
    last_event_time_microseconds: int | None
    accepted: int = 0


@dataclass(frozen=True)
class ProducerReport:
    """One producer on one stream: when it was last heard from, how many times it took a higher
    epoch, and its lines, newest epoch first. `numbered_by` says where the numbers stand: in the
    headers of `requests`, or in the `events` of a stream with NUMBERED BY, whose producers are the
    writers named there; an epoch is then counted each time one starts over."""

    producer: str
    heard_at_microseconds: int
    resets: int
    lines: tuple[LineReport, ...]
    lines_truncated: bool = False
    numbered_by: str = "requests"
    is_retired: bool = False


@dataclass(frozen=True)
class Completeness:
    """All producers of one stream together. The last three only grow while a writer is open."""

    producers: int = 0
    missing: int = 0
    late_fills: int = 0
    duplicates: int = 0
    resets: int = 0


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be accepted. `position` counts from 0 within its request, which said
    when it was sent or did not."""

    stream: str
    position: int
    reason: str
    raw: bytes
    received_at_microseconds: int
    number: int = -1  # given by the log when appended; identifies the letter ever after
    sent_at_microseconds: int | None = None


@dataclass(frozen=True)
class Advance:
    """A control record: as if an event with this event time had come, so that the watermark moves
    on where none comes. It takes no offset: it stands before the event at the offset where the
    partition ended. One that would raise nothing is not stored. `reason` says who moved it on
    (`heartbeat`, `idle`; `first`: the log itself, see Group), `producer` for whom."""

    stream: str
    partition: int
    maximum_microseconds: int
    reason: str
    producer: str = ""
    offset: int = -1  # given by the log when appended
    position: int = NO_POSITION  # likewise


@dataclass(frozen=True)
class Group:
    """One group commit: stored whole or not at all, with one fsync whatever it touches. The
    advances come after the batches; of several for a partition the furthest counts.

    A partition that gets its first events or advance when others of the stream have some begins
    where the least advanced of them was before the group: the log puts an advance before. So what
    was complete stays complete, and who is late does not depend on which partition has begun.
    """

    batches: tuple[PartitionBatch, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    dead: tuple[DeadLetter, ...] = ()
    advances: tuple[Advance, ...] = ()


@dataclass(frozen=True)
class Appended:
    """The events of `group.batches[i]` have offsets base_offsets[i] ≤ offset < ends[i], and no
    others have; `rows[i]` is how many the log counted. All that the group stored has the same
    `position`."""

    base_offsets: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    dead_numbers: tuple[int, ...] = ()
    position: int = NO_POSITION


@dataclass(frozen=True)
class Range:
    """The events start ≤ offset < end of one partition, and how many they are: `rows` is counted
    by the log, see LogReader.cut."""

    partition: int
    start: int
    end: int
    rows: int


@dataclass(frozen=True)
class LogBatch:
    """Consecutive events of a partition, at least one, zero-copy where the backend can.

    `offset_runs` are (row, its offset): the rows behind it, up to the next run, have the numbers
    that follow. `position_runs` are (row, its position), which those behind it have too. Both are
    arrays of two columns where they may be many.
    `maximum_before` is the highest event time (microseconds) of all events and advances before
    the first row in the partition, NO_EVENT_TIME if there are none. `maxima` are the places
    within the batch where an advance stands: (row, the maximum before that row), ascending.
    """

    offset_runs: Sequence[tuple[int, int]] | npt.NDArray[np.int64]
    position_runs: Sequence[tuple[int, int]] | npt.NDArray[np.int64]
    maximum_before: int
    batch: pa.RecordBatch = field(repr=False)
    maxima: tuple[tuple[int, int], ...] = ()

    @property
    def first_offset(self) -> int:
        return int(self.offset_runs[0][1])

    @cached_property
    def offsets(self) -> np.ndarray:
        """The offset of each row, ascending."""
        if len(self.offset_runs) == 1:
            first = self.first_offset
            return np.arange(first, first + self.batch.num_rows)
        rows, offsets = np.array(self.offset_runs, dtype=np.int64).T
        lengths = np.diff(rows, append=self.batch.num_rows)
        offsets = np.repeat(offsets - rows, lengths)
        offsets += np.arange(self.batch.num_rows)
        return offsets

    @cached_property
    def positions(self) -> np.ndarray:
        """The position of each row: ascending, with repetitions."""
        rows, positions = np.array(self.position_runs, dtype=np.int64).T
        return np.repeat(positions, np.diff(rows, append=self.batch.num_rows))

    def maxima_before(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The maximum before each row; `times` are the rows' event times in microseconds."""
        before = np.full(len(times), self.maximum_before, dtype=np.int64)
        before[1:] = times[:-1]
        if self.maxima:
            rows, raised = np.array(self.maxima, dtype=np.int64).T
            before[rows] = np.maximum(before[rows], raised)
        if len(before):
            before[0] = max(before[0], self.maximum_before)
        return np.asarray(np.maximum.accumulate(before))


class LogAddress(Protocol):
    """Where a log is, for any process on any machine that is to read it: a small value that can
    be hashed and pickled. Equal addresses are of one log."""

    def open(self, streams: Sequence[Stream]) -> LogReader:
        """A reader of these streams. Needs no writer: a log that none has opened yet is empty."""

    def __hash__(self) -> int: ...


class LogReader(Protocol):
    """Readers never block writers and take no lock. Any number may be open in any process."""

    @property
    def address(self) -> LogAddress:
        """Opens the same log elsewhere."""

    def version(self) -> int:
        """Another number whenever starts(), ends() or maxima() of any stream has moved. The
        cheapest question: asked a hundred times a second while nothing happens."""

    def identity(self) -> str:
        """What tells this log from one that takes its place; "" before a writer has made it."""

    def starts(self, stream: str) -> tuple[int, ...]:
        """The first offset still held, per partition."""

    def ends(self, stream: str) -> tuple[int, ...]:
        """The offset after the last durable event, per partition. Cheap: called many times a
        second. Never decreases, also over a crash of the writer."""

    def maxima(self, stream: str) -> tuple[int, ...]:
        """The highest event time of all durable events and advances, per partition, NO_EVENT_TIME
        where there is none. As cheap as ends(), and never decreases either."""

    def position(self) -> int:
        """The highest position that readers see; NO_POSITION before the first. As cheap as
        ends(), and never decreases either."""

    def cut_at(self, stream: str, position: int) -> tuple[int, ...]:
        """Per partition, the offset after the last event whose position is not above the given
        one: where all streams are cut at one position, they show the same groups. Of what the log
        no longer holds, all counts as before; of what was compacted, what is left is there."""

    def maximum(self, stream: str, partition: int, offset: int) -> int:
        """The same of the events before `offset` and the advances durable now that stand before
        the event at `offset`, which may be the end. Raises LogOffsetError outside the history."""

    def advances(self, stream: str, partition: int, start: int, end: int) -> Sequence[Advance]:
        """The advances that stand at offsets start ≤ offset ≤ end, in order, of those the log
        still holds. For people who ask why: it may read much."""

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

    def rows_of(self, stream: str, partition: int, start: int, end: int) -> int:
        """How many events read_history() would give for start ≤ offset < end, of those that can
        still be read: counted from the log's own index, without reading them."""

    def cut(
        self, stream: str, partition: int, start: int, end: int, rows_max: int | None = None
    ) -> Range:
        """The range that begins at `start` and has the first `rows_max` events before `end`. It
        goes up to `end` if there are no more, or if no maximum is given; else the next range
        starts where it ends."""

    def size_bytes(self, stream: str, partition: int, start: int, end: int) -> int:
        """About how many bytes of the log read() of that range will touch; used to size ticks.
        Archived events count nothing."""

    def set_retention_floor(self, next_offsets: Mapping[str, tuple[int, ...]]) -> None:
        """Say how far the slowest view of each stream has come: retention takes nothing from there
        on, and nothing at all until it is said for the first time. A stream that is left out is
        read by no view. It may lag behind the views, which only keeps more.

        When it returns, no compaction appears that it forbids: who is to read a changelog from its
        beginning in several steps sets the floor there first."""

    def set_needed(
        self, stream: str, partition: int, upto: int, offsets: npt.NDArray[np.int64]
    ) -> None:
        """Say of a stream that is compacted: of the events before `upto`, those at these offsets
        are needed, ascending, and no others. Retention lets all others before `upto` go in one
        instant, once the floor has passed `upto`; without this it takes nothing from the stream.
        Replaces what was said before, durably; with `upto` 0 it is taken back."""

    def compacted(self, stream: str) -> tuple[tuple[int, int], ...]:
        """Per partition, the `upto` by which it was compacted last and how many events before it
        were needed; (0, 0) where it never was."""

    def dead_letters(self, stream: str | None, after: int, limit: int) -> Sequence[DeadLetter]:
        """Dead letters with number > after, ascending, resolved ones left out."""

    def close(self) -> None: ...


class LogWriter(Protocol):
    """At most one per log, held by a lock; opening a second raises LogLockedError."""

    def identity(self) -> str:
        """As the readers' one: never empty."""

    def ends(self, stream: str) -> tuple[int, ...]:
        """As the readers' one. Cheap."""

    def append(self, group: Group) -> Appended:
        """Returns only when the group is durable and visible to readers. Raises LogFullError
        (nothing stored) when a stream is at its size limit and its views hold the rest."""

    def receipt(self, key: bytes) -> Receipt | None:
        """The receipt kept for a key, within the stated bounds of number and age."""

    def present(self, wanted: ProducerRange) -> Sequence[tuple[int, int]]:
        """Which of the wanted sequence numbers are already stored, as (first, end) intervals."""

    def heard(self, stream: str, producer: str, received_at_microseconds: int) -> None:
        """Remember that a producer was heard from. Kept with the next checkpoint: what must
        survive a crash goes into a group as a heard_note."""

    def completeness(self, stream: str) -> Completeness:
        """The stream's producers in sum; with NUMBERED BY those that its events name. Cheap."""

    def producers(self, stream: str, after: str, limit: int) -> Sequence[ProducerReport]:
        """The next producers by name, those of `after` left out, up to `limit` names; one that is
        numbered both by its requests and by its events comes twice. Bounded: LINES_MAX lines a
        producer, GAPS_MAX gaps a line."""

    def knows(self, stream: str, producer: str) -> bool:
        """Whether the producer has been heard from on the stream, and is not forgotten."""

    def quiet_since(self, limits: Mapping[str, int]) -> Mapping[str, Sequence[tuple[str, int]]]:
        """For each stream named, the producers last heard from before its limit (microseconds),
        as (name, heard at), longest quiet first, retired ones left out. With
        NUMBERED BY only those that events name."""

    def watermark_origins(self, stream: str) -> Sequence[WatermarkOrigin]:
        """Who brought each partition to its highest event time, of those where a producer did;
        the same after a crash."""

    def received(self, stream: str) -> tuple[int, ...]:
        """When the newest event of each partition was received, NO_EVENT_TIME if there never was
        one: also after a restart, and when retention has taken the event. Cheap."""

    def resolve_dead_letters(self, numbers: Sequence[int]) -> None:
        """Durably mark dead letters as dealt with (re-submitted or discarded)."""

    def retain(self, now_microseconds: int) -> Mapping[str, int]:
        """Apply every stream's retention, never passing its floor; gives bytes freed per stream.
        May take long where it compacts; close() makes it end early."""

    def close(self) -> None:
        """Everything appended is durable already; releases the lock."""
