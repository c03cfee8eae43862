"""`headrace late`: events that came too late, and applying those that were set aside."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show late events, or apply those set aside.")

Stream = Annotated[str, typer.Argument(help="The stream.")]


@app.command("list")
def list_late(
    stream: Stream,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="At most so many windows and decisions.")
    ] = 100,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show what was set aside and dropped, and what was decided."""
    path = f"/v1/streams/{quote(stream, safe='')}/late"
    answer = resolve(project, url, token).get(path, limit=limit)
    if as_json:
        print_json(answer)
        return
    tables = (
        ("sided", "set aside", ("view", "aside", "applied")),
        ("dropped", "dropped", ("view", "window_start", "window_end", "events", "reason")),
        ("decisions", "decided", ("partition", "offset", "decision", "decided_at")),
    )
    if not any(answer[name] for name, _, _ in tables):
        print("no event was set aside, dropped or decided about")
    for name, title, columns in tables:
        if answer[name]:
            rows = [[row[column] for column in columns] for row in answer[name]]
            print_table(columns, rows, title=title)
    if answer["cut"]:
        print(f"there are more; --limit is {limit}")


@app.command()
def apply(
    stream: Stream,
    view: Annotated[str | None, typer.Option(help="Only to this view. Default: to all.")] = None,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Apply the events that were set aside, as revisions of the windows they missed."""
    path = f"/v1/streams/{quote(stream, safe='')}/late/apply"
    answer = resolve(project, url, token).post(path, {"view": view})
    if as_json:
        print_json(answer)
        return
    target = answer["view"] or f"every view of {answer['stream']}"
    print(f"what was set aside is being applied to {target}; headrace late list shows what is left")
