"""The store contract; tests/store/test_conformance.py runs against every backend.

Only the engine's process opens the store. One thread commits ticks; queries run on other threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.definitions import Stream
from headrace.model.plan import BoundView
from headrace.store.late_counts import LateCounts
from headrace.store.proofs import Snapshot

__all__ = [
    "COPY_PREFIX",
    "INCIDENT",
    "LATE_SUFFIX",
    "CatalogEntry",
    "Counts",
    "Freshness",
    "KnownKeys",
    "Moved",
    "Offsets",
    "Page",
    "QueryResult",
    "Snapshot",
    "Store",
    "StoreDeadLetter",
    "StoredDecision",
    "StreamCounts",
    "StreamProgress",
    "StreamWrite",
    "TableTotals",
    "TickWrite",
    "ViewChange",
    "ViewStatus",
    "ViewWrite",
    "copied_view",
    "copy_name",
]

Offsets = npt.NDArray[np.int64]
COPY_PREFIX = "_copy_of_"  # no name of a view that users define begins like this
LATE_SUFFIX = "_late"  # after the name of a stream: the view of its events set aside
INCIDENT = "incident: "  # begins the detail of a view that failed because events did not add up


def copy_name(view: str) -> str:
    """The name of a view's copy: a view of its own to those who write, and none to those who read.
    It takes the place of the view once it has come as far (see Store.swap)."""
    return COPY_PREFIX + view


def copied_view(name: str) -> str | None:
    """The view of which this is the name of the copy; None for any other name."""
    return name[len(COPY_PREFIX) :] if name.startswith(COPY_PREFIX) else None


@dataclass(frozen=True)
class Counts:
    """What became of the events a view consumed: read = applied + filtered + sided + dropped +
    dead. `read` is what the stream accepted: offsets advanced less `duplicate`. `late` counts
    those of `applied` that were late for at least one window; `sided` and `dropped` those that
    were applied to no window because all of theirs had been passed."""

    read: int = 0
    applied: int = 0
    filtered: int = 0
    late: int = 0
    sided: int = 0
    dropped: int = 0
    dead: int = 0
    duplicate: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*map(add, vars(self).values(), vars(other).values()))

    @property
    def is_conserved(self) -> bool:
        parts = (self.applied, self.filtered, self.sided, self.dropped, self.dead)
        return self.read == sum(parts)


@dataclass(frozen=True)
class StreamCounts:
    """What became of a stream's events, counted where the furthest of its views passed them:
    advanced = accepted + duplicate + dead."""

    advanced: int = 0
    accepted: int = 0
    duplicate: int = 0
    dead: int = 0

    def plus(self, other: StreamCounts) -> StreamCounts:
        return StreamCounts(*map(add, vars(self).values(), vars(other).values()))

    @property
    def is_conserved(self) -> bool:
        return self.advanced == self.accepted + self.duplicate + self.dead


@dataclass(frozen=True)
class StreamWrite:
    """How far a tick brought a stream whose furthest views it moved. `dedup_keys` are those of the
    events it accepted (see `dedup_keys_schema` in store/dedup_keys.py) and `duplicates` the
    offsets of those it did not, by partition; both only for streams that are de-duplicated. Kept
    keys with a mark below `dedup_keys_since` count against no event to come; offsets before
    `oldest` can no longer be read, so that what is recorded of them may go."""

    stream: str
    next_offsets: Mapping[int, int]
    counts: StreamCounts
    dedup_keys: pa.Table | None = None
    duplicates: Mapping[int, Offsets] = field(default_factory=dict)
    dedup_keys_since: Mapping[int, int] = field(default_factory=dict)
    oldest: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownKeys:
    """About each of some events: the hash of its key; whether a kept key equals it, is within the
    interval and still counts; and the number of its group, which it shares with the other events
    of these that have its key and are not known (-1: there is none)."""

    hashes: npt.NDArray[np.uint64]
    is_known: npt.NDArray[np.bool_]
    groups: Offsets


@dataclass(frozen=True)
class StoreDeadLetter:
    """An event that one view's expressions cannot take. `raw` is the event as JSON."""

    view: str
    stream: str
    partition: int
    offset: int
    reason: str
    raw: str


@dataclass(frozen=True)
class Moved:
    """How far a tick brings a view: from these offsets on by so many events, which the log counts
    from its own index. It is one side of the tick's sums."""

    previous_offsets: Mapping[int, int]
    events: int


@dataclass(frozen=True)
class ViewWrite:
    """What a tick brings to one view: partial rows (see BoundView), distinct values per
    distinct name (columns: keys, PANE if windowed, `value`; several rows may be equal), and the
    offsets the view will have reached. `partials` None means no event passed the view's WHERE.

    `late_side_output` holds the late events that are kept aside, a row for each window they missed:
    window_start, window_end, watermark, `_partition`, `_offset`, then the event's stored columns.
    `dropped` counts dropped ones by window: (start, end, events). The reason is
    `dropped_for`: late by the stream's policy, or decided by an operator. `applied` are the places
    (partition, offset) of events set aside before that the view takes in now.

    `state_expiry` says by partition: no event of it that is yet to come is applied to a window that
    has ended by then. What only such windows need may go. A partition that can say nothing is
    missing.

    Without `moved` the offsets are taken to have no holes: each is an event."""

    view: str
    partials: pa.Table | None
    distincts: Mapping[str, pa.Table]
    next_offsets: Mapping[int, int]
    counts: Counts
    watermark_microseconds: int | None
    dead: tuple[StoreDeadLetter, ...] = ()
    late_side_output: pa.Table | None = None
    dropped: tuple[tuple[int, int, int], ...] = ()
    dropped_for: str = "late"
    applied: tuple[tuple[int, int], ...] = ()
    state_expiry: Mapping[int, int] = field(default_factory=dict)
    moved: Moved | None = None


@dataclass(frozen=True)
class TickWrite:
    """`tick` is last_tick() + 1. `generation` is what claim() gave."""

    tick: int
    generation: int
    started_at_microseconds: int
    views: tuple[ViewWrite, ...]
    streams: tuple[StreamWrite, ...] = ()


@dataclass(frozen=True)
class StreamProgress:
    """How far the furthest of a stream's views ever came, and what became of its events."""

    next_offsets: Mapping[int, int]
    totals: StreamCounts


@dataclass(frozen=True)
class StoredDecision:
    """What an operator decided about one late event: apply, side or drop."""

    stream: str
    partition: int
    offset: int
    decision: str


@dataclass(frozen=True)
class ViewChange:
    """The rows of one view that one tick changed. `before` holds the rows as they were (rows that
    are new have none), `after` as they are. Both have the view's public columns."""

    view: str
    tick: int
    before: pa.Table = field(repr=False)
    after: pa.Table = field(repr=False)


@dataclass(frozen=True)
class ViewStatus:
    """`state` is live, catching_up, failed, changed or removed; of a copy also held: it does not
    take its view's place until somebody says so. `detail` says why, for people."""

    state: str
    detail: str = ""

    @property
    def is_closed(self) -> bool:
        """Its rows belong to a definition that is not in force: it cannot be read until it is
        opened again, and to SQL it does not exist."""
        return self.state in ("changed", "removed")

    @property
    def is_incident(self) -> bool:
        return self.state == "failed" and self.detail.startswith(INCIDENT)


@dataclass(frozen=True)
class CatalogEntry:
    view: str
    stream: str
    fingerprint: str
    sql: str
    status: ViewStatus
    next_offsets: Mapping[int, int]
    watermark_microseconds: int | None
    totals: Counts
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    is_table: bool = False


@dataclass(frozen=True)
class Freshness:
    """At which tick a query saw the store."""

    tick: int
    committed_at_microseconds: int


@dataclass(frozen=True)
class QueryResult:
    """`batches` are produced while the query runs and must be read to the end or closed."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    freshness: Freshness


@dataclass(frozen=True)
class Page:
    """One page of a view. `next_cursor` is opaque; None at the end."""

    table: pa.Table
    next_cursor: str | None
    freshness: Freshness


@dataclass(frozen=True)
class TableTotals:
    """Of the changes that a table applied: how many were superseded, so that its row stayed as it
    was, and how many resurrected a key whose delete no longer counted."""

    superseded: int = 0
    resurrected: int = 0


class Store(Protocol):
    def claim(self) -> int:
        """Take over: durably raises the generation and returns it. Every later commit by an older
        generation raises FencedError."""

    def last_tick(self) -> int:
        """0 before the first."""

    def catalog(self) -> Mapping[str, CatalogEntry]:
        """What the store holds state for, by view; not its copies."""

    def copies(self) -> Mapping[str, CatalogEntry]:
        """What is being filled beside a view, by the name of the view."""

    def streams(self) -> Mapping[str, StreamProgress]:
        """By stream; one that no view has read yet is missing."""

    def declare_stream(self, stream: Stream) -> None:
        """Make room for the stream's late events: the public view STREAM_late."""

    def late_side_output(self, stream: str, view: str, limit: int) -> Sequence[tuple[int, int]]:
        """(partition, offset) of events that are set aside for the view and not applied yet,
        ascending."""

    def replays(self, stream: str, view: str) -> Sequence[tuple[int, int, int]]:
        """(partition, offset, come) of events that were applied to the view after they had been set
        aside, before it was rebuilt, and not again since; `come` is the offset that the view had
        come to in the partition by then. Of a copy: those applied to its view, and not to it."""

    def decide(self, decision: StoredDecision) -> None:
        """Durably record what an operator decided; a later decision about the same event is
        refused with StoreError."""

    def decisions(self, stream: str) -> Sequence[StoredDecision]:
        """All that were ever taken, ordered by partition and offset."""

    def late(self, stream: str, limit: int) -> LateCounts:
        """What became of the stream's late events; at most so many windows and decisions."""

    def open_stream(self, stream: Stream) -> None:
        """Make a stream known to this process. When what its verdicts about duplicates rest on
        was defined otherwise, they and the stream's progress are forgotten: its events are judged
        anew."""

    def known_keys(self, stream: str, events: pa.Table) -> KnownKeys:
        """Look up the keys of events (see `events_schema` in store/dedup_keys.py) that were
        accepted by the ticks so far, and find those that occur more than once among these."""

    def duplicates(self, stream: str, partition: int, start: int, end: int) -> Offsets:
        """The offsets start ≤ offset < end that were recorded as duplicates, ascending."""

    def create_view(self, view: BoundView, start_offsets: Mapping[int, int]) -> None:
        """State tables, the public SQL view, the change feed and the catalog entry, in one
        transaction. A global view gets its single row at once. A view named copy_name(VIEW) is a
        copy of VIEW, which the store holds: ticks move it like any other, but it has no public
        view, no change feed and no place in what readers are told."""

    def open_view(self, view: BoundView) -> None:
        """Make an existing view known to this process. Raises ViewChangedError if the stored
        fingerprint differs."""

    def drop_view(self, name: str) -> None:
        """State, public view, change feed, dead letters and catalog entry, in one transaction."""

    def set_status(self, name: str, status: ViewStatus) -> None: ...

    def near_events(self, view: str, partials: pa.Table) -> pa.Table | None:
        """Of a view by event group: the events of these partials whose REJECTED_WINDOWS is not
        positive, and the stored ones they may be grouped with; with the columns of the partials,
        and in event_groups.KEY a number for the keys; in the order of that, of time and of the
        log. A group whose events are no longer kept is there by what opens and what closes it.
        None where there are none."""

    def commit(
        self, write: TickWrite, want_changes: frozenset[str] | None = None
    ) -> Sequence[ViewChange]:
        """Returns the changes of the views named in `want_changes` (None: of all) that the tick
        changed. One durable transaction: merge all partials, write offsets, counts, watermarks,
        dead letters, the change feed and the tick's ledger row; readers see all of it or nothing.

        Raises FencedError; ConservationError naming the stream when the sums of its events, or of
        a view's, do not come out even; MergeError naming the view when its data cannot be merged
        (for example a BIGINT sum that overflows). Then nothing is stored. Runs short of memory:
        interrupts users' queries and tries again once.
        """

    def swap(self, write: TickWrite, view: str) -> ViewChange | None:
        """A tick without views or streams, in which the view's copy takes its place: from then on
        it has the view's name, and the view's own state is gone. What differs for readers, paired
        by row keys, is in the change feed of this tick, and is returned; nothing may differ. None
        when there are more such rows than the feed may hold, or when they have other columns:
        then whoever follows the view must read it anew. Raises as `commit` does."""

    def changes(self, view: str, after_tick: int, limit_ticks: int) -> Sequence[ViewChange]:
        """The stored changes of ticks > after_tick, ascending: at most `limit_ticks` ticks, and
        none behind those that have many rows together, since all are in memory at once. So only an
        empty answer says that there are no more. Raises ChangesExpiredError when some of them are
        no longer kept."""

    def ledger(self, limit: int) -> pa.Table:
        """The newest ticks: tick, generation, started_at, committed_at, events, milliseconds."""

    def dead_letters(self, view: str | None, limit: int) -> Sequence[StoreDeadLetter]: ...

    def read_view(
        self,
        name: str,
        filters: Mapping[str, str],
        order_by: Sequence[tuple[str, bool]],
        limit: int,
        cursor: str | None,
    ) -> Page:
        """Rows of a view whose public columns equal the filters (text, cast to the column's type),
        ordered by (column, descending) and then by hidden keys, so that paging is stable.
        Raises QueryError for an unknown view or column, a value that cannot be cast, or a cursor
        that is not of this query."""

    def snapshot(
        self, name: str, file: Path, filters: Mapping[str, str], with_ticks: bool = False
    ) -> Snapshot:
        """Write the rows of a view that meet the filters (as in read_view) to `file` as Parquet,
        and say what the ledger knows of the view at the same tick; copy_name(VIEW) is a view here.
        Raises QueryError."""

    def views_in(self, sql: str) -> frozenset[str]:
        """The names of the views, STREAM_late among them, that query() would read for this text, as
        it spells them. Raises QueryError as query() does for a text that it refuses."""

    def query(self, sql: str) -> QueryResult:
        """One read-only SELECT in the store's dialect, within the limits of rows, seconds, memory
        and number at once; no file, network, setting or write. Raises QueryError."""

    def interrupt_queries(self, why: str) -> None:
        """Queries that are running end with a QueryError of status 503 that says why."""

    def checkpoint(self) -> None:
        """Called when idle: fold the write-ahead log in, drop expired changes."""

    def close(self) -> None: ...

    def sessions(self, view: str, keys: pa.Table, from_microseconds: int) -> pa.Table:
        """Of a view by session that is open: keys, window_start and window_end of the sessions of
        these keys (a table of the view's keys) that end then or later."""

    def table_totals(self, table: str) -> TableTotals:
        """Raises QueryError for a table that cannot be read, StoreError for a view that is none."""

    def needed_offsets(self, table: str, partition: int, below: int) -> Iterator[Offsets]:
        """The offsets below this one of the changes that a table rests on: of its rows, of deletes
        that still count, and of versions. Ascending, each once, in arrays of some thousand, all as
        of the newest tick when this is called; the store keeps what that tick showed until the last
        array is taken, or the iterator is closed. Where `below` is as far as the table has read,
        every other change below may go from the log: the rest gives the same rows.

        Raises StoreError where the table has not read so far, and where it is not open: then
        nothing may go."""

    def look_up(
        self, table: str, requests: pa.Table, columns: Sequence[str], as_of: bool
    ) -> pa.Table:
        """What each of some events finds in a table, in their order: FOUND (see kinds/lookups.py),
        and these columns of the table's row, NULL where there is none. `requests` has the columns
        of the table's key by their names in the table, a NULL among which finds nothing, and
        REQUEST_POSITION: changes of this position and of earlier ones are seen. With `as_of`, for
        a table with a history, also REQUEST_TIME and REQUEST_RECEIVED: of the versions seen the
        last that was valid by that time; none where the time lies further back than the history.
        As of the last commit; on the thread that commits.

        Raises StoreError where the table is not open, has no such column or no history;
        LookUpError for a position below `complete_since`."""

    def complete_since(self, table: str, as_of: bool = False) -> int:
        """The lowest position of which look-ups give what the table was then."""

    def keep_versions(self, table: str, since: int) -> None:
        """Look-ups may ask for positions from this one on: what only earlier ones see may go with
        later ticks. This process remembers it, for the table and for its copy, open or not. Of a
        table about which nothing was said, nothing more is kept than it shows."""

    def describe(self, name: str) -> Sequence[tuple[str, str]]:
        """(column, Spark type) of a view's public columns, in order. Raises QueryError."""

    def metrics(self) -> Mapping[str, Any]:
        """Figures for /metrics: bytes, memory, rows per view, queries running, interrupted."""
