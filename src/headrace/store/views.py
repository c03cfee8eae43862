"""The views the store holds: their catalog entries and, once opened, their merges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import duckdb

from headrace.model.errors import QueryError, StoreError, ViewChangedError
from headrace.model.plan import BoundView
from headrace.store.contract import ViewStatus
from headrace.store.ledger import Ledger, Moved, StoredView, encode_offsets
from headrace.store.merge import Merged, ViewMerge
from headrace.store.schema import ViewSchema

__all__ = ["Views"]

KEEP_UP_TICKS = 64
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
        """What the file says; nothing remembered counts."""
        self.stored = self._ledger.stored_views()
        for merge in self.merges.values():
            merge.forget()

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

    def create(self, view: BoundView, start_offsets: Mapping[int, int], tick: int) -> None:
        if any(name.lower() == view.name.lower() for name in self.stored):
            raise StoreError(f"the store already holds a view {view.name}")
        try:
            with self._transaction():
                number = self._ledger.number("next_view")
                self._ledger.set_number("next_view", number + 1)
                schema = ViewSchema(view, number)
                for statement in schema.create_statements():
                    self._connection.execute(statement)
                if view.plan.is_global:
                    self._connection.execute(schema.seed_statement())
                starts = encode_offsets(start_offsets)
                self._ledger.add_view(number, view, schema.hidden, tick, starts)
                self._ledger.set_number(_hash_name(number), self._probed())
        except duckdb.Error as error:
            raise StoreError(f"view {view.name} cannot be stored: {error}") from error
        self.stored = self._ledger.stored_views()
        self.merges[view.name] = ViewMerge(self._connection, self._computing, schema)

    def open(self, view: BoundView) -> None:
        stored = self.find(view.name)
        if stored.entry.fingerprint != view.plan.fingerprint:
            raise ViewChangedError(
                f"the definition of view {view.name} changed under its state",
                hint=f"headrace rebuild {view.name}",
            )
        if view.name not in self.merges:
            schema = ViewSchema(view, stored.number)
            self._rehash(schema)
            self.merges[view.name] = ViewMerge(self._connection, self._computing, schema)

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

    def drop(self, name: str) -> None:
        stored = self.find(name)
        name = stored.entry.view
        with self._transaction():
            for statement in ViewSchema.drop_statements(name, stored.number, stored.distincts):
                self._connection.execute(statement)
            self._ledger.remove_view(stored.number)
            self._ledger.remove_number(_hash_name(stored.number))
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
        entry = replace(stored.entry, status=status)
        self.stored = {**self.stored, entry.view: replace(stored, entry=entry)}

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
        if tick % KEEP_UP_TICKS == 0:
            self.keep_up()

    def keep_up(self) -> None:
        for merge in self.merges.values():
            merge.keep_up()

    def close(self) -> None:
        self._computing.close()


def _hash_name(number: int) -> str:
    return f"hash_{number}"
