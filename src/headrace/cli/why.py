"""`headrace why VIEW key=value…`: the events behind one row, and what revised it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli import exits
from headrace.cli.options import AsJson, ProjectFolder, ServerToken
from headrace.cli.output import print_json, print_table, say
from headrace.cli.project import read_definitions, read_settings
from headrace.cli.reconcile import snapshot_of
from headrace.model.errors import ProofError

__all__ = ["command"]

EVENTS_MAX = 100_000
_SHOWN = ("partition", "offset", "fate", "tick", "event_time", "occurred", "sent", "received")


def command(
    view: Annotated[str, typer.Argument(help="The view.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COLUMN=VALUE]…", help="Public columns that name the row."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=EVENTS_MAX, help="Show at most so many events.")
    ] = 1_000,
    project: ProjectFolder = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show the events behind a row: their clocks, what became of each, and the row's revisions."""
    filters = _filters(keys or [])
    from headrace.proof.reconcile import defined_view, subject
    from headrace.proof.session import own_spark, scratch
    from headrace.proof.why import explain, the_row

    settings = read_settings(project)
    definitions = read_definitions(settings)
    name = defined_view(definitions, view).name
    with scratch(settings) as folder:
        snapshot = snapshot_of(settings, name, folder, token, filters, with_ticks=True)
        if snapshot.rows == 0:
            say(f"{name} has no such row at tick {snapshot.tick}")
            raise typer.Exit(exits.CHECK_FAILED)
        what = subject(settings, definitions, snapshot, folder / "rows.parquet")
        the_row(what)
        with own_spark(settings, folder) as spark:
            found = explain(spark, what, limit)
    document = {
        "view": name,
        "tick": snapshot.tick,
        "row": found.row,
        "events": found.events,
        "cut": found.is_cut,
        "revisions": found.revisions,
        "dead": found.dead,
    }
    if as_json:
        print_json(document)
    else:
        _show(document)


def _filters(keys: list[str]) -> dict[str, str]:
    filters: dict[str, str] = {}
    for key in keys:
        column, equals, value = key.partition("=")
        if not equals or not column or column in filters:
            raise ProofError(f"{key!r} names no column and value", hint="write column=value, once")
        filters[column] = value
    return filters


def _show(document: dict[str, Any]) -> None:
    row = ", ".join(f"{name}={value}" for name, value in document["row"].items())
    print(f"{document['view']} at tick {document['tick']}: {row}")
    columns = [*_SHOWN, "skew_microseconds", "quality", "watermark"]
    events = [_shown(event) for event in document["events"]]
    print_table(columns, [[event[name] for name in columns] for event in events], "events")
    if document["cut"]:
        print(f"and more: only the first {len(events):,} are shown")
    for revision in document["revisions"]:
        when = _tick(revision)
        print(
            f"revision {revision['revision']} in {when}: {revision['cause']} "
            f"(partition {revision['partition']}, offset {revision['offset']})"
        )
    if document["dead"]:
        print(f"{len(document['dead'])} dead letters of this view are in no row")


def _tick(found: dict[str, Any]) -> str:
    return f"tick {found['tick']}" + (" or before" if found["or_before"] else "")


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "tick": f"{event['tick']}{' or before' if event['or_before'] else ''}"}
