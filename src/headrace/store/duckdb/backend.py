"""The store contract on DuckDB: one file, one process, one writing connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.model.definitions import Stream
from headrace.model.errors import StoreError, StoreLockedError
from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import (
    CatalogEntry,
    KnownKeys,
    Offsets,
    Page,
    QueryResult,
    Snapshot,
    Store,
    StoredDecision,
    StoreDeadLetter,
    StreamProgress,
    TickWrite,
    ViewChange,
    ViewStatus,
)
from headrace.store.duckdb.changes import read_changes
from headrace.store.duckdb.commits import Commits
from headrace.store.duckdb.connection import connect
from headrace.store.duckdb.dedup_keys import SeenStreams
from headrace.store.duckdb.late import Late
from headrace.store.duckdb.ledger import (
    Ledger,
    read_dead_letters,
    read_ledger,
    read_state_sizes,
)
from headrace.store.duckdb.old_queries import Queries, working_memory_bytes
from headrace.store.duckdb.old_snapshot import write_snapshot
from headrace.store.duckdb.views import Views
from headrace.store.late_counts import LateCounts
from headrace.store.reading.paging import read_page

__all__ = ["DuckStore", "open_store"]

FORMAT = 1  # of the tables; one more whenever a store made before could not be read
KEEP_UP_TICKS = 64
_open_files: set[Path] = set()
_open_files_lock = threading.Lock()


def open_store(file: Path, settings: StoreSettings) -> Store:
    """Opens or creates the store; a store left by a crash is at its last durable tick.

    Raises StoreLockedError naming the holder when the file is open elsewhere, also in this
    process.
    """
    path = file.resolve()
    with _open_files_lock:
        if path in _open_files:
            raise StoreLockedError(
                f"the store {file} is already open in this process", hint="close it first"
            )
        _open_files.add(path)
    try:
        return DuckStore(path, settings)
    except BaseException:
        with _open_files_lock:
            _open_files.discard(path)
        raise


class DuckStore:
    """Methods that write take the one writing connection in turn; reads use cursors of their own.

    The file belongs to one process, so what this object remembers of the ledger (generation,
    last tick, progress) is what the file holds; it changes only after a durable commit.
    """

    def __init__(self, file: Path, settings: StoreSettings) -> None:
        self._file = file
        self._settings = settings
        self._lock = threading.RLock()
        self._connection = connect(file, settings)
        try:
            self._ledger = Ledger(self._connection)
            self._check_format()
            self._views = Views(self._connection, self._ledger, self._transaction)
            self._late = Late(self._connection, self._transaction)
            self._seen = SeenStreams(self._connection)
            self._commits = Commits(
                self._connection,
                settings,
                self._ledger,
                self._views,
                self._late,
                self._seen,
                self._transaction,
            )
            self._commits.load()
        except BaseException:
            self._connection.close()
            raise
        self._queries = Queries(
            self._connection, settings, self._views, self._late, self._write_behind
        )
        self._is_closed = False

    def _check_format(self) -> None:
        """What the tables look like is no promise to the next version: the log is."""
        found = self._ledger.number("format")
        if found == 0 and self._ledger.number("generation") == 0:
            self._ledger.set_number("format", FORMAT)
        elif found != FORMAT:
            raise StoreError(
                f"the store {self._file} was made by another version of headrace",
                hint="move the file away: the views are filled again from the log",
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Durable on leaving; on an error nothing of it has happened."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except duckdb.Error:
            # COMMIT itself failed and ended the transaction; whether it is durable only the
            # file can say.
            self._commits.load()

    # Ownership and catalog

    def claim(self) -> int:
        with self._lock:
            return self._commits.claim()

    def last_tick(self) -> int:
        return self._commits.freshness.tick

    def catalog(self) -> Mapping[str, CatalogEntry]:
        return {name: stored.entry for name, stored in self._views.stored.items()}

    def create_view(self, view: BoundView, start_offsets: Mapping[int, int]) -> None:
        with self._lock:
            self._views.create(view, start_offsets, self._commits.freshness.tick)

    def open_view(self, view: BoundView) -> None:
        with self._lock:
            self._views.open(view)

    def drop_view(self, name: str) -> None:
        with self._lock:
            self._views.drop(name, self._late.forget)

    def set_status(self, name: str, status: ViewStatus) -> None:
        with self._lock:
            self._views.set_status(name, status)

    def near_events(self, view: str, partials: pa.Table) -> pa.Table | None:
        with self._lock:
            return self._views.near_events(view, partials)

    # Ticks

    def commit(
        self, write: TickWrite, want_changes: frozenset[str] | None = None
    ) -> Sequence[ViewChange]:
        with self._lock:
            changes = self._commits.commit(write, want_changes, self._make_room)
            if write.tick % KEEP_UP_TICKS == 0:
                self._views.keep_up()
            return changes

    def _make_room(self) -> None:
        self._queries.interrupt_all("a tick needs the memory")

    def streams(self) -> Mapping[str, StreamProgress]:
        return self._commits.streams

    # Duplicates

    def open_stream(self, stream: Stream) -> None:
        with self._lock:
            self._commits.open_stream(stream)

    def known_keys(self, stream: str, events: pa.Table) -> KnownKeys:
        with self._lock:
            return self._seen[stream].known(events)

    def duplicates(self, stream: str, partition: int, start: int, end: int) -> Offsets:
        with self._lock:
            return self._seen[stream].duplicates.read(partition, start, end)

    # Late events

    def declare_stream(self, stream: Stream) -> None:
        with self._lock:
            self._late.declare(stream)

    def sided(self, stream: str, view: str, limit: int) -> Sequence[tuple[int, int]]:
        with self._lock:
            return self._late.sided(stream, view, limit)

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
        with self._queries.read() as (cursor, _):
            return self._late.counts(cursor, stream, limit)

    # Reads

    def _write_behind(self, names: Sequence[str]) -> None:
        with self._lock:
            self._views.write_behind(names)

    def changes(self, view: str, after_tick: int, limit_ticks: int) -> Sequence[ViewChange]:
        with self._queries.read() as (cursor, _):
            stored = self._views.readable(view)
            return read_changes(
                cursor,
                stored.entry.view,
                stored.number,
                stored.public_schema,
                stored.created_tick,
                after_tick,
                limit_ticks,
            )

    def ledger(self, limit: int) -> pa.Table:
        with self._queries.read() as (cursor, _):
            return read_ledger(cursor, limit)

    def dead_letters(self, view: str | None, limit: int) -> Sequence[StoreDeadLetter]:
        number = None if view is None else self._views.find(view).number
        with self._queries.read() as (cursor, _):
            return read_dead_letters(cursor, number, limit)

    def read_view(
        self,
        name: str,
        filters: Mapping[str, str],
        order_by: Sequence[tuple[str, bool]],
        limit: int,
        cursor: str | None,
    ) -> Page:
        stored = self._views.readable(name)
        with self._queries.read([stored.entry.view]) as (connection, freshness):
            rows, following = read_page(
                connection,
                stored,
                filters,
                order_by,
                limit,
                self._settings.query_rows_max,
                cursor,
            )
        return Page(rows, following, freshness)

    def snapshot(
        self, name: str, file: Path, filters: Mapping[str, str], with_ticks: bool = False
    ) -> Snapshot:
        stored = self._views.readable(name)
        with self._queries.read([stored.entry.view]) as (cursor, freshness):
            return write_snapshot(cursor, stored, freshness, file, filters, with_ticks)

    def views_in(self, sql: str) -> frozenset[str]:
        return self._queries.views_in(sql)

    def query(self, sql: str) -> QueryResult:
        return self._queries.query(sql)

    def sessions(self, view: str, keys: pa.Table, from_microseconds: int) -> pa.Table:
        with self._lock:
            return self._views.sessions(view, keys, from_microseconds)

    def describe(self, name: str) -> Sequence[tuple[str, str]]:
        return self._views.readable(name).columns

    # Upkeep

    def checkpoint(self) -> None:
        try:
            self._checkpoint()
        except duckdb.Error as error:
            raise StoreError(f"the store cannot be tidied up: {error}") from error

    def _checkpoint(self) -> None:
        with self._lock:
            self._views.write_behind(list(self._views.merges))
            self._commits.tidy_up()
            self._views.keep_up()
            try:
                self._connection.execute("CHECKPOINT")
            except duckdb.TransactionException:
                # A running query holds an older state; the next call does it.
                return

    def metrics(self) -> Mapping[str, Any]:
        write_ahead = self._file.with_name(self._file.name + ".wal")
        with self._queries.read() as (cursor, _):
            rows = {**read_state_sizes(cursor), **self._views.row_counts()}
            memory = working_memory_bytes(cursor)
        return {
            "file_bytes": _size(self._file),
            "write_ahead_bytes": _size(write_ahead),
            "memory_bytes": memory,
            "view_rows": {n: rows.get(v.number, 0) for n, v in self._views.stored.items()},
            "queries_running": max(self._queries.running, 0),
            "queries_interrupted": self._queries.interrupted,
            "tick": self._commits.freshness.tick,
        }

    def close(self) -> None:
        """Everything committed is durable already. Running queries are interrupted."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queries.close()
            self._views.close()
            self._connection.close()
        with _open_files_lock:
            _open_files.discard(self._file)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
