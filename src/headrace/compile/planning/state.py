"""From aggregate calls to state columns, shared among all calls of a view that need the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import expressions as exp

from headrace.compile.duckdb.combine import combine_sql, sliding_sql
from headrace.compile.known_types import known_type
from headrace.compile.planning.aggregates import Aggregate, Call, Piece, find_aggregate
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.model.definitions import Stream
from headrace.model.plan import ROWS, Distinct, Partial
from headrace.model.types import DECIMAL_PRECISION_MAX, DataType

__all__ = ["State"]


@dataclass
class State:
    """The state columns of one view, in the order they were first needed. Their names say nothing
    of what is in them: views that keep the same kind of state share tables."""

    stream: Stream
    is_global: bool
    partials: dict[tuple[str, str, str], Partial] = field(default_factory=dict)
    distincts: dict[str, Distinct] = field(default_factory=dict)

    def final(self, call: Call) -> exp.Expr:
        """The expression over state columns that gives the call's value."""
        if call.is_distinct and call.name == "count":
            return self._or_zero(self._distinct(call))
        if call.name == "count" and (call.is_star or len(call.arguments) != 1):
            return self._or_zero(self._count_rows(call))
        aggregate = _aggregate(call)
        columns = self.columns(call)
        *function, last = aggregate.final
        final: exp.Expr = _column_node(columns[last])
        if function:
            parts = [_column_node(columns[role]) for role in aggregate.final[1:]]
            final = exp.Anonymous(this=function[0], expressions=parts)
        if "avg" in aggregate.names:
            self._add_precision(final, call)
        return self._or_zero(final) if aggregate.empty == "0" else final

    def columns(self, call: Call) -> dict[str, str]:
        """The state columns the call is kept in, by their role."""
        if call.name == "count" and (call.is_star or len(call.arguments) != 1):
            return {"count": self._count_rows(call).name}
        aggregate = _aggregate(call)
        guard = _guard(aggregate, call)
        columns: dict[str, str] = {}
        for piece in aggregate.pieces:
            columns[piece.role] = self._column(piece, call, guard, columns)
        return columns

    def sliding_combines(self, call: Call) -> dict[str, str]:
        """How each state column of the call is combined over the frame of a sliding window."""
        columns = self.columns(call)
        functions = {partial.name: partial.function for partial in self.partials.values()}
        return {
            name: sliding_sql(functions.get(name, "sum"), {**columns, "self": name})
            for name in columns.values()
        }

    def _add_precision(self, final: exp.Expr, call: Call) -> None:
        """The type of an average follows from the type of what is averaged. Up to 28 digits the
        sum's type tells it; above, all sums have 38 digits, so it is noted."""
        of_type = known_type(call.arguments[0], self.stream)
        if of_type is not None and of_type.precision + 10 > DECIMAL_PRECISION_MAX:
            final.append("expressions", exp.Literal.number(of_type.precision))

    def oracle(self, call: Call) -> str | None:
        """The call in plain Spark SQL where its meaning there is left open; None if it is not."""
        aggregate = find_aggregate(call.name)
        if aggregate is None or not aggregate.oracle:
            return None
        order = _guarded(aggregate.pieces[0].input.format(*call.texts), _guard(aggregate, call))
        return aggregate.oracle.format(*call.texts, order=order)

    def _or_zero(self, final: exp.Expr) -> exp.Expr:
        return parse_expression(f"coalesce({canonical(final)}, 0L)") if self.is_global else final

    def _count_rows(self, call: Call) -> exp.Expr:
        conditions = [f"({text}) IS NOT NULL" for text in call.texts]
        if call.condition is not None:
            conditions.insert(0, f"({canonical(call.condition)})")
        if not conditions:
            return _column_node(ROWS)
        text = _guarded("1", " AND ".join(conditions))
        return _column_node(self._add("count", text, "", {}))

    def _distinct(self, call: Call) -> exp.Expr:
        conditions = [f"({canonical(call.condition)})"] if call.condition is not None else []
        value = call.texts[0]
        if len(call.texts) > 1:
            conditions += [f"({text}) IS NOT NULL" for text in call.texts]
            value = f"struct({', '.join(call.texts)})"
        value = _guarded(value, " AND ".join(conditions))
        if value not in self.distincts:
            self.distincts[value] = Distinct(f"d{len(self.distincts)}", value)
        return _column_node(self.distincts[value].name)

    def _column(self, piece: Piece, call: Call, guard: str, columns: dict[str, str]) -> str:
        argument = call.arguments[0]
        if piece.function == "count" and not guard and self._is_never_null(argument):
            return ROWS
        of_type = known_type(argument, self.stream)
        template = piece.input
        if call.name in ("avg", "mean") and piece.role == "sum" and of_type == DataType("BIGINT"):
            template = "CAST({0} AS DOUBLE)"  # as Spark's avg: no overflow of the sum
        if template == "CAST({0} AS DOUBLE)" and of_type == DataType("DOUBLE"):
            template = "{0}"
        text = template.format(*call.texts)
        if piece.order:
            order = _guarded(piece.order.format(*call.texts), guard)
            return self._add(piece.function, text, order, columns)
        return self._add(piece.function, _guarded(text, guard), "", columns)

    def _is_never_null(self, node: exp.Expr) -> bool:
        if isinstance(node, exp.Literal):
            return True
        column = self.stream.column(node.name) if isinstance(node, exp.Column) else None
        return column is not None and not node.args.get("table") and not column.nullable

    def _add(self, function: str, text: str, order: str, columns: dict[str, str]) -> str:
        key = (function, text, order)
        if key not in self.partials:
            name = f"p{len(self.partials)}"
            combine = combine_sql(function, {**columns, "self": name})
            self.partials[key] = Partial(name, function, text, combine, (order,) if order else ())
        return self.partials[key].name


def _aggregate(call: Call) -> Aggregate:
    aggregate = find_aggregate(call.name)
    assert aggregate is not None, call.name
    return aggregate


def _guard(aggregate: Aggregate, call: Call) -> str:
    """The condition an event must meet to take part; empty if all do."""
    conditions = [f"({canonical(call.condition)})"] if call.condition is not None else []
    if aggregate.guard:
        conditions.append(f"({aggregate.guard.format(*call.texts)})")
    if call.is_ignoring_nulls:
        conditions.append(f"({call.texts[0]}) IS NOT NULL")
    return " AND ".join(conditions)


def _guarded(text: str, guard: str) -> str:
    """NULL where the guard is not met."""
    if not guard:
        return text
    return canonical(parse_expression(f"CASE WHEN {guard} THEN {text} END"))


def _column_node(name: str) -> exp.Column:
    return exp.Column(this=identifier(name))
