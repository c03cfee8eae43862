"""A folder of definitions → Project, with every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import Faults, SourceText
from headrace.compile.lookups import KnownTable
from headrace.compile.passes import run_passes
from headrace.compile.python.definitions import run_definitions, run_python
from headrace.compile.sql.dialect import canonical
from headrace.compile.sql.statements import Statements, ViewStatement, read_statements
from headrace.compile.streams.checks import check_name, check_stream, known_part
from headrace.compile.tables.checks import check_table
from headrace.model.definitions import Output, Project, Stream, View
from headrace.model.errors import DefinitionErrors, Location
from headrace.model.settings import load_settings

__all__ = ["define_project", "load_project", "parse_sql"]


def load_project(directory: Path, name: str | None = None) -> Project:
    """All `*.sql` and `*.py` files in the folder and in its `definitions/`, in the order of their
    names. Without `name`, headrace.toml says it.

    Raises DefinitionErrors with every fault of every file; SettingsError for headrace.toml.
    """
    faults = Faults()
    statements = Statements()
    for file in _files(directory):
        shown = str(file.relative_to(directory))
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            faults.add("the file is not UTF-8 text", "save it as UTF-8", Location(shown, 1, 1))
            continue
        source = SourceText(shown, text)
        if file.suffix == ".sql":
            read_statements(source, statements, faults)
        else:
            run_python(source, file, statements, faults)
    project = _resolve(name or load_settings(directory).name, statements, faults)
    if faults.errors:
        raise DefinitionErrors(faults.errors)
    return project


def _files(directory: Path) -> list[Path]:
    folders = [directory, directory / "definitions"]
    return [
        file
        for folder in folders
        for file in sorted(folder.glob("*"))
        if file.suffix in (".sql", ".py") and file.is_file()
    ]


def parse_sql(text: str, file: str = "<sql>") -> Project:
    """The definitions of one text. Raises DefinitionErrors with every fault."""
    faults = Faults()
    statements = Statements()
    read_statements(SourceText(file, text), statements, faults)
    project = _resolve("", statements, faults)
    if faults.errors:
        raise DefinitionErrors(faults.errors)
    return project


def define_project(define: Callable[[], object]) -> Project:
    """The definitions that a Python function makes with `headrace.stream(...)` and
    `headrace.table(...)`. Raises DefinitionErrors with every fault, and what the function
    raises."""
    faults = Faults()
    statements = Statements()
    run_definitions(define, statements, faults)
    project = _resolve("", statements, faults)
    if faults.errors:
        raise DefinitionErrors(faults.errors)
    return project


def _resolve(name: str, statements: Statements, faults: Faults) -> Project:
    _check_unique(statements, faults)
    streams: dict[str, Stream] = {}
    for draft in statements.streams:
        stream = check_stream(draft, faults) or known_part(draft)
        streams.setdefault(draft.name.lower(), stream)
    view_names = frozenset(view.name.lower() for view in statements.views)
    table_names = frozenset(table.name.lower() for table in statements.tables) - streams.keys()
    unreadable = statements.unreadable - streams.keys() - table_names
    changelogs: list[Stream] = []
    views: list[View] = []
    known: dict[str, KnownTable] = {}
    for table in statements.tables:
        if table.source is not None and table.source[0].lower() in unreadable:
            continue  # its stream's fault is said already
        found = check_table(table, streams, view_names, table_names, faults)
        if found is not None:
            changelogs += [found[0]] if found[0] is not None else []
            views.append(found[1])
            changes = found[0] or streams[found[1].source.lower()]
            known[table.name.lower()] = KnownTable(found[1], changes)
    for statement in statements.views:
        check_name(statement.name, "view", statement.location, faults)
        sources = {table.name.lower() for table in statement.query.find_all(exp.Table)}
        if not sources.isdisjoint(unreadable):
            continue  # likewise
        view = _view(statement, streams, view_names, table_names, known, faults)
        views += [view] if view is not None else []
    return Project(
        name=name,
        streams=tuple(sorted((*streams.values(), *changelogs), key=lambda stream: stream.name)),
        views=tuple(sorted(views, key=lambda view: view.name)),
    )


def _check_unique(statements: Statements, faults: Faults) -> None:
    first: dict[str, tuple[str, Location]] = {}
    every = [("stream", stream.name, stream.location) for stream in statements.streams]
    every += [("table", table.name, table.location) for table in statements.tables]
    every += [("view", view.name, view.location) for view in statements.views]
    for kind, name, location in every:
        if name.lower() in first:
            earlier_kind, earlier = first[name.lower()]
            faults.add(
                f"{kind} {name}: the name is taken by the {earlier_kind} at {earlier}",
                "names are unique over streams, tables and views together; case does not count",
                location,
            )
        else:
            first[name.lower()] = (kind, location)
    posted = [table for table in statements.tables if table.source is None]
    kept = {
        f"{one.name}_late".lower(): f"{kind} {one.name}"
        for kind, many in (("stream", statements.streams), ("table", posted))
        for one in many
    }
    for kind, name, location in every:
        if kind != "stream" and name.lower() in kept:
            faults.add(
                f"{kind} {name}: the name is kept for late events of {kept[name.lower()]}",
                "give it another name",
                location,
            )


def _view(
    statement: ViewStatement,
    streams: dict[str, Stream],
    view_names: frozenset[str],
    table_names: frozenset[str],
    tables: Mapping[str, KnownTable],
    faults: Faults,
) -> View | None:
    draft = ViewDraft(
        statement.name,
        statement.location,
        statement.query,
        streams,
        view_names,
        table_names,
        faults,
        statement.text,
        tables=tables,
        emits_on_close=statement.emits_on_close,
    )
    before = len(faults.errors)
    run_passes(draft)
    if draft.is_broken or len(faults.errors) > before:
        return None
    refuse_clauses(draft)
    return View(
        name=draft.name,
        source=draft.source.name,
        outputs=tuple(
            Output(name, canonical(node), location) for name, node, location in draft.outputs
        ),
        where=canonical(draft.where) if draft.where is not None else None,
        keys=tuple(canonical(key) for key in draft.keys),
        having=canonical(draft.having) if draft.having is not None else None,
        emits_on_close=draft.emits_on_close is not None,
        joins=tuple(join.made() for join in draft.joins),
        location=draft.location,
    )


def refuse_clauses(draft: ViewDraft) -> None:
    """What the engine does not do yet is checked, and refused then."""
    for join in draft.joins:
        if join.clauses.wait is not None:
            draft.fault(
                join.node.this,
                "WAIT UP TO is not run by this version yet",
                f"JOIN {join.known.view.name} without it: an event that finds no row is filtered, "
                "or with ELSE DEAD LETTER a dead letter",
            )
