"""Which schema and which merge a view has, by its plan: the one place that chooses."""

from __future__ import annotations

import duckdb

from headrace.model.plan import BoundView, SessionWindow
from headrace.store.merge import ViewMerge
from headrace.store.schema import ViewSchema
from headrace.store.session_schema import SessionSchema
from headrace.store.sessions import SessionMerge

__all__ = ["make_merge", "make_schema"]


def make_schema(view: BoundView, number: int) -> ViewSchema:
    if isinstance(view.plan.window, SessionWindow):
        return SessionSchema(view, number)
    return ViewSchema(view, number)


def make_merge(
    connection: duckdb.DuckDBPyConnection,
    computing: duckdb.DuckDBPyConnection,
    schema: ViewSchema,
) -> ViewMerge:
    if isinstance(schema, SessionSchema):
        return SessionMerge(connection, computing, schema)
    return ViewMerge(connection, computing, schema)
