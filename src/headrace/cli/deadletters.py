"""`headrace deadletters`: what could not be accepted, and what to do with it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli import exits
from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table
from headrace.model.errors import SettingsError

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, re-submit or discard dead letters.")

REPAIRED_BYTES_MAX = 16 * 1024 * 1024


@app.command("list")
def list_letters(
    stream: Annotated[str | None, typer.Option(help="Only those of this stream.")] = None,
    view: Annotated[
        str | None,
        typer.Option(help="Instead: the events that this view's expressions cannot take."),
    ] = None,
    after: Annotated[int, typer.Option(min=-1, help="Only those with a higher number.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=1_000)] = 100,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters with their number, reason and raw text."""
    address = resolve(project, url, token)
    if view is not None:
        answer = address.get(f"/v1/views/{quote(view, safe='')}/deadletters", limit=limit)
        columns: tuple[str, ...] = ("stream", "partition", "offset", "reason", "raw")
    else:
        answer = address.get("/v1/deadletters", stream=stream, after=after, limit=limit)
        columns = ("number", "stream", "position", "received_at", "reason", "raw")
    if as_json:
        print_json(answer)
        return
    letters = next(value for value in answer.values() if isinstance(value, list))
    if not letters:
        print("no dead letters")
        return
    print_table(columns, [[_shown(letter, name) for name in columns] for letter in letters])


@app.command()
def resubmit(
    numbers: Annotated[list[int], typer.Argument(help="Their numbers, as `list` shows them.")],
    repaired: Annotated[
        Path | None,
        typer.Option(
            "--repaired",
            metavar="FILE",
            help="NDJSON with one repaired record per number, in the same order.",
        ),
    ] = None,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, as they are or repaired; those accepted leave the list."""
    body: dict[str, Any] = {"numbers": numbers}
    if repaired is not None:
        body["records"] = _repaired(repaired, len(numbers))
    answer = resolve(project, url, token).post("/v1/deadletters/resubmit", body)
    said = f"accepted {answer['accepted']:,}, not accepted {answer['quarantined']:,}"
    _report(answer, as_json, said, [(e["number"], e["reason"]) for e in answer["errors"]])


@app.command()
def discard(
    numbers: Annotated[list[int], typer.Argument(help="Their numbers, as `list` shows them.")],
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Take dead letters off the list for good."""
    answer = resolve(project, url, token).post("/v1/deadletters/discard", {"numbers": numbers})
    said = f"discarded {answer['discarded']:,}"
    _report(answer, as_json, said, [(n, "no such dead letter") for n in answer["missing"]])


def _report(
    answer: dict[str, Any], as_json: bool, said: str, faults: Sequence[tuple[int, str]]
) -> None:
    if as_json:
        print_json(answer)
    else:
        print(said)
        for number, reason in faults:
            print(f"  {number}: {reason}")
    if faults:
        raise typer.Exit(exits.CHECK_FAILED)


def _shown(letter: dict[str, Any], name: str) -> Any:
    if name == "raw" and "raw" not in letter and "raw_base64" in letter:
        return base64.b64decode(letter["raw_base64"]).decode("utf-8", "replace")
    return letter.get(name)


def _repaired(file: Path, count: int) -> list[Any]:
    try:
        if file.stat().st_size > REPAIRED_BYTES_MAX:
            raise SettingsError(f"{file} is larger than {REPAIRED_BYTES_MAX:,} bytes")
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        records = [json.loads(line) for line in lines]
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{file}: {error}", hint="one JSON record per line") from error
    if len(records) != count:
        raise SettingsError(
            f"{file} has {len(records)} records for {count} numbers",
            hint="give one repaired record for each number, in the same order",
        )
    return records
