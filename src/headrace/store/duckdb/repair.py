"""Replacing single rows of a view's state that a proof found wrong, in a tick of its own.

A row is compared and set: each written row has an id that no other row ever had, so a row with the
id that the proof saw is as the proof saw it. One that events have changed since then is left alone
and counted as moved. Where the proof saw no row, there must be none, unless the whole view stands
where it stood then (a row may be hidden by HAVING).
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table, conformed, quoted
from headrace.store.contract import Repair
from headrace.store.duckdb.ledger import StoredView
from headrace.store.duckdb.schema import ViewSchema

__all__ = ["Replaced", "named", "replace_rows"]

WAS, PRESENT = "_was", "_present"
_ASKED, _ACCEPTED, _WRITTEN, _VALUES = "_repair_asked", "_repair", "_repair_rows", "_repair_values"


@dataclass(frozen=True)
class Replaced:
    """The public rows before and after, how many rows were replaced, how many had moved on
    meanwhile, and whether the state `is_any` different now."""

    before: pa.Table
    after: pa.Table
    rows: int
    moved: int
    is_any: bool


def replace_rows(
    connection: duckdb.DuckDBPyConnection, schema: ViewSchema, stored: StoredView, repair: Repair
) -> Replaced:
    """Within the open transaction; all rows are in their table. Raises duckdb.Error, and
    StoreError for rows that are not of this view."""
    state = [(column.name, column.type.arrow) for column in schema.state]
    asked = conformed(
        repair.rows.rename_columns([*(name for name, _ in state), WAS, PRESENT]),
        pa.schema([*state, (WAS, pa.int64()), (PRESENT, pa.bool_())]),
    )
    registered = [_ASKED]
    try:
        connection.register(_ASKED, asked)
        unmoved = "true" if stored.progress_tick <= repair.tick else "false"
        accepted = arrow_table(connection, _accepted_sql(schema, unmoved))
        connection.register(_ACCEPTED, accepted)
        registered.append(_ACCEPTED)
        before = _public_rows(connection, schema, stored)
        ((last,),) = connection.execute(
            f"SELECT coalesce(max({schema.id}), -1) FROM {schema.state_table}"
        ).fetchall()
        match = schema.matches_sql("s", "a")
        own = f"EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {match})"
        connection.execute(f"DELETE FROM {schema.state_table} s WHERE {own}")
        names = ", ".join(quoted(name) for name, _ in state)
        written = arrow_table(
            connection,
            f"SELECT {names}, {last} + row_number() OVER () AS {schema.id}"
            f" FROM {_ACCEPTED} WHERE {PRESENT}",
        )
        connection.register(_WRITTEN, conformed(written, schema.written_schema))
        registered.append(_WRITTEN)
        connection.execute(schema.insert_sql(_WRITTEN))
        for index, values in enumerate(repair.values):
            connection.register(_VALUES, named(values, schema.value_schema(index)))
            registered.append(_VALUES)
            _replace_values(connection, schema, index)
        after = _public_rows(connection, schema, stored)
    finally:
        for name in dict.fromkeys(registered):
            connection.unregister(name)
    rows = accepted.num_rows
    return Replaced(before, after, rows, asked.num_rows - rows, is_any=rows > 0)


def _accepted_sql(schema: ViewSchema, unmoved: str) -> str:
    table = schema.state_table
    same = f"EXISTS (SELECT 1 FROM {table} s WHERE s.{schema.id} = a.{WAS})"
    none = f"NOT EXISTS (SELECT 1 FROM {table} s WHERE {schema.matches_sql('s', 'a')})"
    return (
        f"SELECT a.* FROM {_ASKED} a WHERE CASE WHEN a.{WAS} IS NULL THEN {unmoved} OR {none}"
        f" ELSE {same} END"
    )


def _public_rows(
    connection: duckdb.DuckDBPyConnection, schema: ViewSchema, stored: StoredView
) -> pa.Table:
    names = ", ".join(quoted(name) for name, _ in stored.columns)
    same = " AND ".join(
        f"r.{quoted(hidden)} IS NOT DISTINCT FROM a.{quoted(column.name)}"
        for hidden, column in zip(schema.hidden, schema.group, strict=True)
    )
    found = arrow_table(
        connection,
        f"SELECT {names} FROM {schema.read_view} r"
        f" WHERE EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {same or 'true'})",
    )
    return conformed(found, stored.public_schema)


def named(values: pa.Table, schema: pa.Schema) -> pa.Table:
    return conformed(values.rename_columns(schema.names), schema)


def _replace_values(connection: duckdb.DuckDBPyConnection, schema: ViewSchema, index: int) -> None:
    """The values that count(DISTINCT …) has seen, of the accepted rows alone."""
    table = schema.values_table(index)
    own = f"EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {schema.matches_sql('v', 'a')})"
    connection.execute(f"DELETE FROM {table} v WHERE {own}")
    connection.execute(f"INSERT INTO {table} SELECT v.* FROM {_VALUES} v WHERE {own}")
