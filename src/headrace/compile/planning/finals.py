"""What may stand above an aggregate: checked offline, before any type is known."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import expressions as exp

from headrace.compile.duckdb.finals import FUNCTIONS, OPERATORS
from headrace.compile.sql.dialect import canonical, parse_expression
from headrace.model.plan import ROWS

__all__ = ["WRITTEN", "check_final"]

WRITTEN = "headrace_written"  # what the user wrote where a state column stands now

_LISTED = ", ".join(
    [
        "+ - * /, comparisons, AND OR NOT, BETWEEN, IN, IS NULL, CASE, IF, CAST, ||",
        *sorted(name for name in FUNCTIONS if not name.startswith("_")),
    ]
)
_CONTAINERS = (exp.If, exp.DataType, exp.Identifier)


def check_final(
    node: exp.Expr, is_global: bool, on_fault: Callable[[exp.Expr, str, str], None]
) -> None:
    """`node` is over state columns. Reports every part that no store can give as Spark would."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        if name not in FUNCTIONS:
            on_fault(
                node,
                f"{name}() cannot stand above an aggregate or beside the window",
                f"above aggregates use {_LISTED}; or apply {name}() when querying",
            )
            return
        listed = FUNCTIONS[name]
        given = len(node.expressions)
        if given < listed.arguments_min or given > (listed.arguments_max or given):
            on_fault(node, f"{name}() with {given} arguments", f"see Spark SQL's {name}()")
            return
    elif isinstance(node, _CONTAINERS) and not isinstance(node, exp.If):
        return
    elif isinstance(node, exp.TryCast) and node.args.get("safe"):
        on_fault(node, "TRY_CAST cannot stand above an aggregate", "use CAST")
        return
    elif type(node) not in OPERATORS and not isinstance(node, exp.Column):
        on_fault(
            node,
            f"{_written(node)} cannot stand above an aggregate or beside the window",
            f"above aggregates use {_LISTED}; or compute it when querying",
        )
        return
    if isinstance(node, exp.Div) and not _is_never_zero(node.expression, is_global):
        on_fault(
            node,
            f"{_written(node.expression)} may be 0, and Spark fails on a division by zero",
            "use try_divide(a, b), or a / nullif(b, 0): both give NULL then",
        )
    for child in node.iter_expressions():
        check_final(child, is_global, on_fault)


def _is_never_zero(node: exp.Expr, is_global: bool) -> bool:
    if isinstance(node, (exp.Paren, exp.Neg)):
        return _is_never_zero(node.this, is_global)
    if isinstance(node, exp.Literal) and not node.is_string:
        return float(node.name) != 0
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):  # 7L
        return node.this.name.isdigit() and int(node.this.name) != 0
    if isinstance(node, exp.Column):
        return node.name == ROWS and not is_global
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "nullif":
        second = node.expressions[1] if len(node.expressions) == 2 else None
        return isinstance(second, exp.Literal) and float(second.name) == 0
    return False


def _written(node: exp.Expr) -> str:
    """The expression in the user's words."""

    def word(part: exp.Expr) -> exp.Expr:
        text = part.meta.get(WRITTEN)
        return parse_expression(text) if isinstance(text, str) else part

    return canonical(node.copy().transform(word, copy=False))
