"""Every column is one of the stream's, in the stream's spelling and without a qualifier."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import closest
from headrace.compile.functions import function_name, is_bare_function
from headrace.compile.planning.aggregates import read_call
from headrace.compile.planning.resolved import is_window_key
from headrace.compile.sql.dialect import identifier

__all__ = ["OWN_COLUMNS", "name_units", "resolve_columns", "resolve_in"]

OWN_COLUMNS = (
    "_partition",
    "_offset",
    "_position",
    "_event_time",
    "_received_at",
    "_skew",
    "_quality",
)
_UNIT_FUNCTIONS = ("timestampdiff", "timestampadd", "dateadd", "date_add", "datediff", "date_diff")


def resolve_columns(draft: ViewDraft) -> None:
    if draft.having is not None:
        draft.having = _with_outputs(draft, draft.having)
    has_window = any(is_window_key(key) for key in draft.keys)
    roots = [*(node for _, node, _ in draft.outputs), *draft.keys, draft.having]
    for root in roots:
        if root is not None:
            _resolve(draft, root, has_window)
    if draft.where is not None:
        _resolve(draft, draft.where, has_window=False)


def _with_outputs(draft: ViewDraft, having: exp.Expr) -> exp.Expr:
    """HAVING may use outputs by name, but under an aggregate a name is the stream's column."""
    outputs = {name.lower(): node for name, node, _ in draft.outputs}

    def replaced(node: exp.Expr) -> exp.Expr:
        if read_call(node) is not None:
            return node
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in outputs:
            output = outputs[node.name.lower()]
            if isinstance(output, exp.Column):
                return output.copy()
            made = exp.Paren(this=output.copy())
            made.meta.update(node.this.meta)
            return made
        for child in list(node.iter_expressions()):
            new = replaced(child)
            if new is not child:
                child.replace(new)
        return node

    return replaced(having)


def resolve_in(draft: ViewDraft, root: exp.Expr) -> None:
    """Of an expression over the event alone."""
    _resolve(draft, root, has_window=False)


def name_units(root: exp.Expr) -> None:
    """What stands first in timestampdiff(HOUR, …) and the like is no column."""
    for node in list(root.find_all(exp.Anonymous)):
        node.set("this", str(node.this).lower())
        if node.this in _UNIT_FUNCTIONS and len(node.expressions) == 3:
            unit = node.expressions[0]
            if isinstance(unit, exp.Column) and not unit.table:
                unit.replace(exp.Var(this=unit.name.upper()))


def _resolve(draft: ViewDraft, root: exp.Expr, has_window: bool) -> None:
    name_units(root)
    for column in list(_columns(root)):
        _resolve_column(draft, column, has_window)


def _columns(root: exp.Expr) -> Iterator[exp.Column]:
    for column in root.find_all(exp.Column):
        if not isinstance(column.this, exp.Star):
            yield column


def _resolve_column(draft: ViewDraft, column: exp.Column, has_window: bool) -> None:
    parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
    names = [part.name for part in parts]
    if has_window and names[0].lower() in _window_names(draft):
        _resolve_window(draft, column, names)
        return
    own = (draft.alias.lower(), draft.source.name.lower())
    if len(parts) > 1 and names[0].lower() in own and draft.source.column(names[0]) is None:
        parts, names = parts[1:], names[1:]
    found = draft.source.column(names[0])
    name = found.name if found is not None else names[0].lower()
    if found is None and is_bare_function(column):
        return  # refused by check_functions
    if found is None and name == "window":
        event_time = draft.source.event_time or "_received_at"
        draft.fault(column, "window without a window", f"GROUP BY window({event_time}, '1 minute')")
        return
    if found is None and name not in OWN_COLUMNS:
        known = [known.name for known in draft.own_source.columns]
        nor = "".join(f", nor in table {join.known.view.name}" for join in draft.joins)
        known += [f"{join.alias}.{c.name}" for join in draft.joins for c in join.known.columns]
        draft.fault(
            column,
            f"column {names[0]} does not exist in stream {draft.source.name}{nor}",
            closest(names[0], known) or f"columns are {', '.join(known)}",
        )
        return
    resolved = [identifier(name), *(identifier(part) for part in names[1:])]
    for new, old in zip(resolved, parts, strict=True):
        new.meta.update(old.meta)
    for key in ("this", "table", "db", "catalog"):
        column.set(key, resolved.pop() if resolved else None)


def _window_names(draft: ViewDraft) -> tuple[str, ...]:
    """`window`, and the function's own name, as Spark has it for sessions."""
    own = next(name for key in draft.keys if (name := _window_name(key)) is not None)
    return ("window", own)


def _window_name(key: exp.Expr) -> str | None:
    return function_name(key) if is_window_key(key) else None


def _resolve_window(draft: ViewDraft, column: exp.Column, names: list[str]) -> None:
    if len(names) > 2 or (len(names) == 2 and names[1].lower() not in ("start", "end")):
        draft.fault(
            column, f"{'.'.join(names)} is not part of a window", "window.start or window.end"
        )
        return
    made = [identifier("window"), *(identifier(name.lower()) for name in names[1:])]
    for new, old in zip(made, column.parts, strict=True):
        new.meta.update(old.meta)
    for key in ("this", "table", "db", "catalog"):
        column.set(key, made.pop() if made else None)
