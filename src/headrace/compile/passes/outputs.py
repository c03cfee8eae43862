"""The SELECT list: stars spelled out, every output named once."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import location_of
from headrace.compile.sql.dialect import canonical, identifier
from headrace.compile.streams.checks import NAME

__all__ = ["name_outputs"]


def name_outputs(draft: ViewDraft) -> None:
    seen: dict[str, str] = {}
    for item in draft.select.expressions:
        for name, node in _expanded(draft, item):
            at = location_of(item, draft.location, draft.text)
            if not NAME.match(name):
                draft.fault(
                    item,
                    f"output {name!r} is not a name a view's column can have",
                    "begin with a letter, go on with letters, digits and _: expression AS name",
                )
            elif name.lower() in seen:
                draft.fault(item, f"two outputs named {name}", "rename one: expression AS name")
            seen[name.lower()] = name
            draft.outputs.append((name, node, at))


def _expanded(draft: ViewDraft, item: exp.Expr) -> list[tuple[str, exp.Expr]]:
    if isinstance(item, exp.Alias):
        return [(item.alias, item.this)]
    if isinstance(item, exp.Aliases):
        draft.fault(item, "one expression gives one output", "expression AS name")
        return []
    star = item.this if isinstance(item, exp.Column) else item
    if isinstance(star, exp.Star):
        return _star(draft, item, star)
    if isinstance(item, exp.Column):
        return [(item.name, item)]
    draft.fault(
        item,
        f"{canonical(item)} has no name",
        f"give it one: {canonical(item)} AS name",
    )
    return []


def _star(draft: ViewDraft, item: exp.Expr, star: exp.Star) -> list[tuple[str, exp.Expr]]:
    if star.args.get("except_") or star.args.get("except") or star.args.get("replace"):
        draft.fault(item, "* EXCEPT is not in this version", "list the columns")
        return []
    qualifier = item.table if isinstance(item, exp.Column) else ""
    if qualifier and qualifier.lower() not in (draft.alias.lower(), draft.source.name.lower()):
        draft.fault(item, f"{qualifier}.* names nothing in FROM", f"{draft.alias}.*")
        return []
    expanded: list[tuple[str, exp.Expr]] = []
    for column in draft.source.columns:
        node = exp.Column(this=identifier(column.name))
        node.meta.update(star.meta)
        expanded.append((column.name, node))
    return expanded
