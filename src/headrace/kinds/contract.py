"""The contract of a kind: one way in which a view keeps its state.

A kind does no input or output. It declares its tables, and its merge is a generator: it yields
lists of fetches, is sent a table for each, and returns how its tables change and what readers see
of it. Views of one shape have one kind and share its tables, told apart by the column VIEW; one
merge serves all of them that a tick moves.

Why stacked: the cost of a merge is the number of its statements, not of its rows; with forty views
of one shape, one merge costs a ninth of forty.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.model.plan import BoundColumn
from headrace.model.tables import Fetch, TableDefinition, TableDelta

__all__ = [
    "AFTER",
    "BEFORE",
    "BOUND",
    "FINAL",
    "PARTITION",
    "PROGRESS",
    "SINCE",
    "TICK",
    "Changes",
    "Delta",
    "Kind",
    "KindInput",
    "Steps",
]

BEFORE = "_before"  # BIGINT, the view's watermark in microseconds before the tick; NULL: none yet
AFTER = "_after"  # BIGINT, likewise after it
PARTITION = "_partition"  # INT
BOUND = "_bound"  # BIGINT, no event to come is applied to a window that has ended by then
SINCE = "_since"  # BIGINT, the lowest position that look-ups of a table may still ask for
FINAL = "final"
TICK = "_tick"  # BIGINT, where a kind's rows are its change feed: the tick that added the row
# The store's table with a row for each view: VIEW, and `watermark` BIGINT. What a kind shows of
# finality it derives from there, in the reader's snapshot.
PROGRESS = "progress"

Steps = Generator[Sequence[Fetch], Sequence[pa.Table], "Delta"]


@dataclass(frozen=True)
class KindInput:
    """What a tick brings to the views of one shape. The first column of every table is VIEW.

    `views` has a row for each view that the tick moves, also where it brings no events: VIEW,
    BEFORE, AFTER. `partials` has the columns that BoundView describes; `values`, for each distinct
    of the plan, the keys, then PANE, LATE and REJECTED_WINDOWS if windowed, then `value` (rows may
    be equal). `bounds` has VIEW, PARTITION and BOUND for the partitions that can say one;
    `everywhere` has VIEW and BOUND for the views all of whose partitions can, with the lowest. A
    kind may let expired rows go in this tick or a later one; `tick` helps views to take turns.
    `since` has VIEW and SINCE for the tables that are looked up as of positions."""

    tick: int
    views: pa.Table
    partials: pa.Table
    values: tuple[pa.Table, ...]
    bounds: pa.Table
    everywhere: pa.Table
    since: pa.Table


@dataclass(frozen=True)
class Changes:
    """The public rows that a tick changed, paired: row i of each part is about one row of a view.

    `views` numbers the view, `key` has the kind's key columns. `before` and `after` have the public
    columns by the kind's names for them (`Kind.public`), FINAL among them; where the row was not
    shown before, or is not after, the mask says so and the values there mean nothing."""

    views: pa.Array
    key: pa.Table
    before: pa.Table
    after: pa.Table
    was_shown: pa.Array
    is_shown: pa.Array

    @property
    def num_rows(self) -> int:
        return len(self.views)

    def filter(self, mask: pa.Array) -> Changes:
        parts = (self.views, self.key, self.before, self.after, self.was_shown, self.is_shown)
        return Changes(*(part.filter(mask) for part in parts))


@dataclass(frozen=True)
class Delta:
    """`changes` None: nothing that readers see is different."""

    deltas: tuple[TableDelta, ...]
    changes: Changes | None


class Kind(Protocol):
    @property
    def shape(self) -> str:
        """Equal for two views exactly where one kind serves both: types, expressions and window
        are the same, only names may differ. Short, of lower-case letters, digits and underscores;
        part of the tables' names."""

    @property
    def tables(self) -> tuple[TableDefinition, ...]:
        """The first holds the rows that readers see, and its key begins with VIEW."""

    @property
    def public(self) -> tuple[BoundColumn, ...]:
        """The public columns, in order, by the kind's own names: `f0`, `f1` … for the finals of the
        plan (whatever the user calls them), then `revision` and FINAL with a window."""

    @property
    def key(self) -> tuple[BoundColumn, ...]:
        """What tells the public rows of one view apart, in the order of paging: columns of the
        first table, without VIEW."""

    @property
    def feed_is_rows(self) -> bool:
        """Rows are only ever added, and the first table says in TICK which tick added them: it is
        the change feed itself, and `Changes` of such a kind need not be kept beside it."""

    def seed(self, view: int) -> Delta:
        """What a new view begins with: the single row of a view without GROUP BY, or nothing."""

    def merge(self, given: KindInput) -> Steps:
        """Raises duckdb.Error when the data of some view cannot be merged (a sum that overflows).
        A few fetch rounds, however many views and rows there are."""

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        """SELECT of the public rows of one view, its columns named so, in a snapshot."""

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        """The same, and after these the key columns, named so; where `feed_is_rows`, TICK after
        them: by it the store reads the changes of a tick."""
