"""`headrace completeness`: which events are missing, and who has gone silent."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli.calls import Address, resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table
from headrace.model.completeness import duration_words
from headrace.model.errors import SettingsError

__all__ = ["command"]

_COLUMNS = (
    "producer",
    "epoch",
    "numbers",
    "missing",
    "accepted",
    "gaps",
    "late fills",
    "duplicates",
    "resets",
    "heard",
    "last event",
)
_GAPS_SHOWN_MAX = 3


def command(
    stream: Annotated[str | None, typer.Argument(help="Only this stream. Default: all.")] = None,
    after: Annotated[str | None, typer.Option(help="Only producers after this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Producers of a stream.")] = 100,
    accept: Annotated[
        str | None,
        typer.Option(
            metavar="PRODUCER[:FIRST-LAST]", help="Miss no more what has not come of these numbers."
        ),
    ] = None,
    retire: Annotated[
        str | None,
        typer.Option(metavar="PRODUCER", help="Expect nothing more of this producer."),
    ] = None,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show gaps in sequence numbers and producers that have gone silent, or decide about them."""
    address = resolve(project, url, token)
    if accept is not None or retire is not None:
        _decide(address, stream, accept, retire, as_json=as_json)
        return
    names = [stream] if stream is not None else _streams(address)
    pages = [
        address.get(f"/v1/streams/{quote(name, safe='')}/completeness", after=after, limit=limit)
        for name in names
    ]
    if as_json:
        print_json({"streams": pages})
    else:
        for page in pages:
            _show(page)
    if any(p["summary"]["missing_events"] or p["summary"]["silent_producers"] for p in pages):
        raise typer.Exit(1)


def _decide(
    address: Address, stream: str | None, accept: str | None, retire: str | None, *, as_json: bool
) -> None:
    if stream is None:
        raise SettingsError("a decision is about one stream", hint="headrace completeness STREAM …")
    path = f"/v1/streams/{quote(stream, safe='')}/completeness"
    if accept is not None:
        answer = address.post(f"{path}/accept", _gaps_of(accept))
        _print_decision(
            answer,
            f"{answer['producer']}: {answer['accepted_events']:,} missing events accepted, "
            f"{answer['missing_events']:,} are still missing on {answer['stream']}",
            as_json=as_json,
        )
    if retire is not None:
        answer = address.post(f"{path}/retire", {"producer": retire})
        said = f"{answer['producer']} is retired on {answer['stream']} until it is heard from again"
        _print_decision(answer, said, as_json=as_json)


def _print_decision(answer: dict[str, Any], said: str, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print(said)


def _gaps_of(text: str) -> dict[str, Any]:
    """PRODUCER, PRODUCER:NUMBER or PRODUCER:FIRST-LAST."""
    match = re.fullmatch(r"(.+?)(?::(\d+)(?:-(\d+))?)?", text, re.DOTALL)
    if match is None:
        raise SettingsError("--accept names no producer", hint="--accept PRODUCER[:FIRST-LAST]")
    producer, first, last = match.groups()
    if first is None:
        return {"producer": producer}
    return {"producer": producer, "first": int(first), "last": int(last or first)}


def _streams(address: Address) -> list[str]:
    return [stream["name"] for stream in address.get("/v1/streams")["streams"]]


def _show(page: dict[str, Any]) -> None:
    print(f"{page['stream']}: {page['summary']['text']}")
    rows = [row for producer in page["producers"] for row in _rows(producer)]
    if rows:
        print_table(_COLUMNS, rows)
    if page["next_after"] is not None:
        print(f"more with --after {page['next_after']}")


def _rows(producer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row for each epoch, newest first; one row for a producer without numbers."""
    silent = producer["silent_for_seconds"]
    heard = producer["heard_at"]
    if silent is not None:
        heard = f"silent for {duration_words(int(silent))}"
    elif producer["retired"]:
        heard = "retired"
    rows: list[tuple[Any, ...]] = []
    for line in producer["epochs"] or [None]:
        resets, said = (producer["resets"], heard) if not rows else (None, None)
        if line is None:
            numbers: tuple[Any, ...] = (None,) * 7
            last = None
        else:
            span = f"{line['lowest']}–{line['highest']}"
            gone = (line["missing_events"], line["accepted_events"], _gaps(line))
            numbers = (line["epoch"], span, *gone, line["late_fills"], line["duplicates"])
            last = line["last_event_time"]
        rows.append((producer["producer"], *numbers, resets, said, last))
    return rows


def _gaps(line: dict[str, Any]) -> str | None:
    gaps = line["gaps"]
    shown = [_gap(gap) for gap in gaps[:_GAPS_SHOWN_MAX]]
    if len(gaps) > _GAPS_SHOWN_MAX or line["gaps_truncated"]:
        shown.append("…")
    return ", ".join(shown) or None


def _gap(gap: dict[str, Any]) -> str:
    first, last = gap["first"], gap["last"]
    return f"{first}" if first == last else f"{first}–{last}"
