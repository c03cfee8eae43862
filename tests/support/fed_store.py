"""A store with views that are fed tick after tick, closed and opened again in between; and beside
it what someone holds who took every change."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from store_backends import BACKENDS, end_memory
from store_cases import rows_of, tick_write

from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import Store, ViewChange, ViewWrite

Rows = Counter[tuple[Any, ...]]


class FedStore:
    """With `columns`, only these are compared: a row becomes final without a change."""

    def __init__(
        self, open_: Callable[[], Store], views: Sequence[BoundView], columns: Sequence[str] | None
    ) -> None:
        self._open, self._views, self._columns = open_, views, columns
        self.store = open_()
        for view in views:
            self.store.create_view(view, {})
        self._generation = self.store.claim()
        self.held = {view.name: self.rows(view.name) for view in views}

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()
        for view in self._views:
            self.store.open_view(view)
        self._generation = self.store.claim()

    def tick(self, *writes: ViewWrite) -> Sequence[ViewChange]:
        """Takes the changes from the feed, which must be those that the commit gave."""
        tick = self.store.last_tick()
        given = self.store.commit(tick_write(self.store, self._generation, *writes))
        for view, held in self.held.items():
            stored = self.store.changes(view, tick, 10)
            mine = [(c.before, c.after) for c in given if c.view == view]
            assert mine == [(c.before, c.after) for c in stored]
            for change in stored:
                gone, come = self._counted(change.before), self._counted(change.after)
                assert gone <= held
                assert not gone & come or self._columns, "a row that did not change is no change"
                held.subtract(gone)
                held.update(come)
        return given

    def rows(self, view: str) -> Rows:
        columns = ", ".join(self._columns or "*")
        return Counter(rows_of(self.store, f"SELECT {columns} FROM {view}"))

    def check(self, expected: Rows, view: str | None = None) -> None:
        name = view or self._views[0].name
        assert self.rows(name) == expected
        assert +self.held[name] == expected

    def _counted(self, table: pa.Table) -> Rows:
        chosen = table.select(self._columns) if self._columns else table
        return Counter(tuple(row.values()) for row in chosen.to_pylist())


@contextmanager
def fed_store(
    backend: str, *views: BoundView, columns: Sequence[str] | None = None
) -> Iterator[FedStore]:
    """A check is of the first view unless it says another."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "store.duckdb"
        fed = FedStore(lambda: BACKENDS[backend](file, StoreSettings()), views, columns)
        try:
            yield fed
        finally:
            fed.store.close()
            end_memory()
