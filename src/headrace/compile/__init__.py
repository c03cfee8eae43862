"""SQL and Python definitions → model → view plans. Needs no Spark and no network."""

from headrace.compile.duckdb.binding import bind_view
from headrace.compile.planning.plans import plan_view
from headrace.compile.project import load_project, parse_sql

__all__ = ["bind_view", "load_project", "parse_sql", "plan_view"]
