"""`headrace rebuild VIEW`: compute a view again from the log beside itself, and swap."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.calls import Address, resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json
from headrace.model.errors import EngineError, RefusedError

__all__ = ["command", "follow", "rebuild_path"]

LOOK_SECONDS = 0.2
AWAY_LOOKS_MAX = 300  # so often the engine may be away in a row
_ENDED = {"failed": "has failed", "cancelled": "was cancelled", "done": "is done already"}


def command(
    view: Annotated[str, typer.Argument(help="The view to compute again.")],
    from_oldest: Annotated[
        bool,
        typer.Option(
            "--from-oldest",
            help="Where the log no longer reaches the view's start, begin where the log does.",
        ),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return as soon as the rebuild has begun.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Drop the copy that is being built.")
    ] = False,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Compute a view again from the log. The view goes on serving until its copy takes its place.

    For after its definition changed, or after it failed.
    """
    address, path = resolve(project, url, token), rebuild_path(view)
    if cancel:
        answer, text = address.call("DELETE", path), f"the copy of {view} is dropped"
    else:
        answer = address.post(path, {"from_oldest": from_oldest})
        text = f"a copy of {view} is being built; headrace status shows how far it is"
        if not no_wait:
            answer = follow(address, view, ("done",))
            text = _told(answer)
    if as_json:
        print_json(answer)
    else:
        print(text)


def rebuild_path(view: str) -> str:
    return f"/v1/views/{quote(view, safe='')}/rebuild"


def follow(address: Address, view: str, until: Sequence[str]) -> dict[str, Any]:
    """Show how far the rebuild is until it is in one of these states. Raises EngineError when it
    ends otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} of {task.total:,} events"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(f"rebuilding {view}", total=0)
        while True:
            found = _progress(address, view)
            if found["state"] in until:
                return found
            if found["state"] == "none":
                raise EngineError(
                    f"how the rebuild of view {view} ended is not known: the engine was started "
                    "anew meanwhile",
                    hint="give the command again to be sure",
                )
            if found["state"] not in ("building", "held"):
                why = f": {found['detail']}" if found["detail"] else ""
                raise EngineError(
                    f"the rebuild of view {view} {_ENDED[found['state']]}{why}",
                    hint="the view goes on as it was",
                )
            detail = f" ({found['detail']})" if found["detail"] else ""
            bar.update(
                task,
                completed=found["events"],
                total=found["events_total"],
                description=f"rebuilding {view}{detail}",
            )
            time.sleep(LOOK_SECONDS)


def _progress(address: Address, view: str) -> dict[str, Any]:
    for look in range(AWAY_LOOKS_MAX):
        try:
            found: dict[str, Any] = address.get(rebuild_path(view))
            return found
        except RefusedError as error:
            if error.status != 503 or look + 1 == AWAY_LOOKS_MAX:
                raise
        time.sleep(LOOK_SECONDS)
    raise AssertionError("the last look returns or raises")


def _told(done: dict[str, Any]) -> str:
    whom = "whoever follows it got what differs as changes"
    if not done["followed"]:
        whom = "whoever follows it must read it anew"
    return f"{done['view']} is rebuilt from {done['events']:,} events; {whom}"
