"""The calculator: an in-process DuckDB that merges Arrow tables, whatever backend stores them.

Why Arrow goes in through a `Slot`: a prepared DuckDB statement keeps its plan only while it reads
no stored table (statements over tables are planned again at every run, 1 to 3 ms for a merge;
measured). A slot is registered once and emptied and filled per tick, so the plan of a merge is
made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

from headrace.model.errors import StoreError
from headrace.model.plan import BoundColumn
from headrace.model.types import DataType

__all__ = [
    "Calculator",
    "Slot",
    "Statement",
    "arrow_reader",
    "arrow_table",
    "conformed",
    "matched",
    "quoted",
    "store_type",
    "text_literal",
]

BATCH_ROWS = 8_192


class Calculator:
    """Makes statements over Arrow tables. One thread at a time uses it and its statements."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._numbers = count()

    def prepare(
        self, slots: Mapping[str, pa.Schema], build: Callable[[Mapping[str, str]], str]
    ) -> Statement:
        """`build` is given the name under which SQL reads each slot, and returns the statement. For
        example, a sum over what `run(rows=...)` will be given:

            prepare({"rows": schema}, lambda slot: f"SELECT sum(x) AS x FROM {slot['rows']}")
        """
        number = next(self._numbers)
        names = {slot: f"_slot_{number}_{index}" for index, slot in enumerate(slots)}
        return Statement(self._connection, f"_statement_{number}", slots, names, build(names))


class Statement:
    """Prepared when it first runs, so that what is never needed costs nothing."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        slots: Mapping[str, pa.Schema],
        names: Mapping[str, str],
        sql: str,
    ) -> None:
        self._connection = connection
        self._name = name
        self._slots = {slot: Slot(schema) for slot, schema in slots.items()}
        self._names = names
        self._sql = sql
        self._is_prepared = False

    def run(self, **tables: pa.Table) -> pa.Table:
        """A table for each slot; one that is not given is empty. Raises duckdb.Error."""
        if not self._is_prepared:
            self._prepare()
        try:
            for slot, table in tables.items():
                self._slots[slot].fill(table)
            return arrow_table(self._connection, f"EXECUTE {self._name}")
        finally:
            for filled in tables:
                self._slots[filled].clear()

    def _prepare(self) -> None:
        for slot, name in self._names.items():
            self._connection.register(name, self._slots[slot])
        self._connection.execute(f"PREPARE {self._name} AS {self._sql}")
        self._is_prepared = True

    def close(self) -> None:
        """The connection forgets the statement and its slots."""
        if self._is_prepared:
            self._is_prepared = False
            self._connection.execute(f"DEALLOCATE {self._name}")
            for name in self._names.values():
                self._connection.unregister(name)


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
    if table.schema.equals(schema):
        return table  # as mostly: a tick asks fifty times, and to build a table anew takes 30 µs
    columns = []
    for field in schema:
        try:
            column = table.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise StoreError(f"column {field.name}: expected {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


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
