"""`headrace reconcile VIEW`: compute a view again from the log and compare every row."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from headrace.cli import exits
from headrace.cli.calls import resolve, running_gateway
from headrace.cli.options import AsJson, ProjectFolder, ServerToken
from headrace.cli.output import print_json, print_table, say
from headrace.cli.project import read_definitions, read_settings
from headrace.cli.rebuild import follow, rebuild_path
from headrace.model.errors import ProofError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.model.definitions import Project
    from headrace.model.settings import Settings
    from headrace.proof.comparison import Compared
    from headrace.proof.reconcile import Subject
    from headrace.store.contract import Snapshot

__all__ = ["command", "snapshot_of"]

SHOWN_MAX = 1_000


def command(
    view: Annotated[str, typer.Argument(help="The view to prove.")],
    limit: Annotated[
        int, typer.Option(min=0, max=SHOWN_MAX, help="Show at most so many differing rows.")
    ] = 20,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Where rows differ, rebuild the view; the copy takes its place once it is proven.",
        ),
    ] = False,
    project: ProjectFolder = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Compute a view again with one batch query over the log, and compare every row.

    Exit code 0 when all are equal (or are so now, with --repair), 1 when some differ, 2 when it
    cannot be proven.
    """
    from headrace.proof.reconcile import defined_view, reconcile, subject
    from headrace.proof.session import own_spark, scratch

    began = time.monotonic()
    settings = read_settings(project)
    definitions = read_definitions(settings)
    name = defined_view(definitions, view).name
    with scratch(settings) as folder:
        snapshot = snapshot_of(settings, name, folder, token)
        what = subject(settings, definitions, snapshot, folder / "rows.parquet")
        events = what.events()
        say(f"proving {name} at tick {snapshot.tick}: {snapshot.rows:,} rows, {events:,} events")
        with own_spark(settings, folder) as spark:
            prove = partial(reconcile, spark)
            found = prove(what, limit)
            document = _document(snapshot, found, events, time.monotonic() - began)
            if not as_json:
                _show(name, document, is_final=not repair)
            is_right = found.is_equal
            if repair and not is_right:
                is_right = document["repaired"] = _repair(
                    prove, settings, definitions, name, folder, token
                )
    if as_json:
        print_json(document)
    elif "repaired" in document:
        print(_repaired_text(name, is_repaired=is_right))
    raise typer.Exit(exits.DONE if is_right else exits.CHECK_FAILED)


def _repair(
    prove: Callable[[Subject, int], Compared],
    settings: Settings,
    definitions: Project,
    view: str,
    folder: Path,
    token: str | None,
) -> bool:
    """Let a copy be built, and take the view's place if the log gives just the same rows as it has.
    Whatever else happens, the copy is dropped and the view stays as it is."""
    from headrace.proof.asking import ROWS_FILE, ask_engine
    from headrace.proof.reconcile import subject

    if running_gateway(settings) is None:
        raise ProofError(
            "a view is repaired by the running engine, and the project is down",
            hint="start it with headrace up, and give the command again",
        )
    address, path = resolve(settings.directory, None, token), rebuild_path(view)
    address.post(path, {"hold": True})
    try:
        follow(address, view, ("held",))
        quoted = quote(view, safe="")
        snapshot = ask_engine(address.post, quoted, folder, {}, with_ticks=False, copy=True)
        what = subject(settings, definitions, replace(snapshot, view=view), folder / ROWS_FILE)
        say(f"proving the copy of {view} at tick {snapshot.tick}: {snapshot.rows:,} rows")
        is_proven = prove(what, 0).is_equal
        if is_proven:
            address.post(path, {"swap": True})
            follow(address, view, ("done",))
    except BaseException:
        with contextlib.suppress(RefusedError):  # it took the view's place, or is gone already
            address.call("DELETE", path)
        raise
    if not is_proven:
        address.call("DELETE", path)
    return is_proven


def _repaired_text(view: str, *, is_repaired: bool) -> str:
    if is_repaired:
        return f"{view} is repaired: it was rebuilt, and its rows were proven before they took over"
    return (
        f"{view} is not repaired: built again from the log, it differs from what one query over the"
        " log gives as well. That is a defect: please report it with the view's definition"
    )


def snapshot_of(
    settings: Settings,
    view: str,
    folder: Path,
    token: str | None,
    filters: dict[str, str] | None = None,
    with_ticks: bool = False,
) -> Snapshot:
    """From the engine while the project is up, else from the store itself."""
    from headrace.proof.asking import ask_engine, read_store

    if running_gateway(settings) is None:
        return read_store(settings, view, folder, filters or {}, with_ticks)
    address = resolve(settings.directory, None, token)
    return ask_engine(address.post, quote(view, safe=""), folder, filters or {}, with_ticks)


def _document(snapshot: Snapshot, found: Compared, events: int, seconds: float) -> dict[str, Any]:
    from headrace.proof.text import plain_row

    return {
        "view": snapshot.view,
        "equal": found.is_equal,
        "tick": snapshot.tick,
        "offsets": {str(p): offset for p, offset in sorted(snapshot.next_offsets.items())},
        "events": events,
        "rows": found.rows,
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "differences": [
            {"kind": d.kind, "stored": plain_row(d.stored), "proven": plain_row(d.proven)}
            for d in found.differences
        ],
        "seconds": round(seconds, 3),
    }


def _show(name: str, document: dict[str, Any], *, is_final: bool) -> None:
    at = f"at tick {document['tick']}, from {document['events']:,} events"
    if document["equal"]:
        print(f"{name} is equal to the log {at}: {document['rows']:,} rows")
        return
    counts = ", ".join(f"{document[kind]:,} {kind}" for kind in ("different", "missing", "extra"))
    print(f"{name} differs from the log {at}: {counts} of {document['rows']:,} rows")
    columns = list((document["differences"] or [{"stored": {}}])[0]["stored"] or {})
    rows: list[list[Any]] = []
    for found in document["differences"]:
        for side in ("stored", "proven"):
            if found[side] is not None:
                columns = columns or list(found[side])
                rows.append([found["kind"], side, *found[side].values()])
    if rows:
        print_table(["difference", "side", *columns], rows)
    if is_final:
        print(f"headrace reconcile {name} --repair builds the view again from the log")
