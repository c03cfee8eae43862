"""What an ad-hoc query may be: one SELECT over public views, and nothing that acts.

The text is judged by DuckDB's own syntax tree, never by pattern. Behind this stand a read-only
transaction, external access switched off and a locked configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from headrace.model.errors import QueryError

__all__ = ["check_query"]

QUERY_CHARACTERS_MAX = 100_000
TABLE_FUNCTIONS = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
ACTING_FUNCTIONS = frozenset(
    {
        "currval",
        "current_setting",
        "getvariable",
        "json_execute_serialized_sql",
        "nextval",
        "pg_sleep",
        "setseed",
        "setval",
        "sleep_ms",
        "stats",
        "write_log",
    }
)
READING_NODES = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"}
)


def check_query(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError, saying what is accepted, for anything but one plain SELECT."""
    if len(sql) > QUERY_CHARACTERS_MAX:
        raise QueryError(
            f"the query has {len(sql)} characters",
            hint=f"at most {QUERY_CHARACTERS_MAX} are accepted",
            status=413,
        )
    try:
        statements = cursor.extract_statements(sql)
    except (duckdb.Error, UnicodeError) as error:
        raise QueryError(str(error), hint="write one SELECT in DuckDB's dialect") from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError("not a single SELECT", hint="only one SELECT statement is accepted")
    found = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    tree = json.loads(found[0][0])
    if tree.get("error"):
        raise QueryError(
            str(tree.get("error_message", "not a SELECT")),
            hint="only one SELECT statement is accepted",
        )
    for node in _nodes(tree["statements"]):
        _check_node(node)


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
    if node.get("class") == "FUNCTION":
        name = str(node.get("function_name", "")).lower()
        if name in ACTING_FUNCTIONS:
            raise QueryError(f"{name}() is not available in queries", hint="leave it out")
    path = node.get("qualified_name")
    parts = path.get("path", []) if isinstance(path, dict) else []
    schema = str(node.get("schema_name", ""))
    if any(_plain(part) == "_headrace" for part in (*parts[:-1], schema)):
        raise QueryError(
            "the schema _headrace is internal", hint="query the views; GET /v1/views lists them"
        )


def _plain(name: object) -> str:
    return str(name).strip('"').lower()
