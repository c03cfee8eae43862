"""Exact decimal division for DuckDB, whose own division of decimals is a DOUBLE.

Decimals are taken as whole numbers (value · 10^scale) in HUGEINT, which holds 38 digits, and
divided as one divides on paper: quotient, then as many digits of the remainder as fit at a time.
The last digit is rounded half up, as Spark does.
"""

from __future__ import annotations

from headrace.compile.duckdb.combine import store_type
from headrace.model.types import DECIMAL_PRECISION_MAX, DataType

__all__ = ["divide_decimals", "from_unscaled", "round_to_tens", "unscaled"]

_SHORT_MAX = 2 * 10**18  # twice this, and as much again, is below 2^63


def unscaled(sql: str, of_type: DataType) -> str:
    """The decimal as a whole number, value · 10^scale."""
    precision, scale = of_type.precision, of_type.scale
    if scale == 0:
        return f"CAST({sql} AS HUGEINT)"
    if precision + scale <= DECIMAL_PRECISION_MAX:
        shifted = (
            f"CAST({sql} AS DECIMAL(38,{scale})) * CAST({10**scale} AS DECIMAL({scale + 1},0))"
        )
        return f"CAST({shifted} AS HUGEINT)"
    return f"CAST(replace(CAST({sql} AS VARCHAR), '.', '') AS HUGEINT)"


def from_unscaled(sql: str, of_type: DataType) -> str:
    """The decimal whose whole number this is. DuckDB raises when it has too many digits."""
    if of_type.scale == 0:
        return f"CAST({sql} AS {store_type(of_type)})"
    unit = f"0.{'0' * (of_type.scale - 1)}1"
    unit_type = f"DECIMAL({of_type.scale},{of_type.scale})"
    product = f"CAST({sql} AS DECIMAL(38,0)) * CAST('{unit}' AS {unit_type})"
    return f"CAST({product} AS {store_type(of_type)})"


def divide_decimals(
    left: str, left_type: DataType, right: str, right_type: DataType, result: DataType
) -> str | None:
    """None if the divisor has too many digits for exact arithmetic in HUGEINT. The divisor must
    not be 0; NULL on either side gives NULL."""
    numerator = unscaled(left, left_type)
    divisor = unscaled(right, right_type)
    shift = result.scale - left_type.scale + right_type.scale
    quotient = _divide(numerator, divisor, right_type.precision, shift)
    if quotient is None:
        return None
    exact = from_unscaled(quotient, result)
    limit = _SHORT_MAX // 10 ** max(shift, 0)
    if shift < 0 or limit < 1000:
        return exact
    short = from_unscaled(_divide_short(numerator, divisor, shift), result)
    is_short = f"abs({numerator}) < {limit} AND abs({divisor}) < {_SHORT_MAX}"
    return f"CASE WHEN {is_short} THEN {short} ELSE {exact} END"


def round_to_tens(sql: str, of_type: DataType, tens: int, result: DataType) -> str | None:
    """round(x, -tens): None if that is beyond what HUGEINT holds."""
    digits = of_type.scale + tens
    if digits >= DECIMAL_PRECISION_MAX:
        return None
    quotient = _divide(unscaled(sql, of_type), f"{10**digits}::HUGEINT", digits + 1, 0)
    return f"CAST(({quotient}) * {10**tens}::HUGEINT AS {store_type(result)})"


def _divide_short(numerator: str, divisor: str, shift: int) -> str:
    """The same as `_divide` where all of it fits into 64 bits: most numbers do, and it is several
    times as fast."""
    above = f"CAST(abs({numerator}) AS BIGINT) * {10**shift}::BIGINT"
    below = f"CAST(abs({divisor}) AS BIGINT)"
    sign = f"CASE WHEN ({numerator} < 0) <> ({divisor} < 0) THEN -1 ELSE 1 END"
    return f"({sign}) * (({above} * 2 + {below}) // ({below} * 2))"


def _divide(numerator: str, divisor: str, divisor_digits: int, shift: int) -> str | None:
    """round_half_up(numerator · 10^shift / divisor), whole numbers all."""
    if shift < 0:
        divisor, divisor_digits = f"({divisor} * {10**-shift}::HUGEINT)", divisor_digits - shift
        shift = 0
    step = DECIMAL_PRECISION_MAX - divisor_digits
    if step < (1 if shift else 0):
        return None
    above, below = f"abs({numerator})", f"abs({divisor})"
    parts = [f"({above} // {below}) * {10**shift}::HUGEINT"]
    rest = f"({above} % {below})"
    while shift > 0:
        taken = min(step, shift)
        shift -= taken
        shifted = f"({rest} * {10**taken}::HUGEINT)"
        parts.append(f"({shifted} // {below}) * {10**shift}::HUGEINT")
        rest = f"({shifted} % {below})"
    parts.append(f"CASE WHEN {rest} >= {below} - {rest} THEN 1 ELSE 0 END")
    sign = f"CASE WHEN ({numerator} < 0) <> ({divisor} < 0) THEN -1 ELSE 1 END"
    return f"({sign}) * ({' + '.join(parts)})"
