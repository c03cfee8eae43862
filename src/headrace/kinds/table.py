"""Tables: of the changes of each key the newest one is the row.

    table_SHAPE            one row per key: the columns of the newest change that applied, its
                           sequence, position, partition and offset, and DELETED
    table_SHAPE_past       the same of changes that others of their key replaced, and in UNTIL the
                           position of the one that did
    table_SHAPE_totals     VIEW, NEWEST, what became of changes (`superseded`, `resurrected`), and
                           what is no longer known
    table_SHAPE_versions   with a history: every change, by its partition and offset

The changes of a tick come in the one order of the log: position, partition, offset. A tick takes
what is next in that order, so how the log was cut into ticks makes no difference.

A key that is deleted leaves a tombstone: a row that is not shown, with the time of the delete in
DELETED. A change whose sequence is not above that of the key's newest change is superseded. But a
tombstone counts only for a time, the plan's `tombstones_microseconds`: whatever comes later
applies. Within as much time again such a change counts as resurrected; after that the key is as if
it had never been, whether its tombstone is still stored or not. The time of a change is the latest
time received of all up to it: a clock that was put back makes nothing younger.

Events find the row of a key as it was at their position. For those that have yet to come the kind
is told SINCE, the lowest position that they may have: a row that is replaced after it goes into
the past, a tombstone too, and leaves it once SINCE has passed UNTIL. Of a table that nobody looks
up nothing is kept. COMPLETE is the lowest position of which the answer is still known, and
VERSIONS_COMPLETE that of answers as of a time, for which the versions stand.

Versions go when no event that may still come can find them: by their valid-from, at a time that
follows from what was received up to SINCE. That time is known from a MARK: the position of a tick,
with the latest time received by then. When SINCE has come to the mark, it becomes REACHED, and the
next tick is the mark.

Mostly no tombstone has come of age, and the newest change is found by windows over the keys of a
tick. The changes of the other keys are folded one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, conformed, matched, quoted
from headrace.kinds.contract import SINCE, Delta, KindInput, Steps
from headrace.kinds.inputs import VIEWS, partials_schema
from headrace.kinds.lookups import (
    REQUEST_POSITION,
    REQUEST_RECEIVED,
    REQUEST_TIME,
    Keys,
    answer,
    latest,
    latest_visible,
)
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
from headrace.model.errors import LookUpError
from headrace.model.plan import BoundColumn, BoundView
from headrace.model.tables import HIGH, LOW, ROW, SCHEMA, VIEW, Fetch, TableDefinition, TableDelta

__all__ = ["COMPLETE", "VERSIONS_COMPLETE", "TableKind", "totals_of", "totals_sql"]

DELETED = "_deleted"  # BIGINT, of a tombstone the time of the delete in microseconds, else NULL
NEWEST = "_newest"  # BIGINT, the latest time received of all changes so far
SUPERSEDED, RESURRECTED = "superseded", "resurrected"
COMPLETE, VERSIONS_COMPLETE = "_complete", "_versions_complete"  # BIGINT
MARK, MARK_TIME = "_mark", "_mark_time"  # BIGINT, NULL before the first
REACHED, REACHED_TIME = "_reached", "_reached_time"  # BIGINT, NULL before the first
UNTIL = "_until"  # BIGINT, of a row of the past: the position of the change that replaced it
IS_DELETE = "_is_delete"  # BOOLEAN, of a version
VALID_FROM = "_valid_from"  # TIMESTAMP, of a version
RECEIVED = "_received"  # TIMESTAMP, of a version
_ORDER = "_order"  # BIGINT, in a merge: the place of a change among those of the tick
_TIME = "_time"  # BIGINT, in a merge: the latest time received of all changes up to this one
_STORED = -1  # the place of what is stored already
_EXPIRED_ROWS_MIN = 10_000  # so many rows of the past, and twice a tick's changes, may go with it
_SLACK = 8  # clocks may differ by the length of a history divided by this

_MARKS = (MARK, MARK_TIME, REACHED, REACHED_TIME)
_FOLDED = pa.schema(
    [(VIEW, pa.int32()), *((n, pa.int64()) for n in (_ORDER, SUPERSEDED, RESURRECTED))]
)
_LIMITS = pa.schema([(VIEW, pa.int32()), (HIGH, pa.int64()), (SINCE, pa.int64())])

LookUp = Generator[Sequence[Fetch], Sequence[pa.Table], pa.Table]


@dataclass(frozen=True)
class _Moved:
    """What a tick is to the views it moves, ascending. `times` are the latest received of their
    changes. `limits` are the positions below which nobody looks, `is_kept` says of which views that
    was said; of others it is the newest position."""

    views: np.ndarray
    times: np.ndarray
    positions: np.ndarray
    limits: np.ndarray
    is_kept: np.ndarray

    def of(self, values: np.ndarray, rows: pa.Table) -> np.ndarray:
        """Those of the views of some rows."""
        found: np.ndarray = values[np.searchsorted(self.views, rows.column(VIEW).to_numpy())]
        return found


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
        self._past = TableDefinition(
            f"{self.shape}_past",
            (*self._numbered, *kept, deleted, BoundColumn(UNTIL, BIGINT)),
            (VIEW, self._partition, self._offset),
            (self._by,),
        )
        counts = (NEWEST, SUPERSEDED, RESURRECTED, COMPLETE, VERSIONS_COMPLETE, *_MARKS)
        numbers = (BoundColumn(name, BIGINT) for name in counts)
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
        self.tables = (self._rows.definition(), self._totals, self._past, *versions)
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
        slots = {"changes": changes, "old": old, "limits": _LIMITS}
        self._replaced = calculator.prepare(slots, self._replaced_sql)
        slots = {"versions": versions, "limits": _LIMITS}
        self._outdated = calculator.prepare(slots, self._outdated_sql)
        if is_sequenced:
            others = pa.schema([changes.field(name) for name in (*self._by, *self._ranks)])
            deletes = pa.schema([*others, (IS_DELETE, pa.bool_()), (ROW, pa.int64())])
            slots = {"deletes": deletes, "others": others}
            self._held = calculator.prepare(slots, self._held_sql)

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._rows.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._rows.select_sql(view, names, hidden)

    def needed_sql(self, view: int, partition: int, below: int) -> str:
        """SELECT of the offsets below this one of all changes that are rows, tombstones, versions
        or rows of the past that may be looked up, ascending, each once."""

        def offsets(table: TableDefinition) -> str:
            return (
                f"SELECT {quoted(self._offset)} AS needed FROM {SCHEMA}.{table.name} "
                f"WHERE {VIEW} = {view} AND {quoted(self._partition)} = {partition} "
                f"AND {quoted(self._offset)} < {below}"
            )

        complete = f"SELECT {COMPLETE} FROM {SCHEMA}.{self._totals.name} WHERE {VIEW} = {view}"
        parts = [offsets(self.tables[0]), f"{offsets(self._past)} AND {UNTIL} > ({complete})"]
        parts += [offsets(self._versions)] if self._table.keeps_history else []
        return f"{' UNION '.join(parts)} ORDER BY needed"

    def merge(self, given: KindInput) -> Steps:
        """One round: the rows and totals of the tick's keys and views; and where it is a view's
        turn, its tombstones that may go, and the versions of the tick's keys from before the
        history, which are found by a scan. Rows of the past that may go are found by their time."""
        if given.partials.num_rows == 0:
            return Delta((), None)
        keys = given.partials.select(self._by)
        moved = self._moved(given)
        views = pa.table({VIEW: pa.array(moved.views, pa.int32())})
        fetches = {
            "old": Fetch(self._rows.name, self._by, keys),
            "totals": Fetch(self._totals.name, (VIEW,), views),
        }
        turns = np.array([is_turn(given.tick, view) for view in moved.views.tolist()])
        if turns.any():
            forgotten = moved.times - 2 * self._table.tombstones_microseconds - 1
            rows, place = _up_to(moved.views[turns], forgotten[turns]), (self._table.position, VIEW)
            fetches["aged"] = Fetch(self._rows.name, (VIEW,), rows, DELETED, place)
        passed = turns | moved.is_kept
        if passed.any():
            rows = _up_to(moved.views[passed], moved.limits[passed])
            fetches["expired"] = Fetch(self._past.name, (VIEW,), rows, UNTIL, (VIEW,))
        history = self._table.history_microseconds
        if self._table.keeps_history and history is not None and turns.any():
            rows = keys.append_column(LOW, pa.nulls(keys.num_rows, pa.int64()))
            rows = rows.append_column(HIGH, pa.array(moved.of(self._bounds(moved), keys)))
            rows = rows.filter(pa.array(moved.of(turns, keys)))
            fetches["versions"] = Fetch(self._versions.name, self._by, rows, VALID_FROM)
        answers = yield list(fetches.values())
        found = dict(zip(fetches, answers, strict=True))
        known = {row[VIEW]: row for row in found["totals"].to_pylist()}
        changes = self._ordered(given.partials, known)
        folded = self._fold.run(changes=changes, old=found["old"])
        totals = self._counted(changes, found, folded, known, moved)
        more = list(self._past_deltas(changes, folded, found, moved))
        if self._table.keeps_history:
            gone = yield from self._lapsed(changes, found, totals, moved)
            more.append(self._versions_delta(changes, gone))
        put = pa.Table.from_pylist(list(totals.values()), schema=self._totals.schema)
        more.append(TableDelta(self._totals.name, put.select([VIEW]), put))
        order = folded.column(_ORDER)
        applied = changes.take(order.filter(pc.greater(order, _STORED)))
        told = self._merge.run(changes=applied, old=found["old"], views=given.views)
        return self._rows.delta(told, None, *more, hidden=self._forgotten(found, moved))

    def _moved(self, given: KindInput) -> _Moved:
        partials, since = given.partials, given.since
        views, places = np.unique(partials.column(VIEW).to_numpy(), return_inverse=True)
        times = np.full(len(views), np.iinfo(np.int64).min)
        positions = times.copy()
        np.maximum.at(times, places, _microseconds(partials, self._table.received))
        np.maximum.at(positions, places, partials.column(self._table.position).to_numpy())
        said = dict(zip(*(column.to_pylist() for column in since.columns), strict=True))
        told = [said.get(view) for view in views.tolist()]
        known = [
            p if s is None else min(p, s) for s, p in zip(told, positions.tolist(), strict=True)
        ]
        is_kept = np.array([s is not None for s in told])
        return _Moved(views, times, positions, np.array(known, np.int64), is_kept)

    def _forgotten(self, found: Mapping[str, pa.Table], moved: _Moved) -> pa.ChunkedArray | None:
        """The tombstones that may go: those that are of age, and of which a row of the past no
        longer needs to be told that it ended."""
        if "aged" not in found or not found["aged"].num_rows:
            return None
        aged = found["aged"]
        positions = aged.column(self._table.position).to_numpy()
        return aged.column(ROW).filter(pa.array(positions <= moved.of(moved.limits, aged)))

    def _past_deltas(
        self, changes: pa.Table, folded: pa.Table, found: Mapping[str, pa.Table], moved: _Moved
    ) -> Iterator[TableDelta]:
        gone, put, old = None, None, found["old"]
        if "expired" in found and found["expired"].num_rows:
            gone = found["expired"].select([ROW])
            gone = gone.slice(0, max(2 * changes.num_rows, _EXPIRED_ROWS_MIN))
        is_replacing = old.num_rows > 0 or folded.num_rows < changes.num_rows
        if is_replacing and (moved.is_kept & (moved.limits < moved.positions)).any():
            put = self._replaced.run(changes=changes, old=old, limits=_limits(moved, moved.times))
        if gone is not None or put is not None:
            yield TableDelta(self._past.name, gone, put, are_keys_new=True)

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
        self,
        changes: pa.Table,
        found: Mapping[str, pa.Table],
        folded: pa.Table,
        known: Mapping[int, Mapping[str, int]],
        moved: _Moved,
    ) -> dict[int, dict[str, int | None]]:
        """The new totals of the tick's views."""
        newest = changes.group_by(VIEW).aggregate([(_TIME, "max"), (_TIME, "count")])
        counts = folded.group_by(VIEW).aggregate(
            [(SUPERSEDED, "sum"), (RESURRECTED, "sum"), (_ORDER, "count")]
        )
        going = [found[name] for name in ("old", "aged", "expired") if name in found]
        replaced = {v for r in going for v in np.unique(r.column(VIEW).to_numpy()).tolist()}
        rows = {}
        for row in newest.join(counts, VIEW).to_pylist():
            view, time = row[VIEW], row[f"{_TIME}_max"]
            place = int(np.searchsorted(moved.views, view))
            position, limit = int(moved.positions[place]), int(moved.limits[place])
            past = known.get(view, {COMPLETE: 0, VERSIONS_COMPLETE: 0})
            added = {name: past.get(name, 0) + row[f"{name}_sum"] for name in _FOLDED.names[2:]}
            is_less = view in replaced or row[f"{_ORDER}_count"] < row[f"{_TIME}_count"]
            complete = past[COMPLETE]
            if is_less or moved.is_kept[place]:
                complete = max(complete, limit)
            marks = tuple(past.get(name) for name in _MARKS)
            if marks[0] is None or marks[0] <= limit:
                marks = (position, time, *marks[:2])
            rows[view] = {VIEW: view, NEWEST: time, **added, COMPLETE: complete}
            rows[view][VERSIONS_COMPLETE] = past[VERSIONS_COMPLETE]
            rows[view] |= zip(_MARKS, marks, strict=True)
        return rows

    def _lapsed(
        self,
        changes: pa.Table,
        found: Mapping[str, pa.Table],
        totals: Mapping[int, dict[str, int | None]],
        moved: _Moved,
    ) -> Generator[Sequence[Fetch], Sequence[pa.Table], pa.Table | None]:
        """The ROW of versions that go. Says in `totals` from which position on those that stay
        give all answers. A delete stays while a change does that it superseded: without it, the log
        would fill the table again with that one."""
        if "versions" not in found or not found["versions"].num_rows:
            return None
        gone = self._outdated.run(versions=found["versions"], limits=self._allowed(totals, moved))
        deletes = gone.filter(gone.column(IS_DELETE))
        if self._table.sequence is not None and deletes.num_rows:
            columns = (*self._by, *self._ranks)
            keys = deletes.select(self._by)
            (all_,) = yield [Fetch(self._versions.name, self._by, keys, columns=columns)]
            staying = all_.filter(pc.invert(pc.is_in(all_.column(ROW), gone.column(ROW))))
            others = [part.select(columns) for part in (staying, found["old"], changes)]
            held = self._held.run(deletes=deletes, others=pa.concat_tables(others))
            gone = gone.filter(pc.invert(pc.is_in(gone.column(ROW), held.column(ROW))))
        for view in gone.column(VIEW).unique().to_pylist():
            limit = int(moved.limits[np.searchsorted(moved.views, view)])
            totals[view][VERSIONS_COMPLETE] = max(totals[view][VERSIONS_COMPLETE] or 0, limit)
        return gone.select([ROW])

    def _versions_delta(self, changes: pa.Table, gone: pa.Table | None) -> TableDelta:
        received = changes.column(self._table.received)
        valid = changes.column(self._table.valid_from or self._table.received)
        for name, column in (
            (IS_DELETE, self._is_delete(changes)),
            (VALID_FROM, pc.coalesce(valid, received)),
            (RECEIVED, received),
        ):
            changes = changes.append_column(name, column)
        put = conformed(changes, self._versions.schema)
        return TableDelta(self._versions.name, gone, put, are_keys_new=True)

    def _bounds(self, moved: _Moved) -> np.ndarray:
        """The times before which versions may go. What a tombstone may still supersede is none."""
        history, lasting = self._table.history_microseconds, 0
        assert history is not None
        if self._table.sequence is not None and self._table.deletes is not None:
            lasting = 2 * self._table.tombstones_microseconds
        return moved.times - max(history, lasting)

    def _allowed(self, totals: Mapping[int, Mapping[str, int | None]], moved: _Moved) -> pa.Table:
        """These, but no later than the times that no event that may still come asks for: where
        SINCE was put back behind the position that was REACHED, none is known."""
        history = self._table.history_microseconds
        assert history is not None
        lowest = np.iinfo(np.int64).min
        span = history + history // _SLACK
        kept = []
        for view, limit in zip(moved.views.tolist(), moved.limits.tolist(), strict=True):
            position, time = (totals[view][name] for name in (REACHED, REACHED_TIME))
            is_known = position is not None and time is not None and position <= limit
            kept.append(time - span if is_known and time is not None else lowest)
        bounds = self._bounds(moved)
        return _limits(moved, np.where(moved.is_kept, np.minimum(kept, bounds), bounds))

    def _is_delete(self, changes: pa.Table) -> pa.ChunkedArray | pa.Array:
        if self._table.deletes is None:
            return pa.repeat(pa.scalar(False), changes.num_rows)
        return changes.column(self._table.deletes)

    # Look-ups

    def totals(
        self, view: int
    ) -> Generator[Sequence[Fetch], Sequence[pa.Table], Mapping[str, int]]:
        """COMPLETE and VERSIONS_COMPLETE among them."""
        (found,) = yield [self._totals_of(view)]
        return _first(found)

    def _totals_of(self, view: int) -> Fetch:
        return Fetch(self._totals.name, (VIEW,), pa.table({VIEW: pa.array([view], pa.int32())}))

    def look_up(
        self, table: str, view: int, requests: pa.Table, columns: Sequence[str], as_of: bool
    ) -> LookUp:
        """See Store.look_up; the columns of the key, and those wanted, are named as in `key` and
        `shown`. `table` is the view's name for people."""
        keys = Keys(requests.select(self._table.key))
        asked = np.flatnonzero(keys.numbers >= 0)
        numbers = keys.numbers[asked]
        positions = requests.column(REQUEST_POSITION).to_numpy()
        distinct = self._asked(view, keys.distinct)
        names = dict.fromkeys((*self._table.key, *columns, self._table.position))
        if not as_of:
            fetch = Fetch(self._rows.name, self._by, distinct, columns=(*names, DELETED))
        else:
            names |= dict.fromkeys((*self._ranks, VALID_FROM, IS_DELETE))
            fetch = Fetch(self._versions.name, self._by, distinct, columns=tuple(names))
        totals, rows = yield [self._totals_of(view), fetch]
        complete = _first(totals)[VERSIONS_COMPLETE if as_of else COMPLETE]
        if len(positions) and positions.min() < complete:
            raise LookUpError(
                f"table {table} no longer knows its rows of position {positions.min()}; they are "
                f"known from {complete} on",
                hint=f"fill the table again from its log: headrace rebuild {table}",
            )
        found = np.full(requests.num_rows, -1)
        if as_of:
            found[asked] = self._valid(keys, rows, requests.take(pa.array(asked)), numbers)
            return answer(rows.select(columns), found)
        current = np.full(keys.distinct.num_rows, -1)
        current[keys.numbers_of(rows.select(self._table.key))] = np.arange(rows.num_rows)
        found[asked] = current[numbers]
        starts = rows.column(self._table.position).to_numpy()
        earlier = np.flatnonzero(found >= 0)
        earlier = earlier[starts[found[earlier]] > positions[earlier]]
        if len(earlier):
            found[earlier] = -1
            wanted = keys.distinct.take(pa.array(np.unique(keys.numbers[earlier])))
            fetch = Fetch(
                self._past.name,
                self._by,
                self._asked(view, wanted),
                columns=(*names, DELETED, UNTIL),
            )
            (past,) = yield [fetch]
            past = past.filter(pc.less(past.column(self._table.position), past.column(UNTIL)))
            place = latest(
                keys.numbers_of(past.select(self._table.key)),
                past.column(self._table.position).to_numpy(),
                keys.numbers[earlier],
                positions[earlier],
            )
            ends = np.append(past.column(UNTIL).to_numpy(), np.iinfo(np.int64).min)
            is_there = positions[earlier] < ends[place]
            found[earlier[is_there]] = rows.num_rows + place[is_there]
            rows = pa.concat_tables([part.select([*columns, DELETED]) for part in (rows, past)])
        is_deleted = np.append(rows.column(DELETED).is_valid().to_numpy(), True)
        return answer(rows.select(columns), np.where(is_deleted[found], -1, found))

    def _asked(self, view: int, keys: pa.Table) -> pa.Table:
        return keys.add_column(0, VIEW, pa.repeat(pa.scalar(view, pa.int32()), keys.num_rows))

    @property
    def keeps_history(self) -> bool:
        return self._table.keeps_history

    @property
    def shown(self) -> tuple[BoundColumn, ...]:
        """The stored columns that are public, in their order."""
        return self._rows.shown

    @property
    def _ranks(self) -> tuple[str, ...]:
        """Of versions with one valid-from that counts which is the last by these."""
        sequence = () if self._table.sequence is None else (self._table.sequence,)
        return (*sequence, self._table.position, self._partition, self._offset)

    def _valid(
        self, keys: Keys, rows: pa.Table, requests: pa.Table, numbers: np.ndarray
    ) -> np.ndarray:
        """For each request the version, by its number; -1 where the row is missing."""
        times = requests.column(REQUEST_TIME)
        is_asked = times.is_valid().to_numpy()
        wanted = times.cast(pa.int64()).fill_null(0).to_numpy()
        if self._table.history_microseconds is not None:
            received = _microseconds(requests, REQUEST_RECEIVED)
            is_asked = is_asked & (wanted >= received - self._table.history_microseconds)
        found = latest_visible(
            keys.numbers_of(rows.select(self._table.key)),
            _microseconds(rows, VALID_FROM),
            rows.select(self._ranks),
            rows.column(self._table.position).to_numpy(),
            numbers,
            wanted,
            requests.column(REQUEST_POSITION).to_numpy(),
        )
        is_delete = np.append(rows.column(IS_DELETE).to_numpy(), True)
        return np.where(is_asked & ~is_delete[found], found, -1)

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
        return (
            f"{self._ranked_sql(slot)} "
            f"SELECT {VIEW}, o AS {_ORDER}, superseded AS {SUPERSEDED}, 0::BIGINT AS {RESURRECTED} "
            "FROM folded WHERE NOT is_aged UNION ALL "
            f"SELECT {VIEW}, last.o, last.superseded, last.resurrected FROM ({self._aged_sql()})"
        )

    def _ranked_sql(self, slot: Mapping[str, str]) -> str:
        """WITH `ranked`, the changes and what is stored, in `o` their place; which ones apply is
        right for the keys that are not aged in `folded`, which has a row for each."""
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
        return (
            f"WITH both_kinds AS MATERIALIZED ({both}), ranked AS ({ranked}), "
            f"folded AS MATERIALIZED ({folded})"
        )

    def _aged_sql(self) -> str:
        """SELECT of the other keys, with `last`: the newest change that applies, the places of all
        that did, and the counts."""
        lasting = self._table.tombstones_microseconds
        first = (
            "{'s': s, 'd': d, 't': t, 'o': o, 'superseded': 0::BIGINT, 'resurrected': 0::BIGINT, "
            "'path': [o]}"
        )
        taken = (
            "'s': y.s, 'd': y.d, 't': y.t, 'o': y.o, 'superseded': x.superseded, 'resurrected': "
        )
        path = "'path': list_append(x.path, y.o)"
        step = (
            f"CASE WHEN coalesce(y.s > x.s, y.s NOTNULL AND x.s IS NULL) "
            f"THEN {{{taken} x.resurrected, {path}}} "
            f"WHEN x.d + {lasting} < y.t THEN {{{taken} "
            f"x.resurrected + CASE WHEN x.d + {2 * lasting} < y.t THEN 0 ELSE 1 END, {path}}} "
            "ELSE {'s': x.s, 'd': x.d, 't': x.t, 'o': x.o, 'superseded': x.superseded + 1, "
            "'resurrected': x.resurrected, 'path': x.path} END"
        )
        by = text_of(self._by, "b.")
        return (
            f"SELECT {by}, list_reduce(list({first} ORDER BY o), lambda x, y: {step}) AS last "
            f"FROM both_kinds b SEMI JOIN (SELECT * FROM folded WHERE is_aged) f "
            f"ON {matched('b', 'f', self.key, self._numbered)} GROUP BY {by}"
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

    def _replaced_sql(self, slot: Mapping[str, str]) -> str:
        """The rows that changes of the tick replace and that may still be looked up. Of those that
        are replaced at their own position nobody can see any, but that a delete was in between may
        be why the next change applied."""
        by = text_of(self._by)
        if self._table.sequence is None:
            parts = ((f"{_ORDER}", slot["changes"]), (f"{_STORED}", slot["old"]))
            rows = " UNION ALL ".join(f"SELECT {by}, {o} AS o FROM {name}" for o, name in parts)
            applied = f"WITH applied AS ({rows})"
        else:
            applied = (
                f"{self._ranked_sql(slot)}, applied AS (SELECT {text_of(self._by, 'r.')}, r.o "
                "FROM ranked r ANTI JOIN (SELECT * FROM folded WHERE is_aged) f "
                f"ON {matched('r', 'f', self.key, self._numbered)} WHERE r.applies "
                f"UNION ALL SELECT {by}, unnest(last.path) FROM ({self._aged_sql()}))"
            )
        names = [c.name for c in self._past.columns if c.name not in (DELETED, UNTIL)]
        chosen = f"{text_of(names, 'r.')}, r.{DELETED}, n.{quoted(self._table.position)} AS {UNTIL}"
        position = quoted(self._table.position)
        following = (
            f"JOIN {slot['changes']} n ON n.{_ORDER} = f.following "
            f"JOIN {slot['limits']} l ON l.{VIEW} = f.{VIEW} "
            f"WHERE n.{position} > l.{SINCE} "
            f"AND (r.{position} < n.{position} OR r.{DELETED} NOTNULL)"
        )
        changes = f"(SELECT *, {self._deleted_sql()} AS {DELETED} FROM {slot['changes']})"
        return (
            f"{applied}, followed AS MATERIALIZED (SELECT *, lead(o) OVER "
            f"(PARTITION BY {by} ORDER BY o) AS following FROM applied) "
            f"SELECT {chosen} FROM followed f JOIN {changes} r ON r.{_ORDER} = f.o {following} "
            f"UNION ALL SELECT {chosen} FROM (SELECT * FROM followed WHERE o = {_STORED}) f "
            f"JOIN {slot['old']} r ON {matched('f', 'r', self.key, self._numbered)} {following}"
        )

    def _outdated_sql(self, slot: Mapping[str, str]) -> str:
        """Of versions that are valid from before a bound: those that another of their key, which
        came before the bound too, follows."""
        by = [f"v.{quoted(name)} DESC NULLS LAST" for name in (VALID_FROM, *self._ranks)]
        chosen = text_of((*self._by, *self._ranks, IS_DELETE, ROW), "v.")
        return (
            f"SELECT * EXCLUDE (place) FROM (SELECT {chosen}, row_number() OVER "
            f"(PARTITION BY {text_of(self._by, 'v.')} ORDER BY {', '.join(by)}) AS place "
            f"FROM {slot['versions']} v JOIN {slot['limits']} l ON l.{VIEW} = v.{VIEW} "
            f"WHERE epoch_us(v.{RECEIVED}) <= l.{HIGH} AND epoch_us(v.{VALID_FROM}) <= l.{HIGH} "
            f"AND v.{quoted(self._table.position)} <= l.{SINCE}) WHERE place > 1"
        )

    def _held_sql(self, slot: Mapping[str, str]) -> str:
        """Of deletes those that superseded another change."""
        assert self._table.sequence is not None
        sequence, *places = map(quoted, self._ranks)
        later = (", ".join(f"{side}.{name}" for name in places) for side in "od")
        return (
            f"SELECT DISTINCT d.{ROW} FROM {slot['deletes']} d JOIN {slot['others']} o "
            f"ON {matched('d', 'o', self.key, self._numbered)} "
            f"AND NOT coalesce(o.{sequence} > d.{sequence}, o.{sequence} NOTNULL) "
            f"WHERE row({next(later)}) > row({next(later)})"
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
    told = repr((view.keys, finals, view.plan.table, UNTIL))
    return f"table_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _up_to(views: np.ndarray, highest: np.ndarray) -> pa.Table:
    """The rows of a fetch of all that is not above these, by view."""
    lows = pa.nulls(len(views), pa.int64())
    return pa.table({VIEW: pa.array(views, pa.int32()), LOW: lows, HIGH: pa.array(highest)})


def _limits(moved: _Moved, bounds: np.ndarray) -> pa.Table:
    columns = [pa.array(moved.views, pa.int32()), pa.array(bounds), pa.array(moved.limits)]
    return pa.Table.from_arrays(columns, schema=_LIMITS)


def _first(totals: pa.Table) -> Mapping[str, int]:
    """Of a table that no change has come to yet everything is known."""
    found: Sequence[Mapping[str, int]] = totals.to_pylist()
    return found[0] if found else {COMPLETE: 0, VERSIONS_COMPLETE: 0}


def _microseconds(rows: pa.Table, column: str) -> np.ndarray:
    found: np.ndarray = rows.column(column).cast(pa.int64()).to_numpy()
    return found
