"""Spark SQL over state columns → DuckDB SQL with Spark's value and Spark's type.

Two tables say what may stand above an aggregate: OPERATORS by kind of node and FUNCTIONS by name.
What is not listed is refused when a definition is validated (`finals.py`). Where Spark raises (an
integer or decimal that overflows) so does DuckDB, and the store refuses the tick's change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.duckdb import arithmetic as number_sql
from headrace.compile.duckdb import conditions as condition_sql
from headrace.compile.duckdb import spark_types as st
from headrace.compile.duckdb.casts import cast_sql
from headrace.compile.duckdb.combine import store_type
from headrace.compile.duckdb.values import (
    Function,
    Go,
    Operator,
    TranslationError,
    Typed,
    as_type,
    number,
)
from headrace.compile.sql.dialect import canonical
from headrace.model.types import DataType, TypeSyntaxError, parse_type

__all__ = ["FUNCTIONS", "OPERATORS", "translate"]


def translate(node: exp.Expr, columns: Mapping[str, DataType]) -> Typed:
    """`columns` are the state columns with their types, by name in lower case. Raises
    TranslationError."""

    def go(part: exp.Expr) -> Typed:
        if isinstance(part, exp.Column):
            name = part.name
            return Typed('"' + name.replace('"', '""') + '"', columns[name.lower()])
        if isinstance(part, exp.Anonymous):
            listed = FUNCTIONS.get(str(part.this).lower())
            if listed is not None:
                return listed.translate([go(argument) for argument in part.expressions])
        operator = OPERATORS.get(type(part))
        if operator is None:
            raise TranslationError(
                f"{canonical(part)} cannot stand above an aggregate", "compute it when querying"
            )
        return operator(part, go)

    return go(node)


def _literal(node: exp.Expr, go: Go) -> Typed:
    text = node.name
    if node.args.get("is_string"):
        escaped = text.replace("'", "''")
        return Typed(f"CAST('{escaped}' AS VARCHAR)", st.STRING)
    return number(text)


def _null(node: exp.Expr, go: Go) -> Typed:
    return Typed("NULL", st.VOID)


def _boolean(node: exp.Expr, go: Go) -> Typed:
    return Typed("TRUE" if node.this else "FALSE", st.BOOLEAN)


def _paren(node: exp.Expr, go: Go) -> Typed:
    return go(node.this)


def _concat(values: list[Typed]) -> Typed:
    parts = []
    for value in values:
        if value.type != st.STRING and not value.type.is_integer:
            raise TranslationError(
                f"concat of {value.type} above an aggregate", "join texts and whole numbers only"
            )
        parts.append(as_type(value, st.STRING))
    return Typed(f"({' || '.join(parts)})", st.STRING)


def _pipes(node: exp.Expr, go: Go) -> Typed:
    return _concat([go(node.this), go(node.expression)])


_MOMENTS = {
    "DATE": re.compile(r"\d{4}-\d\d-\d\d\Z"),
    "TIMESTAMP": re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?\Z"),
}


def _moment(text: str, target: DataType) -> Typed:
    """DATE '…' and TIMESTAMP '…', the latter in UTC."""
    if not _MOMENTS[target.name].match(text):
        form = "2026-01-31" if target.name == "DATE" else "2026-01-31 12:00:00"
        raise TranslationError(f"{target} '{text}' is not complete", f"{target} '{form}'")
    zone = "+00" if target.name == "TIMESTAMP" else ""
    return Typed(f"CAST('{text}{zone}' AS {store_type(target)})", target)


def _cast(node: exp.Expr, go: Go) -> Typed:
    value = go(node.this)
    try:
        target = parse_type(canonical(node.args["to"]))
    except TypeSyntaxError as error:
        raise TranslationError(str(error), "CAST to a type a column can have") from error
    if value.type == st.VOID:
        return Typed(f"CAST(NULL AS {store_type(target)})", target)
    if isinstance(node.this, exp.Literal) and target.name in _MOMENTS:
        return _moment(node.this.name, target)
    sql = cast_sql(value.sql, value.type, target)
    if sql is None:
        raise TranslationError(
            f"CAST({value.type} AS {target}) above an aggregate is not the same in every store",
            "cast under the aggregate, or when querying",
        )
    return Typed(sql, target)


def _window(values: list[Typed]) -> Typed:
    start, end = values
    of_type = parse_type("STRUCT<start: TIMESTAMP, end: TIMESTAMP>")
    return Typed(f'struct_pack("start" := {start.sql}, "end" := {end.sql})', of_type)


OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.Literal: _literal,
    exp.Null: _null,
    exp.Boolean: _boolean,
    exp.Paren: _paren,
    exp.Neg: number_sql.negative,
    exp.Add: number_sql.arithmetic("+"),
    exp.Sub: number_sql.arithmetic("-"),
    exp.Mul: number_sql.arithmetic("*"),
    exp.Div: number_sql.divide,
    exp.EQ: condition_sql.comparison("="),
    exp.NEQ: condition_sql.comparison("<>"),
    exp.GT: condition_sql.comparison(">"),
    exp.GTE: condition_sql.comparison(">="),
    exp.LT: condition_sql.comparison("<"),
    exp.LTE: condition_sql.comparison("<="),
    exp.NullSafeEQ: condition_sql.comparison("IS NOT DISTINCT FROM"),
    exp.NullSafeNEQ: condition_sql.comparison("IS DISTINCT FROM"),
    exp.And: condition_sql.logical("AND"),
    exp.Or: condition_sql.logical("OR"),
    exp.Not: condition_sql.negated,
    exp.Between: condition_sql.between,
    exp.In: condition_sql.contained,
    exp.Is: condition_sql.is_,
    exp.Case: condition_sql.case,
    exp.If: condition_sql.if_,
    exp.DPipe: _pipes,
    exp.Cast: _cast,
    exp.TryCast: _cast,
}


@dataclass(frozen=True)
class Listed:
    """A function, and how few and how many arguments it takes (None: no limit)."""

    translate: Function
    arguments_min: int
    arguments_max: int | None


FUNCTIONS: dict[str, Listed] = {
    "try_divide": Listed(number_sql.try_divide, 2, 2),
    "coalesce": Listed(condition_sql.choose("coalesce"), 1, None),
    "nvl": Listed(condition_sql.choose("coalesce"), 2, 2),
    "ifnull": Listed(condition_sql.choose("coalesce"), 2, 2),
    "greatest": Listed(condition_sql.choose("greatest"), 2, None),
    "least": Listed(condition_sql.choose("least"), 2, None),
    "nullif": Listed(condition_sql.nullif, 2, 2),
    "round": Listed(number_sql.rounded, 1, 2),
    "abs": Listed(number_sql.absolute, 1, 1),
    "ceil": Listed(number_sql.whole("ceil"), 1, 1),
    "ceiling": Listed(number_sql.whole("ceil"), 1, 1),
    "floor": Listed(number_sql.whole("floor"), 1, 1),
    "concat": Listed(_concat, 1, None),
    "_avg": Listed(number_sql.average, 2, 3),
    "_stddev_samp": Listed(number_sql.deviation(1, root=True), 2, 2),
    "_stddev_pop": Listed(number_sql.deviation(0, root=True), 2, 2),
    "_var_samp": Listed(number_sql.deviation(1, root=False), 2, 2),
    "_var_pop": Listed(number_sql.deviation(0, root=False), 2, 2),
    "_window": Listed(_window, 2, 2),
}
