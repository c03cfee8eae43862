"""The store contract, once for all backends: kinds merge, a backend keeps tables.

What a tick does is one commit of the backend:

1. The generation, the tick's number and the sums of its events are checked.
2. The merges of all shapes run in lock-step, and with them what the books want to know.
3. Rows of views, progress, changes, late events, dedup keys, dead letters and the ledger's row are
   committed together. Only then does this process's memory move on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import Calculator, arrow_reader, conformed
from headrace.kinds.contract import Kind
from headrace.kinds.event_groups import EventGroupKind
from headrace.kinds.lookups import FOUND, REQUEST_POSITION, REQUEST_RECEIVED, REQUEST_TIME
from headrace.kinds.session import SessionKind
from headrace.kinds.state_table import BIGINT, TIMESTAMP
from headrace.kinds.table import COMPLETE, VERSIONS_COMPLETE, TableKind, totals_sql
from headrace.model.definitions import Stream
from headrace.model.errors import FencedError, MemoryShortError, StoreError, ViewChangedError
from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.model.tables import VIEW, Fetch, TableDelta
from headrace.store.backend import Backend, Commit
from headrace.store.books import (
    BOOKS,
    CATALOG,
    DEAD_LETTERS,
    FEED,
    NUMBERS,
    PROGRESS_BOOK,
    STREAMS,
    gone,
    number_delta,
)
from headrace.store.catalog import (
    StoredView,
    catalog_delta,
    find_view,
    new_view,
    progress_delta,
    read_catalog,
    readable_view,
)
from headrace.store.changes import Retention, ShapeChanges, TickChanges, read_changes
from headrace.store.conservation import check_sums
from headrace.store.contract import (
    CatalogEntry,
    Freshness,
    KnownKeys,
    Offsets,
    Page,
    QueryResult,
    Snapshot,
    StoredDecision,
    StoreDeadLetter,
    StreamProgress,
    TableTotals,
    TickWrite,
    ViewChange,
    ViewStatus,
    ViewWrite,
    copied_view,
    copy_name,
)
from headrace.store.copies import compare, in_place_of, known_since, move_ticks
from headrace.store.dedup_keys import DedupKeys
from headrace.store.late import Late
from headrace.store.late_counts import LateCounts
from headrace.store.ledger import (
    DEAD_LETTERS_MAX,
    count_dead_letters,
    dead_letters_delta,
    ledger_delta,
    prune,
    read_dead_letters,
    read_freshness,
    read_ledger,
    read_streams,
    stream_progress,
    streams_delta,
)
from headrace.store.reading.paging import read_page
from headrace.store.reading.queries import Queries, working_memory_bytes
from headrace.store.reading.snapshot import write_snapshot
from headrace.store.stacks import Stacks, run_steps

__all__ = ["RESERVED", "ViewStore"]

log = logging.getLogger("headrace.store")

_Result = TypeVar("_Result")
FORMAT = 1  # of the books and of the kinds' tables
RESERVED = "number of "  # before a view's name: the number that it is to be created under


class ViewStore:
    """Methods that write take their turn; reads have snapshots of their own.

    Only this process commits, so what this object remembers (last tick, progress) is what the
    backend holds; it changes only after a commit.
    """

    def __init__(self, backend: Backend, settings: StoreSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._lock = threading.RLock()
        self._is_closed = False
        self._swapped: dict[int, tuple[int, StoredView]] = {}  # by number: when, and by which view
        try:
            calculator = Calculator(backend.computing())
            self._stacks = Stacks(backend, calculator)
            self._late = Late(backend)
            self._dedup = DedupKeys(backend, calculator)
            self._open_books()
            self._load()
            self._queries = Queries(backend, settings, self._streams_of_views)
        except BaseException:
            backend.close()
            raise

    def _open_books(self) -> None:
        there = self._backend.definitions()
        if NUMBERS.name not in there:
            books = (*BOOKS, *self._dedup.definitions())
            deltas = [number_delta(format=FORMAT)]
            self._backend.commit(Commit(self._backend.generation, deltas, create=books))
        elif self._number("format") != FORMAT:
            raise StoreError(
                "the store was made by another version of headrace",
                hint="move its file away: the views are filled again from the log",
            )

    def _number(self, name: str) -> int:
        (found,) = self._backend.fetch(
            [Fetch(NUMBERS.name, ("name",), gone(NUMBERS, name=[name]), columns=("value",))]
        )
        return int(found.column("value")[0].as_py()) if found.num_rows else 0

    def _load(self) -> None:
        self._retention = Retention(
            self._settings.changes_ticks_max, self._settings.changes_rows_max
        )
        with self._backend.snapshot() as connection:
            self._views: Mapping[str, StoredView] = read_catalog(connection)
            self._streams: Mapping[str, StreamProgress] = read_streams(connection)
            self._freshness = read_freshness(connection)
            self._retention.load(connection)
            self._late.load(connection)
            self._dead_letters = count_dead_letters(connection)

    @property
    def _shown(self) -> Mapping[str, StoredView]:
        """The views that readers know: all but copies."""
        return {name: v for name, v in self._views.items() if copied_view(name) is None}

    def _streams_of_views(self) -> Mapping[str, str]:
        entries = [stored.entry for stored in self._shown.values()]
        return {**self._late.names, **{e.view: e.stream for e in entries if not e.status.is_closed}}

    def _commit(self, *deltas: TableDelta, **more: Any) -> None:
        self._backend.commit(Commit(self._backend.generation, deltas, **more))

    # Ownership and catalog

    def claim(self) -> int:
        with self._lock:
            return self._backend.claim()

    def last_tick(self) -> int:
        return self._freshness.tick

    def catalog(self) -> Mapping[str, CatalogEntry]:
        return {name: stored.entry for name, stored in self._shown.items()}

    def copies(self) -> Mapping[str, CatalogEntry]:
        found = {copied_view(name): stored.entry for name, stored in self._views.items()}
        return {view: entry for view, entry in found.items() if view is not None}

    def create_view(self, view: BoundView, start_offsets: Mapping[int, int]) -> None:
        with self._lock:
            if any(name.lower() == view.name.lower() for name in self._views):
                raise StoreError(f"the store already holds a view {view.name}")
            copied = copied_view(view.name)
            if copied is not None and copied not in self._views:
                raise StoreError(f"the store holds no view {copied} that could be copied")
            next_number = self._number("next_view")
            number = self._number(RESERVED + view.name) or next_number
            kind = self._stacks.kind_of(view)
            seed = kind.seed(number)
            rows = 0 if seed.changes is None else seed.changes.num_rows
            stored = new_view(number, view, kind, start_offsets, self._freshness.tick, rows)
            there = self._backend.definitions()
            self._commit(
                *seed.deltas,
                catalog_delta(stored),
                progress_delta([stored]),
                number_delta(next_view=max(number + 1, next_number)),
                create=[table for table in kind.tables if table.name not in there],
                views={} if copied is not None else _public_view(stored, kind),
            )
            self._stacks.open(view, number, kind)
            self._views = {**self._views, view.name: stored}

    def open_view(self, view: BoundView) -> None:
        with self._lock:
            stored = find_view(self._views, view.name)
            if stored.entry.fingerprint != view.plan.fingerprint:
                raise ViewChangedError(
                    f"the definition of view {view.name} changed under its state",
                    hint=f"headrace rebuild {view.name}",
                )
            if self._stacks.is_open(view.name):
                return
            kind = self._stacks.kind_of(view)
            if kind.shape != stored.shape:
                raise ViewChangedError(
                    f"view {view.name} is kept in another form by this version of headrace",
                    hint=f"headrace rebuild {view.name}",
                )
            if stored.entry.status.is_closed:
                self._commit(views=_public_view(stored, kind))
            self._stacks.open(view, stored.number, kind)

    def drop_view(self, name: str) -> None:
        with self._lock:
            stored = find_view(self._views, name)
            name = stored.entry.view
            others = {other: view for other, view in self._views.items() if other != name}
            deltas, tables = self._removal(stored)
            if tables:
                deltas.append(TableDelta(FEED.name, gone(FEED, shape=[stored.shape])))
            is_shown = copied_view(name) is None
            self._commit(*deltas, drop=tables, views={name: None} if is_shown else {})
            self._stacks.close(name)
            self._stacks.forget(name)
            self._views = others

    def _removal(self, stored: StoredView) -> tuple[list[TableDelta], tuple[str, ...]]:
        """How the books and tables change without the view, and the tables that only it used."""
        number = [stored.number]
        deltas = [
            TableDelta(CATALOG.name, gone(CATALOG, number=number)),
            TableDelta(PROGRESS_BOOK.name, gone(PROGRESS_BOOK, **{VIEW: number})),
            TableDelta(DEAD_LETTERS.name, gone(DEAD_LETTERS, number=number)),
            TableDelta(NUMBERS.name, gone(NUMBERS, name=[RESERVED + stored.entry.view])),
            *self._late.forget(stored.entry.view),
        ]
        others = [view for view in self._views.values() if view.number != stored.number]
        if all(other.shape != stored.shape for other in others):
            return deltas, stored.tables
        own = gone(PROGRESS_BOOK, **{VIEW: number})
        return [*deltas, *(TableDelta(table, own) for table in stored.tables)], ()

    def set_status(self, name: str, status: ViewStatus) -> None:
        with self._lock:
            stored = find_view(self._views, name)
            if stored.entry.status == status:
                return
            stored = stored.with_status(status)
            view = stored.entry.view
            self._commit(catalog_delta(stored), views={view: None} if status.is_closed else {})
            self._views = {**self._views, view: stored}

    # Ticks

    def commit(
        self, write: TickWrite, want_changes: frozenset[str] | None = None
    ) -> Sequence[ViewChange]:
        with self._lock:
            self._check_turn(write)
            views = self._views
            check_sums(write, {w.view: views[w.view].entry for w in write.views if w.view in views})
            return self._with_memory(write, lambda: self._tick(write, want_changes))

    def _check_turn(self, write: TickWrite) -> None:
        if write.generation != self._backend.generation:
            raise FencedError(
                f"generation {write.generation} was replaced by {self._backend.generation}",
                hint="another engine took over; this one must stop",
            )
        if write.tick != self._freshness.tick + 1:
            raise StoreError(f"tick {write.tick} does not follow {self._freshness.tick}")

    def _with_memory(self, write: TickWrite, tick: Callable[[], _Result]) -> _Result:
        try:
            return tick()
        except (duckdb.OutOfMemoryException, MemoryShortError):
            self._queries.interrupt_all("a tick needs the memory")
        try:
            return tick()
        except (duckdb.OutOfMemoryException, MemoryShortError) as error:
            raise StoreError(
                f"tick {write.tick} needs more memory than the store may use: {error}",
                hint="raise store.memory_mebibytes or lower engine.tick_rows_max",
            ) from error

    def _tick(self, write: TickWrite, want_changes: frozenset[str] | None) -> Sequence[ViewChange]:
        if self._retention.is_exceeded or self._dead_letters > DEAD_LETTERS_MAX * 9 // 8:
            self._prune()
        tick, views = write.tick, self._views
        marking = self._late.marking(tick, write.views, views)
        merged, (marked,) = self._stacks.merge(tick, write.views, views, [marking])
        growth = merged.changes.growth()
        moved = [_moved(views[view.view], view, tick, growth) for view in write.views]
        copies = [view.number for view in moved if copied_view(view.entry.view) is not None]
        shown = [view for view in moved if view.number not in copies]
        changes = merged.changes.without(copies)
        streams = stream_progress(write, self._streams)
        letters = [(views[view.view].number, one) for view in write.views for one in view.dead]
        committed_at = self._committed_at()
        deltas = [
            *merged.deltas,
            *changes.feed(tick),
            *([progress_delta(moved)] if moved else ()),
            *streams_delta(streams),
            *self._late.deltas(tick, write.views, views),
            *marked,
            *self._dedup.write(write.streams),
            *dead_letters_delta(tick, letters),
            ledger_delta(write, committed_at, shown),
        ]
        told = changes.of(
            [v for v in shown if want_changes is None or v.entry.view in want_changes], tick
        )
        self._backend.commit(Commit(write.generation, deltas))
        self._views = {**views, **{view.entry.view: view for view in moved}}
        self._streams = {**self._streams, **streams}
        self._retention.add(tick, changes.rows)
        self._dead_letters += len(letters)
        self._freshness = Freshness(tick, committed_at)
        try:
            self._dedup.accept()
        except Exception:  # the tick is durable, whatever this process can remember of it
            log.exception("dedup keys are read anew after tick %s", tick)
            self._dedup.forget()
        return told

    def _committed_at(self) -> int:
        return max(time.time_ns() // 1000, self._freshness.committed_at_microseconds)

    def swap(self, write: TickWrite, view: str) -> ViewChange | None:
        with self._lock:
            self._check_turn(write)
            if view not in self._views or copy_name(view) not in self._views:
                raise StoreError(f"the store holds no view {view} with a copy")
            return self._with_memory(write, lambda: self._swap(write, view))

    def _swap(self, write: TickWrite, view: str) -> ViewChange | None:
        tick, old, copy = write.tick, self._views[view], self._views[copy_name(view)]
        kind, _ = self._stacks.opened_kind(copy.entry.view)
        rows_max = self._settings.changes_rows_max
        with self._backend.snapshot() as connection:
            found = compare(connection, old, copy, rows_max, self._retention.lowest_tick)
        taken = in_place_of(old, copy, tick, found.is_followed)
        differing = (
            () if found.changes is None else [ShapeChanges(copy.shape, False, found.changes)]
        )
        changes = TickChanges([one for one in differing if one.changes.num_rows])
        committed_at = self._committed_at()
        removal, drop = self._removal(old)
        deltas = [
            *removal,
            *self._late.renamed(copy, view),
            *known_since(self._backend, old, copy),
            catalog_delta(taken),
            *changes.feed(tick),
            ledger_delta(write, committed_at, ()),
        ]
        if found.added_in is not None and found.added_in.num_rows:
            deltas.append(move_ticks(self._backend, kind, copy, found.added_in))
        self._swapped[old.number] = (tick, taken)  # before a snapshot can show it
        try:
            self._commit(*deltas, drop=drop, views=_public_view(taken, kind))
        except BaseException:
            del self._swapped[old.number]
            raise
        self._stacks.close(view)
        self._stacks.rename(copy.entry.view, view)
        others = {n: v for n, v in self._views.items() if n != copy.entry.view}
        self._views = {**others, view: taken}
        self._retention.add(tick, changes.rows)
        self._freshness = Freshness(tick, committed_at)
        if found.changes is None:
            return None
        empty = taken.public_schema.empty_table()
        return next(iter(changes.of([taken], tick)), ViewChange(view, tick, empty, empty))

    def _prune(self) -> None:
        lowest = self._retention.shrunk_lowest_tick()
        self._commit(*prune(self._backend, self._freshness.tick, lowest))
        self._retention.shrink(lowest)
        self._dead_letters = min(self._dead_letters, DEAD_LETTERS_MAX)

    def near_events(self, view: str, partials: pa.Table) -> pa.Table | None:
        with self._lock:
            kind, number = self._stacks.opened_kind(view)
            if not isinstance(kind, EventGroupKind):
                raise StoreError(f"view {view} has no event groups")
            steps = kind.near_events(number, self._stacks.partials_of(view, partials))
            found: pa.Table | None = run_steps(self._backend, steps)
            return found

    def sessions(self, view: str, keys: pa.Table, from_microseconds: int) -> pa.Table:
        with self._lock:
            kind, number = self._stacks.opened_kind(view)
            if not isinstance(kind, SessionKind):
                raise StoreError(f"view {view} has no sessions")
            steps = kind.sessions(number, keys, from_microseconds)
            found: pa.Table = run_steps(self._backend, steps)
            return found

    # Tables

    def table_totals(self, table: str) -> TableTotals:
        stored = readable_view(self._shown, table)
        with self._queries.read() as (connection, freshness):
            stored = self._as_of(stored, freshness)
            if not stored.entry.is_table:
                raise StoreError(f"view {stored.entry.view} is no table")
            sql = totals_sql(stored.shape, stored.number)
            return TableTotals(*(connection.execute(sql).fetchone() or ()))

    def needed_offsets(self, table: str, partition: int, below: int) -> Iterator[Offsets]:
        with self._lock:  # no copy takes the table's place before the snapshot is there
            kind, number = self._table(table)
            come = self._views[table].entry.next_offsets.get(partition, 0)
            if below > come:
                raise StoreError(
                    f"table {table} has read partition {partition} up to offset {come}, so what it "
                    f"needs below {below} is not known yet"
                )
            held = ExitStack()
            connection = held.enter_context(self._backend.snapshot())
        return _offsets(held, connection, kind.needed_sql(number, partition, below))

    def _table(self, name: str) -> tuple[TableKind, int]:
        kind, number = self._stacks.opened_kind(name)
        if not isinstance(kind, TableKind):
            raise StoreError(f"view {name} is no table")
        return kind, number

    def look_up(
        self, table: str, requests: pa.Table, columns: Sequence[str], as_of: bool
    ) -> pa.Table:
        with self._lock:
            kind, number = self._table(table)
            if as_of and not kind.keeps_history:
                raise StoreError(f"table {table} has no history")
            public = self._views[table].public_schema.names
            shown = dict(zip(public, kind.shown, strict=True))
            unknown = [name for name in columns if name not in shown]
            if unknown:
                raise StoreError(f"table {table} has no column {unknown[0]}")
            own = {column.name: name for name, column in shown.items()}
            keys = [(own[column.name], column.name, column.type.arrow) for column in kind.key]
            moments = ((REQUEST_TIME, TIMESTAMP), (REQUEST_RECEIVED, TIMESTAMP)) if as_of else ()
            more = [(name, name, t.arrow) for name, t in ((REQUEST_POSITION, BIGINT), *moments)]
            asked = conformed(requests, pa.schema([(name, t) for name, _, t in (*keys, *more)]))
            asked = asked.rename_columns([name for _, name, _ in (*keys, *more)])
            wanted = [shown[name].name for name in columns]
            steps = kind.look_up(table, number, asked, wanted, as_of)
            found: pa.Table = run_steps(self._backend, steps)
            return found.rename_columns([FOUND, *columns])

    def complete_since(self, table: str, as_of: bool = False) -> int:
        with self._lock:
            kind, number = self._table(table)
            totals: Mapping[str, int] = run_steps(self._backend, kind.totals(number))
            return totals[VERSIONS_COMPLETE if as_of else COMPLETE]

    def keep_versions(self, table: str, since: int) -> None:
        with self._lock:
            self._stacks.keep_versions(table, since)

    # Streams

    def streams(self) -> Mapping[str, StreamProgress]:
        return self._streams

    def open_stream(self, stream: Stream) -> None:
        with self._lock:
            opened = self._dedup.open(stream)
            is_judged_anew = not opened.is_kept and stream.name in self._streams
            deltas = list(opened.deltas)
            if is_judged_anew:
                deltas.append(TableDelta(STREAMS.name, gone(STREAMS, stream=[stream.name])))
            if deltas or opened.create or opened.drop:
                self._commit(*deltas, create=opened.create, drop=opened.drop)
            self._dedup.accept()
            if is_judged_anew:
                self._streams = {n: p for n, p in self._streams.items() if n != stream.name}

    def known_keys(self, stream: str, events: pa.Table) -> KnownKeys:
        with self._lock:
            return self._dedup.known(stream, events)

    def duplicates(self, stream: str, partition: int, start: int, end: int) -> Offsets:
        with self._lock:
            return self._dedup.duplicates(stream, partition, start, end)

    # Late events

    def declare_stream(self, stream: Stream) -> None:
        with self._lock:
            self._late.declare(stream)

    def late_side_output(self, stream: str, view: str, limit: int) -> Sequence[tuple[int, int]]:
        with self._lock:
            return self._late.late_side_output(stream, view, limit)

    def replays(self, stream: str, view: str) -> Sequence[tuple[int, int, int]]:
        with self._lock:
            return self._late.replays(stream, view)

    def decide(self, decision: StoredDecision) -> None:
        with self._lock:
            self._late.decide(decision)

    def decisions(self, stream: str) -> Sequence[StoredDecision]:
        with self._lock:
            return self._late.decisions(stream)

    def late(self, stream: str, limit: int) -> LateCounts:
        with self._queries.read() as (connection, _):
            return self._late.counts(connection, stream, limit)

    # Reads

    def _as_of(self, view: StoredView, freshness: Freshness) -> StoredView:
        """What the snapshot has in the place of a view that was looked up before it was opened: its
        copy may have taken its place in between."""
        while (swapped := self._swapped.get(view.number)) is not None:
            tick, taken = swapped
            if freshness.tick < tick:
                break
            view = taken
        return view

    def changes(self, view: str, after_tick: int, limit_ticks: int) -> Sequence[ViewChange]:
        stored = readable_view(self._shown, view)
        with self._queries.read() as (connection, freshness):
            stored = self._as_of(stored, freshness)
            return read_changes(connection, stored, after_tick, limit_ticks)

    def ledger(self, limit: int) -> pa.Table:
        with self._queries.read() as (connection, _):
            return read_ledger(connection, limit)

    def dead_letters(self, view: str | None, limit: int) -> Sequence[StoreDeadLetter]:
        stored = None if view is None else find_view(self._shown, view)
        with self._queries.read() as (connection, freshness):
            number = None if stored is None else self._as_of(stored, freshness).number
            return read_dead_letters(connection, number, limit)

    def read_view(
        self,
        name: str,
        filters: Mapping[str, str],
        order_by: Sequence[tuple[str, bool]],
        limit: int,
        cursor: str | None,
    ) -> Page:
        stored = readable_view(self._shown, name)
        rows_max = self._settings.query_rows_max
        with self._queries.read() as (connection, freshness):
            stored = self._as_of(stored, freshness)
            rows, following = read_page(
                connection, stored, filters, order_by, limit, rows_max, cursor
            )
        return Page(rows, following, freshness)

    def snapshot(
        self, name: str, file: Path, filters: Mapping[str, str], with_ticks: bool = False
    ) -> Snapshot:
        stored = readable_view(self._views if copied_view(name) else self._shown, name)
        with self._queries.read() as (connection, freshness):
            stored = self._as_of(stored, freshness)
            return write_snapshot(connection, stored, freshness, file, filters, with_ticks)

    def views_in(self, sql: str) -> frozenset[str]:
        return self._queries.views_in(sql)

    def query(self, sql: str) -> QueryResult:
        return self._queries.query(sql)

    def interrupt_queries(self, why: str) -> None:
        self._queries.interrupt_all(why)

    def describe(self, name: str) -> Sequence[tuple[str, str]]:
        return readable_view(self._shown, name).columns

    # Upkeep

    def checkpoint(self) -> None:
        with self._lock:
            if self._retention.shrunk_lowest_tick() > self._retention.lowest_tick:
                self._prune()
            self._backend.checkpoint()

    def metrics(self) -> Mapping[str, Any]:
        with self._queries.read() as (connection, _):
            memory = working_memory_bytes(connection)
        backend = self._backend.metrics()
        return {
            "file_bytes": backend["file_bytes"],
            "write_ahead_bytes": backend["write_ahead_bytes"],
            "memory_bytes": memory,
            "view_rows": {name: view.rows for name, view in self._shown.items()},
            "queries_running": max(self._queries.running, 0),
            "queries_interrupted": self._queries.interrupted,
            "tick": self._freshness.tick,
        }

    def close(self) -> None:
        """Everything committed is durable already. Running queries are interrupted."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queries.close()
            self._backend.close()


def _offsets(held: ExitStack, connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[Offsets]:
    with held:
        for batch in arrow_reader(connection, sql):
            yield batch.column(0).to_numpy()


def _public_view(stored: StoredView, kind: Kind) -> dict[str, str]:
    names = [name for name, _ in stored.columns]
    return {stored.entry.view: kind.select_sql(stored.number, names)}


def _moved(
    stored: StoredView, write: ViewWrite, tick: int, growth: Mapping[int, int]
) -> StoredView:
    past, watermark = stored.entry, write.watermark_microseconds
    entry = replace(
        past,
        next_offsets={**past.next_offsets, **write.next_offsets},
        totals=past.totals.plus(write.counts),
        watermark_microseconds=past.watermark_microseconds if watermark is None else watermark,
    )
    rows = stored.rows + growth.get(stored.number, 0)
    return replace(stored, entry=entry, progress_tick=tick, rows=rows)
