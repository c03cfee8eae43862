"""Which functions Spark has, and of which kind each is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlglot import expressions as exp

__all__ = ["function_name", "functions", "is_bare_function", "kind_of"]


@cache
def functions() -> dict[str, str]:
    """Function name → aggregate, generator, unstable (another result on another day or machine),
    window or scalar."""
    text = (Path(__file__).parent / "functions.txt").read_text(encoding="utf-8")
    pairs = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {pair[0]: pair[1] for pair in pairs}


def kind_of(name: str) -> str | None:
    """None for a function that Spark does not have."""
    return functions().get(name)


def function_name(node: exp.Expr) -> str | None:
    """The name of the function that the node calls, in lower case; None if it calls none."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    if isinstance(node, exp.Func) and not isinstance(node, (exp.Cast, exp.Case, exp.If)):
        if isinstance(node, (exp.And, exp.Or, exp.Xor)):
            return None
        return node.sql_name().lower()
    return None


def is_bare_function(node: exp.Expr) -> bool:
    """Whether a column's name is one that Spark reads as a function: current_date, user."""
    return (
        isinstance(node, exp.Column)
        and not node.args.get("table")
        and node.name.lower() in _WITHOUT_PARENTHESES
    )


_WITHOUT_PARENTHESES = (
    "current_date",
    "current_timestamp",
    "current_time",
    "localtimestamp",
    "localtime",
    "current_user",
    "session_user",
    "user",
)
