"""Aggregates: known ones, where they may stand, over what they can be taken."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import OF_ONE_CHANGE, ViewDraft
from headrace.compile.known_types import known_type
from headrace.compile.passes.over import over_nodes
from headrace.compile.planning.aggregates import AGGREGATES, Call, find_aggregate, read_call
from headrace.compile.planning.resolved import has_aggregate, is_window_key, window_part
from headrace.compile.sql.dialect import canonical

__all__ = ["check_aggregates"]

_INSTEAD = {
    "approx_count_distinct": "count(DISTINCT x) is exact",
    "approx_percentile": "percentiles cannot be merged exactly; use min, max, avg or stddev",
    "percentile_approx": "percentiles cannot be merged exactly; use min, max, avg or stddev",
    "percentile": "percentiles cannot be merged exactly; use min, max, avg or stddev",
    "median": "percentiles cannot be merged exactly; use min, max, avg or stddev",
    "collect_list": "a list grows without end; use count, first, last, min or max",
    "collect_set": "a set grows without end; use count(DISTINCT x)",
    "array_agg": "a list grows without end; use count, first, last, min or max",
    "listagg": "a list grows without end; use count, first, last, min or max",
    "string_agg": "a list grows without end; use count, first, last, min or max",
    "try_sum": "sum(x): an event that overflows it becomes a dead letter of this view",
    "try_avg": "avg(x)",
}
_NOT_HERE = {
    "WHERE": "move the condition to HAVING",
    "APPLY AS DELETE WHEN": OF_ONE_CHANGE,
}
_KNOWN = ", ".join(name for aggregate in AGGREGATES for name in aggregate.names[:1])


def check_aggregates(draft: ViewDraft) -> None:
    for root, place in ((draft.where, draft.condition), *((key, "GROUP BY") for key in draft.keys)):
        for node in root.walk() if root is not None else ():
            call = read_call(node)
            if call is not None:
                hint = _NOT_HERE.get(place, "group by keys only")
                draft.fault(node, f"{call.name}() in {place}", hint)
                break
    if draft.is_per_event:
        for node in over_nodes(draft):
            _check_below(draft, node.this)
        return
    for root in (*(node for _, node, _ in draft.outputs), draft.having):
        if root is not None:
            _check_below(draft, root)


def _check_below(draft: ViewDraft, node: exp.Expr) -> None:
    call = read_call(node)
    if call is None:
        for child in node.iter_expressions():
            _check_below(draft, child)
        return
    _check_call(draft, node, call)


def _check_call(draft: ViewDraft, node: exp.Expr, call: Call) -> None:
    aggregate = find_aggregate(call.name)
    if aggregate is None:
        hint = _INSTEAD.get(call.name, f"aggregates are {_KNOWN}")
        draft.fault(node, f"{call.name}() cannot be kept exactly up to date here", hint)
        return
    below = [*call.arguments, *([call.condition] if call.condition is not None else [])]
    if any(has_aggregate(part) for part in below):
        draft.fault(node, f"an aggregate inside {call.name}()", "an aggregate is over events")
        return
    has_window = any(is_window_key(key) for key in draft.keys)
    for part in below:
        for inner in part.walk():
            if window_part(inner, has_window) is not None:
                draft.fault(
                    inner,
                    f"the window inside {call.name}()",
                    "use the window outside the aggregate: it is the same for the whole group",
                )
                return
    if call.is_star:
        if call.name != "count" or call.is_distinct:
            draft.fault(node, f"{call.name}(*)", f"{call.name}(column)")
        return
    if call.name == "count" and call.arguments:
        return
    if len(call.arguments) != aggregate.arguments:
        draft.fault(
            node,
            f"{call.name}() takes {aggregate.arguments} argument"
            f"{'s' if aggregate.arguments != 1 else ''}, not {len(call.arguments)}",
            f"{call.name}({', '.join('xy'[: aggregate.arguments])})",
        )
        return
    if call.is_distinct and call.name not in ("min", "max", "bool_and", "bool_or"):
        draft.fault(
            node,
            f"{call.name}(DISTINCT …) is not in this version",
            "count(DISTINCT x), or leave out DISTINCT",
        )
    if call.is_ignoring_nulls and aggregate.pieces[0].role != "order":
        draft.fault(node, f"{call.name}() IGNORE NULLS", "leave it out: NULLs do not count")
    _check_type(draft, call, aggregate.takes)


def _check_type(draft: ViewDraft, call: Call, takes: str) -> None:
    argument = call.arguments[0]
    of_type = known_type(argument, draft.source)
    if of_type is None or takes == "any":
        return
    fits = {
        "number": of_type.is_numeric,
        "boolean": of_type.name == "BOOLEAN",
        "ordered": not of_type.is_nested,
    }[takes]
    if not fits:
        what = {"number": "a number", "boolean": "a condition", "ordered": "a simple value"}[takes]
        text = canonical(argument)
        hint = f"{call.name}(CAST({text} AS DECIMAL(18, 2)))" if takes == "number" else what
        if of_type.name != "STRING" and takes == "number":
            hint = "count(x), min(x) or max(x)"
        draft.fault(argument, f"{call.name}({text}): {text} is {of_type}, not {what}", hint)
