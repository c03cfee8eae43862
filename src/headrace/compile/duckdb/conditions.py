"""Conditions and choices above aggregates."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.duckdb import spark_types as st
from headrace.compile.duckdb.values import (
    NULL,
    Function,
    Go,
    Operator,
    TranslationError,
    Typed,
    as_type,
    common_of,
    compared,
    truth,
)
from headrace.compile.sql.dialect import canonical
from headrace.model.types import DataType

__all__ = [
    "between",
    "case",
    "choose",
    "comparison",
    "contained",
    "if_",
    "is_",
    "logical",
    "negated",
    "nullif",
]


def comparison(symbol: str) -> Operator:
    def translated(node: exp.Expr, go: Go) -> Typed:
        left, right = go(node.this), go(node.expression)
        return compared(symbol, left, right)

    return translated


def logical(word: str) -> Operator:
    def translated(node: exp.Expr, go: Go) -> Typed:
        left, right = go(node.this), go(node.expression)
        return Typed(f"({truth(left)} {word} {truth(right)})", st.BOOLEAN)

    return translated


def negated(node: exp.Expr, go: Go) -> Typed:
    return Typed(f"(NOT {truth(go(node.this))})", st.BOOLEAN)


def between(node: exp.Expr, go: Go) -> Typed:
    value = go(node.this)
    low = compared(">=", value, go(node.args["low"]))
    high = compared("<=", value, go(node.args["high"]))
    return Typed(f"({low.sql} AND {high.sql})", st.BOOLEAN)


def contained(node: exp.Expr, go: Go) -> Typed:
    values = [go(part) for part in (node.this, *node.expressions)]
    common = common_of(values)
    first, *rest = [as_type(value, common) for value in values]
    return Typed(f"({first} IN ({', '.join(rest)}))", st.BOOLEAN)


def is_(node: exp.Expr, go: Go) -> Typed:
    value, what = go(node.this), node.expression
    negated = isinstance(what, exp.Not)
    what = what.this if negated else what
    if isinstance(what, exp.Null):
        word = "NULL"
    elif isinstance(what, exp.Boolean):
        truth(value)
        word = "TRUE" if what.this else "FALSE"
    else:
        raise TranslationError(f"IS {canonical(what)} is not known here", "IS NULL, IS TRUE")
    return Typed(f"({value.sql} IS {'NOT ' if negated else ''}{word})", st.BOOLEAN)


def _chosen(values: list[Typed]) -> tuple[DataType, list[str]]:
    common = common_of(values)
    if common == st.VOID:
        raise TranslationError("only NULLs to choose from", "CAST(NULL AS …)")
    return common, [as_type(value, common) for value in values]


def case(node: exp.Expr, go: Go) -> Typed:
    operand = go(node.this) if node.this is not None else None
    conditions, values = [], []
    for branch in node.args["ifs"]:
        condition = go(branch.this)
        if operand is not None:
            condition = compared("=", operand, condition)
        conditions.append(truth(condition))
        values.append(go(branch.args["true"]))
    otherwise = node.args.get("default")
    values.append(go(otherwise) if otherwise is not None else NULL)
    return _choice(conditions, values)


def _choice(conditions: list[str], values: list[Typed]) -> Typed:
    common, sqls = _chosen(values)
    whens = " ".join(
        f"WHEN {condition} THEN {sql}" for condition, sql in zip(conditions, sqls, strict=False)
    )
    return Typed(f"CASE {whens} ELSE {sqls[-1]} END", common)


def if_(node: exp.Expr, go: Go) -> Typed:
    otherwise = node.args.get("false")
    return _choice(
        [truth(go(node.this))],
        [
            go(node.args["true"]),
            go(otherwise) if otherwise is not None else NULL,
        ],
    )


def choose(function: str) -> Function:
    def translated(values: list[Typed]) -> Typed:
        common, sqls = _chosen(values)
        if common.is_nested:
            raise TranslationError(f"{function} of {common}", "choose among simple values")
        return Typed(f"{function}({', '.join(sqls)})", common)

    return translated


def nullif(values: list[Typed]) -> Typed:
    first, second = values
    return Typed(
        f"CASE WHEN {compared('=', first, second).sql} THEN NULL ELSE {first.sql} END", first.type
    )
