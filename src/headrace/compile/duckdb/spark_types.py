"""The types Spark 4.3 (ANSI mode) gives to expressions over aggregates.

Rules as in Spark's DecimalPrecisionTypeCoercion, AnsiTypeCoercion and the expressions' own
`dataType`; each is checked against a real Spark in tests/compile.
"""

from __future__ import annotations

from headrace.model.types import DECIMAL_PRECISION_MAX, DataType

__all__ = [
    "BIGINT",
    "BOOLEAN",
    "DOUBLE",
    "INT",
    "STRING",
    "VOID",
    "adjusted",
    "as_decimal",
    "average_type",
    "common_type",
    "decimal",
    "divided_type",
    "integer_literal_decimal",
    "multiplied_type",
    "rounded_type",
    "summed_type",
    "whole_type",
]

BOOLEAN = DataType("BOOLEAN")
INT = DataType("INT")
BIGINT = DataType("BIGINT")
DOUBLE = DataType("DOUBLE")
STRING = DataType("STRING")
VOID = DataType("VOID")

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
_SCALE_KEPT_MIN = 6


def decimal(precision: int, scale: int) -> DataType:
    return DataType(f"DECIMAL({precision},{scale})", precision=precision, scale=scale)


def adjusted(precision: int, scale: int) -> DataType:
    """Above 38 digits Spark gives up digits after the point, but keeps 6 of them."""
    if precision <= DECIMAL_PRECISION_MAX:
        return decimal(precision, scale)
    whole = precision - scale
    kept = max(DECIMAL_PRECISION_MAX - whole, min(scale, _SCALE_KEPT_MIN))
    return decimal(DECIMAL_PRECISION_MAX, kept)


def as_decimal(of_type: DataType) -> DataType:
    """The decimal that holds every value of an integer type."""
    return of_type if of_type.is_decimal else decimal(_INTEGER_DIGITS[of_type.name], 0)


def integer_literal_decimal(value: int) -> DataType:
    return decimal(len(str(abs(value))), 0)


def common_type(left: DataType, right: DataType) -> DataType | None:
    """The type both sides are brought to for comparing or choosing; None if there is none without
    reading text as numbers, or none that loses nothing."""
    if left == right or right == VOID:
        return left
    if left == VOID:
        return right
    if not (left.is_numeric and right.is_numeric):
        return None
    if left.is_integer and right.is_integer:
        return max(left, right, key=lambda t: _INTEGERS.index(t.name))
    if left.name in ("FLOAT", "DOUBLE") or right.name in ("FLOAT", "DOUBLE"):
        return DOUBLE
    left, right = as_decimal(left), as_decimal(right)
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return decimal(whole + scale, scale) if whole + scale <= DECIMAL_PRECISION_MAX else None


def summed_type(left: DataType, right: DataType) -> DataType:
    """Of decimals, for + and -."""
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return adjusted(whole + scale + 1, scale)


def multiplied_type(left: DataType, right: DataType) -> DataType:
    return adjusted(left.precision + right.precision + 1, left.scale + right.scale)


def divided_type(left: DataType, right: DataType) -> DataType:
    whole = left.precision - left.scale + right.scale
    scale = max(_SCALE_KEPT_MIN, left.scale + right.precision + 1)
    return adjusted(whole + scale, scale)


def average_type(sum_type: DataType, precision: int) -> DataType:
    """Of avg(x), from the type of sum(x) and the precision of x: the sum of decimal(p, s) is
    decimal(p + 10, s), the average decimal(p + 4, s + 4), both at most 38."""
    limit = DECIMAL_PRECISION_MAX
    return decimal(min(precision + 4, limit), min(sum_type.scale + 4, limit))


def rounded_type(of_type: DataType, digits: int) -> DataType:
    if not of_type.is_decimal:
        return of_type
    whole = of_type.precision - of_type.scale + 1
    if digits < 0:
        return decimal(min(max(whole, -digits + 1), DECIMAL_PRECISION_MAX), 0)
    scale = min(of_type.scale, digits)
    return decimal(min(whole + scale, DECIMAL_PRECISION_MAX), scale)


def whole_type(of_type: DataType) -> DataType:
    """Of ceil and floor."""
    if of_type.is_decimal:
        if of_type.scale == 0:
            return of_type
        return decimal(min(of_type.precision - of_type.scale + 1, DECIMAL_PRECISION_MAX), 0)
    return BIGINT
