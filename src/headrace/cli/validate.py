"""`headrace validate`: every fault of a project at once, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli import exits
from headrace.cli.options import AsJson, ProjectFolder
from headrace.cli.output import print_json, print_table, say
from headrace.cli.project import read_definitions, read_settings
from headrace.model.errors import DefinitionError, DefinitionErrors

if TYPE_CHECKING:
    from headrace.model.definitions import Project, Stream, Table, View

__all__ = ["command", "print_faults"]


def command(project: ProjectFolder = None, as_json: AsJson = False) -> None:
    """Check the definitions. Every fault at once, with file, line, column and hint; no Java."""
    settings = read_settings(project)
    try:
        definitions = read_definitions(settings)
    except DefinitionErrors as faults:
        if as_json:
            print_json({"ok": False, "faults": [_fault(error) for error in faults.errors]})
        else:
            print_faults(faults, settings.directory)
        raise typer.Exit(exits.CHECK_FAILED) from None
    if as_json:
        print_json({"ok": True, "faults": [], **_described(definitions)})
        return
    streams, tables, views = _sorted_out(definitions)
    rows = [("stream", s.name, f"{len(s.columns)} columns") for s in streams]
    for name, table, source in tables:
        of = "posted" if source.changelog is not None else f"from {source.name}"
        rows.append(("table", name, f"{of}, key {', '.join(table.key)}"))
    for view in views:
        joins = "".join(f", joins {name}" for name in _joined(view))
        rows.append(("view", view.name, f"from {view.source}{joins}"))
    print_table(("kind", "name", "what"), rows)
    print("no faults")


def _joined(view: View) -> list[str]:
    """Each table once, in the order of FROM."""
    return list(dict.fromkeys(join.lookup.table for join in view.joins))


def _sorted_out(
    definitions: Project,
) -> tuple[list[Stream], list[tuple[str, Table, Stream]], list[View]]:
    """Each definition once: the stream of changes that are posted to a table is that table."""
    sources = {stream.name: stream for stream in definitions.streams}
    return (
        [stream for stream in definitions.streams if stream.changelog is None],
        [(v.name, v.table, sources[v.source]) for v in definitions.views if v.table is not None],
        [view for view in definitions.views if view.table is None],
    )


def _described(definitions: Project) -> dict[str, Any]:
    streams, tables, views = _sorted_out(definitions)
    return {
        "streams": [
            {"name": s.name, "columns": _columns(s), "partitions": s.partitions} for s in streams
        ],
        "tables": [
            {
                "name": name,
                "source": source.name if source.changelog is None else None,
                "key": list(table.key),
            }
            for name, table, source in tables
        ],
        "views": [
            {
                "name": view.name,
                "source": view.source,
                "joins": _joined(view),
            }
            for view in views
        ],
    }


def _columns(stream: Stream) -> list[dict[str, Any]]:
    return [{"name": c.name, "type": str(c.type), "nullable": c.nullable} for c in stream.columns]


def _fault(error: DefinitionError) -> dict[str, Any]:
    where = error.location
    return {
        "file": where.file if where else None,
        "line": where.line if where else None,
        "column": where.column if where else None,
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
    }


def print_faults(faults: DefinitionErrors, directory: Path) -> None:
    """To stderr, each with the line it is about where the file can be read."""
    for error in faults.errors:
        say(str(error))
        excerpt = _excerpt(error, directory)
        if excerpt:
            say(excerpt)
    say(f"error: {faults.message}")


def _excerpt(error: DefinitionError, directory: Path) -> str:
    if error.location is None:
        return ""
    try:
        lines = (directory / error.location.file).read_text(encoding="utf-8").splitlines()
        line = lines[error.location.line - 1]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""
    return f"    {line}\n    {' ' * (error.location.column - 1)}^"
