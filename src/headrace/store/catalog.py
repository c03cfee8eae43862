"""What the store knows of each view: how it is read, how far it came, and where its state is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table
from headrace.kinds.contract import Kind
from headrace.kinds.table import totals_of
from headrace.model.errors import QueryError
from headrace.model.plan import BoundView
from headrace.model.tables import VIEW, TableDelta
from headrace.model.types import parse_type
from headrace.store.backend import SCHEMA
from headrace.store.books import (
    CATALOG,
    PROGRESS_BOOK,
    decode_offsets,
    encode_offsets,
    gone,
    rows_of,
)
from headrace.store.contract import CatalogEntry, Counts, ViewStatus

__all__ = [
    "StoredView",
    "catalog_delta",
    "find_view",
    "new_view",
    "progress_delta",
    "read_catalog",
    "readable_view",
]

_COUNTS = tuple(count.name for count in fields(Counts))


@dataclass(frozen=True)
class StoredView:
    """A row of the catalog and one of progress. `columns` are the public (name, Spark type);
    `rows_sql`, a SELECT in parentheses, gives them and then the keys that tell rows apart, named
    `hidden`. `tables` are those of the view's kind, which the views of one `shape` share. `rows`
    are as many as readers see. `formers` are the (number, shape) of the views whose place it took
    and whose changes its own continue, `feed_from` is the first tick from which it can be
    followed."""

    number: int
    entry: CatalogEntry
    columns: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    rows_sql: str
    shape: str
    tables: tuple[str, ...]
    created_tick: int
    progress_tick: int
    rows: int
    formers: tuple[tuple[int, str], ...] = ()
    feed_from: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Under which its changes and ticks are recorded."""
        return (self.number, *(number for number, _ in self.formers))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset((self.shape, *(shape for _, shape in self.formers)))

    @cached_property
    def public_schema(self) -> pa.Schema:
        return pa.schema([(name, parse_type(type_).arrow) for name, type_ in self.columns])

    def with_status(self, status: ViewStatus) -> StoredView:
        return replace(self, entry=replace(self.entry, status=status))


def new_view(
    number: int, view: BoundView, kind: Kind, start_offsets: Mapping[int, int], tick: int, rows: int
) -> StoredView:
    names = public_names(view, kind)
    hidden = tuple(f"{_unused(names)}{index}" for index in range(len(kind.key)))
    return StoredView(
        number,
        CatalogEntry(
            view.name,
            view.plan.stream,
            view.plan.fingerprint,
            view.plan.sql,
            ViewStatus("catching_up"),
            dict(start_offsets),
            None,
            Counts(),
            dict(start_offsets),
            view.plan.table is not None,
        ),
        tuple((name, c.type.name) for name, c in zip(names, kind.public, strict=True)),
        hidden,
        f"({kind.keyed_select_sql(number, names, hidden)})",
        kind.shape,
        tuple(table.name for table in kind.tables),
        tick,
        0,
        rows,
    )


def public_names(view: BoundView, kind: Kind) -> list[str]:
    """The finals as users call them, then what a window adds."""
    finals = [column.name for column, _ in view.finals]
    return [*finals, *(column.name for column in kind.public[len(finals) :])]


def _unused(names: Sequence[str]) -> str:
    prefix = "_key"
    while any(name.lower().startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


def find_view(views: Mapping[str, StoredView], name: str) -> StoredView:
    """By its name, case aside if need be. Raises QueryError."""
    if name in views:
        return views[name]
    for stored in views.values():
        if stored.entry.view.lower() == name.lower():
            return stored
    raise QueryError(
        f"there is no view {name!r}",
        hint=f"views are {', '.join(sorted(views)) or 'none yet'}",
        status=404,
    )


def readable_view(views: Mapping[str, StoredView], name: str) -> StoredView:
    """As `find_view`. Raises QueryError also for a view that is closed."""
    stored = find_view(views, name)
    status = stored.entry.status
    if status.is_closed:
        raise QueryError(
            f"view {stored.entry.view} cannot be read: {status.detail}",
            hint="headrace status says which views are live",
            status=409,
        )
    return stored


def catalog_delta(stored: StoredView) -> TableDelta:
    """The view's row, new or in the place of the one that is there."""
    entry = stored.entry
    row = {
        "number": stored.number,
        "view": entry.view,
        "stream": entry.stream,
        "fingerprint": entry.fingerprint,
        "sql": entry.sql,
        "columns": json.dumps(stored.columns),
        "hidden": json.dumps(stored.hidden),
        "rows_sql": stored.rows_sql,
        "shape": stored.shape,
        "tables": json.dumps(stored.tables),
        "state": entry.status.state,
        "detail": entry.status.detail,
        "created_tick": stored.created_tick,
        "start_offsets": encode_offsets(entry.start_offsets),
        "formers": json.dumps(stored.formers),
        "feed_from": stored.feed_from,
    }
    return TableDelta(
        CATALOG.name,
        gone(CATALOG, number=[stored.number]),
        rows_of(CATALOG, {name: [value] for name, value in row.items()}),
    )


def progress_delta(views: Sequence[StoredView]) -> TableDelta:
    """Likewise the rows that say how far the views are. Views that move together have the same
    offsets, mostly: these are written as text once."""
    numbers = [view.number for view in views]
    texts: dict[tuple[tuple[int, int], ...], str] = {}
    offsets = []
    for view in views:
        key = tuple(view.entry.next_offsets.items())
        if key not in texts:
            texts[key] = encode_offsets(view.entry.next_offsets)
        offsets.append(texts[key])
    rows = {
        VIEW: numbers,
        "watermark": [view.entry.watermark_microseconds for view in views],
        "tick": [view.progress_tick for view in views],
        "offsets": offsets,
        "rows": [view.rows for view in views],
        **{name: [getattr(v.entry.totals, name) for v in views] for name in _COUNTS},
    }
    return TableDelta(
        PROGRESS_BOOK.name,
        gone(PROGRESS_BOOK, **{VIEW: numbers}),
        rows_of(PROGRESS_BOOK, rows),
        are_keys_new=True,
    )


def read_catalog(connection: duckdb.DuckDBPyConnection) -> dict[str, StoredView]:
    """All views by name, in the order in which they were made."""
    sql = (
        f"SELECT c.*, p.* EXCLUDE ({VIEW}) FROM {SCHEMA}.{CATALOG.name} c"
        f" JOIN {SCHEMA}.{PROGRESS_BOOK.name} p ON p.{VIEW} = c.number ORDER BY c.number"
    )
    return {view.entry.view: view for view in _views(arrow_table(connection, sql).to_pylist())}


def _views(rows: Iterable[Mapping[str, object]]) -> Iterable[StoredView]:
    for row in rows:
        given = dict(row)

        def text(name: str, given: Mapping[str, object] = given) -> str:
            return str(given[name])

        def number(name: str, given: Mapping[str, object] = given) -> int:
            return int(str(given[name]))

        entry = CatalogEntry(
            text("view"),
            text("stream"),
            text("fingerprint"),
            text("sql"),
            ViewStatus(text("state"), text("detail")),
            decode_offsets(text("offsets")),
            None if given["watermark"] is None else number("watermark"),
            Counts(*(number(name) for name in _COUNTS)),
            decode_offsets(text("start_offsets")),
            totals_of(text("shape")) in json.loads(text("tables")),
        )
        yield StoredView(
            number("number"),
            entry,
            tuple((name, type_) for name, type_ in json.loads(text("columns"))),
            tuple(json.loads(text("hidden"))),
            text("rows_sql"),
            text("shape"),
            tuple(json.loads(text("tables"))),
            number("created_tick"),
            number("tick"),
            number("rows"),
            tuple((former, shape) for former, shape in json.loads(text("formers"))),
            number("feed_from"),
        )
