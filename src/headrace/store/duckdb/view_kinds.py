"""Which schema and which merge a view has, by its plan: the one place that chooses."""

from __future__ import annotations

import duckdb

from headrace.model.plan import BoundView, EventGroup, SessionWindow, Sliding
from headrace.store.duckdb.group_merge import EventGroupMerge
from headrace.store.duckdb.group_schema import EventGroupSchema
from headrace.store.duckdb.merge import ViewMerge
from headrace.store.duckdb.schema import ViewSchema
from headrace.store.duckdb.session_merge import SessionMerge
from headrace.store.duckdb.session_schema import SessionSchema
from headrace.store.duckdb.sliding_merge import SlidingMerge
from headrace.store.duckdb.sliding_schema import SlidingSchema

__all__ = ["make_merge", "make_schema"]


def make_schema(view: BoundView, number: int) -> ViewSchema:
    if isinstance(view.plan.window, SessionWindow):
        return SessionSchema(view, number)
    if isinstance(view.plan.window, Sliding):
        return SlidingSchema(view, number)
    if isinstance(view.plan.window, EventGroup):
        return EventGroupSchema(view, number)
    return ViewSchema(view, number)


def make_merge(
    connection: duckdb.DuckDBPyConnection,
    computing: duckdb.DuckDBPyConnection,
    schema: ViewSchema,
) -> ViewMerge:
    if isinstance(schema, SessionSchema):
        return SessionMerge(connection, computing, schema)
    if isinstance(schema, SlidingSchema):
        return SlidingMerge(connection, computing, schema)
    if isinstance(schema, EventGroupSchema):
        return EventGroupMerge(connection, computing, schema)
    return ViewMerge(connection, computing, schema)
