"""The table whose rows readers see: its columns, its public view, and what a merge says of it.

    VIEW              which of the stacked views
    group             what tells the rows of a view apart: keys, window_start, …
    window_end, revision, ROWS, partials, counts of distinct values, and what the kind adds; the
                      first two only of views with a window
    f0, f1 …          the finals that must be computed; one that is a state column is that column
    PASSES            whether the row meets HAVING

A merge statement ends with `told_sql`: its rows, the stored row that each one replaces, and the
public columns before and after. `StateTable.delta` makes a delta of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import quoted, store_type
from headrace.kinds.contract import AFTER, BEFORE, FINAL, PROGRESS, Changes, Delta
from headrace.model.plan import ROWS, BoundColumn, BoundView
from headrace.model.tables import HIGH, LOW, ROW, SCHEMA, VIEW, Fetch, TableDefinition, TableDelta
from headrace.model.types import DataType

__all__ = [
    "BIGINT",
    "BOOLEAN",
    "EXPIRY_TICKS",
    "INT",
    "KEPT",
    "PASSED",
    "PASSES",
    "REVISION",
    "TIMESTAMP",
    "WAS_ENDS",
    "WINDOW_END",
    "WINDOW_START",
    "StateTable",
    "column_of",
    "is_turn",
    "shape_of",
    "text_of",
]

INT = DataType("INT")
BIGINT = DataType("BIGINT")
BOOLEAN = DataType("BOOLEAN")
TIMESTAMP = DataType("TIMESTAMP")
WINDOW_START = "window_start"
WINDOW_END = "window_end"
REVISION = "revision"
PASSES = "_passes"  # BOOLEAN, whether readers may see the row
PASSED = "_was_passed"  # BOOLEAN, in a merge: PASSES of the row before
KEPT = "_kept"  # BOOLEAN, in a merge: whether the row is stored; else it is no more
WAS_ENDS = "_was_ends"  # TIMESTAMP, in a merge: from when on the row was final before
EXPIRY_TICKS = 64  # so often a view forgets what nothing can change any more

_WAS_SHOWN, _IS_SHOWN = "_was_shown", "_is_shown"
_WAS_FINAL, _IS_FINAL = "_was_final", "_is_final"
_CHANGED = "_changed"


def is_turn(tick: int, view: int) -> bool:
    """Whether the view lets expired rows go in this tick: no tick does it for all."""
    return (tick + view) % EXPIRY_TICKS == 0


def shape_of(kind: str, view: BoundView) -> str:
    """See Kind.shape. What is Spark's alone (inputs, conditions of events) plays no part."""
    plan = view.plan
    combines = [(p.name, p.function, p.combine) for p in plan.partials]
    finals = [(column.type, sql) for column, sql in view.finals]
    parts = (view.keys, view.partials, combines, view.distincts, finals, view.having)
    told = repr((*parts, view.slidings, plan.window, plan.is_global, plan.emits_on_close))
    return f"{kind}_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def column_of(columns: Sequence[BoundColumn], final: BoundColumn, sql: str) -> BoundColumn | None:
    """The one of the columns that a final is, without being computed."""
    for column in columns:
        name = quoted(column.name)
        texts = (name, f"CAST({name} AS {store_type(column.type)})")
        if column.type == final.type and sql in texts:
            return column
    return None


def text_of(names: Sequence[str], prefix: str = "") -> str:
    """Columns as a list in SQL. For example, `k."k0", k."k1"`."""
    return ", ".join(f"{prefix}{quoted(name)}" for name in names)


@dataclass(frozen=True)
class StateTable:
    """`more` are the kind's own columns, `counts` the numbers of distinct values. `ends` is the
    column by which a row is final; `condition` must hold beside HAVING for a row to be shown."""

    name: str
    view: BoundView
    group: tuple[BoundColumn, ...]
    more: tuple[BoundColumn, ...] = ()
    ends: str = WINDOW_END
    condition: str | None = None

    @cached_property
    def counts(self) -> tuple[BoundColumn, ...]:
        return tuple(BoundColumn(distinct.name, BIGINT) for distinct in self.view.distincts)

    @cached_property
    def state(self) -> tuple[BoundColumn, ...]:
        """What a merge computes, VIEW apart; finals follow from it."""
        end = (BoundColumn(WINDOW_END, TIMESTAMP),) if self.is_windowed else ()
        own = (*end, *self._revision, BoundColumn(ROWS, BIGINT), *self.view.partials)
        return (*self.group, *own, *self.counts, *self.more)

    @property
    def is_windowed(self) -> bool:
        return self.view.plan.window is not None

    @property
    def _revision(self) -> tuple[BoundColumn, ...]:
        return (BoundColumn(REVISION, BIGINT),) if self.is_windowed else ()

    @cached_property
    def _finals(self) -> tuple[tuple[BoundColumn, str | None], ...]:
        """Each stored column with the SQL that computes it; None where it is a state column."""
        found: list[tuple[BoundColumn, str | None]] = []
        for index, (column, sql) in enumerate(self.view.finals):
            same = column_of(self.state, column, sql)
            computed = BoundColumn(f"f{index}", column.type)
            found.append((computed, sql) if same is None else (same, None))
        return tuple(found)

    @cached_property
    def shown(self) -> tuple[BoundColumn, ...]:
        """The stored columns that are public, in their order; FINAL is derived."""
        return (*(column for column, _ in self._finals), *self._revision)

    @cached_property
    def public(self) -> tuple[BoundColumn, ...]:
        finals = [
            BoundColumn(f"f{index}", column.type)
            for index, (column, _) in enumerate(self.view.finals)
        ]
        final = (BoundColumn(FINAL, BOOLEAN),) if self.is_windowed else ()
        return (*finals, *self._revision, *final)

    @cached_property
    def columns(self) -> tuple[BoundColumn, ...]:
        computed = [column for column, sql in self._finals if sql is not None]
        own = (BoundColumn(VIEW, INT), *self.state, *computed)
        return (*own, BoundColumn(PASSES, BOOLEAN))

    def definition(self, *indexes: tuple[str, ...]) -> TableDefinition:
        key = (VIEW, *(column.name for column in self.group))
        return TableDefinition(self.name, self.columns, key, indexes)

    @cached_property
    def fetched(self) -> pa.Schema:
        """Of stored rows, as a fetch of all columns gives them."""
        return pa.schema([*((c.name, c.type.arrow) for c in self.columns), (ROW, pa.int64())])

    # The merge

    @cached_property
    def was(self) -> tuple[str, ...]:
        """In a merge: the public columns before, without FINAL."""
        return tuple(f"_was{index}" for index in range(len(self.shown)))

    @property
    def was_stored(self) -> list[str]:
        """The same of a stored row, to be selected from it."""
        pairs = zip(self.shown, self.was, strict=True)
        return [f"{quoted(column.name)} AS {was}" for column, was in pairs]

    def told_sql(self, rows: str, views: str) -> str:
        """The end of a merge. `rows` is a relation with VIEW, the state columns, ROW (of the row
        that is replaced, or NULL), KEPT, the columns `was`, PASSED and, with a window, WAS_ENDS; of
        rows that are no more, only VIEW, the group and what was before count. `views` names the
        slot of KindInput.views."""
        state = text_of([VIEW, *(column.name for column in self.state)])
        computed = "".join(
            f", CAST(({sql}) AS {store_type(column.type)}) AS {quoted(column.name)}"
            for column, sql in self._finals
            if sql is not None
        )
        conditions = [f"coalesce(({self.view.having}), false)"] if self.view.having else []
        conditions += [f"({self.condition})"] if self.condition else []
        passes = f"{' AND '.join(conditions) or 'true'} AS {PASSES}"
        ends = [WAS_ENDS] if self.is_windowed else []
        before = ", ".join([ROW, KEPT, *self.was, PASSED, *ends])
        finished = f"SELECT {state}{computed}, {passes}, {before} FROM {rows}"
        timed = finished
        if self.is_windowed:
            timed = (
                f"SELECT r.*, "
                f"coalesce(epoch_us({WAS_ENDS}) <= w.{BEFORE}, false) AS {_WAS_FINAL}, "
                f"coalesce(epoch_us({self.ends}) <= w.{AFTER}, false) AS {_IS_FINAL} "
                f"FROM ({finished}) r JOIN {views} w ON w.{VIEW} = r.{VIEW}"
            )
        closes = self.view.plan.emits_on_close
        was, now = f"coalesce({PASSED}, false)", f"{KEPT} AND {PASSES}"
        flagged = (
            f"SELECT f.*, {was + f' AND {_WAS_FINAL}' if closes else was} AS {_WAS_SHOWN}, "
            f"{now + f' AND {_IS_FINAL}' if closes else now} AS {_IS_SHOWN} FROM ({timed}) f"
        )
        differs = [
            f"{quoted(column.name)} IS DISTINCT FROM {was}"
            for column, was in zip(self.shown, self.was, strict=True)
        ]
        if self.is_windowed:
            # A row becomes final without a change; one whose end moves may do so with it.
            differs.append(f"({WAS_ENDS} <> {self.ends} AND {_WAS_FINAL} <> {_IS_FINAL})")
        return (
            f"SELECT *, ({_WAS_SHOWN} OR {_IS_SHOWN}) AND ({_WAS_SHOWN} <> {_IS_SHOWN} "
            f"OR {' OR '.join(differs) or 'false'}) AS {_CHANGED} FROM ({flagged})"
        )

    def closing(self, views: pa.Table) -> Fetch | None:
        """Of a view that emits on close: the rows whose end a tick's watermark passes."""
        if not self.view.plan.emits_on_close:
            return None
        before, after = views.column(BEFORE), views.column(AFTER)
        moved = pc.fill_null(pc.greater(after, before), pc.is_valid(after))
        rows = views.filter(pc.and_(moved, pc.is_valid(after)))
        if rows.num_rows == 0:
            return None
        bounds = [rows.column(VIEW), pc.add(rows.column(BEFORE), 1), rows.column(AFTER)]
        named = pa.Table.from_arrays(bounds, names=[VIEW, LOW, HIGH])
        return Fetch(self.name, (VIEW,), named, time=self.ends)

    def delta(
        self,
        told: pa.Table | None,
        closed: pa.Table | None,
        *more: TableDelta,
        hidden: pa.ChunkedArray | None = None,
        known: pa.Table | None = None,
    ) -> Delta:
        """`told` is what a statement with `told_sql` gave; `closed` the rows of `closing`, of
        which those count that the tick did not touch; `hidden` the ROW of others that go, which
        nobody sees; `known` as TableDelta has it."""
        deltas: list[TableDelta] = list(more)
        changes: list[Changes] = []
        gone, put = hidden, None
        if told is not None and told.num_rows:
            replaced = told.column(ROW).drop_null()
            put = _filtered(told, told.column(KEPT)).select([c.name for c in self.columns])
            gone = replaced
            if hidden is not None:
                others = hidden.filter(pc.invert(pc.is_in(hidden, replaced)))
                gone = pa.chunked_array([*replaced.chunks, *others.chunks], pa.int64())
            changes.append(self._changes(_filtered(told, told.column(_CHANGED))))
            if closed is not None:
                closed = closed.filter(pc.invert(pc.is_in(closed.column(ROW), replaced)))
        if gone is not None and len(gone):
            rows = pa.Table.from_arrays([gone], names=[ROW])
            deltas.insert(0, TableDelta(self.name, rows, put, known=known))
        elif put is not None and put.num_rows:
            deltas.insert(0, TableDelta(self.name, None, put, known=known))
        if closed is not None:
            changes.append(self._closed(_filtered(closed, closed.column(PASSES))))
        return Delta(tuple(deltas), _joined([change for change in changes if change.num_rows]))

    def _changes(self, rows: pa.Table) -> Changes:
        names = [column.name for column in self.shown]
        was_final, is_final = ([_WAS_FINAL], [_IS_FINAL]) if self.is_windowed else ([], [])
        return Changes(
            rows.column(VIEW).combine_chunks(),
            rows.select([column.name for column in self.group]),
            self._public_rows(rows, [*self.was, *was_final]),
            self._public_rows(rows, [*names, *is_final]),
            rows.column(_WAS_SHOWN).combine_chunks(),
            rows.column(_IS_SHOWN).combine_chunks(),
        )

    def _closed(self, rows: pa.Table) -> Changes:
        """Shown for the first time, as final."""
        yes = pa.repeat(pa.scalar(True), rows.num_rows)
        rows = rows.append_column(_IS_FINAL, yes)
        names = [column.name for column in self.shown]
        shown = self._public_rows(rows, [*names, _IS_FINAL])
        group = rows.select([column.name for column in self.group])
        views = rows.column(VIEW).combine_chunks()
        return Changes(views, group, shown, shown, pc.invert(yes), yes)

    def _public_rows(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        schema = pa.schema([(column.name, column.type.arrow) for column in self.public])
        return pa.Table.from_arrays([rows.column(name) for name in names], schema=schema)

    # What readers see

    def select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str] = ()) -> str:
        """See Kind.select_sql and Kind.keyed_select_sql."""
        watermark = f"(SELECT watermark FROM {SCHEMA}.{PROGRESS} WHERE {VIEW} = {view})"
        final = f"coalesce(epoch_us({self.ends}) <= {watermark}, false)"
        columns = [*(quoted(column.name) for column in self.shown)]
        columns += [final] if self.is_windowed else []
        columns += [quoted(column.name) for column, _ in zip(self.group, hidden, strict=False)]
        named = ", ".join(
            f"{column} AS {quoted(name)}"
            for column, name in zip(columns, [*names, *hidden], strict=True)
        )
        where = f"{VIEW} = {view} AND {PASSES}"
        if self.view.plan.emits_on_close:
            where += f" AND {final}"
        return f"SELECT {named} FROM {SCHEMA}.{self.name} WHERE {where}"


def _filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Mostly every row stays, and then nothing is copied."""
    return rows if pc.all(mask, min_count=0).as_py() else rows.filter(mask)


def _joined(changes: Sequence[Changes]) -> Changes | None:
    if len(changes) < 2:
        return changes[0] if changes else None
    return Changes(
        pa.concat_arrays([c.views for c in changes]),
        pa.concat_tables([c.key for c in changes]),
        pa.concat_tables([c.before for c in changes]),
        pa.concat_tables([c.after for c in changes]),
        pa.concat_arrays([c.was_shown for c in changes]),
        pa.concat_arrays([c.is_shown for c in changes]),
    )
