"""The one place that knows DuckDB's Python client: opening, Arrow in, Arrow out.

Why Arrow goes in through a `Slot`: a prepared DuckDB statement keeps its plan only while it reads
no stored table (statements over tables are planned again at every run, 1 to 3 ms for a merge;
measured). A slot is registered once and emptied and filled per tick, so the plan of the merge and
of every insert is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headrace.model.errors import StoreError, StoreLockedError
from headrace.model.plan import BoundColumn
from headrace.model.settings import StoreSettings
from headrace.model.types import DataType

__all__ = [
    "Slot",
    "arrow_reader",
    "arrow_table",
    "conformed",
    "connect",
    "matched",
    "quoted",
    "store_type",
    "text_literal",
]

BATCH_ROWS = 8_192
WAL_BYTES_MAX = 64 * 1024 * 1024  # beyond it DuckDB folds the write-ahead log in by itself


class Slot:
    """A table-shaped hole with a fixed schema, which statements read by its registered name."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._empty = schema.empty_table()
        self.table = self._empty

    def fill(self, table: pa.Table) -> None:
        """Raises StoreError as `conformed` does: DuckDB trusts the schema it saw first."""
        self.table = conformed(table, self.schema)

    def clear(self) -> None:
        self.table = self._empty

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The schema's columns of the table, cast where their type differs.

    Raises StoreError naming the column that is missing or that a cast would damage.
    """
    columns = []
    for field in schema:
        try:
            column = table.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StoreError(f"column {field.name}: expected {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def connect(file: Path, settings: StoreSettings) -> duckdb.DuckDBPyConnection:
    """Open or create the file for this process alone, without files, network or extensions.

    Raises StoreLockedError naming the process that holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    spill = file.with_name(file.name + ".spill")
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": "1",  # each statement on its caller's thread: a tick costs a third less CPU
        "memory_limit": f"{settings.memory_mebibytes}MiB",
        "temp_directory": str(spill),
        "max_temp_directory_size": f"{4 * settings.memory_mebibytes}MiB",
        "checkpoint_threshold": f"{WAL_BYTES_MAX}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }
    try:
        connection = duckdb.connect(str(file), config=config)
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            raise StoreLockedError(
                f"the store {file} is held by another process: {_holder(text)}",
                hint="stop the engine that holds it, or wait until it has ended",
            ) from error
        raise StoreError(f"the store {file} cannot be opened: {text}") from error
    except duckdb.Error as error:
        raise StoreError(f"the store {file} cannot be opened: {error}") from error
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET GLOBAL enable_external_access = false")
    connection.execute("SET GLOBAL lock_configuration = true")
    return connection


def _holder(text: str) -> str:
    start = text.find("held in")
    return text[start + len("held in") :].split(". ")[0].strip() if start >= 0 else text


def arrow_table(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """Run one statement and fetch all of it. The client's public way through execute() copies
    every row twice and warns about it, or plans the statement twice (sql())."""
    return connection._submit(sql, None, "arrow").arrow_table()


def arrow_reader(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.RecordBatchReader:
    """Run one statement and stream it: rows are computed as they are read."""
    return connection._submit(sql, None, "stream", BATCH_ROWS).arrow_reader()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_STORE_NAMES = {
    "INT": "INTEGER",
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "TIMESTAMP": "TIMESTAMPTZ",
}


def store_type(type_: DataType) -> str:
    """DuckDB's spelling. Timestamps are TIMESTAMPTZ, the session's zone is always UTC."""
    if type_.element is not None:
        return f"{store_type(type_.element)}[]"
    if type_.fields:
        inner = ", ".join(f"{quoted(name)} {store_type(field)}" for name, field in type_.fields)
        return f"STRUCT({inner})"
    return _STORE_NAMES.get(type_.name, type_.name)


def matched(
    left: str, right: str, keys: Sequence[BoundColumn], group: Sequence[BoundColumn]
) -> str:
    """The condition that two rows have equal columns of `group`; only `keys` can be NULL."""
    parts = [
        f"{left}.{quoted(c.name)} {'IS NOT DISTINCT FROM' if c in keys else '='} "
        f"{right}.{quoted(c.name)}"
        for c in group
    ]
    return " AND ".join(parts) or "true"
