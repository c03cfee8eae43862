"""Tables: of the changes of each key the newest one is the row.

    table_SHAPE            one row per key: the columns of the newest change that applied, its
                           sequence, position, partition and offset, and DELETED
    table_SHAPE_totals     VIEW, NEWEST, and what became of changes: `superseded`, `resurrected`
    table_SHAPE_versions   with a history: every change, by its partition and offset

The changes of a tick come in the one order of the log: position, partition, offset. A tick takes
what is next in that order, so how the log was cut into ticks makes no difference.

A key that is deleted leaves a tombstone: a row that is not shown, with the time of the delete in
DELETED. A change whose sequence is not above that of the key's newest change is superseded. But a
tombstone counts only for a time, the plan's `tombstones_microseconds`: whatever comes later
applies. Within as much time again such a change counts as resurrected; after that the key is as if
it had never been, whether its tombstone is still stored or not. The time of a change is the latest
time received of all up to it: a clock that was put back makes nothing younger.

Mostly no tombstone has come of age, and the newest change is found by windows over the keys of a
tick. The changes of the other keys are folded one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, conformed, matched, quoted
from headrace.kinds.contract import Delta, KindInput, Steps
from headrace.kinds.inputs import VIEWS, partials_schema
from headrace.kinds.state_table import (
    BIGINT,
    BOOLEAN,
    INT,
    KEPT,
    PASSED,
    PASSES,
    TIMESTAMP,
    StateTable,
    column_of,
    is_turn,
    text_of,
)
from headrace.model.plan import BoundColumn, BoundView
from headrace.model.tables import HIGH, LOW, ROW, SCHEMA, VIEW, Fetch, TableDefinition, TableDelta

__all__ = ["TableKind", "totals_of", "totals_sql"]

DELETED = "_deleted"  # BIGINT, of a tombstone the time of the delete in microseconds, else NULL
NEWEST = "_newest"  # BIGINT, the latest time received of all changes so far
SUPERSEDED, RESURRECTED = "superseded", "resurrected"
IS_DELETE = "_is_delete"  # BOOLEAN, of a version
VALID_FROM = "_valid_from"  # TIMESTAMP, of a version
RECEIVED = "_received"  # TIMESTAMP, of a version
_ORDER = "_order"  # BIGINT, in a merge: the place of a change among those of the tick
_TIME = "_time"  # BIGINT, in a merge: the latest time received of all changes up to this one
_STORED = -1  # the place of what is stored already

_FOLDED = pa.schema(
    [(VIEW, pa.int32()), *((n, pa.int64()) for n in (_ORDER, SUPERSEDED, RESURRECTED))]
)
_BOUNDS = pa.schema([(VIEW, pa.int32()), (HIGH, pa.int64())])


@dataclass(frozen=True)
class _Rows(StateTable):
    @cached_property
    def state(self) -> tuple[BoundColumn, ...]:
        return (*self.group, *self.more)


class TableKind:
    feed_is_rows = False

    def __init__(self, view: BoundView, calculator: Calculator) -> None:
        table = view.plan.table
        assert table is not None
        self._view, self._table = view, table
        self.shape = _shape(view)
        by_name = {column.name: column for column in view.keys}
        self.key = tuple(by_name[name] for name in table.key)
        self._by = (VIEW, *table.key)
        self._numbered = (BoundColumn(VIEW, INT), *self.key)
        self._partition, self._offset = (column.name for column in view.keys[:2])
        shown = [column_of(view.keys, column, sql) for column, sql in view.finals]
        own = [c.name for c in shown if c is not None]
        assert len(own) == len(shown), f"table {view.name}: a column is none of its changes"
        own += [table.sequence] if table.sequence is not None else []
        own += [table.position, self._partition, self._offset]
        kept = tuple(by_name[name] for name in dict.fromkeys(own) if name not in table.key)
        deleted = BoundColumn(DELETED, BIGINT)
        self._rows = _Rows(
            self.shape, view, self.key, (*kept, deleted), condition=f"{DELETED} IS NULL"
        )
        numbers = (BoundColumn(name, BIGINT) for name in (NEWEST, SUPERSEDED, RESURRECTED))
        self._totals = TableDefinition(
            totals_of(self.shape), (BoundColumn(VIEW, INT), *numbers), (VIEW,)
        )
        times = (BoundColumn(VALID_FROM, TIMESTAMP), BoundColumn(RECEIVED, TIMESTAMP))
        self._versions = TableDefinition(
            f"{self.shape}_versions",
            (*self._numbered, *kept, BoundColumn(IS_DELETE, BOOLEAN), *times),
            (VIEW, self._partition, self._offset),
            (self._by,),
        )
        versions = (self._versions,) if table.keeps_history else ()
        self.tables = (self._rows.definition(), self._totals, *versions)
        self.public = self._rows.public
        self._prepare(calculator)

    def _prepare(self, calculator: Calculator) -> None:
        changes = partials_schema(self._view)
        for name in (_ORDER, _TIME):
            changes = changes.append(pa.field(name, pa.int64()))
        old, versions = self._rows.fetched, self._versions.schema.append(pa.field(ROW, pa.int64()))
        is_sequenced = self._table.sequence is not None
        self._fold = calculator.prepare(
            {"changes": changes, "old": old}, self._fold_sql if is_sequenced else self._last_sql
        )
        slots = {"changes": changes, "old": old, "views": VIEWS}
        self._merge = calculator.prepare(slots, self._merge_sql)
        slots = {"versions": versions, "bounds": _BOUNDS}
        self._outdated = calculator.prepare(slots, self._outdated_sql)

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._rows.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._rows.select_sql(view, names, hidden)

    def needed_sql(self, view: int, partition: int, below: int) -> str:
        """SELECT of the offsets below this one of all changes that are rows, tombstones or
        versions, ascending, each once."""
        parts = [
            f"SELECT {quoted(self._offset)} AS needed FROM {SCHEMA}.{name} WHERE {VIEW} = {view} "
            f"AND {quoted(self._partition)} = {partition} AND {quoted(self._offset)} < {below}"
            for name in (self._rows.name, self._versions.name)[: 1 + self._table.keeps_history]
        ]
        return f"{' UNION '.join(parts)} ORDER BY needed"

    def merge(self, given: KindInput) -> Steps:
        """One round: the rows and totals of the tick's keys and views; and where it is a view's
        turn, its tombstones that may go, and the versions of the tick's keys from before the
        history, which are found by a scan."""
        if given.partials.num_rows == 0:
            return Delta((), None)
        keys = given.partials.select(self._by)
        numbers, newest = self._newest(given.partials)
        views = pa.table({VIEW: pa.array(numbers, pa.int32())})
        fetches = {
            "old": Fetch(self._rows.name, self._by, keys),
            "totals": Fetch(self._totals.name, (VIEW,), views),
        }
        turns = np.array([is_turn(given.tick, view) for view in numbers.tolist()])
        if turns.any():
            forgotten = newest[turns] - 2 * self._table.tombstones_microseconds - 1
            past = _bounds(numbers[turns], forgotten)
            rows = past.append_column(LOW, pa.nulls(past.num_rows, pa.int64()))
            fetches["past"] = Fetch(self._rows.name, (VIEW,), rows, DELETED, ())
        history = self._table.history_microseconds
        bounds = _bounds(numbers, newest - (history or 0))
        if self._table.keeps_history and history is not None and turns.any():
            place = np.searchsorted(numbers, keys.column(VIEW).to_numpy())
            rows = keys.append_column(LOW, pa.nulls(keys.num_rows, pa.int64()))
            rows = rows.append_column(HIGH, bounds.column(HIGH).take(pa.array(place)))
            rows = rows.filter(pa.array(turns[place]))
            fetches["versions"] = Fetch(self._versions.name, self._by, rows, VALID_FROM)
        answers = yield list(fetches.values())
        found = dict(zip(fetches, answers, strict=True))
        known = {row[VIEW]: row for row in found["totals"].to_pylist()}
        changes = self._ordered(given.partials, known)
        folded = self._fold.run(changes=changes, old=found["old"])
        more = [self._counted(changes, folded, known)]
        if self._table.keeps_history:
            more.append(self._versions_delta(changes, found.get("versions"), bounds))
        order = folded.column(_ORDER)
        applied = changes.take(order.filter(pc.greater(order, _STORED)))
        told = self._merge.run(changes=applied, old=found["old"], views=given.views)
        hidden = found["past"].column(ROW) if "past" in found else None
        return self._rows.delta(told, None, *more, hidden=hidden)

    def _newest(self, partials: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """The views, ascending, and the latest time received of the changes of each."""
        views = partials.column(VIEW).to_numpy()
        numbers, places = np.unique(views, return_inverse=True)
        newest = np.full(len(numbers), np.iinfo(np.int64).min)
        np.maximum.at(newest, places, _microseconds(partials, self._table.received))
        return numbers, newest

    def _ordered(self, partials: pa.Table, known: Mapping[int, Mapping[str, int]]) -> pa.Table:
        """View by view in the order of the log, with places and times."""
        names = (self._offset, self._partition, self._table.position, VIEW)
        columns = [partials.column(name).to_numpy() for name in names]
        order = np.lexsort(columns)
        if not (np.diff(order) == 1).all():
            partials = partials.take(pa.array(order))
        views = columns[-1][order]
        times = np.array(_microseconds(partials, self._table.received))
        starts = np.flatnonzero(np.diff(views, prepend=views[0] - 1))
        for start, end in zip(starts, [*starts[1:], len(views)], strict=True):
            before = known.get(int(views[start]), {}).get(NEWEST)
            if before is not None:
                times[start] = max(times[start], before)
            np.maximum.accumulate(times[start:end], out=times[start:end])
        partials = partials.append_column(_ORDER, pa.array(np.arange(len(views))))
        return partials.append_column(_TIME, pa.array(times))

    def _counted(
        self, changes: pa.Table, folded: pa.Table, known: Mapping[int, Mapping[str, int]]
    ) -> TableDelta:
        """The new totals of the tick's views."""
        newest = changes.group_by(VIEW).aggregate([(_TIME, "max")])
        counts = folded.group_by(VIEW).aggregate([(SUPERSEDED, "sum"), (RESURRECTED, "sum")])
        rows = []
        for row in newest.join(counts, VIEW).to_pylist():
            past = known.get(row[VIEW], {})
            added = {name: past.get(name, 0) + row[f"{name}_sum"] for name in _FOLDED.names[2:]}
            rows.append({VIEW: row[VIEW], NEWEST: row[f"{_TIME}_max"], **added})
        put = pa.Table.from_pylist(rows, schema=self._totals.schema)
        return TableDelta(self._totals.name, put.select([VIEW]), put)

    def _versions_delta(
        self, changes: pa.Table, stored: pa.Table | None, bounds: pa.Table
    ) -> TableDelta:
        received = changes.column(self._table.received)
        valid = changes.column(self._table.valid_from or self._table.received)
        for name, column in (
            (IS_DELETE, self._is_delete(changes)),
            (VALID_FROM, pc.coalesce(valid, received)),
            (RECEIVED, received),
        ):
            changes = changes.append_column(name, column)
        gone = None
        if stored is not None and stored.num_rows:
            gone = self._outdated.run(versions=stored, bounds=bounds)
        put = conformed(changes, self._versions.schema)
        return TableDelta(self._versions.name, gone, put, are_keys_new=True)

    def _is_delete(self, changes: pa.Table) -> pa.ChunkedArray | pa.Array:
        if self._table.deletes is None:
            return pa.repeat(pa.scalar(False), changes.num_rows)
        return changes.column(self._table.deletes)

    # SQL

    def _deleted_sql(self) -> str:
        """When a change deletes."""
        if self._table.deletes is None:
            return "CAST(NULL AS BIGINT)"
        return f"CASE WHEN {quoted(self._table.deletes)} THEN {_TIME} END"

    def _last_sql(self, slot: Mapping[str, str]) -> str:
        """Without a sequence: the place of each key's newest change."""
        return (
            f"SELECT {VIEW}, max({_ORDER}) AS {_ORDER}, 0::BIGINT AS {SUPERSEDED}, "
            f"0::BIGINT AS {RESURRECTED} FROM {slot['changes']} GROUP BY {text_of(self._by)}"
        )

    def _fold_sql(self, slot: Mapping[str, str]) -> str:
        """For each key the place of the newest change that applies, _STORED where none of the
        tick's does, and how many were superseded and resurrected."""
        by, lasting = text_of(self._by), self._table.tombstones_microseconds
        assert self._table.sequence is not None
        sequence = f"{quoted(self._table.sequence)} AS s"
        both = (
            f"SELECT {by}, {sequence}, {self._deleted_sql()} AS d, {_TIME} AS t, {_ORDER} AS o "
            f"FROM {slot['changes']} "
            f"UNION ALL SELECT {by}, {sequence}, {DELETED}, NULL, {_STORED} FROM {slot['old']}"
        )
        windows = (
            f"WINDOW past AS (PARTITION BY {by} ORDER BY o "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        )
        # NULL is below every sequence, and the first change of a key is above nothing.
        ranked = (
            "SELECT *, count(*) OVER past = 0 OR coalesce(s > max(s) OVER past, s NOTNULL) "
            f"AS applies FROM both_kinds {windows}"
        )
        folded = (
            f"SELECT {by}, max(o) FILTER (applies) AS o, "
            "count(*) FILTER (NOT applies) AS superseded, "
            f"coalesce(min(d) + {lasting} < max(t), false) AS is_aged FROM ranked GROUP BY {by}"
        )
        first = (
            "{'s': s, 'd': d, 't': t, 'o': o, 'superseded': 0::BIGINT, 'resurrected': 0::BIGINT}"
        )
        taken = "'s': y.s, 'd': y.d, 't': y.t, 'o': y.o, 'superseded': x.superseded"
        step = (
            f"CASE WHEN coalesce(y.s > x.s, y.s NOTNULL AND x.s IS NULL) "
            f"THEN {{{taken}, 'resurrected': x.resurrected}} "
            f"WHEN x.d + {lasting} < y.t THEN {{{taken}, 'resurrected': "
            f"x.resurrected + CASE WHEN x.d + {2 * lasting} < y.t THEN 0 ELSE 1 END}} "
            "ELSE {'s': x.s, 'd': x.d, 't': x.t, 'o': x.o, 'superseded': x.superseded + 1, "
            "'resurrected': x.resurrected} END"
        )
        aged = (
            f"SELECT b.{VIEW}, list_reduce(list({first} ORDER BY o), lambda x, y: {step}) AS last "
            f"FROM both_kinds b SEMI JOIN (SELECT * FROM folded WHERE is_aged) f "
            f"ON {matched('b', 'f', self.key, self._numbered)} GROUP BY {text_of(self._by, 'b.')}"
        )
        return (
            f"WITH both_kinds AS MATERIALIZED ({both}), ranked AS ({ranked}), "
            f"folded AS MATERIALIZED ({folded}) "
            f"SELECT {VIEW}, o AS {_ORDER}, superseded AS {SUPERSEDED}, 0::BIGINT AS {RESURRECTED} "
            "FROM folded WHERE NOT is_aged UNION ALL "
            f"SELECT {VIEW}, last.o, last.superseded, last.resurrected FROM ({aged})"
        )

    def _merge_sql(self, slot: Mapping[str, str]) -> str:
        """`changes` are the newest that apply, one of each key."""
        columns = [quoted(column.name) for column in self._rows.state if column.name != DELETED]
        chosen = [f"c.{VIEW}", *(f"c.{name}" for name in columns)]
        chosen += [f"c.{DELETED}", f"o.{ROW}", f"true AS {KEPT}"]
        shown = zip(self._rows.shown, self._rows.was, strict=True)
        chosen += [f"o.{quoted(column.name)} AS {was}" for column, was in shown]
        chosen.append(f"o.{PASSES} AS {PASSED}")
        rows = (
            f"(SELECT {', '.join(chosen)} "
            f"FROM (SELECT *, {self._deleted_sql()} AS {DELETED} FROM {slot['changes']}) c "
            f"LEFT JOIN {slot['old']} o ON {matched('c', 'o', self.key, self._numbered)})"
        )
        return self._rows.told_sql(rows, slot["views"])

    def _outdated_sql(self, slot: Mapping[str, str]) -> str:
        """Of versions that are valid from before a bound: those that another of their key, which
        came before the bound too, follows."""
        sequence = self._table.sequence
        latest = [f"v.{VALID_FROM} DESC"]
        latest += [f"v.{quoted(sequence)} DESC NULLS LAST"] if sequence is not None else []
        places = (self._table.position, self._partition, self._offset)
        latest += [f"v.{quoted(name)} DESC" for name in places]
        return (
            f"SELECT {ROW} FROM (SELECT v.{ROW}, row_number() OVER "
            f"(PARTITION BY {text_of(self._by, 'v.')} ORDER BY {', '.join(latest)}) AS place "
            f"FROM {slot['versions']} v JOIN {slot['bounds']} b ON b.{VIEW} = v.{VIEW} "
            f"WHERE epoch_us(v.{RECEIVED}) <= b.{HIGH}) WHERE place > 1"
        )


def totals_of(shape: str) -> str:
    """The name of the table that has the totals of tables of this shape."""
    return f"{shape}_totals"


def totals_sql(shape: str, view: int) -> str:
    """SELECT of how many changes were superseded and resurrected; no row before the first."""
    totals = f"{SCHEMA}.{totals_of(shape)}"
    return f"SELECT {SUPERSEDED}, {RESURRECTED} FROM {totals} WHERE {VIEW} = {view}"


def _shape(view: BoundView) -> str:
    finals = [(column.type, sql) for column, sql in view.finals]
    told = repr((view.keys, finals, view.plan.table))
    return f"table_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _bounds(views: np.ndarray, highest: np.ndarray) -> pa.Table:
    return pa.Table.from_arrays([pa.array(views, pa.int32()), pa.array(highest)], schema=_BOUNDS)


def _microseconds(rows: pa.Table, column: str) -> np.ndarray:
    found: np.ndarray = rows.column(column).cast(pa.int64()).to_numpy()
    return found
