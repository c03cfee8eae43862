"""Spark SQL over state columns → DuckDB SQL with Spark's value and Spark's type.

Two tables say what may stand above an aggregate: OPERATORS by kind of node and FUNCTIONS by name.
What is not listed is refused when a definition is validated (`finals.py`). Where Spark raises (an
integer or decimal that overflows) so does DuckDB, and the store refuses the tick's change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import expressions as exp

from headrace.compile import spark_types as st
from headrace.compile.dialect import canonical
from headrace.compile.duckdb_casts import cast_sql
from headrace.compile.duckdb_combine import store_type
from headrace.compile.duckdb_decimals import divide_decimals, round_to_tens
from headrace.model.types import DataType, TypeSyntaxError, parse_type

__all__ = ["FUNCTIONS", "OPERATORS", "TranslationError", "Typed", "translate"]

_ROUND_DIGITS_MAX = 15


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


Columns = Mapping[str, DataType]


def translate(node: exp.Expr, columns: Columns) -> Typed:
    """`columns` are the state columns with their types, by name in lower case. Raises
    TranslationError."""
    if isinstance(node, exp.Anonymous):
        function = FUNCTIONS.get(str(node.this).lower())
        if function is not None:
            return function([translate(part, columns) for part in node.expressions])
    operator = OPERATORS.get(type(node))
    if operator is None:
        raise TranslationError(
            f"{canonical(node)} cannot stand above an aggregate", "compute it when querying"
        )
    return operator(node, columns)


def as_type(value: Typed, wanted: DataType) -> str:
    """The SQL of the value as an exactly wider type."""
    if value.type == wanted and value.integer is None:
        return value.sql
    return cast_sql(value.sql, value.type, wanted) or f"CAST({value.sql} AS {store_type(wanted)})"


def _common(values: list[Typed]) -> DataType:
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


# ---- columns and literals


def _column(node: exp.Expr, columns: Columns) -> Typed:
    name = node.name
    return Typed('"' + name.replace('"', '""') + '"', columns[name.lower()])


def _literal(node: exp.Expr, columns: Columns) -> Typed:
    text = node.name
    if node.args.get("is_string"):
        escaped = text.replace("'", "''")
        return Typed(f"CAST('{escaped}' AS VARCHAR)", st.STRING)
    return _number(text)


def _number(text: str) -> Typed:
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


def _null(node: exp.Expr, columns: Columns) -> Typed:
    return Typed("NULL", st.VOID)


def _boolean(node: exp.Expr, columns: Columns) -> Typed:
    return Typed("TRUE" if node.this else "FALSE", st.BOOLEAN)


def _paren(node: exp.Expr, columns: Columns) -> Typed:
    return translate(node.this, columns)


def _negative(node: exp.Expr, columns: Columns) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(f"-{node.this.name}")
    value = _numeric(translate(node.this, columns), "-")
    zero = f"CAST(0 AS {store_type(value.type)})"
    if value.type.name in ("FLOAT", "DOUBLE"):
        return Typed(f"(- {value.sql})", value.type)
    return Typed(f"CAST({zero} - {value.sql} AS {store_type(value.type)})", value.type)


# ---- arithmetic


def _numeric(value: Typed, what: str) -> Typed:
    if value.type != st.VOID and not value.type.is_numeric:
        raise TranslationError(f"{what} needs numbers, not {value.type}", "CAST it to a number")
    return value


def _operands(node: exp.Expr, columns: Columns, what: str) -> tuple[Typed, Typed]:
    left = _numeric(translate(node.this, columns), what)
    right = _numeric(translate(node.expression, columns), what)
    if st.VOID in (left.type, right.type):
        raise TranslationError(f"{what} with a NULL literal", "CAST(NULL AS …)")
    return left, right


def _decimal_types(left: Typed, right: Typed) -> tuple[DataType, DataType]:
    def own(value: Typed) -> DataType:
        if value.integer is not None:
            return st.integer_literal_decimal(value.integer)
        return st.as_decimal(value.type)

    return own(left), own(right)


def _arithmetic(symbol: str) -> Callable[[exp.Expr, Columns], Typed]:
    def translated(node: exp.Expr, columns: Columns) -> Typed:
        left, right = _operands(node, columns, symbol)
        if not (left.type.is_decimal or right.type.is_decimal):
            result = _common([left, right])
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


def _divide(node: exp.Expr, columns: Columns) -> Typed:
    return _quotient(*_operands(node, columns, "/"))


def _try_divide(values: list[Typed]) -> Typed:
    left, right = (_numeric(value, "try_divide") for value in values)
    zero = Typed(f"nullif({right.sql}, CAST(0 AS {store_type(right.type)}))", right.type)
    if right.integer is not None:
        zero = right if right.integer else Typed("NULL", right.type, 0)
    result = _quotient(left, zero)
    return Typed(f"TRY({result.sql})", result.type)


# ---- conditions


def _comparison(symbol: str) -> Callable[[exp.Expr, Columns], Typed]:
    def translated(node: exp.Expr, columns: Columns) -> Typed:
        left, right = translate(node.this, columns), translate(node.expression, columns)
        return _compared(symbol, left, right)

    return translated


def _compared(symbol: str, left: Typed, right: Typed) -> Typed:
    common = _common([left, right])
    if common.is_nested:
        raise TranslationError(f"{common} values are not compared here", "compare their parts")
    return Typed(f"({as_type(left, common)} {symbol} {as_type(right, common)})", st.BOOLEAN)


def _truth(value: Typed) -> str:
    if value.type not in (st.BOOLEAN, st.VOID):
        raise TranslationError(f"a condition is expected, not {value.type}", "compare it: x > 0")
    return value.sql


def _logical(word: str) -> Callable[[exp.Expr, Columns], Typed]:
    def translated(node: exp.Expr, columns: Columns) -> Typed:
        left, right = translate(node.this, columns), translate(node.expression, columns)
        return Typed(f"({_truth(left)} {word} {_truth(right)})", st.BOOLEAN)

    return translated


def _not(node: exp.Expr, columns: Columns) -> Typed:
    return Typed(f"(NOT {_truth(translate(node.this, columns))})", st.BOOLEAN)


def _between(node: exp.Expr, columns: Columns) -> Typed:
    value = translate(node.this, columns)
    low = _compared(">=", value, translate(node.args["low"], columns))
    high = _compared("<=", value, translate(node.args["high"], columns))
    return Typed(f"({low.sql} AND {high.sql})", st.BOOLEAN)


def _in(node: exp.Expr, columns: Columns) -> Typed:
    values = [translate(part, columns) for part in (node.this, *node.expressions)]
    common = _common(values)
    first, *rest = [as_type(value, common) for value in values]
    return Typed(f"({first} IN ({', '.join(rest)}))", st.BOOLEAN)


def _is(node: exp.Expr, columns: Columns) -> Typed:
    value, what = translate(node.this, columns), node.expression
    negated = isinstance(what, exp.Not)
    what = what.this if negated else what
    if isinstance(what, exp.Null):
        word = "NULL"
    elif isinstance(what, exp.Boolean):
        _truth(value)
        word = "TRUE" if what.this else "FALSE"
    else:
        raise TranslationError(f"IS {canonical(what)} is not known here", "IS NULL, IS TRUE")
    return Typed(f"({value.sql} IS {'NOT ' if negated else ''}{word})", st.BOOLEAN)


# ---- choices


def _chosen(values: list[Typed]) -> tuple[DataType, list[str]]:
    common = _common(values)
    if common == st.VOID:
        raise TranslationError("only NULLs to choose from", "CAST(NULL AS …)")
    return common, [as_type(value, common) for value in values]


def _case(node: exp.Expr, columns: Columns) -> Typed:
    operand = translate(node.this, columns) if node.this is not None else None
    conditions, values = [], []
    for branch in node.args["ifs"]:
        condition = translate(branch.this, columns)
        if operand is not None:
            condition = _compared("=", operand, condition)
        conditions.append(_truth(condition))
        values.append(translate(branch.args["true"], columns))
    otherwise = node.args.get("default")
    values.append(translate(otherwise, columns) if otherwise is not None else _NULL)
    return _choice(conditions, values)


_NULL = Typed("NULL", st.VOID)


def _choice(conditions: list[str], values: list[Typed]) -> Typed:
    common, sqls = _chosen(values)
    whens = " ".join(
        f"WHEN {condition} THEN {sql}" for condition, sql in zip(conditions, sqls, strict=False)
    )
    return Typed(f"CASE {whens} ELSE {sqls[-1]} END", common)


def _if(node: exp.Expr, columns: Columns) -> Typed:
    otherwise = node.args.get("false")
    return _choice(
        [_truth(translate(node.this, columns))],
        [
            translate(node.args["true"], columns),
            translate(otherwise, columns) if otherwise is not None else _NULL,
        ],
    )


def _listed(function: str) -> Callable[[list[Typed]], Typed]:
    def translated(values: list[Typed]) -> Typed:
        common, sqls = _chosen(values)
        if common.is_nested:
            raise TranslationError(f"{function} of {common}", "choose among simple values")
        return Typed(f"{function}({', '.join(sqls)})", common)

    return translated


def _nullif(values: list[Typed]) -> Typed:
    first, second = values
    return Typed(
        f"CASE WHEN {_compared('=', first, second).sql} THEN NULL ELSE {first.sql} END", first.type
    )


# ---- functions of one number


def _round(values: list[Typed]) -> Typed:
    value = _numeric(values[0], "round")
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


def _abs(values: list[Typed]) -> Typed:
    value = _numeric(values[0], "abs")
    return Typed(f"CAST(abs({value.sql}) AS {store_type(value.type)})", value.type)


def _whole(function: str) -> Callable[[list[Typed]], Typed]:
    def translated(values: list[Typed]) -> Typed:
        value = _numeric(values[0], function)
        if len(values) > 1:
            raise TranslationError(f"{function} with a scale", f"{function}(x), or round(x, n)")
        result = st.whole_type(value.type)
        return Typed(f"CAST({function}({value.sql}) AS {store_type(result)})", result)

    return translated


def _concat(values: list[Typed]) -> Typed:
    parts = []
    for value in values:
        if value.type != st.STRING and not value.type.is_integer:
            raise TranslationError(
                f"concat of {value.type} above an aggregate", "join texts and whole numbers only"
            )
        parts.append(as_type(value, st.STRING))
    return Typed(f"({' || '.join(parts)})", st.STRING)


def _pipes(node: exp.Expr, columns: Columns) -> Typed:
    return _concat([translate(node.this, columns), translate(node.expression, columns)])


def _cast(node: exp.Expr, columns: Columns) -> Typed:
    value = translate(node.this, columns)
    try:
        target = parse_type(canonical(node.args["to"]))
    except TypeSyntaxError as error:
        raise TranslationError(str(error), "CAST to a type a column can have") from error
    if value.type == st.VOID:
        return Typed(f"CAST(NULL AS {store_type(target)})", target)
    sql = cast_sql(value.sql, value.type, target)
    if sql is None:
        raise TranslationError(
            f"CAST({value.type} AS {target}) above an aggregate is not the same in every store",
            "cast under the aggregate, or when querying",
        )
    return Typed(sql, target)


# ---- what aggregates end with


def _average(values: list[Typed]) -> Typed:
    total, count = values
    if total.type.is_decimal:
        result = st.average_type(total.type)
        counted = st.as_decimal(count.type)
        sql = divide_decimals(total.sql, total.type, count.sql, counted, result)
        assert sql is not None  # a count has 20 digits at most
        return Typed(f"CASE WHEN {count.sql} > 0 THEN {sql} END", result)
    return Typed(f"(CAST({total.sql} AS DOUBLE) / nullif({count.sql}, 0))", st.DOUBLE)


def _deviation(less: int, root: bool) -> Callable[[list[Typed]], Typed]:
    def translated(values: list[Typed]) -> Typed:
        count, squares = values
        sql = f"{squares.sql} / ({count.sql} - {less})"
        sql = f"sqrt({sql})" if root else sql
        return Typed(f"CASE WHEN {count.sql} > {less} THEN {sql} END", st.DOUBLE)

    return translated


def _window(values: list[Typed]) -> Typed:
    start, end = values
    of_type = parse_type("STRUCT<start: TIMESTAMP, end: TIMESTAMP>")
    return Typed(f'struct_pack("start" := {start.sql}, "end" := {end.sql})', of_type)


OPERATORS: dict[type[exp.Expr], Callable[[exp.Expr, Columns], Typed]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Null: _null,
    exp.Boolean: _boolean,
    exp.Paren: _paren,
    exp.Neg: _negative,
    exp.Add: _arithmetic("+"),
    exp.Sub: _arithmetic("-"),
    exp.Mul: _arithmetic("*"),
    exp.Div: _divide,
    exp.EQ: _comparison("="),
    exp.NEQ: _comparison("<>"),
    exp.GT: _comparison(">"),
    exp.GTE: _comparison(">="),
    exp.LT: _comparison("<"),
    exp.LTE: _comparison("<="),
    exp.NullSafeEQ: _comparison("IS NOT DISTINCT FROM"),
    exp.NullSafeNEQ: _comparison("IS DISTINCT FROM"),
    exp.And: _logical("AND"),
    exp.Or: _logical("OR"),
    exp.Not: _not,
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is,
    exp.Case: _case,
    exp.If: _if,
    exp.DPipe: _pipes,
    exp.Cast: _cast,
    exp.TryCast: _cast,
}

FUNCTIONS: dict[str, Callable[[list[Typed]], Typed]] = {
    "try_divide": _try_divide,
    "coalesce": _listed("coalesce"),
    "nvl": _listed("coalesce"),
    "ifnull": _listed("coalesce"),
    "greatest": _listed("greatest"),
    "least": _listed("least"),
    "nullif": _nullif,
    "round": _round,
    "abs": _abs,
    "ceil": _whole("ceil"),
    "ceiling": _whole("ceil"),
    "floor": _whole("floor"),
    "concat": _concat,
    "_avg": _average,
    "_stddev_samp": _deviation(1, root=True),
    "_stddev_pop": _deviation(0, root=True),
    "_var_samp": _deviation(1, root=False),
    "_var_pop": _deviation(0, root=False),
    "_window": _window,
}
