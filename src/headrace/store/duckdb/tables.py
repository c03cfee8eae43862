"""Statements that need little or nothing of a view's schema: dropping it, and its first row."""

from __future__ import annotations

from headrace.kinds.calculator import quoted
from headrace.model.plan import ROWS
from headrace.store.duckdb.schema import ViewSchema

__all__ = ["drop_statements", "seed_statement"]


def drop_statements(name: str, number: int, distincts: int) -> list[str]:
    """Needs no definition, so that a view can be dropped whose definition is gone."""
    tables = [f"_headrace.values_{number}_{index}" for index in range(distincts)]
    return [
        f"DROP VIEW IF EXISTS {quoted(name)}",
        f"DROP VIEW IF EXISTS _headrace.read_{number}",
        *(f"DROP TABLE IF EXISTS {table}" for table in tables),
        f"DROP TABLE IF EXISTS _headrace.state_{number}",
        f"DROP TABLE IF EXISTS _headrace.events_{number}",
    ]


def seed_statement(schema: ViewSchema) -> str:
    """The single row of a global view: what the aggregates give over no event."""
    counting = {p.name for p in schema.view.plan.partials if p.function == "count"}
    zero = {ROWS, *counting, *(column.name for column in schema.counts)}
    values = ", ".join("0" if column.name in zero else "NULL" for column in schema.state)
    return f"INSERT INTO {schema.state_table} VALUES ({values}, 0)"
