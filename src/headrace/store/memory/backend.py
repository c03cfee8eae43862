"""The backend in memory: what it keeps is gone with the process. For tests of users and our own.

Tables are Arrow; DuckDB only reads them. Its one database has nothing but views: `_headrace.NAME`
reads what a connection has registered as the table of that name, and each snapshot registers the
tables of one commit with a connection of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import quoted
from headrace.model.errors import FencedError, MemoryShortError, StoreError
from headrace.model.settings import StoreSettings
from headrace.model.tables import ROW, Fetch, TableDefinition
from headrace.store.backend import SCHEMA, Commit
from headrace.store.confined import confine, confined_config
from headrace.store.memory.kept_table import Change, KeptTable

__all__ = ["MemoryBackend"]


class MemoryBackend:
    """Begins empty. Durable as long as it is."""

    def __init__(self, settings: StoreSettings) -> None:
        self._connection = duckdb.connect(config=confined_config(settings, spill=None))
        confine(self._connection)
        self._connection.execute(f"CREATE SCHEMA {SCHEMA}")
        self._computing = self._connection.cursor()
        self._lock = threading.RLock()
        self._generation = 0
        self._tables: dict[str, KeptTable] = {}
        self._are_rows_valid = False

    def claim(self) -> int:
        with self._lock:
            self._generation += 1
            return self._generation

    @property
    def generation(self) -> int:
        return self._generation

    def definitions(self) -> Mapping[str, TableDefinition]:
        return {name: table.definition for name, table in self._tables.items()}

    def fetch(self, fetches: Sequence[Fetch]) -> Sequence[pa.Table]:
        with self._lock:
            answers = [self._table(self._tables, fetch.table).fetch(fetch) for fetch in fetches]
            self._are_rows_valid = True
            return answers

    def _table(self, tables: Mapping[str, KeptTable], name: str) -> KeptTable:
        try:
            return tables[name]
        except KeyError:
            raise StoreError(f"the store has no table {name}") from None

    def commit(self, commit: Commit) -> None:
        with self._lock:
            if commit.generation != self._generation:
                raise FencedError(
                    f"generation {commit.generation} was replaced by {self._generation}",
                    hint="another engine took over; this one must stop",
                )
            tables = dict(self._tables)
            for definition in commit.create:
                if definition.name in tables:
                    raise StoreError(f"the store already has a table {definition.name}")
                tables[definition.name] = KeptTable(definition)
            for name in commit.drop:
                self._table(tables, name)
                del tables[name]
            changes = self._planned(commit, tables)
            self._set_views(commit, tables)
            for name, change in changes.items():
                tables[name].apply(change)
            self._tables = tables
            self._are_rows_valid = False

    def _planned(self, commit: Commit, tables: Mapping[str, KeptTable]) -> Mapping[str, Change]:
        changes: dict[str, Change] = {}
        for delta in commit.deltas:
            by_row = delta.gone is not None and delta.gone.column_names == [ROW]
            if by_row and not self._are_rows_valid:
                raise StoreError("rows are named that were fetched before the last commit")
            change = changes.setdefault(delta.table, Change())
            self._table(tables, delta.table).plan(change, delta)
        return changes

    def _set_views(self, commit: Commit, tables: Mapping[str, KeptTable]) -> None:
        """All or none. A view is made where the tables are, so that DuckDB can check it."""
        if not (commit.create or commit.drop or commit.views):
            return
        cursor = self._connection.cursor()
        try:
            self._register(cursor, {n: table.shown for n, table in tables.items()})
            cursor.execute("BEGIN")
            for name in commit.drop:
                cursor.execute(f"DROP VIEW {SCHEMA}.{quoted(name)}")
            for definition in commit.create:
                if definition.name in tables:
                    cursor.execute(
                        f"CREATE VIEW {SCHEMA}.{quoted(definition.name)} AS"
                        f" SELECT * FROM {quoted(_registered(definition.name))}"
                    )
            for name, sql in commit.views.items():
                view = f"main.{quoted(name)}"
                cursor.execute(
                    f"DROP VIEW IF EXISTS {view}"
                    if sql is None
                    else f"CREATE OR REPLACE VIEW {view} AS {sql}"
                )
            cursor.execute("COMMIT")
        except duckdb.OutOfMemoryException as error:
            raise MemoryShortError(
                f"the store needs more memory than it may use: {error}"
            ) from error
        except duckdb.Error as error:
            raise StoreError(f"the store cannot do it: {error}") from error
        finally:
            cursor.close()

    def _register(self, cursor: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]) -> None:
        for name, rows in tables.items():
            cursor.register(_registered(name), rows)

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._connection.cursor()
        try:
            with self._lock:
                tables = {name: table.shown for name, table in self._tables.items()}
                self._register(cursor, tables)
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                # A transaction sees the views that there were when it first looked.
                cursor.execute("SELECT count(*) FROM duckdb_views()").fetchall()
            yield cursor
        finally:
            cursor.close()

    def computing(self) -> duckdb.DuckDBPyConnection:
        return self._computing

    def checkpoint(self) -> None:
        """Nothing is stored that could be tidied up."""

    def metrics(self) -> Mapping[str, Any]:
        with self._lock:
            rows = {name: table.count for name, table in self._tables.items()}
        return {"file_bytes": 0, "write_ahead_bytes": 0, "rows": rows}

    def close(self) -> None:
        self._computing.close()
        self._connection.close()


def _registered(name: str) -> str:
    return f"_table_{name}"
