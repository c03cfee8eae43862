"""A resolved view → ViewPlan: aggregates split into partial, combine and final.

An expression of the SELECT list that needs no aggregate is computed by Spark, as a further key:
it depends on the keys alone, so it splits no group, and its value is Spark's own. Only what
stands above aggregates, and the window's bounds, is left to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import expressions as exp

from headrace.compile.faults import keep_place
from headrace.compile.lookups import known_table
from headrace.compile.over import read_over
from headrace.compile.planning.aggregates import read_call
from headrace.compile.planning.finals import WRITTEN, check_final
from headrace.compile.planning.fingerprint import fingerprint
from headrace.compile.planning.joins import joined_events, plan_joins
from headrace.compile.planning.oracle import oracle
from headrace.compile.planning.resolved import (
    ResolvedView,
    has_over,
    is_window_key,
    resolve_text,
    window_part,
)
from headrace.compile.planning.state import State
from headrace.compile.planning.tables import plan_table, table_oracle
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.compile.windows import AnyWindow, read_window
from headrace.model.definitions import Project, View
from headrace.model.errors import DefinitionError
from headrace.model.plan import Expression, Sliding, SlidingColumn, TablePlan, ViewPlan

__all__ = ["plan_view", "split_view"]

OnFault = Callable[[exp.Expr, str, str], None]
_CONDITIONAL = (exp.Case, exp.If, exp.And, exp.Or)
_CONDITIONAL_FUNCTIONS = ("coalesce", "nvl", "ifnull", "nvl2", "nullif", "try_divide")


def plan_view(project: Project, view: View) -> ViewPlan:
    """Raises DefinitionError if the view cannot be kept up to date; a view that `load_project`
    gave never does."""
    stream = project.stream(view.source)
    if stream is None:
        raise DefinitionError(
            f"view {view.name}: stream {view.source} does not exist", location=view.location
        )

    def raise_fault(node: exp.Expr, message: str, hint: str) -> None:
        raise DefinitionError(f"view {view.name}: {message}", hint=hint, location=view.location)

    tables = [known_table(project, join.lookup.table) for join in view.joins]
    return _build_plan(resolve_text(view, stream, tables), raise_fault)


@dataclass
class _Planner:
    view: ResolvedView
    on_fault: OnFault
    state: State
    keys: dict[str, Expression] = field(default_factory=dict)  # canonical text → key
    slidings: dict[tuple[str, int | None], SlidingColumn] = field(default_factory=dict)
    sliding_keys: tuple[str, ...] = ()

    def add_key(self, node: exp.Expr) -> Expression:
        text = canonical(node)
        if text not in self.keys:
            self.keys[text] = Expression(f"k{len(self.keys)}", text)
        return self.keys[text]

    def to_state(self, node: exp.Expr, is_conditional: bool = False) -> exp.Expr:
        """The same expression over state columns. The node itself is left as it is."""
        if is_window_key(node) and any(node == key for key in self.view.keys):
            return _over_window("")
        text = canonical(node)
        part = window_part(node, self.view.has_window)
        if part is not None:
            return _placed(_over_window(part), node, text)
        key = self.keys.get(text)
        if key is not None:
            return _placed(exp.Column(this=identifier(key.name)), node, text)
        if isinstance(node, exp.Window):
            return _placed(self.add_sliding(node), node, text)
        call = read_call(node)
        if call is not None:
            return _placed(self.state.final(call), node, text)
        if self._is_for_spark(node, is_conditional):
            return _placed(exp.Column(this=identifier(self.add_key(node).name)), node, text)
        below = is_conditional or _is_conditional(node)
        copied = node.copy()
        for child, original in zip(
            list(copied.iter_expressions()), list(node.iter_expressions()), strict=True
        ):
            if isinstance(original, (exp.DataType, exp.Identifier, exp.Var)):
                continue
            child.replace(self.to_state(original, below))
        return copied

    def add_sliding(self, node: exp.Window) -> exp.Expr:
        """The aggregate's final over state columns of its own range."""
        over = read_over(node)
        keys = tuple(dict.fromkeys(self.add_key(key).name for key in over.keys))
        self.sliding_keys = self.sliding_keys or keys
        combines = self.state.sliding_combines(over.call)

        def of_range(part: exp.Expr) -> exp.Expr:
            if not isinstance(part, exp.Column):
                return part
            kept = (part.name, over.range_microseconds)
            if kept not in self.slidings:
                name = f"s{len(self.slidings)}"
                self.slidings[kept] = SlidingColumn(name, *kept, combines[part.name])
            return exp.Column(this=identifier(self.slidings[kept].name))

        return self.state.final(over.call).transform(of_range, copy=False)

    def _is_for_spark(self, node: exp.Expr, is_conditional: bool) -> bool:
        if self.view.has_over and isinstance(node, exp.Column):
            return True  # the event's own, whatever happens to it
        if not (self.view.keys or self.view.has_over) or is_conditional or _is_constant(node):
            return False
        if not isinstance(node, (exp.Condition, exp.Func)) or isinstance(node, exp.Interval):
            return False
        return not any(
            read_call(part) is not None
            or window_part(part, self.view.has_window) is not None
            or is_window_key(part)
            for part in node.walk()
        )


def _is_conditional(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower() in _CONDITIONAL_FUNCTIONS
    return isinstance(node, _CONDITIONAL)


def _is_constant(node: exp.Expr) -> bool:
    if isinstance(node, (exp.Neg, exp.Paren, exp.Cast)):
        return _is_constant(node.this)
    return isinstance(node, (exp.Literal, exp.Boolean, exp.Null))


def _over_window(part: str) -> exp.Expr:
    if part:
        return exp.Column(this=identifier(f"window_{part}"))
    return parse_expression("_window(window_start, window_end)")


def _placed(made: exp.Expr, original: exp.Expr, text: str) -> exp.Expr:
    """Keep the user's place and words on what replaces it."""
    keep_place(made, original)
    made.meta[WRITTEN] = text
    return made


@dataclass(frozen=True)
class _Split:
    """A view taken apart: what Spark computes and what the store makes of it."""

    state: State
    keys: tuple[Expression, ...]
    window: AnyWindow | Sliding | None
    finals: tuple[Expression, ...]
    having: str | None
    table: TablePlan | None


def split_view(view: ResolvedView, on_fault: OnFault) -> _Split:
    """Calls `on_fault` for every expression above aggregates that no store can give as Spark
    would; what it returns after that is of no use."""
    state = State(view.stream, view.is_global)
    planner = _Planner(view, on_fault, state)
    window: AnyWindow | Sliding | None = None
    for key in view.keys:
        if is_window_key(key):
            window = read_window(key)
        else:
            planner.add_key(key)
    having = None
    if view.is_per_event:
        finals = _per_event(planner)
    else:
        finals = []
        for name, node in view.outputs:
            final = planner.to_state(node)
            check_final(final, view.is_global, on_fault)
            finals.append(Expression(name, canonical(final)))
        if view.having is not None:
            condition = planner.to_state(view.having)
            check_final(condition, view.is_global, on_fault)
            having = canonical(condition)
    if planner.slidings:
        window = Sliding(planner.sliding_keys, tuple(planner.slidings.values()))
    table = plan_table(view, planner.add_key) if view.table is not None else None
    return _Split(state, tuple(planner.keys.values()), window, tuple(finals), having, table)


def _build_plan(view: ResolvedView, on_fault: OnFault) -> ViewPlan:
    """Calls `on_fault` as `split_view` does."""
    split = split_view(view, on_fault)
    return ViewPlan(
        view=view.name,
        stream=view.stream.name,
        where=canonical(view.where) if view.where is not None else None,
        keys=split.keys,
        window=split.window,
        partials=tuple(split.state.partials.values()),
        distincts=tuple(split.state.distincts.values()),
        finals=split.finals,
        having=split.having,
        is_global=view.is_global,
        fingerprint=fingerprint(view, split.state),
        sql=table_oracle(view) if view.table else oracle(view, split.state, split.window),
        emits_on_close=view.emits_on_close,
        is_rows=view.is_per_event and not view.has_over,
        table=split.table,
        joins=plan_joins(view.joins, view.where, view.roots),
        joined=joined_events(view.stream.name, view.joins, view.roots) if view.joins else None,
    )


def _per_event(planner: _Planner) -> list[Expression]:
    """Each event is its own group, told apart by its place in the log. What looks around in the
    others with OVER (…) is left to the store."""
    for name in ("_partition", "_offset"):
        planner.add_key(exp.Column(this=identifier(name)))
    finals = []
    for name, node in planner.view.outputs:
        if has_over(node):
            final = planner.to_state(node)
            check_final(final, False, planner.on_fault)
            finals.append(Expression(name, canonical(final)))
            continue
        key = planner.add_key(node)
        finals.append(Expression(name, canonical(exp.Column(this=identifier(key.name)))))
    return finals
