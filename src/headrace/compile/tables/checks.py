"""A table as written → the stream of its changes, if they are posted, and the view that folds them,
with every fault of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import expressions as exp

from headrace.compile.draft import ViewDraft
from headrace.compile.faults import Faults, place_all
from headrace.compile.known_types import known_type
from headrace.compile.passes import run_passes
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.compile.streams.checks import check_columns, check_name, check_partitions
from headrace.compile.streams.draft import UNKNOWN, Within, choose_columns
from headrace.compile.tables.draft import TableDraft
from headrace.model.definitions import (
    DAY,
    OPERATION,
    Changelog,
    Column,
    History,
    Output,
    Retention,
    RetentionAction,
    Stream,
    Table,
    View,
)
from headrace.model.types import DataType

__all__ = ["check_table"]

_ROUNDED = ("FLOAT", "DOUBLE")


def check_table(
    draft: TableDraft,
    streams: Mapping[str, Stream],
    view_names: frozenset[str],
    table_names: frozenset[str],
    faults: Faults,
) -> tuple[Stream | None, View] | None:
    """None when a fault was found in it. Names are in lower case."""
    before = len(faults.errors)
    check_name(draft.name, "table", draft.location, faults)
    found: tuple[Stream | None, View] | None
    if draft.source is None:
        found = _posted(draft, faults)
    else:
        found = _from_stream(draft, streams, view_names, table_names, faults)
    return found if len(faults.errors) == before else None


def _posted(draft: TableDraft, faults: Faults) -> tuple[Stream, View]:
    what = f"table {draft.name}"
    columns = check_columns(what, draft.columns, draft.location, faults)
    by_name = {column.name.lower(): column for column in columns}
    table = _table(draft, "PRIMARY KEY", by_name, faults)
    place = draft.partitions_location or draft.location
    check_partitions(what, draft.partitions, place, faults)
    changes = [replace(column, nullable=column.name not in table.key) for column in columns]
    stream = Stream(
        name=draft.name,
        columns=(Column(OPERATION, DataType("STRING"), location=draft.location), *changes),
        partition_by=table.key,
        partitions=draft.partitions,
        retention=Retention(action=RetentionAction.COMPACT),
        changelog=Changelog(
            key=table.key,
            required=tuple(c.name for c in columns if not c.nullable or c.name in table.key),
            sequence=table.sequence,
            valid_from=table.history.valid_from if table.history is not None else None,
        ),
        location=draft.location,
    )
    deletes = canonical(parse_expression(f"{OPERATION} = 'delete'"))
    return stream, _view(draft, stream, columns, None, replace(table, delete_when=deletes))


def _from_stream(
    draft: TableDraft,
    streams: Mapping[str, Stream],
    view_names: frozenset[str],
    table_names: frozenset[str],
    faults: Faults,
) -> tuple[None, View] | None:
    changes = _changes(draft, streams, view_names, table_names, faults)
    if changes.stream is None:
        return None
    stream = changes.stream
    what = f"table {draft.name}: "
    by_name = {column.name.lower(): column for column in stream.columns}
    table = _table(draft, "KEY", by_name, faults)
    left_out = choose_columns(
        f"{what}COLUMNS * EXCEPT", draft.left_out, by_name, faults, of_any_type=True
    )
    for name, place in draft.left_out:
        if any(name.lower() == key.lower() for key in table.key):
            faults.add(
                f"{what}COLUMNS * EXCEPT leaves out {name}, which is of the key",
                "take it out of EXCEPT: a table's row has its key",
                place,
            )
    _check_order(draft, stream, table, faults)
    if changes.where is not None:
        table = replace(table, delete_when=canonical(changes.where))
    nullable = [name for name in table.key if by_name[name.lower()].nullable]
    condition = " AND ".join(f"{canonical(identifier(name))} IS NOT NULL" for name in nullable)
    columns = [column for column in stream.columns if column.name not in left_out]
    return None, _view(draft, stream, columns, condition or None, table)


def _changes(
    draft: TableDraft,
    streams: Mapping[str, Stream],
    view_names: frozenset[str],
    table_names: frozenset[str],
    faults: Faults,
) -> ViewDraft:
    """The source found and the condition of deletes resolved, by the passes of views."""
    assert draft.source is not None
    name, place = draft.source
    source = exp.Table(this=identifier(name))
    query = exp.Select(expressions=[exp.Star()])
    query.set("from_", exp.From(this=source))
    place_all(query, place)
    if draft.delete_when is not None:
        query.set("where", exp.Where(this=draft.delete_when))
    changes = ViewDraft(
        draft.name,
        draft.location,
        query,
        streams,
        view_names,
        table_names,
        faults,
        draft.text,
        kind="table",
    )
    run_passes(changes)
    if changes.where is not None:
        of_type = known_type(changes.where, changes.source)
        if of_type is not None and of_type.name != "BOOLEAN":
            changes.fault(
                changes.where,
                f"APPLY AS DELETE WHEN {canonical(changes.where)}, which is {of_type}",
                "a condition, as in APPLY AS DELETE WHEN op = 'd'",
            )
    return changes


def _table(draft: TableDraft, word: str, by_name: Mapping[str, Column], faults: Faults) -> Table:
    """All but the condition of deletes. `by_name` are the columns of the changes."""
    what = f"table {draft.name}: "
    key = choose_columns(f"{what}{word}", draft.key, by_name, faults)
    if not draft.key:
        faults.add(
            f"{what}it has no key",
            f"say which columns tell its rows apart: {word} (column, …)"
            + ("" if draft.source is not None else " among the columns"),
            draft.location,
        )
    for name, place in draft.key:
        column = by_name.get(name.lower())
        if column is not None and column.type.name in _ROUNDED:
            faults.add(
                f"{what}{word} column {column.name} is {column.type}, which is rounded",
                "tell rows apart by text, whole numbers, decimals or times",
                place,
            )
    ordered_by = [draft.sequence] if draft.sequence is not None else []
    sequence = choose_columns(f"{what}SEQUENCE BY", ordered_by, by_name, faults)
    for name, (_, place) in zip(sequence, ordered_by, strict=False):
        if name in key:
            faults.add(
                f"{what}SEQUENCE BY {name}, which is of the key: it never grows",
                "name a column that grows with each change, as a version or a time",
                place,
            )
    if draft.tombstones is not None and not ordered_by:
        faults.add(
            f"{what}TOMBSTONES without SEQUENCE BY",
            "leave it out: changes apply in the order in which they came, so none is too old",
            draft.tombstones[1],
        )
    tombstones = _some_time(f"{what}TOMBSTONES FOR", draft.tombstones, faults)
    return Table(
        key=key,
        sequence=sequence[0] if sequence else None,
        tombstones_microseconds=tombstones or 7 * DAY,
        history=_history(draft, by_name, faults),
    )


def _history(draft: TableDraft, by_name: Mapping[str, Column], faults: Faults) -> History | None:
    if draft.history is None:
        return None
    what = f"table {draft.name}: WITH HISTORY"
    valid_from = [draft.valid_from] if draft.valid_from is not None else []
    chosen = choose_columns(f"{what} VALID FROM", valid_from, by_name, faults, of_any_type=True)
    for name, (_, place) in zip(chosen, valid_from, strict=False):
        of_type = by_name[name.lower()].type
        if of_type not in (DataType("TIMESTAMP"), UNKNOWN):
            hint = f"declare it as {name} TIMESTAMP"
            faults.add(f"{what} VALID FROM column {name} is {of_type}", hint, place)
    bound = _some_time(f"{what} FOR", draft.history_for, faults)
    return History(chosen[0] if chosen else None, bound)


def _some_time(what: str, said: Within | None, faults: Faults) -> int | None:
    if said is None:
        return None
    if said[0] == 0:
        faults.add(f"{what} no time at all", "a length of time above 0", said[1])
    return said[0]


def _check_order(draft: TableDraft, stream: Stream, table: Table, faults: Faults) -> None:
    """Changes of one key have an order if they are in one partition, or say it themselves."""
    if stream.partitions == 1 or draft.sequence is not None or not table.key:
        return
    keys = {name.lower() for name in table.key}
    if stream.partition_by and all(name.lower() in keys for name in stream.partition_by):
        return
    faults.add(
        f"table {draft.name}: two changes of one key have no order: stream {stream.name} has "
        f"{stream.partitions} partitions and may have them in different ones",
        "say SEQUENCE BY column, which orders changes, or in CREATE STREAM "
        f"{stream.name} PARTITION BY ({', '.join(table.key)})",
        draft.source[1] if draft.source is not None else draft.location,
    )


def _view(
    draft: TableDraft,
    stream: Stream,
    columns: list[Column],
    condition: str | None,
    table: Table,
) -> View:
    return View(
        name=draft.name,
        source=stream.name,
        outputs=tuple(
            Output(column.name, canonical(identifier(column.name)), column.location)
            for column in columns
        ),
        where=canonical(parse_expression(condition)) if condition is not None else None,
        table=table,
        location=draft.location,
    )
