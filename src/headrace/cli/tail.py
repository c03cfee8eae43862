"""`headrace tail VIEW`: follow a view's changes."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import cell

if TYPE_CHECKING:
    from headrace.client import Change

__all__ = ["command"]


def command(
    view: Annotated[str, typer.Argument(help="The view to follow.")],
    after: Annotated[
        int | None,
        typer.Option(min=0, help="Start with the first tick after this one. Default: from now."),
    ] = None,
    ticks: Annotated[
        int | None, typer.Option(min=1, help="End after this many ticks with changes.")
    ] = None,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Follow a view's changes. One message per tick, rows before (-) and after (+)."""
    from headrace.client import Client

    address = resolve(project, url, token)
    address.get("/healthz")  # says at once that nothing is there; later the client goes on asking
    seen = 0
    with Client(address.url, token=address.token) as client:
        for change in client.subscribe(view, after=after):
            _show(change, as_json)
            seen += 1
            if seen == ticks:
                return


def _show(change: Change, as_json: bool) -> None:
    if as_json:
        document = {
            "tick": change.tick,
            "view": change.view,
            "before": change.before,
            "after": change.after,
            "freshness": asdict(change.freshness),
        }
        print(json.dumps(_plain(document), default=str), flush=True)
        return
    print(f"tick {change.tick}", flush=True)
    for sign, rows in (("-", change.before), ("+", change.after)):
        for row in rows:
            print(
                f"{sign} " + "  ".join(f"{n}={cell(_plain(v))}" for n, v in row.items()), flush=True
            )


def _plain(value: Any) -> Any:
    """A value as the server's JSON has it: the client has made it a Python value."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None)
        return f"{moment.isoformat(timespec='microseconds')}Z"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return format(value, "f") if isinstance(value, Decimal) else value
