"""Which functions Spark has, and of which kind each is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sqlglot import expressions as exp

__all__ = ["function_name", "functions", "kind_of"]


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
