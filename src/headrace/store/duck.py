"""The store contract on DuckDB: one file, one process, one writing connection."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.model.errors import (
    FencedError,
    StoreError,
    StoreLockedError,
)
from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.changes import Retention, encode_rows, read_changes
from headrace.store.connection import connect
from headrace.store.contract import (
    CatalogEntry,
    Freshness,
    Page,
    QueryResult,
    Store,
    StoreDeadLetter,
    TickWrite,
    ViewChange,
    ViewStatus,
    ViewWrite,
)
from headrace.store.ledger import (
    Ledger,
    Moved,
    read_dead_letters,
    read_freshness,
    read_ledger,
    read_state_sizes,
)
from headrace.store.merge import Merged
from headrace.store.paging import read_page
from headrace.store.queries import Queries, working_memory_bytes
from headrace.store.views import Views

log = logging.getLogger("headrace.store")

__all__ = ["DuckStore", "open_store"]

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
            self._views = Views(self._connection, self._ledger, self._transaction)
            self._load()
        except BaseException:
            self._connection.close()
            raise
        self._queries = Queries(self._connection, settings, self._views, self._write_behind)
        self._is_closed = False

    def _load(self) -> None:
        self._views.load()
        self._freshness = read_freshness(self._connection)
        self._generation = self._ledger.number("generation")
        self._retention = Retention(
            self._settings.changes_ticks_max,
            self._settings.changes_rows_max,
            self._ledger.number("lowest_change_tick"),
        )
        self._retention.load(self._connection)

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
            self._load()

    # Ownership and catalog

    def claim(self) -> int:
        with self._transaction():
            generation = self._generation + 1
            self._ledger.set_number("generation", generation)
        self._generation = generation
        return generation

    def last_tick(self) -> int:
        return self._freshness.tick

    def catalog(self) -> Mapping[str, CatalogEntry]:
        return {name: stored.entry for name, stored in self._views.stored.items()}

    def create_view(self, view: BoundView, start_offsets: Mapping[int, int]) -> None:
        with self._lock:
            self._views.create(view, start_offsets, self._freshness.tick)

    def open_view(self, view: BoundView) -> None:
        with self._lock:
            self._views.open(view)

    def drop_view(self, name: str) -> None:
        with self._lock:
            self._views.drop(name)

    def set_status(self, name: str, status: ViewStatus) -> None:
        with self._lock:
            self._views.set_status(name, status)

    # Ticks

    def commit(
        self, write: TickWrite, want_changes: frozenset[str] | None = None
    ) -> Sequence[ViewChange]:
        """1. The generation and tick number are checked.
        2. Each view's partials are merged into its state.
        3. Progress with the changes, dead letters and the ledger row are added; what is past its
           bound is dropped.
        4. COMMIT: durable. Only then does this process's memory move on.
        """
        with self._lock:
            if write.generation != self._generation:
                raise FencedError(
                    f"generation {write.generation} was replaced by {self._generation}",
                    hint="another engine took over; this one must stop",
                )
            if write.tick != self._freshness.tick + 1:
                raise StoreError(f"tick {write.tick} does not follow {self._freshness.tick}")
            changes = self._commit_or_again(write, want_changes)
            if write.tick % KEEP_UP_TICKS == 0:
                self._views.keep_up()
            return changes

    def _commit_or_again(
        self, write: TickWrite, want_changes: frozenset[str] | None
    ) -> Sequence[ViewChange]:
        try:
            return self._commit(write, want_changes)
        except duckdb.OutOfMemoryException:
            self._queries.interrupt_all("a tick needs the memory")
        try:
            # If it was the COMMIT that failed, the tick may be durable all the same.
            return () if self._freshness.tick == write.tick else self._commit(write, want_changes)
        except duckdb.OutOfMemoryException as error:
            raise StoreError(
                f"tick {write.tick} needs more memory than the store may use: {error}",
                hint="raise store.memory_mebibytes or lower engine.tick_rows_max",
            ) from error

    def _commit(
        self, write: TickWrite, want_changes: frozenset[str] | None
    ) -> Sequence[ViewChange]:
        lowest = None
        try:
            with self._transaction():
                merged = self._views.merge(write.views, write.tick)
                moved = {
                    view.view: self._moved(view, merged.get(view.view)) for view in write.views
                }
                if moved:
                    self._ledger.add_progress(write.tick, list(moved.values()))
                dead = [(moved[v.view].number, letter) for v in write.views for letter in v.dead]
                if dead:
                    self._ledger.add_dead_letters(write.tick, dead)
                if self._retention.is_exceeded:
                    lowest = self._retention.shrunk_lowest_tick()
                    self._prune(lowest)
                committed_at = max(
                    time.time_ns() // 1000, self._freshness.committed_at_microseconds
                )
                events = sum(view.counts.read for view in write.views)
                self._ledger.add_tick(
                    write.tick,
                    write.generation,
                    write.started_at_microseconds,
                    committed_at,
                    events,
                )
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            raise StoreError(f"tick {write.tick} was not stored: {error}") from error
        try:
            self._accept(write, merged, moved, Freshness(write.tick, committed_at), lowest)
        except Exception:  # it is durable, whatever this process can remember of it
            log.exception("tick %s is read anew from the store", write.tick)
            self._load()
        return [
            ViewChange(name, write.tick, result.before, result.after)
            for name, result in merged.items()
            if (want_changes is None or name in want_changes)
            and (result.before.num_rows or result.after.num_rows)
        ]

    def _moved(self, view: ViewWrite, merged: Merged | None) -> Moved:
        stored = self._views.stored[view.view]
        past = stored.entry
        rows, before, after, state = 0, None, None, None
        if merged is not None:
            rows = merged.before.num_rows + merged.after.num_rows
            before, after = encode_rows(merged.before), encode_rows(merged.after)
            state = merged.state
        return Moved(
            stored.number,
            {**past.next_offsets, **view.next_offsets},
            past.totals.plus(view.counts),
            view.watermark_microseconds
            if view.watermark_microseconds is not None
            else past.watermark_microseconds,
            rows,
            before,
            after,
            state,
        )

    def _accept(
        self,
        write: TickWrite,
        merged: Mapping[str, Merged],
        moved: Mapping[str, Moved],
        freshness: Freshness,
        lowest: int | None,
    ) -> None:
        self._views.accept(write.tick, merged, moved)
        self._retention.add(write.tick, sum(m.change_rows for m in moved.values()))
        if lowest is not None:
            self._retention.shrink(lowest)
        self._freshness = freshness

    def _prune(self, lowest: int) -> None:
        since = self._views.behind_since()
        opened = [merge.schema.number for merge in self._views.merges.values()]
        behind_since = self._freshness.tick + 1 if since is None else since
        self._ledger.prune(self._freshness.tick, lowest, behind_since, opened)

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

    def query(self, sql: str) -> QueryResult:
        return self._queries.query(sql)

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
            lowest = self._retention.shrunk_lowest_tick()
            if lowest > self._retention.lowest_tick:
                with self._transaction():
                    self._prune(lowest)
                self._retention.shrink(lowest)
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
            "tick": self._freshness.tick,
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
