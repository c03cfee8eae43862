"""The backend on DuckDB: one file, one process, one writing connection.

    _headrace.NAME     a table; beside its columns it may have `_hash_0`, … (stored_table.py)
    _backend.about     one row: the format, the generation, how many commits there were
    _backend.tables    the definitions of the tables
    main.NAME          a public view

Rows are named by DuckDB's rowid, which only a checkpoint changes.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import quoted
from headrace.model.errors import FencedError, MemoryShortError, StoreError, StoreLockedError
from headrace.model.plan import BoundColumn
from headrace.model.settings import StoreSettings
from headrace.model.tables import ROW, Fetch, TableDefinition
from headrace.model.types import DataType, parse_type
from headrace.store.backend import SCHEMA, Commit
from headrace.store.duckdb.connection import connect
from headrace.store.duckdb.stored_table import (
    HASH_PREFIX,
    HASH_ROWS_MIN,
    INDEX_ROWS_MIN,
    StoredTable,
)

__all__ = ["FORMAT", "DuckBackend", "OtherFormatError"]

FORMAT = 2  # one more whenever a file made before could not be read; 1 had other tables
KEEP_UP_COMMITS = 64  # so often tables are looked at that may have grown large
HASH_PROBE = "(hash('headrace', 1, 2.5, DATE '2026-01-01', NULL) >> 1)::BIGINT"
_open_files: set[Path] = set()
_open_files_lock = threading.Lock()
log = logging.getLogger("headrace.store")
Result = TypeVar("Result")


class OtherFormatError(StoreError):
    """The file was made by another version."""


class DuckBackend:
    """Opens or creates the file; one left by a crash is at its last durable commit.

    Raises StoreLockedError naming the holder when the file is open elsewhere, also in this process;
    StoreError when it is of another format.
    """

    def __init__(self, file: Path, settings: StoreSettings) -> None:
        self._file = file.resolve()
        with _open_files_lock:
            if self._file in _open_files:
                raise StoreLockedError(
                    f"the store {file} is already open in this process", hint="close it first"
                )
            _open_files.add(self._file)
        try:
            self._open(settings)
        except BaseException:
            with _open_files_lock:
                _open_files.discard(self._file)
            raise

    def _open(self, settings: StoreSettings) -> None:
        self._connection = connect(self._file, settings)
        try:
            self._lock = threading.RLock()
            self._tables: dict[str, StoredTable] = {}
            self._generation, self._commits = 0, 0
            self._are_rows_valid = False
            self._is_closed = False
            self._computing = self._connection.cursor()
            self._make_books()
            self._load()
            self._snapshots = self._connection.cursor()
            self._snapshots_lock = threading.Lock()
        except duckdb.Error as error:
            self._connection.close()
            raise StoreError(f"the store {self._file} cannot be opened: {error}") from error
        except BaseException:
            self._connection.close()
            raise

    def _make_books(self) -> None:
        execute = self._connection.execute
        if execute("SELECT 1 FROM duckdb_tables() WHERE schema_name = '_backend'").fetchall():
            ((found,),) = execute("SELECT format FROM _backend.about").fetchall()
            if found != FORMAT:
                raise self._other_version()
            return
        if execute("SELECT 1 FROM duckdb_tables()").fetchall():
            raise self._other_version()
        execute("BEGIN")
        execute(f"CREATE SCHEMA {SCHEMA}")
        execute("CREATE SCHEMA _backend")
        execute(
            "CREATE TABLE _backend.about"
            " (format BIGINT, generation BIGINT, commits BIGINT, hash_probe BIGINT)"
        )
        execute(f"INSERT INTO _backend.about VALUES ({FORMAT}, 0, 0, {HASH_PROBE})")
        execute("CREATE TABLE _backend.tables (name VARCHAR, definition VARCHAR)")
        execute("COMMIT")

    def _other_version(self) -> OtherFormatError:
        return OtherFormatError(
            f"the store {self._file} was made by another version of headrace",
            hint="move the file away: the views are filled again from the log",
        )

    def _load(self) -> None:
        execute = self._connection.execute
        ((self._generation, self._commits, is_same_hash),) = execute(
            f"SELECT generation, commits, hash_probe = {HASH_PROBE} FROM _backend.about"
        ).fetchall()
        hashes = execute(
            "SELECT table_name, column_name FROM duckdb_columns()"
            f" WHERE schema_name = '{SCHEMA}' AND starts_with(column_name, '{HASH_PREFIX}')"
        ).fetchall()
        indexes = execute(
            f"SELECT table_name, index_name FROM duckdb_indexes() WHERE schema_name = '{SCHEMA}'"
        ).fetchall()
        for name, text in execute("SELECT name, definition FROM _backend.tables").fetchall():
            has = frozenset(column for table, column in hashes if table == name)
            indexed = frozenset(i.removeprefix(name) for table, i in indexes if table == name)
            self._tables[name] = self._stored(_decoded(name, text), has, indexed)
        if not is_same_hash:
            self._drop_hashes()

    def _stored(
        self,
        definition: TableDefinition,
        hashes: frozenset[str] = frozenset(),
        indexed: frozenset[str] = frozenset(),
    ) -> StoredTable:
        return StoredTable(self._connection, definition, hashes, indexed)

    def _drop_hashes(self) -> None:
        """Stored hashes are good only for a DuckDB that has the same hash()."""
        for table in list(self._tables.values()):
            if table.hashes:
                self._rewrite(table, frozenset())
        self._connection.execute(f"UPDATE _backend.about SET hash_probe = {HASH_PROBE}")

    # Ownership

    def claim(self, above: int = 0) -> int:
        """Another generation, higher than that one too."""
        with self._lock:
            generation = max(self._generation, above) + 1
            self._write(
                lambda: self._connection.execute(
                    f"UPDATE _backend.about SET generation = {generation}"
                )
            )
            self._generation = generation
            return generation

    @property
    def generation(self) -> int:
        return self._generation

    # Reading and changing tables

    def definitions(self) -> Mapping[str, TableDefinition]:
        return {name: table.definition for name, table in self._tables.items()}

    def fetch(self, fetches: Sequence[Fetch]) -> Sequence[pa.Table]:
        with self._lock, self._translated():
            answers = [_table(self._tables, fetch.table).fetch(fetch) for fetch in fetches]
            self._are_rows_valid = True
            return answers

    def commit(self, commit: Commit) -> None:
        with self._lock:
            if commit.generation != self._generation:
                raise FencedError(
                    f"generation {commit.generation} was replaced by {self._generation}",
                    hint="another engine took over; this one must stop",
                )
            created = self._new_tables(commit.create)
            tables = {**self._tables, **created}
            try:
                for name in (*commit.drop, *(delta.table for delta in commit.deltas)):
                    _table(tables, name)
                self._check_rows(commit)
                for delta in commit.deltas:
                    tables[delta.table].expect(delta)
                self._write(lambda: self._change(commit, created, tables))
            except BaseException:
                for table in created.values():
                    table.close()
                raise
            for name in commit.drop:
                tables.pop(name).close()
            self._tables = tables
            self._forget_fetches()
            if self._commits % KEEP_UP_COMMITS == 0:
                self._keep_up()

    def _new_tables(self, definitions: Sequence[TableDefinition]) -> dict[str, StoredTable]:
        created: dict[str, StoredTable] = {}
        for definition in definitions:
            if definition.name in self._tables or definition.name in created:
                raise StoreError(f"the store already has a table {definition.name}")
            created[definition.name] = self._stored(definition)
        return created

    def _forget_fetches(self) -> None:
        self._are_rows_valid = False
        for table in self._tables.values():
            table.forget_fetches()

    def _check_rows(self, commit: Commit) -> None:
        by_row = any(d.gone is not None and d.gone.column_names == [ROW] for d in commit.deltas)
        if by_row and not self._are_rows_valid:
            raise StoreError("rows are named that were fetched before the last commit")

    def _change(
        self,
        commit: Commit,
        created: Mapping[str, StoredTable],
        tables: Mapping[str, StoredTable],
    ) -> None:
        execute = self._connection.execute
        for table in created.values():
            table.create()
            execute(
                "INSERT INTO _backend.tables VALUES (?, ?)",
                [table.definition.name, _encoded(table.definition)],
            )
        for name in commit.drop:
            execute(f"DROP TABLE {tables[name].name}")
            execute("DELETE FROM _backend.tables WHERE name = ?", [name])
        for delta in commit.deltas:
            tables[delta.table].apply(delta)
        for name, sql in commit.views.items():
            view = f"main.{quoted(name)}"
            execute(
                f"DROP VIEW IF EXISTS {view}"
                if sql is None
                else f"CREATE OR REPLACE VIEW {view} AS {sql}"
            )

    def _write(self, change: Callable[[], object]) -> None:
        """One durable transaction. On an error nothing of it has happened."""
        following = self._commits + 1
        execute = self._connection.execute
        with self._translated():
            execute("BEGIN")
            try:
                change()
                execute(f"UPDATE _backend.about SET commits = {following}")
                execute("COMMIT")
            except BaseException as error:
                if not self._is_durable(following):
                    raise
                log.warning("a commit is durable although it failed: %s", error)
        self._commits = following

    def _is_durable(self, following: int) -> bool:
        """After an error: whether it was COMMIT that failed, and has happened all the same."""
        try:
            self._connection.execute("ROLLBACK")
            return False
        except duckdb.TransactionException:
            # COMMIT itself failed and ended the transaction; only the file can say.
            ((commits,),) = self._connection.execute(
                "SELECT commits FROM _backend.about"
            ).fetchall()
            return bool(commits == following)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise MemoryShortError(
                f"the store needs more memory than it may use: {error}",
                hint="raise store.memory_mebibytes or lower engine.tick_rows_max",
            ) from error
        except duckdb.Error as error:
            raise StoreError(f"the store cannot do it: {error}") from error

    # Tables that grow large

    def _keep_up(self) -> None:
        """Tables that have grown get the hashes and indexes by which their rows are looked up. A
        reader of an older state may stand in the way, or memory be short: then a later call does
        it, and until then looking rows up takes longer."""
        sizes = self._row_counts()
        for name, table in list(self._tables.items()):
            rows = sizes.get(name, 0)
            try:
                if rows >= HASH_ROWS_MIN and not table.wanted <= table.hashes:
                    table = self._rewrite(table, table.hashes | table.wanted)
                if rows >= INDEX_ROWS_MIN:
                    for column in sorted(table.wanted - table.indexed):
                        table.index(column)
            except (duckdb.Error, StoreError) as error:
                log.info("table %s is prepared for its size later: %s", name, error)

    def _rewrite(self, table: StoredTable, hashes: frozenset[str]) -> StoredTable:
        self._write(lambda: table.add_hashes(hashes))
        table.close()
        written = self._stored(table.definition, hashes)
        written.wanted = table.wanted
        self._tables = {**self._tables, table.definition.name: written}
        return written

    def _row_counts(self) -> dict[str, int]:
        found = self._connection.execute(
            f"SELECT table_name, estimated_size FROM duckdb_tables() WHERE schema_name = '{SCHEMA}'"
        ).fetchall()
        return dict(found)

    # Readers and calculators

    @contextmanager
    def snapshot(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._snapshots_lock:
            cursor = self._snapshots.cursor()
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            # A transaction sees what was durable when it first read.
            cursor.execute("SELECT commits FROM _backend.about").fetchall()
            yield cursor
        finally:
            cursor.close()

    def computing(self) -> duckdb.DuckDBPyConnection:
        return self._computing

    # Upkeep

    def checkpoint(self) -> None:
        with self._lock:
            self._forget_fetches()
            try:
                self._connection.execute("CHECKPOINT")
            except duckdb.TransactionException:
                return  # a reader holds an older state; the next call does it
            except duckdb.Error as error:
                raise StoreError(f"the store cannot be tidied up: {error}") from error

    def metrics(self) -> Mapping[str, Any]:
        with self._lock:
            rows = self._row_counts()
        write_ahead = self._file.with_name(self._file.name + ".wal")
        return {
            "file_bytes": _size(self._file),
            "write_ahead_bytes": _size(write_ahead),
            "rows": {name: rows.get(name, 0) for name in self._tables},
        }

    def close(self) -> None:
        """Everything committed is durable already."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for cursor in (self._computing, self._snapshots, self._connection):
                cursor.close()
        with _open_files_lock:
            _open_files.discard(self._file)


def _table(tables: Mapping[str, StoredTable], name: str) -> StoredTable:
    try:
        return tables[name]
    except KeyError:
        raise StoreError(f"the store has no table {name}") from None


def _encoded(definition: TableDefinition) -> str:
    columns = [[column.name, _encoded_type(column.type)] for column in definition.columns]
    return json.dumps(
        {
            "columns": columns,
            "key": definition.key,
            "indexes": definition.indexes,
            "is_brief": definition.is_brief,
        }
    )


def _encoded_type(type_: DataType) -> Any:
    """Not its name alone: names of fields may have signs that the name does not quote."""
    if type_.element is not None:
        return {"element": _encoded_type(type_.element)}
    if type_.fields:
        return {"fields": [[name, _encoded_type(field)] for name, field in type_.fields]}
    return type_.name


def _decoded(name: str, text: str) -> TableDefinition:
    stored = json.loads(text)
    return TableDefinition(
        name,
        tuple(BoundColumn(column, _decoded_type(type_)) for column, type_ in stored["columns"]),
        tuple(stored["key"]),
        tuple(map(tuple, stored["indexes"])),
        stored["is_brief"],
    )


def _decoded_type(stored: Any) -> DataType:
    if isinstance(stored, str):
        return parse_type(stored)
    if "element" in stored:
        element = _decoded_type(stored["element"])
        return DataType(f"ARRAY<{element}>", element=element)
    fields = tuple((name, _decoded_type(field)) for name, field in stored["fields"])
    spelled = ", ".join(f"{name}: {field}" for name, field in fields)
    return DataType(f"STRUCT<{spelled}>", fields=fields)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
