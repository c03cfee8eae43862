"""What a view with a window, or with OVER (…), asks of its stream and of its outputs' names."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import OF_ONE_CHANGE, ViewDraft
from headrace.compile.functions import function_name
from headrace.compile.passes.over import over_nodes
from headrace.compile.planning.resolved import is_window_key
from headrace.compile.sql.dialect import canonical

__all__ = ["check_windowed"]

_ONE_PARTITION_PER_KEY = ("session_window", "event_group")
_OWN_OUTPUTS = ("revision", "final")


def check_windowed(draft: ViewDraft) -> None:
    window = next((key for key in draft.keys if is_window_key(key)), None)
    if draft.emits_on_close is not None and window is None and not over_nodes(draft):
        draft.faults.add(
            f"view {draft.name}: EMIT ON WINDOW CLOSE without a window",
            "GROUP BY window(event_time, '1 minute'), or leave it out",
            draft.emits_on_close,
        )
    for root in (draft.where, *draft.keys):
        for node in root.walk() if root is not None else ():
            if is_window_key(node) and node is not window:
                hint = "it stands in GROUP BY; its bounds are window.start and window.end"
                if draft.kind == "table":
                    hint = OF_ONE_CHANGE
                draft.fault(node, f"{function_name(node)}() outside GROUP BY", hint)
    if window is not None and function_name(window) in _ONE_PARTITION_PER_KEY:
        _check_partitions(draft, window)
        _check_no_wait(draft, window)
    _check_one_partitioning(draft)
    if window is not None or over_nodes(draft):
        _check_names(draft)


def _check_partitions(draft: ViewDraft, window: exp.Expr) -> None:
    """Which events follow each other is decided by their order in one partition."""
    stream = draft.source
    if stream.partitions == 1:
        return
    grouped = {key.name.lower() for key in draft.keys if isinstance(key, exp.Column)}
    missing = [name for name in stream.partition_by if name.lower() not in grouped]
    if stream.partition_by and not missing:
        return
    hint = f"add {', '.join(missing)} to GROUP BY"
    if not missing:
        hint = f"say PARTITION BY (…) in CREATE STREAM {stream.name}, with columns of GROUP BY"
    draft.fault(
        window,
        f"{function_name(window)}() needs all events of a key in one partition, "
        f"and stream {stream.name} has {stream.partitions}",
        hint,
    )


def _check_no_wait(draft: ViewDraft, window: exp.Expr) -> None:
    """An event that comes into its order late would change what came after it."""
    for join in draft.joins:
        if join.clauses.wait is not None:
            draft.fault_at(
                join.clauses.wait[1],
                f"WAIT with {function_name(window)}(), which goes by the order of the events",
                "leave out WAIT, or group by window(event_time, '1 hour')",
            )


def _check_one_partitioning(draft: ViewDraft) -> None:
    """The rows an event changes are those of its own key: one kind of key in a view."""
    found = over_nodes(draft)
    keys = [_partitioning(node) for node in found]
    for node, other in zip(found, keys, strict=True):
        if other != keys[0]:
            draft.fault(
                node,
                "OVER (…) with another PARTITION BY than the first in this view",
                "make one view per PARTITION BY, each with _partition and _offset to join them by",
            )
            return


def _partitioning(node: exp.Window) -> set[str]:
    return {canonical(key) for key in node.args.get("partition_by") or ()}


def _check_names(draft: ViewDraft) -> None:
    for name, node, _ in draft.outputs:
        if name.lower() in _OWN_OUTPUTS:
            draft.fault(
                node,
                f"output {name}: rows of windows have a {name.lower()} of their own",
                "rename it: expression AS name",
            )
