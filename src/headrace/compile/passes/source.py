"""FROM names one stream."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import closest

__all__ = ["find_source", "refused_part"]


_INSTEAD_OF_TABLE = {
    "view": "read a stream and join the table: FROM stream JOIN {} AS t ON t.key = …; "
    "views over tables come later",
    "table": "read the stream that its changes come from",
}


def refused_part(node: exp.Expr) -> str | None:
    """What stands at a name in FROM, or behind its join, and has no meaning here."""
    words = {"joins": "JOIN inside JOIN", "pivots": "PIVOT", "sample": "TABLESAMPLE"}
    for part, word in words.items():
        if node.args.get(part):
            return word
    version, alias = node.args.get("version"), node.args.get("alias")
    if version is not None:
        return f"{version.name} AS OF"
    has_columns = alias is not None and alias.args.get("columns")
    return "a list of columns in FROM" if has_columns else None


def find_source(draft: ViewDraft) -> None:
    from_ = draft.select.args.get("from_") or draft.select.args.get("from")
    if from_ is None:
        draft.break_off(draft.select, "FROM is missing", "SELECT … FROM stream …")
        return
    table = from_.this
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        draft.break_off(table, "FROM must name a stream", "SELECT … FROM stream …")
        return
    name = table.name
    if table.args.get("db") is not None:
        draft.break_off(table, f"{table.sql()} has a qualifier", "streams have plain names")
        return
    if name.lower() in draft.table_names:
        draft.break_off(
            table,
            f"{name} is a table, and {draft.kind}s over tables are not in this version",
            _INSTEAD_OF_TABLE[draft.kind].format(name),
        )
        return
    stream = draft.streams.get(name.lower())
    if stream is None:
        if name.lower() in draft.view_names:
            draft.break_off(
                table,
                f"{name} is a view, and {draft.kind}s over views are not in this version",
                "read the stream itself here; views over views come later",
            )
            return
        names = [known.name for known in draft.streams.values()]
        known = ", ".join(sorted(names)) or "none"
        draft.break_off(
            table,
            f"stream {name} does not exist",
            closest(name, names) or f"streams are: {known}; CREATE STREAM defines one",
        )
        return
    part = refused_part(table)
    if part is not None:
        draft.break_off(table, f"{part} is not in this version", "read the stream by its name")
        return
    draft.stream = draft.own = stream
    draft.alias = table.alias or stream.name
