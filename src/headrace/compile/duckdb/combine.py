"""How DuckDB merges old state rows and partial rows of the same key, per partial function.

`self` is the column itself; `count`, `avg` and `order` are columns that the aggregate keeps
beside it. The squared deviations are merged in two passes over the group's rows (first the common
mean, then what each row's own mean is away from it): summing squares and subtracting would lose
every digit when the mean is large beside the spread.
"""

from __future__ import annotations

from headrace.model.types import DataType

__all__ = ["COMBINE", "SLIDING", "STORE_TYPES", "combine_sql", "sliding_sql", "store_type"]

_MEAN = "sum({count} * {avg}) / nullif(sum({count}), 0)"

COMBINE = {
    "sum": "sum({self})",
    "count": "sum({self})",
    "min": "min({self})",
    "max": "max({self})",
    "min_by": "arg_min_null({self}, {order})",
    "max_by": "arg_max_null({self}, {order})",
    "avg": _MEAN.replace("{avg}", "{self}"),
    "m2": (
        "sum({self}) + list_sum(list_transform(list({{'n': {count}, 'mean': {avg}}}), "
        "lambda part: part.n * (part.mean - " + _MEAN + ") ** 2))"
    ),
}

# The same over a frame of single events (see model/plan.py, SlidingColumn). Of one event the mean
# is its value and the squared deviation 0, so the deviations are those of the values.
_FINITE = "bool_and(isfinite({avg})) OVER _frame"
SLIDING = {
    "sum": "sum({self}) OVER _frame",
    "count": "sum({self}) OVER _frame",
    "min": "min({self}) OVER _frame",
    "max": "max({self}) OVER _frame",
    "min_by": "arg_min_null({self}, {order}) OVER _frame",
    "max_by": "arg_max_null({self}, {order}) OVER _frame",
    "avg": "avg({self}) OVER _frame",
    "m2": (
        "CASE WHEN " + _FINITE + " THEN "
        "var_pop(CASE WHEN isfinite({avg}) THEN {avg} END) OVER _frame * "
        "count({avg}) OVER _frame WHEN NOT " + _FINITE + " THEN CAST('NaN' AS DOUBLE) END"
    ),
}

STORE_TYPES = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "SMALLINT": "SMALLINT",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE",
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMPTZ",
}


def combine_sql(function: str, columns: dict[str, str]) -> str:
    """`columns` gives the state column of each role."""
    quoted = {role: '"' + name.replace('"', '""') + '"' for role, name in columns.items()}
    return COMBINE[function].format(**quoted)


def sliding_sql(function: str, columns: dict[str, str]) -> str:
    """As `combine_sql`, over the frame of a sliding window."""
    quoted = {role: '"' + name.replace('"', '""') + '"' for role, name in columns.items()}
    return SLIDING[function].format(**quoted)


def store_type(spark: DataType) -> str:
    """DuckDB's name of the type that holds every value of the Spark type."""
    if spark.is_decimal:
        return f"DECIMAL({spark.precision},{spark.scale})"
    if spark.element is not None:
        return f"{store_type(spark.element)}[]"
    if spark.fields:
        fields = ", ".join(f'"{name}" {store_type(field)}' for name, field in spark.fields)
        return f"STRUCT({fields})"
    return STORE_TYPES[spark.name]
