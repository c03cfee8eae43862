"""GROUP BY: ordinals, aliases, ALL and DISTINCT become expressions; window() is checked."""

from __future__ import annotations

from functools import partial

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.functions import function_name
from headrace.compile.planning.resolved import has_aggregate, is_window_key
from headrace.compile.sql.dialect import canonical, identifier
from headrace.compile.windows import WindowError, is_event_time, read_window, window_node
from headrace.model.plan import EventGroup

__all__ = ["resolve_grouping"]


def resolve_grouping(draft: ViewDraft) -> None:
    where = draft.select.args.get("where")
    having = draft.select.args.get("having")
    draft.where = where.this if where is not None else None
    if draft.where is not None and isinstance(column := draft.where.unnest(), exp.Column):
        # Spark reads FROM events WHERE (x) as other names of events and its column.
        draft.where = column
    draft.having = having.this if having is not None else None
    draft.keys = _with_window_first(draft, _keys(draft))
    has_aggregates = draft.having is not None or any(
        has_aggregate(node) for _, node, _ in draft.outputs
    )
    draft.is_per_event = not draft.keys and not has_aggregates


def _keys(draft: ViewDraft) -> list[exp.Expr]:
    if draft.select.args.get("distinct") is not None:
        return _distinct_keys(draft)
    group = draft.select.args.get("group")
    if group is None:
        return []
    for item in group.find_all(exp.Rollup, exp.Cube, exp.GroupingSets):
        draft.break_off(
            item,
            f"GROUP BY {type(item).__name__.upper()} is not in this version",
            "make one view per grouping",
        )
        return []
    if group.args.get("all"):
        return [node.copy() for _, node, _ in draft.outputs if not has_aggregate(node)]
    return [key for item in group.expressions if (key := _key(draft, item)) is not None]


def _distinct_keys(draft: ViewDraft) -> list[exp.Expr]:
    distinct = draft.select.args["distinct"]
    if distinct.args.get("on") is not None:
        draft.fault(distinct, "DISTINCT ON is not Spark SQL", "use GROUP BY")
    for _, node, _ in draft.outputs:
        if has_aggregate(node):
            draft.fault(node, "SELECT DISTINCT with an aggregate", "leave out DISTINCT")
    return [node.copy() for _, node, _ in draft.outputs]


def _key(draft: ViewDraft, item: exp.Expr) -> exp.Expr | None:
    while isinstance(item, exp.Paren):
        item = item.this
    if isinstance(item, exp.Literal) and not item.is_string and item.name.isdigit():
        number = int(item.name)
        if not 1 <= number <= len(draft.outputs):
            draft.fault(
                item,
                f"GROUP BY {number}: there are {len(draft.outputs)} outputs",
                "the number of an item of the SELECT list",
            )
            return None
        return _from_output(draft, item, number - 1)
    if isinstance(item, exp.Column) and not item.table and draft.source.column(item.name) is None:
        for index, (name, _, _) in enumerate(draft.outputs):
            if name.lower() == item.name.lower():
                return _from_output(draft, item, index)
    return item


def _from_output(draft: ViewDraft, item: exp.Expr, index: int) -> exp.Expr | None:
    name, node, _ = draft.outputs[index]
    if has_aggregate(node):
        draft.fault(item, f"GROUP BY {name}, which is an aggregate", "group by keys only")
        return None
    return node.copy()


def _with_window_first(draft: ViewDraft, keys: list[exp.Expr]) -> list[exp.Expr]:
    windows = [key for key in keys if is_window_key(key)]
    rest = [key for key in keys if not is_window_key(key)]
    for extra in windows[1:]:
        draft.fault(extra, "two windows in one GROUP BY", "make one view per window")
    checked = [node for node in map(partial(_checked_window, draft), windows[:1]) if node]
    draft.is_broken = draft.is_broken or len(checked) < len(windows[:1])
    for index, (name, node, at) in enumerate(draft.outputs):
        draft.outputs[index] = (name, _with_window_column(draft, node, checked), at)
    if draft.having is not None:
        draft.having = _with_window_column(draft, draft.having, checked)
    return [*checked, *rest]


def _with_window_column(draft: ViewDraft, root: exp.Expr, grouped: list[exp.Expr]) -> exp.Expr:
    """window(…) outside GROUP BY is the column `window`, window(…).start its part."""

    def column(node: exp.Expr) -> exp.Expr:
        call = node.this if isinstance(node, exp.Dot) else node
        if not is_window_key(call):
            return node
        made = _checked_window(draft, call)
        if made is None:
            return node
        if made not in grouped:
            draft.fault(
                call,
                f"{canonical(made)} is not the window of GROUP BY",
                f"GROUP BY {canonical(made)}" if not grouped else "use window.start, window.end",
            )
            return node
        parts = [identifier("window")]
        if isinstance(node, exp.Dot):
            parts.append(identifier(node.expression.name))
        for part in parts:
            part.meta.update(call.meta)
        return exp.Column(this=parts[-1], table=parts[0] if len(parts) > 1 else None)

    return root.transform(column, copy=False)


def _checked_window(draft: ViewDraft, node: exp.Expr) -> exp.Expr | None:
    try:
        window = read_window(node)
    except WindowError as error:
        draft.fault(error.node, str(error), error.hint)
        return None
    column = node.expressions[0]
    stream = draft.source
    name = function_name(node)
    if not isinstance(window, EventGroup) and not is_event_time(column, stream):
        event_time = stream.event_time or "_received_at"
        draft.fault(
            column,
            f"{name}() is over {event_time}, the event time of stream {stream.name}",
            f"{name}({event_time}, '…')"
            if stream.event_time
            else f"{name}(_received_at, '…'), or say WATERMARK … in CREATE STREAM {stream.name}",
        )
        return None
    made = window_node(node, window, stream)
    made.meta.update(node.meta)
    return made
