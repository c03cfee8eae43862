"""What an ad-hoc query may be: one SELECT over public views, and nothing that acts or grows.

The text is judged by DuckDB's own syntax tree, never by pattern. Behind this stand a read-only
transaction, external access switched off and a locked configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from headrace.model.errors import QueryError
from headrace.store.reading.sizes import Sizes

__all__ = ["check_query"]

QUERY_CHARACTERS_MAX = 100_000
TABLE_FUNCTIONS = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
SYSTEM_SCHEMAS = frozenset({"_headrace", "information_schema", "pg_catalog", "system", "temp"})
READING_NODES = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"}
)


def check_query(
    cursor: duckdb.DuckDBPyConnection, sql: str, views: Mapping[str, str]
) -> frozenset[str]:
    """The names of the views that the query reads, as it spells them. Raises QueryError, saying
    what is accepted, for anything but one plain SELECT over `views`, which gives each view's
    stream, and for what could get too large."""
    if len(sql) > QUERY_CHARACTERS_MAX:
        raise QueryError(
            f"the query has {len(sql)} characters",
            hint=f"at most {QUERY_CHARACTERS_MAX} are accepted",
            status=413,
        )
    try:
        statements = cursor.extract_statements(sql)
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(str(error), hint=_hint(cursor, sql, views)) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError("not a single SELECT", hint="only one SELECT statement is accepted")
    found = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        tree = json.loads(found[0][0])
        if tree.get("error"):
            raise QueryError(
                str(tree.get("error_message", "not a SELECT")),
                hint="only one SELECT statement is accepted",
            )
        for node in _nodes(tree["statements"]):
            _check_node(node)
        read: set[str] = set()

        def check_view(path: list[str]) -> None:
            _check_view(path, views)
            read.add(path[-1])

        Sizes(check_view).check(tree["statements"][0]["node"])
        return frozenset(read)
    except RecursionError:
        raise QueryError("the query is nested too deeply", hint="simplify it", status=413) from None


def _hint(cursor: duckdb.DuckDBPyConnection, sql: str, views: Mapping[str, str]) -> str:
    """Columns may be called what the dialect keeps for itself (`at`, `end`); it then says no more
    than that the syntax is wrong."""
    words = cursor.execute(
        "SELECT DISTINCT column_name FROM duckdb_columns() JOIN duckdb_keywords()"
        " ON lower(column_name) = keyword_name"
        " WHERE keyword_category IN ('reserved', 'type_function') AND list_contains(?, table_name)"
        " ORDER BY ALL",
        [list(views)],
    ).fetchall()
    for (word,) in words:
        if re.search(rf'(?<![\w".]){re.escape(word)}(?![\w"])', sql, re.IGNORECASE):
            return f'{word} is also a word of DuckDB\'s dialect: write the column as "{word}"'
    return "write one SELECT in DuckDB's dialect"


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in READING_NODES:
        raise QueryError("the query writes", hint="only one SELECT statement is accepted")
    if kind == "VALUE_PARAMETER":
        raise QueryError("the query has parameters", hint="write the values into the query")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in TABLE_FUNCTIONS:
            raise QueryError(
                f"{name}() is not available in queries",
                hint=f"table functions are {', '.join(sorted(TABLE_FUNCTIONS))}",
            )
    path = node.get("qualified_name")
    parts = path.get("path", []) if isinstance(path, dict) else []
    schema = str(node.get("schema_name", ""))
    if any(_plain(part) == "_headrace" for part in (*parts[:-1], schema)):
        raise QueryError(
            "the schema _headrace is internal", hint="query the views; GET /v1/views lists them"
        )


def _check_view(path: list[str], views: Mapping[str, str]) -> None:
    name, is_system = path[-1], any(_plain(part) in SYSTEM_SCHEMAS for part in path[:-1])
    if not is_system and name.lower() in {view.lower() for view in views}:
        return
    listed = f"views are {', '.join(sorted(views)) or 'none yet'}"
    if name.lower() in {stream.lower() for stream in views.values()}:
        raise QueryError(f"{name} is a stream, which cannot be queried", hint=listed)
    raise QueryError(f"there is no view {'.'.join(path)!r}", hint=listed, view=name)


def _plain(name: object) -> str:
    return str(name).strip('"').lower()
