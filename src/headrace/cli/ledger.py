"""`headrace ledger`: what became of every event, and whether it adds up."""

from __future__ import annotations

from typing import Any

import typer

from headrace.cli import exits
from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, print_table, say

__all__ = ["command"]

_GATEWAY = ("received", "appended", "retried", "dead")
_STREAM = ("advanced", "accepted", "duplicate", "dead")
_VIEW = ("read", "applied", "filtered", "sided", "dropped", "dead", "late", "duplicate")


def command(
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show what became of every event. Exit code 1 if a sum does not hold."""
    answer = resolve(project, url, token).get("/v1/ledger")
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if not all(sums["is_conserved"] for _, _, sums in _all_sums(answer)):
        raise typer.Exit(exits.CHECK_FAILED)
    if answer["engine"].get("state") == "down":
        say(f"the engine's sums cannot be read: {answer['engine']['reason']}")
        raise typer.Exit(exits.UNREACHABLE)


def _all_sums(answer: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (part, name, sums)
        for part in ("gateway", "streams", "views")
        for name, sums in answer.get(part, {}).items()
    ]


def _show(answer: dict[str, Any]) -> None:
    tables = (
        ("gateway", "stream", _GATEWAY, "received = appended + retried + dead, since its start"),
        ("streams", "stream", _STREAM, "advanced = accepted + duplicate + dead"),
        ("views", "view", _VIEW, "read = applied + filtered + sided + dropped + dead"),
    )
    for part, kind, fates, title in tables:
        rows = [
            (name, *(sums[fate] for fate in fates), sums["is_conserved"])
            for name, sums in answer.get(part, {}).items()
        ]
        if rows:
            print_table((kind, *fates, "holds"), rows, title=f"{part}: {title}")
    for part, name, sums in _all_sums(answer):
        if sums.get("incident"):
            print(f"{part} {name}: {sums['incident']}")
