"""`headrace resume STREAM`: decide the late event that a stream's views halted before."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json
from headrace.model.errors import SettingsError

__all__ = ["command"]

_DONE = {"apply": "will be applied", "side": "will be set aside", "drop": "will be dropped"}


def command(
    stream: Annotated[str, typer.Argument(help="The stream whose views are halted.")],
    apply: Annotated[bool, typer.Option("--apply", help="Apply the event, as a revision.")] = False,
    side: Annotated[bool, typer.Option("--side", help="Set the event aside.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Leave the event out.")] = False,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Decide the late event that a stream's views halted before, and let them go on."""
    given = [name for name, said in (("apply", apply), ("side", side), ("drop", drop)) if said]
    if len(given) != 1:
        raise SettingsError(
            f"{len(given)} decisions were given", hint="give one of --apply, --side and --drop"
        )
    path = f"/v1/streams/{quote(stream, safe='')}/resume"
    answer = resolve(project, url, token).post(path, {"decision": given[0]})
    if as_json:
        print_json(answer)
        return
    for event in answer["events"]:
        print(
            f"event {event['offset']} of partition {event['partition']} of {answer['stream']}"
            f" {_DONE[answer['decision']]}"
        )
