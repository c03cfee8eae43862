"""The aggregates, one row each: what Spark computes per tick, and how the result is read from it.

Adding an aggregate is adding a row to AGGREGATES. The templates mention `{0}`, `{1}` (arguments)
and where the event stands (its event time, then partition and offset, so that no two are equal). A
final is the role of a state column, or a function of roles that the store's SQL knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from sqlglot import expressions as exp

from headrace.compile.functions import function_name, kind_of
from headrace.compile.sql.dialect import canonical

__all__ = ["AGGREGATES", "Aggregate", "Call", "Piece", "find_aggregate", "read_call"]

_POSITION = "_event_time, _partition, _offset"


@dataclass(frozen=True)
class Piece:
    """One state column: `function` of `input` over the tick's events (see plan.Partial).
    `order` orders min_by and max_by; the role `order` is the column that keeps it."""

    role: str
    function: str
    input: str
    order: str = ""


@dataclass(frozen=True)
class Aggregate:
    """`takes` is what the first argument must be: number, boolean, ordered or any. `guard` is a
    condition events must meet to take part. `empty` is the value over no events. `oracle` is the
    aggregate in plain Spark SQL where Spark's own leaves the choice among events open."""

    names: tuple[str, ...]
    arguments: int
    takes: str
    pieces: tuple[Piece, ...]
    final: tuple[str, ...]
    guard: str = ""
    empty: str = "NULL"
    oracle: str = ""


_SUM = Piece("sum", "sum", "{0}")
_COUNT = Piece("count", "count", "{0}")
_DEVIATIONS = (
    Piece("count", "count", "{0}"),
    Piece("avg", "avg", "CAST({0} AS DOUBLE)"),
    Piece("m2", "m2", "CAST({0} AS DOUBLE)"),
)
_EVENT = f"struct({_POSITION})"
_RANKED = f"struct({{1}}, {_POSITION})"

AGGREGATES = (
    Aggregate(("count",), 1, "any", (_COUNT,), ("count",), empty="0"),
    Aggregate(("sum",), 1, "number", (_SUM,), ("sum",)),
    Aggregate(("avg", "mean"), 1, "number", (_SUM, _COUNT), ("_avg", "sum", "count")),
    Aggregate(("min",), 1, "ordered", (Piece("min", "min", "{0}"),), ("min",)),
    Aggregate(("max",), 1, "ordered", (Piece("max", "max", "{0}"),), ("max",)),
    Aggregate(
        ("first", "first_value", "any_value"),
        1,
        "any",
        (Piece("order", "min", _EVENT), Piece("first", "min_by", "{0}", order=_EVENT)),
        ("first",),
        oracle="min_by({0}, {order})",
    ),
    Aggregate(
        ("last", "last_value"),
        1,
        "any",
        (Piece("order", "max", _EVENT), Piece("last", "max_by", "{0}", order=_EVENT)),
        ("last",),
        oracle="max_by({0}, {order})",
    ),
    Aggregate(
        ("min_by",),
        2,
        "any",
        (Piece("order", "min", _RANKED), Piece("min_by", "min_by", "{0}", order=_RANKED)),
        ("min_by",),
        guard="({1}) IS NOT NULL",
        oracle="min_by({0}, {order})",
    ),
    Aggregate(
        ("max_by",),
        2,
        "any",
        (Piece("order", "max", _RANKED), Piece("max_by", "max_by", "{0}", order=_RANKED)),
        ("max_by",),
        guard="({1}) IS NOT NULL",
        oracle="max_by({0}, {order})",
    ),
    Aggregate(
        ("stddev_samp", "stddev", "std"),
        1,
        "number",
        _DEVIATIONS,
        ("_stddev_samp", "count", "m2"),
    ),
    Aggregate(("stddev_pop",), 1, "number", _DEVIATIONS, ("_stddev_pop", "count", "m2")),
    Aggregate(("var_samp", "variance"), 1, "number", _DEVIATIONS, ("_var_samp", "count", "m2")),
    Aggregate(("var_pop",), 1, "number", _DEVIATIONS, ("_var_pop", "count", "m2")),
    Aggregate(
        ("count_if",),
        1,
        "boolean",
        (Piece("count", "count", "1"),),
        ("count",),
        guard="{0}",
        empty="0",
    ),
    Aggregate(("bool_and", "every"), 1, "boolean", (Piece("min", "min", "{0}"),), ("min",)),
    Aggregate(("bool_or", "some", "any"), 1, "boolean", (Piece("max", "max", "{0}"),), ("max",)),
)


@dataclass(frozen=True)
class Call:
    """An aggregate as it is called, e.g. count(DISTINCT a, b) FILTER (WHERE c)."""

    name: str
    arguments: tuple[exp.Expr, ...]
    is_distinct: bool
    is_star: bool
    is_ignoring_nulls: bool
    condition: exp.Expr | None

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The arguments in their canonical spelling."""
        return tuple(canonical(argument) for argument in self.arguments)


@cache
def _by_name() -> dict[str, Aggregate]:
    return {name: aggregate for aggregate in AGGREGATES for name in aggregate.names}


def find_aggregate(name: str) -> Aggregate | None:
    return _by_name().get(name)


def read_call(node: exp.Expr) -> Call | None:
    """The aggregate call that begins at this node, with all that belongs to it; None if none."""
    condition: exp.Expr | None = None
    ignores = False
    inner = node
    while isinstance(inner, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)):
        if isinstance(inner, exp.Filter):
            condition = inner.expression.this
        elif isinstance(inner, exp.IgnoreNulls):
            ignores = True
        inner = inner.this
    name = function_name(inner)
    if name is None or kind_of(name) != "aggregate" or not isinstance(inner, exp.Anonymous):
        return None
    arguments = list(inner.expressions)
    is_distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    if is_distinct:
        arguments = list(arguments[0].expressions)
    if len(arguments) == 1 and isinstance(arguments[0], (exp.IgnoreNulls, exp.RespectNulls)):
        ignores = isinstance(arguments[0], exp.IgnoreNulls)
        arguments = [arguments[0].this]
    aggregate = find_aggregate(name)
    is_positional = aggregate is not None and aggregate.pieces[0].role == "order"
    if is_positional and len(arguments) == 2 and isinstance(arguments[1], exp.Boolean):
        ignores = ignores or bool(arguments[1].this)  # first(x, true)
        arguments = arguments[:1]
    is_star = len(arguments) == 1 and isinstance(arguments[0], exp.Star)
    return Call(
        name=name,
        arguments=() if is_star else tuple(arguments),
        is_distinct=is_distinct,
        is_star=is_star,
        is_ignoring_nulls=ignores,
        condition=condition,
    )
