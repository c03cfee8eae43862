"""Values on their way to DuckDB: SQL text together with the type Spark gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import expressions as exp

from headrace.compile.duckdb import spark_types as st
from headrace.compile.duckdb.casts import cast_sql
from headrace.compile.duckdb.combine import store_type
from headrace.model.types import DataType

__all__ = [
    "NULL",
    "Function",
    "Go",
    "Operator",
    "TranslationError",
    "Typed",
    "as_type",
    "common_of",
    "compared",
    "number",
    "numeric",
    "truth",
]


class TranslationError(ValueError):
    """Why the expression cannot be given in DuckDB exactly as in Spark; `hint` is what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Typed:
    """DuckDB SQL and the Spark type of its value. `integer` is set for integer literals, which
    count as decimals of just their own digits beside a decimal."""

    sql: str
    type: DataType
    integer: int | None = None


Go = Callable[[exp.Expr], Typed]  # translates a part
Operator = Callable[[exp.Expr, Go], Typed]
Function = Callable[[list[Typed]], Typed]
NULL = Typed("NULL", st.VOID)


def as_type(value: Typed, wanted: DataType) -> str:
    """The SQL of the value as an exactly wider type."""
    if value.type == wanted and value.integer is None:
        return value.sql
    return cast_sql(value.sql, value.type, wanted) or f"CAST({value.sql} AS {store_type(wanted)})"


def common_of(values: list[Typed]) -> DataType:
    found = values[0].type
    for value in values[1:]:
        wider = st.common_type(found, value.type)
        if wider is None:
            raise TranslationError(
                f"{found} and {value.type} have no common type that loses nothing",
                "CAST one of them",
            )
        found = wider
    return found


def number(text: str) -> Typed:
    if "e" in text.lower():
        return Typed(f"CAST('{text}' AS DOUBLE)", st.DOUBLE)
    if "." not in text:
        value = int(text)
        if -(2**31) <= value < 2**31:
            return Typed(f"CAST({value} AS INTEGER)", st.INT, value)
        if -(2**63) <= value < 2**63:
            return Typed(f"CAST({value} AS BIGINT)", st.BIGINT, value)
    number = Decimal(text)
    _, digits, exponent = number.as_tuple()
    scale = max(0, -int(exponent))
    whole = 0 if abs(number) < 1 else len(digits) - scale
    of_type = st.decimal(max(whole + scale, 1), scale)
    return Typed(f"CAST('{number}' AS {store_type(of_type)})", of_type)


def numeric(value: Typed, what: str) -> Typed:
    if value.type != st.VOID and not value.type.is_numeric:
        raise TranslationError(f"{what} needs numbers, not {value.type}", "CAST it to a number")
    return value


def compared(symbol: str, left: Typed, right: Typed) -> Typed:
    common = common_of([left, right])
    if common.is_nested:
        raise TranslationError(f"{common} values are not compared here", "compare their parts")
    return Typed(f"({as_type(left, common)} {symbol} {as_type(right, common)})", st.BOOLEAN)


def truth(value: Typed) -> str:
    if value.type not in (st.BOOLEAN, st.VOID):
        raise TranslationError(f"a condition is expected, not {value.type}", "compare it: x > 0")
    return value.sql
