"""SQL and Python definitions → model → view plans. Needs no Spark and no network."""

from headrace.compile.duckdb.binding import bind_view
from headrace.compile.lookups import looked_up_columns
from headrace.compile.planning.plans import plan_view
from headrace.compile.project import define_project, load_project, parse_sql

__all__ = [
    "bind_view",
    "define_project",
    "load_project",
    "looked_up_columns",
    "parse_sql",
    "plan_view",
]
