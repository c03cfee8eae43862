"""Tables as streams look them up: their columns beside the event's, and names that follow from what
is looked up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.model.definitions import LOOKUP, Column, Lookup, Project, Stream, Table, View
from headrace.model.types import DataType

__all__ = ["KnownTable", "known_table", "looked_up_columns", "make_lookup", "with_columns"]

NAME_DIGITS = 12  # of a digest: more look-ups than a project could have without two being alike


@dataclass(frozen=True)
class KnownTable:
    """A table, and the stream of its changes."""

    view: View
    changes: Stream

    @property
    def table(self) -> Table:
        assert self.view.table is not None
        return self.view.table

    @property
    def columns(self) -> tuple[Column, ...]:
        found = [self.changes.column(output.name) for output in self.view.outputs]
        return tuple(column for column in found if column is not None)

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)

    def columns_of(self, lookup: Lookup) -> tuple[Column, ...]:
        """What the look-up adds to an event: whether a row was found, then the row."""
        found = Column(lookup.found, DataType("BOOLEAN"), nullable=False)
        return (found, *(Column(lookup.column(c.name), c.type) for c in self.columns))


def known_table(project: Project, name: str) -> KnownTable:
    view = project.view(name)
    assert view is not None, "the compiler saw to it"
    changes = project.stream(view.source)
    assert changes is not None, "the compiler saw to it"
    return KnownTable(view, changes)


def make_lookup(table: str, keys: Sequence[tuple[str, str]], as_of: str | None) -> Lookup:
    """The texts mention other look-ups by their names, so the name covers what these look up."""
    said = json.dumps([table, keys, as_of])
    digest = hashlib.sha256(said.encode()).hexdigest()[:NAME_DIGITS]
    return Lookup(f"{LOOKUP}{digest}", table, tuple(keys), as_of)


def with_columns(stream: Stream, columns: Iterable[Column]) -> Stream:
    """The stream with these columns, those aside that it has."""
    added = [column for column in columns if stream.column(column.name) is None]
    return replace(stream, columns=(*stream.columns, *added))


def looked_up_columns(project: Project, views: Iterable[View]) -> tuple[Column, ...]:
    """What the look-ups of these views can add to an event, each column once."""
    lookups = {join.lookup.name: join.lookup for view in views for join in view.joins}
    return tuple(
        column
        for lookup in lookups.values()
        for column in known_table(project, lookup.table).columns_of(lookup)
    )
