"""`headrace query`: one SELECT over the views."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table, say

__all__ = ["command", "freshness_line"]


def command(
    sql: Annotated[str, typer.Argument(help="A read-only SELECT in the store's dialect.")],
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Run a SELECT over the views. The answer says how fresh it is."""
    answer = resolve(project, url, token).post("/v1/sql", {"sql": sql})
    if as_json:
        print_json(answer)
        return
    rows = answer["rows"]
    columns = list(rows[0]) if rows else []
    if columns:
        print_table(columns, [[row[name] for name in columns] for row in rows])
    say(f"{len(rows):,} row{'' if len(rows) == 1 else 's'} · {freshness_line(answer['freshness'])}")


def freshness_line(freshness: dict[str, Any]) -> str:
    """An answer's freshness in one line."""
    parts = ["no tick yet"]
    if freshness.get("tick"):
        parts = [f"tick {freshness['tick']:,}", f"committed {freshness['committed_at']}"]
    if freshness.get("text"):
        parts.append(freshness["text"])
    return " · ".join(parts)
