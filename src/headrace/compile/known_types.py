"""The types of expressions under aggregates, as far as they can be told without Spark."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.duckdb import spark_types as st
from headrace.compile.duckdb.values import number
from headrace.compile.sql.dialect import canonical
from headrace.compile.streams.draft import UNKNOWN
from headrace.model.definitions import Stream
from headrace.model.types import DataType, TypeSyntaxError, parse_type

__all__ = ["known_type"]


def known_type(node: exp.Expr, stream: Stream) -> DataType | None:
    """Of columns, literals, casts, arithmetic and CASE; None for all else."""
    if isinstance(node, exp.Paren):
        return known_type(node.this, stream)
    if isinstance(node, exp.Neg):
        inner = known_type(node.this, stream)
        return inner if inner is not None and inner.is_numeric else None
    if isinstance(node, exp.Column):
        column = stream.column(node.name) if not node.args.get("table") else None
        return column.type if column is not None and column.type != UNKNOWN else None
    if isinstance(node, exp.Cast):
        try:
            return parse_type(canonical(node.to))
        except TypeSyntaxError:
            return None
    if isinstance(node, exp.Literal):
        return st.STRING if node.is_string else number(node.name).type
    if isinstance(node, exp.Boolean):
        return st.BOOLEAN
    if isinstance(node, (exp.Add, exp.Sub, exp.Mul, exp.Div)):
        return _arithmetic_type(node, stream)
    if isinstance(node, exp.Case):
        return _case_type(node, stream)
    return None


def _arithmetic_type(node: exp.Binary, stream: Stream) -> DataType | None:
    sides = [known_type(side, stream) for side in (node.this, node.expression)]
    left, right = sides
    if left is None or right is None or not (left.is_numeric and right.is_numeric):
        return None
    if not (left.is_decimal or right.is_decimal):
        return st.DOUBLE if isinstance(node, exp.Div) else st.common_type(left, right)
    if left.name in ("FLOAT", "DOUBLE") or right.name in ("FLOAT", "DOUBLE"):
        return st.DOUBLE
    left, right = (
        _as_decimal(side, of_type)
        for side, of_type in ((node.this, left), (node.expression, right))
    )
    if isinstance(node, exp.Mul):
        return st.multiplied_type(left, right)
    if isinstance(node, exp.Div):
        return st.divided_type(left, right)
    return st.summed_type(left, right)


def _as_decimal(node: exp.Expr, of_type: DataType) -> DataType:
    while isinstance(node, exp.Paren):
        node = node.this
    literal = node.this if isinstance(node, exp.Neg) else node
    if of_type.is_integer and isinstance(literal, exp.Literal):
        return st.integer_literal_decimal(int(literal.name))
    return st.as_decimal(of_type)


def _case_type(node: exp.Case, stream: Stream) -> DataType | None:
    branches = [branch.args["true"] for branch in node.args["ifs"]]
    if node.args.get("default") is not None:
        branches.append(node.args["default"])
    found: DataType | None = st.VOID
    for branch in branches:
        of_type = st.VOID if isinstance(branch, exp.Null) else known_type(branch, stream)
        found = st.common_type(found, of_type) if found and of_type else None
    return None if found == st.VOID else found
