"""Arithmetic above aggregates: Spark's values, Spark's decimal types, Spark's rounding."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.duckdb import spark_types as st
from headrace.compile.duckdb.combine import store_type
from headrace.compile.duckdb.decimals import divide_decimals, round_to_tens
from headrace.compile.duckdb.values import (
    Function,
    Go,
    Operator,
    TranslationError,
    Typed,
    as_type,
    common_of,
    number,
    numeric,
)
from headrace.model.types import DECIMAL_PRECISION_MAX, DataType

__all__ = [
    "absolute",
    "arithmetic",
    "average",
    "deviation",
    "divide",
    "negative",
    "rounded",
    "try_divide",
    "whole",
]

_ROUND_DIGITS_MAX = 15


def negative(node: exp.Expr, go: Go) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number(f"-{node.this.name}")
    value = numeric(go(node.this), "-")
    zero = f"CAST(0 AS {store_type(value.type)})"
    if value.type.name in ("FLOAT", "DOUBLE"):
        return Typed(f"(- {value.sql})", value.type)
    return Typed(f"CAST({zero} - {value.sql} AS {store_type(value.type)})", value.type)


def _operands(node: exp.Expr, go: Go, what: str) -> tuple[Typed, Typed]:
    left = numeric(go(node.this), what)
    right = numeric(go(node.expression), what)
    if st.VOID in (left.type, right.type):
        raise TranslationError(f"{what} with a NULL literal", "CAST(NULL AS …)")
    return left, right


def _decimal_types(left: Typed, right: Typed) -> tuple[DataType, DataType]:
    def own(value: Typed) -> DataType:
        if value.integer is not None:
            return st.integer_literal_decimal(value.integer)
        return st.as_decimal(value.type)

    return own(left), own(right)


def arithmetic(symbol: str) -> Operator:
    def translated(node: exp.Expr, go: Go) -> Typed:
        left, right = _operands(node, go, symbol)
        if not (left.type.is_decimal or right.type.is_decimal):
            result = common_of([left, right])
            return _combined(symbol, as_type(left, result), as_type(right, result), result)
        if not (left.type.is_decimal or left.type.is_integer):
            return _combined(symbol, left.sql, as_type(right, st.DOUBLE), st.DOUBLE)
        if not (right.type.is_decimal or right.type.is_integer):
            return _combined(symbol, as_type(left, st.DOUBLE), right.sql, st.DOUBLE)
        left_type, right_type = _decimal_types(left, right)
        if symbol == "*":
            result = st.multiplied_type(left_type, right_type)
            scale = left_type.scale + right_type.scale
            sides = as_type(left, left_type), as_type(right, right_type)
        else:
            result = st.summed_type(left_type, right_type)
            scale = max(left_type.scale, right_type.scale)
            wide = st.decimal(38, scale)
            sides = as_type(left, wide), as_type(right, wide)
        if result.scale != scale:
            raise TranslationError(
                f"{left_type} {symbol} {right_type} has more than 38 digits, and Spark would "
                "drop some of them",
                "CAST the sides to decimals with fewer digits",
            )
        return _combined(symbol, *sides, result)

    return translated


def _combined(symbol: str, left: str, right: str, result: DataType) -> Typed:
    return Typed(f"CAST({left} {symbol} {right} AS {store_type(result)})", result)


def _quotient(left: Typed, right: Typed) -> Typed:
    """The divisor is known not to be 0."""
    if not (left.type.is_decimal or right.type.is_decimal) or not all(
        side.type.is_decimal or side.type.is_integer for side in (left, right)
    ):
        sql = f"{as_type(left, st.DOUBLE)} / {as_type(right, st.DOUBLE)}"
        return Typed(f"({sql})", st.DOUBLE)
    left_type, right_type = _decimal_types(left, right)
    result = st.divided_type(left_type, right_type)
    sql_or_none = divide_decimals(
        as_type(left, left_type), left_type, as_type(right, right_type), right_type, result
    )
    if sql_or_none is None:
        raise TranslationError(
            f"dividing by {right_type} needs more than 38 digits",
            "CAST the divisor to a decimal with fewer digits, or both sides to DOUBLE",
        )
    return Typed(sql_or_none, result)


def divide(node: exp.Expr, go: Go) -> Typed:
    return _quotient(*_operands(node, go, "/"))


def try_divide(values: list[Typed]) -> Typed:
    left, right = (numeric(value, "try_divide") for value in values)
    zero = Typed(f"nullif({right.sql}, CAST(0 AS {store_type(right.type)}))", right.type)
    if right.integer is not None:
        zero = right if right.integer else Typed("NULL", right.type, 0)
    result = _quotient(left, zero)
    return Typed(f"TRY({result.sql})", result.type)


def rounded(values: list[Typed]) -> Typed:
    value = numeric(values[0], "round")
    if len(values) > 1 and values[1].integer is None:
        raise TranslationError("round() needs a number of digits as a literal", "round(x, 2)")
    digits = (values[1].integer or 0) if len(values) > 1 else 0
    result = st.rounded_type(value.type, digits)
    sql: str | None
    if value.type.is_decimal or value.type.is_integer:
        if digits < 0:
            exact = st.as_decimal(value.type)
            sql = round_to_tens(as_type(value, exact), exact, -digits, result)
        else:
            sql = f"CAST({value.sql} AS {store_type(result)})"
    elif value.type == st.DOUBLE and 0 <= digits <= _ROUND_DIGITS_MAX:
        # Spark rounds the shortest decimal text of the number, not its binary value. From 2^53
        # on there are no digits after the point.
        rounded = f"CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38,{digits}))"
        sql = (
            f"CASE WHEN abs({value.sql}) < 9007199254740992 "
            f"THEN CAST(CAST({rounded} AS VARCHAR) AS DOUBLE) ELSE {value.sql} END"
        )
    else:
        sql = None
    if sql is None:
        raise TranslationError(
            f"round of {value.type} to {digits} digits is not available above an aggregate",
            f"0 to {_ROUND_DIGITS_MAX} digits of a DOUBLE, any of a decimal",
        )
    return Typed(sql, result)


def absolute(values: list[Typed]) -> Typed:
    value = numeric(values[0], "abs")
    return Typed(f"CAST(abs({value.sql}) AS {store_type(value.type)})", value.type)


def whole(function: str) -> Function:
    def translated(values: list[Typed]) -> Typed:
        value = numeric(values[0], function)
        if len(values) > 1:
            raise TranslationError(f"{function} with a scale", f"{function}(x), or round(x, n)")
        result = st.whole_type(value.type)
        return Typed(f"CAST({function}({value.sql}) AS {store_type(result)})", result)

    return translated


def average(values: list[Typed]) -> Typed:
    total, count, *known = values
    if total.type.is_decimal:
        precision = known[0].integer if known else None
        if precision is None:
            precision = total.type.precision - 10
            if total.type.precision == DECIMAL_PRECISION_MAX:
                raise TranslationError(
                    "avg() of a decimal whose digits are not known here",
                    "avg(CAST(… AS DECIMAL(28, 2))), or with fewer digits",
                )
        result = st.average_type(total.type, precision)
        counted = st.as_decimal(count.type)
        sql = divide_decimals(total.sql, total.type, count.sql, counted, result)
        assert sql is not None  # a count has 20 digits at most
        return Typed(f"CASE WHEN {count.sql} > 0 THEN {sql} END", result)
    return Typed(f"(CAST({total.sql} AS DOUBLE) / nullif({count.sql}, 0))", st.DOUBLE)


def deviation(less: int, root: bool) -> Function:
    def translated(values: list[Typed]) -> Typed:
        count, squares = values
        sql = f"{squares.sql} / ({count.sql} - {less})"
        sql = f"sqrt({sql})" if root else sql
        return Typed(f"CASE WHEN {count.sql} > {less} THEN {sql} END", st.DOUBLE)

    return translated
