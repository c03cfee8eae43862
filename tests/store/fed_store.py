"""A store with one view that is fed tick after tick, closed and opened again in between; and beside
it what someone holds who took every change."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from store_cases import rows_of, tick_write

from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import Store, ViewWrite
from headrace.store.duck import open_store

Rows = Counter[tuple[Any, ...]]


class FedStore:
    def __init__(self, file: Path, view: BoundView) -> None:
        self._file, self._view = file, view
        self.store: Store = open_store(file, StoreSettings())
        self.store.create_view(view, {})
        self._generation = self.store.claim()
        self.held = self.rows()

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self._file, StoreSettings())
        self.store.open_view(self._view)

    def tick(self, write: ViewWrite) -> None:
        """Takes the changes from the feed, which must be those that the commit gave."""
        tick = self.store.last_tick()
        given = self.store.commit(tick_write(self.store, self._generation, write))
        stored = self.store.changes(self._view.name, tick, 10)
        assert [(c.before, c.after) for c in given] == [(c.before, c.after) for c in stored]
        for change in stored:
            gone, come = _rows(change.before), _rows(change.after)
            assert gone <= self.held
            assert not gone & come, "a row that did not change is no change"
            self.held = self.held - gone + come

    def rows(self) -> Rows:
        return Counter(rows_of(self.store, f"SELECT * FROM {self._view.name}"))

    def check(self, expected: Rows) -> None:
        assert self.rows() == expected
        assert self.held == expected


@contextmanager
def fed_store(view: BoundView) -> Iterator[FedStore]:
    with tempfile.TemporaryDirectory() as directory:
        fed = FedStore(Path(directory) / "store.duckdb", view)
        try:
            yield fed
        finally:
            fed.store.close()


def _rows(table: pa.Table) -> Rows:
    return Counter(tuple(row.values()) for row in table.to_pylist())
