"""The views the store holds: their catalog entries and, once opened, their merges."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import quoted
from headrace.model.errors import MergeError, QueryError, StoreError, ViewChangedError
from headrace.model.plan import BoundView
from headrace.store.contract import ViewStatus, ViewWrite
from headrace.store.duckdb.deferred_rows import restore
from headrace.store.duckdb.finality import Passing
from headrace.store.duckdb.group_merge import EventGroupMerge
from headrace.store.duckdb.ledger import Ledger, Moved, StoredView, encode_offsets
from headrace.store.duckdb.merge import Merged, ViewMerge
from headrace.store.duckdb.schema import ViewSchema
from headrace.store.duckdb.session_merge import SessionMerge
from headrace.store.duckdb.sliding_merge import SlidingMerge
from headrace.store.duckdb.state_expiry import forget_settled
from headrace.store.duckdb.tables import drop_statements, seed_statement
from headrace.store.duckdb.view_kinds import make_merge, make_schema

__all__ = ["Views"]

log = logging.getLogger("headrace.store")

SETTLED_TICKS = 64  # so often a view forgets what nothing can change any more
HASH_PROBE = "SELECT (hash('headrace', 1, 2.5, DATE '2026-01-01', NULL) >> 1)::BIGINT"


class Views:
    """`stored` is replaced as a whole, never changed, so that readers need no lock. Every other
    method is called by the one that writes."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        ledger: Ledger,
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._computing = connection.cursor()
        self._ledger = ledger
        self._transaction = transaction
        self.stored: Mapping[str, StoredView] = {}
        self.merges: dict[str, ViewMerge] = {}

    def load(self) -> None:
        """What the file says; nothing remembered counts. Rows that are durable but not in their
        tables are written first of all, also those of views that will not be opened."""
        self.stored = self._ledger.stored_views()
        for stored in self.stored.values():
            try:
                self._restore(stored.number)
            except (duckdb.OperationalError, duckdb.InternalError, duckdb.FatalException):
                raise  # the file or the machine, not these rows
            except duckdb.Error as error:
                log.exception("rows of view %s cannot be written", stored.entry.view)
                detail = f"its rows cannot be written: {error}; headrace rebuild helps"
                self.set_status(stored.entry.view, ViewStatus("failed", detail))
        for merge in self.merges.values():
            merge.forget()
            self._rehash(merge.schema)

    def _restore(self, number: int) -> None:
        with self._transaction():
            if restore(self._connection, number, self._ledger.states(number)):
                self._ledger.set_number(_hash_name(number), 0)

    def find(self, name: str) -> StoredView:
        """By its name, case aside if need be. Raises QueryError."""
        views = self.stored
        if name in views:
            return views[name]
        for stored in views.values():
            if stored.entry.view.lower() == name.lower():
                return stored
        raise QueryError(
            f"there is no view {name!r}",
            hint=f"views are {', '.join(sorted(views)) or 'none yet'}",
            status=404,
        )

    def readable(self, name: str) -> StoredView:
        """As `find`. Raises QueryError also for a view that is closed."""
        stored = self.find(name)
        status = stored.entry.status
        if status.is_closed:
            raise QueryError(
                f"view {stored.entry.view} cannot be read: {status.detail}",
                hint="headrace status says which views are live",
                status=409,
            )
        return stored

    def create(self, view: BoundView, start_offsets: Mapping[int, int], tick: int) -> None:
        if any(name.lower() == view.name.lower() for name in self.stored):
            raise StoreError(f"the store already holds a view {view.name}")
        try:
            with self._transaction():
                number = self._ledger.number("next_view")
                self._ledger.set_number("next_view", number + 1)
                schema = make_schema(view, number)
                for statement in schema.create_statements():
                    self._connection.execute(statement)
                if view.plan.is_global:
                    self._connection.execute(seed_statement(schema))
                starts = encode_offsets(start_offsets)
                self._ledger.add_view(number, view, schema.public, schema.hidden, tick, starts)
                self._ledger.set_number(_hash_name(number), self._probed())
        except duckdb.Error as error:
            raise StoreError(f"view {view.name} cannot be stored: {error}") from error
        self.stored = self._ledger.stored_views()
        self.merges[view.name] = make_merge(self._connection, self._computing, schema)

    def open(self, view: BoundView) -> None:
        stored = self.find(view.name)
        if stored.entry.fingerprint != view.plan.fingerprint:
            raise ViewChangedError(
                f"the definition of view {view.name} changed under its state",
                hint=f"headrace rebuild {view.name}",
            )
        if view.name not in self.merges:
            schema = make_schema(view, stored.number)
            self._rehash(schema)
            if stored.entry.status.is_closed:
                with self._transaction():
                    self._connection.execute(schema.public_view_statement())
            self.merges[view.name] = make_merge(self._connection, self._computing, schema)

    def _rehash(self, schema: ViewSchema) -> None:
        """Stored hashes of keys are good only for a DuckDB that has the same hash()."""
        name, probed = _hash_name(schema.number), self._probed()
        if schema.hash is None or self._ledger.number(name) == probed:
            return
        with self._transaction():
            for statement in schema.rehash_statements():
                self._connection.execute(statement)
            self._ledger.set_number(name, probed)

    def _probed(self) -> int:
        return int(self._connection.execute(HASH_PROBE).fetchall()[0][0])

    def drop(self, name: str, forget: Callable[[str], None]) -> None:
        """`forget` is called within the transaction for what others keep of the view."""
        stored = self.find(name)
        name = stored.entry.view
        with self._transaction():
            for statement in drop_statements(name, stored.number, stored.distincts):
                self._connection.execute(statement)
            self._ledger.remove_view(stored.number)
            self._ledger.remove_number(_hash_name(stored.number))
            forget(name)
        merge = self.merges.pop(name, None)
        if merge is not None:
            merge.close()
        self.stored = {key: value for key, value in self.stored.items() if key != name}

    def set_status(self, name: str, status: ViewStatus) -> None:
        stored = self.find(name)
        if stored.entry.status == status:
            return
        with self._transaction():
            self._ledger.set_status(stored.number, status)
            if status.is_closed:
                self._connection.execute(f"DROP VIEW IF EXISTS {quoted(stored.entry.view)}")
        entry = replace(stored.entry, status=status)
        self.stored = {**self.stored, entry.view: replace(stored, entry=entry)}

    def merge(self, writes: Sequence[ViewWrite], tick: int) -> dict[str, Merged]:
        """All views of a tick, within the open transaction. Views without rows are left out. All
        are computed before any is written.

        Raises MergeError naming the view whose data cannot be merged.
        """
        computed: dict[str, pa.Table] = {}
        merged: dict[str, Merged] = {}
        view = ""
        try:
            for write in writes:
                view = write.view
                if view not in self.merges:
                    raise StoreError(f"view {view} is not open")
                result = self.merges[view].compute(write)
                if result is not None:
                    computed[view] = result
            for write in writes:
                view = write.view
                passing = self._passing(write)
                result = computed.get(view)
                done = (
                    self.merges[view].close_windows(passing)
                    if result is None
                    else self.merges[view].write(result, tick, passing)
                )
                if done is not None:
                    merged[view] = done
                self._forget_settled(write, tick)
            return merged
        except (duckdb.OutOfMemoryException, duckdb.IOException, duckdb.FatalException):
            raise
        except duckdb.Error as error:
            raise MergeError(view, str(error)) from error
        finally:
            for merge in self.merges.values():
                merge.clear()

    def _forget_settled(self, write: ViewWrite, tick: int) -> None:
        """Now and then, views taking turns."""
        merge = self.merges[write.view]
        if write.settled and (tick + merge.schema.number) % SETTLED_TICKS == 0:
            partitions = write.next_offsets.keys()
            forget_settled(self._connection, merge.schema, write.settled, partitions)
            if isinstance(merge, SlidingMerge):
                merge.recount()

    def _passing(self, write: ViewWrite) -> Passing:
        before = self.stored[write.view].entry.watermark_microseconds
        after = write.watermark_microseconds
        return Passing(before, before if after is None else after)

    def near_events(self, name: str, partials: pa.Table) -> pa.Table | None:
        merge = self.merges[name]
        assert isinstance(merge, EventGroupMerge), "only event groups keep events"
        try:
            found = merge.near_events(partials)
        finally:
            merge.clear()
        return found

    def accept(self, tick: int, merged: Mapping[str, Merged], moved: Mapping[str, Moved]) -> None:
        """The tick is durable."""
        for name, result in merged.items():
            self.merges[name].accept(result)
        views = dict(self.stored)
        for name, progress in moved.items():
            entry = replace(
                views[name].entry,
                next_offsets=progress.offsets,
                totals=progress.totals,
                watermark_microseconds=progress.watermark_microseconds,
            )
            views[name] = replace(views[name], entry=entry, progress_tick=tick)
        self.stored = views

    def sessions(self, name: str, keys: pa.Table, from_microseconds: int) -> pa.Table:
        merge = self.merges.get(name)
        if not isinstance(merge, SessionMerge):
            raise StoreError(f"view {name} is not open, or not by session")
        return merge.sessions(keys, from_microseconds)

    # Rows that are behind their tables

    def _opened(self, names: Iterable[str]) -> list[ViewMerge]:
        return [merge for name in names if (merge := self.merges.get(name)) is not None]

    def note_read(self, names: Iterable[str]) -> tuple[int, ...]:
        """From now on the ticks write these views' rows at once. Returns a mark for `is_whole`."""
        now, merges = time.monotonic(), self._opened(names)
        for merge in merges:
            merge.read_at = now
        return tuple(merge.writings for merge in merges)

    def is_whole(self, names: Iterable[str], mark: tuple[int, ...], tick: int) -> bool:
        """Whether a snapshot that sees `tick`, and was taken since the mark, sees all rows of
        these views in their tables. When rows were written in between, it may have missed it."""
        merges = self._opened(names)
        is_behind = any(m.is_behind(tick) for m in merges)
        # Counted last: a writing that just took `behind_since` away has been counted before.
        return not is_behind and tuple(merge.writings for merge in merges) == mark

    def mentioned_in(self, sql: str) -> list[str]:
        """The views whose names occur in it, wherever: rather too many than too few."""
        text = sql.lower()
        return [name for name in list(self.merges) if name.lower() in text]

    def write_behind(self, names: Iterable[str]) -> None:
        behind = [merge for merge in self._opened(names) if merge.behind_since is not None]
        if behind:
            with self._transaction():
                for merge in behind:
                    merge.write_behind()
        for merge in behind:
            merge.accept_written()

    def behind_since(self) -> int | None:
        """The first tick some view's rows of which are not in its table."""
        found = [m.behind_since for m in self.merges.values() if m.behind_since is not None]
        return min(found, default=None)

    def row_counts(self) -> dict[int, int]:
        """By view number, for the views whose merges have begun."""
        merges = list(self.merges.values())
        return {m.schema.number: m.rows for m in merges if m.rows is not None}

    def keep_up(self) -> None:
        for merge in self.merges.values():
            merge.keep_up()

    def close(self) -> None:
        self._computing.close()


def _hash_name(number: int) -> str:
    return f"hash_{number}"
