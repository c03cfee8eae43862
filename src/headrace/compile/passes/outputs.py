"""The SELECT list: stars spelled out, every output named once."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import keep_place, location_of
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
    written = item.table if isinstance(item, exp.Column) else ""
    qualifier = written.lower()
    is_event = qualifier in ("", draft.alias.lower(), draft.own_source.name.lower())
    joins = [join for join in draft.joins if qualifier in ("", join.alias.lower())]
    if not is_event and not joins:
        names = [draft.alias, *(join.alias for join in draft.joins)]
        hint = " or ".join(f"{name}.*" for name in names)
        draft.fault(item, f"{written}.* names nothing in FROM", hint)
        return []
    expanded: list[tuple[str, exp.Expr]] = []
    found = [(draft.alias, draft.own_source.columns)] if is_event else []
    for owner, columns in (*found, *((join.alias, join.known.columns) for join in joins)):
        table = identifier(owner) if draft.joins else None
        for column in columns:
            node = exp.Column(this=identifier(column.name), table=table)
            keep_place(node, star)
            expanded.append((column.name, node))
    return expanded
