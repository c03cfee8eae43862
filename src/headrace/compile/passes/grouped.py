"""With GROUP BY or aggregates, a column stands in GROUP BY or under an aggregate."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.functions import function_name, kind_of
from headrace.compile.passes.columns import OWN_COLUMNS
from headrace.compile.planning.aggregates import read_call
from headrace.compile.planning.finals import WRITTEN
from headrace.compile.planning.resolved import is_window_key, window_part
from headrace.compile.sql.dialect import canonical

__all__ = ["check_grouped"]


def check_grouped(draft: ViewDraft) -> None:
    if draft.is_per_event:
        return
    keys = {canonical(key) for key in draft.keys}
    has_window = any(is_window_key(key) for key in draft.keys)
    for root in (*(node for _, node, _ in draft.outputs), draft.having):
        if root is not None:
            _check(draft, root, keys, has_window)


def _check(draft: ViewDraft, node: exp.Expr, keys: set[str], has_window: bool) -> None:
    if window_part(node, has_window) is not None or read_call(node) is not None:
        return
    if is_window_key(node):
        return  # compared with the window of GROUP BY already
    name = function_name(node)
    if canonical(node) in keys or (
        name is not None and kind_of(name) is None and isinstance(node, exp.Anonymous)
    ):
        return
    written = node.meta.get(WRITTEN)
    if isinstance(node, exp.Column) or written is not None:
        name = node.parts[0].name if isinstance(node, exp.Column) else ""
        if written is not None or draft.source.column(name) is not None or name in OWN_COLUMNS:
            text = written or canonical(node)
            draft.fault(
                node,
                f"{text} is neither in GROUP BY nor under an aggregate",
                f"add {text} to GROUP BY, or say which one: first({text}), max({text})",
            )
        return
    for child in node.iter_expressions():
        _check(draft, child, keys, has_window)
