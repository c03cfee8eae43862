"""OVER (…) stands in the SELECT list of a view without groups, and looks back in event time."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import OF_ONE_CHANGE, ViewDraft
from headrace.compile.over import check_over
from headrace.compile.planning.resolved import has_aggregate
from headrace.compile.windows import WindowError

__all__ = ["over_nodes", "resolve_over"]

_IN_SELECT = "OVER (…) stands in the SELECT list; filter by it when querying"


def resolve_over(draft: ViewDraft) -> None:
    for clause in ("where", "group", "having"):
        root = draft.select.args.get(clause)
        words = {"where": draft.condition, "group": "GROUP BY", "having": "HAVING"}[clause]
        for node in root.find_all(exp.Window) if root is not None else ():
            draft.break_off(
                node,
                f"OVER (…) in {words}",
                OF_ONE_CHANGE if draft.kind == "table" else _IN_SELECT,
            )
            return
    found = over_nodes(draft)
    if not found:
        return
    _check_ungrouped(draft, found[0])
    for node in found:
        if any(part is not node for part in node.find_all(exp.Window)):
            draft.break_off(node, "OVER (…) inside OVER (…)", "make it two outputs")
            return
        try:
            check_over(node, draft.source)
        except WindowError as error:
            draft.break_off(error.node, str(error), error.hint)


def _check_ungrouped(draft: ViewDraft, node: exp.Window) -> None:
    for clause, word in (("group", "GROUP BY"), ("having", "HAVING"), ("distinct", "DISTINCT")):
        if draft.select.args.get(clause) is not None:
            draft.break_off(
                node,
                f"OVER (…) with {word}",
                "OVER (…) gives one row per event; make another view for the groups",
            )
            return
    for _, output, _ in draft.outputs:
        if has_aggregate(output):
            draft.break_off(
                output,
                "an aggregate with OVER (…) and one without in one view",
                "make two views: OVER (…) gives one row per event",
            )
            return


def over_nodes(draft: ViewDraft) -> list[exp.Window]:
    """Those of the SELECT list."""
    return [node for _, output, _ in draft.outputs for node in output.find_all(exp.Window)]
