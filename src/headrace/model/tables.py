"""Tables as a store's backend keeps them, what is asked of them, and how they change.

Everything that outlives a tick is rows of such tables: the state of views, and the store's own
books. Who keeps the rows (a DuckDB file, memory, soon a server) is a backend's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.model.plan import BoundColumn

__all__ = ["HIGH", "LOW", "ROW", "SCHEMA", "VIEW", "Fetch", "TableDefinition", "TableDelta"]

SCHEMA = "_headrace"  # where a snapshot has the tables; public views are in `main`
VIEW = "_view"  # INT, the first column of every table of a kind: which of the stacked views
# BIGINT, never negative, added to fetched rows: by it a delta of the next commit names the row.
ROW = "_row"
LOW = "_low"  # BIGINT, in a fetch's rows: the lowest time wanted; NULL for no bound
HIGH = "_high"  # BIGINT, likewise the highest


@dataclass(frozen=True)
class TableDefinition:
    """`key` tells every two rows apart, NULL being a value like any other. `indexes` are further
    sets of columns by which rows are fetched: a backend may prepare for them, and for the key. Rows
    that are `brief` go again soon: it is no use to work at keeping them small."""

    name: str
    columns: tuple[BoundColumn, ...]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    is_brief: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type.arrow) for column in self.columns])


@dataclass(frozen=True)
class Fetch:
    """The stored rows that are equal to one of `rows` in the columns `on` (NULL equals NULL), each
    once, however many of `rows` it meets. With `time`, a BIGINT or TIMESTAMP column, only those
    whose time in microseconds lies between the row's LOW and HIGH, both included; `rows` then have
    these two columns beside `on`. `on` may be empty: then the bounds alone decide.

    The answer has `columns` (None: all), then ROW, in no order. For example, the sessions that
    three events may belong to:

        Fetch("session_7a", (VIEW, "k0"), rows, time="window_end")
    """

    table: str
    on: tuple[str, ...]
    rows: pa.Table
    time: str | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TableDelta:
    """How one table changes: first the rows go that `gone` names, then those of `put` come, which
    have all columns of the table. `gone` has either the one column ROW, from fetches since the last
    commit, or some columns of the table: rows equal to one of its rows in these go.

    `are_keys_new`: whoever made the delta answers for it that the keys of `put` are no other row's,
    as where they hold an offset or a number that only grows. To look would cost as much as to put
    them, so a backend need not. `known` are rows fetched since the last commit, with the key and
    ROW, and he answers for it that no others have a key of `put`, as those of a stretch of time in
    which all of `put` lies: a backend need look at these alone."""

    table: str
    gone: pa.Table | None = None
    put: pa.Table | None = None
    are_keys_new: bool = False
    known: pa.Table | None = None
