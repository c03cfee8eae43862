"""CAST above an aggregate: only between types where DuckDB can be made to give Spark's value."""

from __future__ import annotations

from headrace.compile.duckdb.combine import store_type
from headrace.model.types import DataType

__all__ = ["cast_sql"]

_FRACTIONAL = ("FLOAT", "DOUBLE")


def cast_sql(sql: str, source: DataType, target: DataType) -> str | None:
    """None where the two differ, as in the text of a DOUBLE. A value that does not fit raises in
    both."""
    plain = f"CAST({sql} AS {store_type(target)})"
    if source == target:
        return plain
    if source.is_integer and (target.is_numeric or target.name == "STRING"):
        return plain
    if source.is_decimal:
        if target.is_integer:
            return f"CAST(trunc({sql}) AS {store_type(target)})"  # DuckDB alone would round
        if target.is_decimal or target.name == "STRING":
            return plain
        if target.name == "DOUBLE":
            return f"CAST(CAST({sql} AS VARCHAR) AS DOUBLE)"  # the nearest, in one rounding
        return None
    if source.name in _FRACTIONAL:
        if target.is_integer:
            return f"CAST(trunc({sql}) AS {store_type(target)})"
        if target.name == "DOUBLE":
            return plain
        if target.is_decimal and source.name == "DOUBLE":
            return f"CAST(CAST({sql} AS VARCHAR) AS {store_type(target)})"
        return None
    if source.name == "BOOLEAN" and target.name == "STRING":
        return plain
    return None
