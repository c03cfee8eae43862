"""`headrace load`: files into a table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import exits
from headrace.cli.calls import Address, resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import print_json, say
from headrace.model.errors import SettingsError

if TYPE_CHECKING:
    from headrace.loading.load import Loaded, Progress, Source

__all__ = ["command"]


def command(
    table: Annotated[str, typer.Argument(help="The table.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="CSV, TSV, Parquet or NDJSON; - reads standard input."
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="csv, tsv, parquet or ndjson. Default: the ending."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete the rows that the files lack, afterwards.")
    ] = False,
    initial: Annotated[
        bool,
        typer.Option("--initial", help="Only if the rows stand before all events of the project."),
    ] = False,
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Load files into a table: each row is an upsert, or a delete where _op says so.

    A load that was interrupted goes on where the log ends when the command is given again with the
    file as it was. After a load that ended well, the same file is loaded anew, from its first row.
    """
    from headrace.loading.load import Loaded, begin, load
    from headrace.loading.sender import Sender
    from headrace.loading.target import target_of

    address = resolve(project, url, token)
    sources = _sources(files, form)
    streams = address.get("/v1/streams")["streams"]
    target = target_of(table, streams)
    if replace:
        _check_replace(target.changelog is not None and target.changelog.sequence, files)
    loaded = Loaded()
    began = time.monotonic()
    with Sender(address.url, address.token, target.name) as sender:
        begun = begin(sender, target, sources)
        if initial:
            _check_initial(address, target, [n.producer for n in begun if n.next], streams)
        try:
            with _bar(sources, not as_json) as progress:
                load(sender, target, sources, begun, loaded, progress, replaces=replace)
        except BaseException:
            durable = loaded.skipped + loaded.sent.rows
            if durable:
                say(f"{durable:,} rows are durable; the same command goes on after them")
            raise
    _report(target.name, loaded, time.monotonic() - began, as_json=as_json)
    overtaken = _overtaken(address) if initial else []
    for stream in overtaken:
        say(
            f"events came to the stream {stream} while the rows were loaded: they see the table "
            "as far as it was loaded then"
        )
    if loaded.sent.dead or overtaken:
        raise typer.Exit(exits.CHECK_FAILED)


def _overtaken(address: Address) -> list[str]:
    """The streams that have events, although none had when the load began."""
    streams = address.get("/v1/streams")["streams"]
    return [s["name"] for s in streams if s["table"] is None and any(s["ends"])]


def _sources(files: list[Path], form: str | None) -> list[Source]:
    from headrace.loading.files import FORMATS, format_of, size_of
    from headrace.loading.load import Source

    if form is not None and form not in FORMATS:
        raise SettingsError(f"there is no format {form!r}", hint=f"one of {', '.join(FORMATS)}")
    if len(set(files)) < len(files):
        raise SettingsError("a file is named twice", hint="name each file once")
    return [Source(file, format_of(file, form), size_of(file)) for file in files]


def _check_replace(sequence: object, files: list[Path]) -> None:
    from headrace.loading.files import STDIN

    if STDIN in files:
        raise SettingsError("--replace reads the rows twice", hint="name a file instead of -")
    if sequence:
        raise SettingsError(
            f"--replace cannot delete from a table with SEQUENCE BY: it does not know which "
            f"{sequence} a delete has",
            hint="add the deletes to the file, with their sequence and _op",
        )


def _check_initial(
    address: Address, target: Any, resumed: list[str], streams: list[dict[str, Any]]
) -> None:
    """A load that was interrupted may find its own rows, and no others."""
    from headrace.loading.target import require_before_all_events

    if resumed:
        page = address.get(f"/v1/streams/{target.name}/completeness", limit=500)
        present = {p["producer"]: sum(e["present"] for e in p["epochs"]) for p in page["producers"]}
        own = next(s for s in streams if s["name"] == target.name)
        if set(present) == set(resumed) and sum(own["ends"]) <= sum(present.values()):
            streams = [stream for stream in streams if stream is not own]
    require_before_all_events(target, streams)


@contextmanager
def _bar(sources: list[Source], visible: bool) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    sizes = [source.size for source in sources if source.size is not None]
    total = sum(sizes) if len(sizes) == len(sources) else None
    columns = (BarColumn(), TextColumn("{task.fields[rows]:,} rows"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not visible) as bar:
        task = bar.add_task("rows", total=total, rows=0)
        yield lambda read, rows: bar.update(task, completed=read, rows=rows)


def _report(table: str, loaded: Loaded, seconds: float, *, as_json: bool) -> None:
    sent = loaded.sent
    if as_json:
        print_json(
            {
                "table": table,
                "rows": sent.rows,
                "dead": sent.dead,
                "skipped": loaded.skipped,
                "deleted": loaded.deleted,
                "seconds": round(seconds, 3),
                "rows_per_second": round(sent.rows / seconds),
            }
        )
        return
    print(f"{table}: {sent.rows:,} rows durable in {seconds:.1f} s ({sent.rows / seconds:,.0f}/s)")
    if loaded.skipped:
        print(f"  {loaded.skipped:,} rows before them were durable already")
    if loaded.deleted:
        print(f"  {loaded.deleted:,} rows that the files lack were deleted")
    if sent.dead:
        print(f"  {sent.dead:,} rows are dead letters, the first of them: {sent.reasons[0]}")
        print(f"  headrace deadletters list --stream {table} shows them")
