"""Only functions that Spark has, and that give the same for the same event on any day."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import closest
from headrace.compile.functions import function_name, functions, is_bare_function, kind_of
from headrace.compile.planning.resolved import is_window_key

__all__ = ["check_functions"]

_CLOCKS = (
    "current_date",
    "current_timestamp",
    "current_time",
    "now",
    "curdate",
    "localtimestamp",
    "localtime",
    "unix_timestamp",
)

# What other stream processors call it, and how it is written here.
_ELSEWHERE = {
    "tumble": "write GROUP BY window(event_time, '10 seconds')",
    "hop": "write GROUP BY window(event_time, '10 seconds', '2 seconds')",
    "cumulate": "OVER (… RANGE BETWEEN … PRECEDING AND CURRENT ROW) looks back from each event",
}


def check_functions(draft: ViewDraft) -> None:
    roots = [*(node for _, node, _ in draft.outputs), draft.where, *draft.keys, draft.having]
    roots += [root for join in draft.joins for root in join.roots]
    for root in roots:
        if root is None:
            continue
        for node in root.walk():
            _check(draft, node)


def _check(draft: ViewDraft, node: exp.Expr) -> None:
    if isinstance(node, exp.WithinGroup):
        draft.break_off(
            node,
            "WITHIN GROUP is not in this version",
            "percentiles cannot be merged exactly; use min, max, avg or stddev",
        )
        return
    if isinstance(node, (exp.Placeholder, exp.Parameter)):
        draft.fault(node, "a parameter has no value in a definition", "write the value")
        return
    if isinstance(node, (exp.Exists, exp.Subquery, exp.Select)):
        draft.fault(node, "a subquery is not in this version", "a view reads one stream")
        return
    name = function_name(node)
    if is_window_key(node):
        return  # checked with GROUP BY
    if name is not None and isinstance(node, exp.Anonymous):
        _check_kind(draft, node, name)
    elif isinstance(node, exp.Column) and _is_clock(draft, node):
        _check_kind(draft, node, node.name.lower())


def _is_clock(draft: ViewDraft, column: exp.Column) -> bool:
    """current_date and the like may be written without parentheses."""
    return is_bare_function(column) and draft.source.column(column.name) is None


def _check_kind(draft: ViewDraft, node: exp.Expr, name: str) -> None:
    kind = kind_of(name)
    if kind is None:
        known = closest(name, functions()) or "functions are those of Spark SQL 4.3"
        hint = _ELSEWHERE.get(name, known)
        draft.fault(node, f"function {name}() does not exist", hint)
    elif name in _CLOCKS and (name != "unix_timestamp" or not node.expressions):
        draft.fault(
            node,
            f"{name}() is another value at every replay",
            f"use the event's own time: {draft.source.event_time or '_received_at'}",
        )
    elif kind == "unstable":
        draft.fault(
            node,
            f"{name}() may be another value at every replay",
            "send the value with the event",
        )
    elif kind == "generator":
        draft.fault(
            node,
            f"{name}() makes several rows of one event, which is not in this version",
            "send one event per element",
        )
    elif kind == "window":
        draft.fault(
            node,
            f"{name}() is not in this version",
            "use count, sum, avg, min, max, first, last … OVER (…), or rank when querying",
        )
    elif name in ("window_time", "grouping", "grouping_id"):
        draft.fault(node, f"{name}() is not in this version", "use window.end")
