"""`headrace query`: one SELECT over the views."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace.cli.calls import ANSWER_SECONDS_MAX, Address, resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table, say
from headrace.model.errors import RefusedError

__all__ = ["command", "freshness_line"]

WAIT_SECONDS_MAX = 60.0  # no more than the server allows
SILENT_SECONDS = 1.0  # so long it waits without a word
PAUSE_SECONDS = 0.2
_PATH = "/v1/sql"
_HINT = "--now shows the views as they stand"


def command(
    sql: Annotated[str, typer.Argument(help="A read-only SELECT in the store's dialect.")],
    now: Annotated[
        bool,
        typer.Option("--now", help="Show the views as they stand, and do not wait for anything."),
    ] = False,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Run a SELECT over the views. The answer says how fresh it is.

    It shows all that was acknowledged before, and waits for that up to 60 seconds, the engine's
    start included. A view that stands still is shown as it is.
    """
    address = resolve(project, url, token)
    answer = address.post(_PATH, {"sql": sql}) if now else _covering(address, {"sql": sql})
    if as_json:
        print_json(answer)
        return
    rows = answer["rows"]
    columns = list(rows[0]) if rows else []
    if columns:
        print_table(columns, [[row[name] for name in columns] for row in rows])
    say(f"{len(rows):,} row{'' if len(rows) == 1 else 's'} · {freshness_line(answer['freshness'])}")


def _covering(address: Address, body: dict[str, str]) -> Any:
    """The answer that covers all that is stored by now. Raises RefusedError when it does not come
    within WAIT_SECONDS_MAX."""
    ends_at = time.monotonic() + WAIT_SECONDS_MAX
    is_silent = True
    while True:
        left = max(0.0, ends_at - time.monotonic())
        seconds = min(left, SILENT_SECONDS) if is_silent else left
        path = f"{_PATH}?covers=now&wait_seconds={seconds:.3f}"
        try:
            return address.post(path, body, seconds + ANSWER_SECONDS_MAX)
        except RefusedError as error:
            if error.problem.get("code") == "view-stands-still":
                say(f"{error.problem['detail']}. It is shown as it stands.")
                return address.post(_PATH, body)
            if error.status not in (503, 504):
                raise
            left = ends_at - time.monotonic()
            if left <= 0:
                raise RefusedError(error.status, {**error.problem, "hint": _HINT}) from error
            if is_silent:
                say(f"{error.problem.get('detail')}. Waiting up to {left:.0f} s; {_HINT}.")
                is_silent = False
            if error.status == 503:
                time.sleep(min(PAUSE_SECONDS, left))


def freshness_line(freshness: dict[str, Any]) -> str:
    """An answer's freshness in one line."""
    parts = ["no tick yet"]
    if freshness.get("tick"):
        parts = [f"tick {freshness['tick']:,}", f"committed {freshness['committed_at']}"]
    if freshness.get("text"):
        parts.append(freshness["text"])
    return " · ".join(parts)
