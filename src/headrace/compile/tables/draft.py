"""A table as written, before it is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import expressions as exp

from headrace.compile.faults import SourceText
from headrace.compile.streams.draft import Named, Within, WrittenColumn
from headrace.model.errors import Location

__all__ = ["TableDraft"]


@dataclass
class TableDraft:
    """With `source`, the stream that its changes come from, a table has no columns of its own, but
    the stream's without those in `left_out`. `text` is the file of a table in SQL. None means: not
    said."""

    name: str
    location: Location
    columns: list[WrittenColumn] = field(default_factory=list)
    source: Named | None = None
    key: list[Named] = field(default_factory=list)
    sequence: Named | None = None
    delete_when: exp.Expr | None = None
    left_out: list[Named] = field(default_factory=list)
    tombstones: Within | None = None
    history: Location | None = None
    valid_from: Named | None = None
    history_for: Within | None = None
    partitions: int = 1
    partitions_location: Location | None = None
    text: SourceText | None = None
