"""The contract of a backend: tables that change together.

A backend keeps tables and knows nothing of what they mean; tests/store/test_backends.py runs
against every one. One thread at a time fetches and commits; snapshots are taken on other threads
meanwhile. Indexes, caches of recent rows and stored hashes are a backend's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from headrace.model.tables import SCHEMA, Fetch, TableDefinition, TableDelta

__all__ = ["SCHEMA", "Backend", "Commit"]


@dataclass(frozen=True)
class Commit:
    """What becomes of the tables in one step, in this order: tables are made, tables are dropped
    with all their rows, rows change, and public views are set. A view of None is dropped; its text
    is a SELECT over tables of SCHEMA."""

    generation: int
    deltas: Sequence[TableDelta] = ()
    create: Sequence[TableDefinition] = ()
    drop: Sequence[str] = ()
    views: Mapping[str, str | None] = field(default_factory=dict)


class Backend(Protocol):
    def claim(self) -> int:
        """Take over: durably raises the generation and returns it. Every later commit by an older
        generation raises FencedError."""

    @property
    def generation(self) -> int:
        """The newest that was claimed; 0 before the first."""

    def definitions(self) -> Mapping[str, TableDefinition]:
        """All tables there are, by name."""

    def fetch(self, fetches: Sequence[Fetch]) -> Sequence[pa.Table]:
        """An answer to each, as of the last commit. Raises MemoryShortError."""

    def commit(self, commit: Commit) -> None:
        """Durable when it returns; on an error nothing of it has happened. Raises FencedError;
        MemoryShortError; StoreError when rows do not fit their table or two have one key."""

    def snapshot(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection that shows one commit until it is left, whatever is committed meanwhile,
        and may be interrupted from another thread. What it creates is gone when it is left."""

    def computing(self) -> duckdb.DuckDBPyConnection:
        """A connection for a calculator (kinds/calculator.py), outside of all tables, within the
        memory that the settings allow the store. It lives until the backend is closed."""

    def checkpoint(self) -> None:
        """Called when idle: tidy up what is stored. Raises StoreError."""

    def metrics(self) -> Mapping[str, Any]:
        """Figures for /metrics: file_bytes, write_ahead_bytes, and `rows` by table, estimated."""

    def close(self) -> None: ...
