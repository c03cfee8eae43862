"""FROM names one stream."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import closest

__all__ = ["find_source"]


_INSTEAD_OF_TABLE = {
    "view": "read a stream and join the table: FROM stream JOIN {} AS t ON t.key = …; "
    "views over tables come later",
    "table": "read the stream that its changes come from",
}


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
    for part, word in (("joins", "JOIN"), ("pivots", "PIVOT"), ("sample", "TABLESAMPLE")):
        if table.args.get(part):
            draft.break_off(table, f"{word} is not in this version", "read one stream")
            return
    draft.stream = draft.own = stream
    draft.alias = table.alias or stream.name
