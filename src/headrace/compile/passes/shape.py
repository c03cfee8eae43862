"""Only SELECT … FROM … [JOIN …] [WHERE …] [GROUP BY …] [HAVING …] is a view of this version."""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.draft import OF_ONE_CHANGE, ViewDraft

__all__ = ["check_shape"]

_LATER = "not in this version"
_REFUSED = {
    "with_": ("WITH", "write the query without a common table expression"),
    "laterals": ("LATERAL VIEW", "send one event per element"),
    "order": ("ORDER BY", "order when querying: headrace query 'SELECT … ORDER BY …'"),
    "sort": ("SORT BY", "order when querying"),
    "cluster": ("CLUSTER BY", "leave it out"),
    "distribute": ("DISTRIBUTE BY", "leave it out"),
    "limit": ("LIMIT", "limit when querying: headrace query 'SELECT … LIMIT 10'"),
    "offset": ("OFFSET", "skip rows when querying"),
    "qualify": ("QUALIFY", "filter when querying"),
    "windows": ("WINDOW", "OVER (…) comes later; group by window(event_time, '…') instead"),
    "pivots": ("PIVOT", "use aggregates with FILTER (WHERE …)"),
    "sample": ("TABLESAMPLE", "a view is exact; leave it out"),
    "hint": ("a hint", "leave it out: Headrace plans the ticks"),
    "into": ("INTO", "leave it out"),
    "kind": ("SELECT AS", "leave it out"),
}


def check_shape(draft: ViewDraft) -> None:
    query = draft.select
    if isinstance(query, exp.SetOperation):
        draft.break_off(
            query,
            f"{type(query).__name__.upper()} is {_LATER}",
            "make one view of each SELECT, and unite them when querying",
        )
        return
    if not isinstance(query, exp.Select):
        draft.break_off(query, "a view is a SELECT", "… AS SELECT … FROM stream …")
        return
    for name, (word, hint) in _REFUSED.items():
        found = query.args.get(name) or query.args.get(name.rstrip("_"))
        if found:
            node = found[0] if isinstance(found, list) else found
            node = node if isinstance(node, exp.Expr) else query
            draft.break_off(node, f"{word} is {_LATER}", hint)
    distinct = query.args.get("distinct")
    if distinct is not None and query.args.get("group") is not None:
        draft.break_off(
            query.args["group"],
            "SELECT DISTINCT with GROUP BY",
            "leave out DISTINCT: groups are distinct already",
        )
    hint = "a view reads one stream: SELECT … FROM stream …"
    if draft.kind == "table":
        hint = OF_ONE_CHANGE
    for subquery in query.find_all(exp.Subquery, exp.Select):
        if subquery is not query:
            draft.break_off(subquery, f"a subquery is {_LATER}", hint)
            return
