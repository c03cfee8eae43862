"""Views by key: with tumbling, hopping or calendar windows, or with none.

    grouped_SHAPE             one row per key and window
    grouped_SHAPE_values_I    VIEW, keys, window_start, VALUE: the values seen by distinct I

A merge is one statement over the tick's partial rows, the stored rows of the same keys and windows,
and the values that these have not seen: all are rows of one union, and rows of one group are
combined. A hopping window's panes become its windows there.

Rows stay. Values go once no event to come is applied to their window. A value is stored once,
without how often it came: to keep count, a tick would write all of its values, not the new ones
alone, which takes twice as long (measured: 10,000 values, three in five known).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, matched, quoted, store_type
from headrace.kinds.contract import BOUND, Delta, KindInput, Steps
from headrace.kinds.inputs import VALUE, VIEWS, partials_schema, values_schemas
from headrace.kinds.state_table import (
    INT,
    KEPT,
    PASSED,
    PASSES,
    REVISION,
    TIMESTAMP,
    WAS_ENDS,
    WINDOW_END,
    WINDOW_START,
    StateTable,
    is_turn,
    shape_of,
    text_of,
)
from headrace.model.plan import (
    LATE,
    PANE,
    PANE_END,
    REJECTED_WINDOWS,
    ROWS,
    BoundColumn,
    BoundView,
    CalendarWindow,
    Window,
)
from headrace.model.tables import HIGH, LOW, ROW, VIEW, Fetch, TableDefinition, TableDelta

__all__ = ["GroupedKind"]

_STAGED = "_staged"  # whether a row of the union is one of the tick
_PLACE = "_place"  # of a window among those that hold a pane, by end
_START = "_start"  # of the window, in microseconds
_TAKEN = (
    f"CASE WHEN {REJECTED_WINDOWS} < 0 THEN {_PLACE} < -{REJECTED_WINDOWS}"
    f" ELSE {_PLACE} >= {REJECTED_WINDOWS} END"
)
_DAY = 86_400_000_000
# No calendar window is longer, whatever its zone does.
_DAYS_MAX = {"day": 3, "week": 9, "month": 33, "quarter": 94, "year": 368}


class GroupedKind:
    feed_is_rows = False

    def __init__(self, view: BoundView, calculator: Calculator) -> None:
        window = view.plan.window
        assert window is None or isinstance(window, (Window, CalendarWindow))
        self._view, self._window = view, window
        self._calculator = calculator
        self.shape = shape_of("grouped", view)
        start = (BoundColumn(WINDOW_START, TIMESTAMP),) if window is not None else ()
        self.key = (*view.keys, *start)
        self._group = (BoundColumn(VIEW, INT), *self.key)
        self._by = tuple(column.name for column in self._group)
        self._state = StateTable(self.shape, view, self.key)
        self._values = tuple(
            TableDefinition(
                f"{self.shape}_values_{index}",
                (*self._group, BoundColumn(VALUE, distinct.type)),
                (*self._by, VALUE),
            )
            for index, distinct in enumerate(view.distincts)
        )
        self.tables = (self._state.definition(), *self._values)
        self.public = self._state.public
        self._prepare(calculator)

    def _prepare(self, calculator: Calculator) -> None:
        stage, staged = partials_schema(self._view), values_schemas(self._view)
        known = [definition.schema for definition in self._values]
        self._windows = calculator.prepare(
            {"rows": stage},
            lambda slot: f"SELECT DISTINCT {text_of(self._by)} FROM ({self._held(slot['rows'])})",
        )
        self._value_windows = [
            calculator.prepare({"values": schema}, lambda slot: self._seen(slot["values"]))
            for schema in staged
        ]
        self._fresh = [
            calculator.prepare({"values": schema, "known": table}, self._fresh_sql)
            for schema, table in zip(staged, known, strict=True)
        ]
        slots = {"stage": stage, "old": self._state.fetched, "views": VIEWS}
        slots |= {f"fresh{index}": schema for index, schema in enumerate(known)}
        self._merge = calculator.prepare(slots, self._merge_sql)

    def seed(self, view: int) -> Delta:
        """The single row of a view without GROUP BY: what its aggregates give over no event."""
        plan = self._view.plan
        if not plan.is_global:
            return Delta((), None)
        counting = {partial.name for partial in plan.partials if partial.function == "count"}
        zero = {ROWS, *counting, *(column.name for column in self._state.counts)}
        columns = [f"CAST({view} AS INTEGER) AS {VIEW}"]
        columns += [
            f"CAST({'0' if column.name in zero else 'NULL'} AS {store_type(column.type)}) "
            f"AS {quoted(column.name)}"
            for column in self._state.state
        ]
        shown = zip(self._state.shown, self._state.was, strict=True)
        columns += [f"CAST(NULL AS {store_type(column.type)}) AS {was}" for column, was in shown]
        columns.append(f"CAST(NULL AS BIGINT) AS {ROW}, true AS {KEPT}")
        row = f"(SELECT {', '.join(columns)}, false AS {PASSED})"
        statement = self._calculator.prepare(
            {"views": VIEWS}, lambda slot: self._state.told_sql(row, slot["views"])
        )
        try:
            told = self._state.delta(statement.run(), None)
        finally:
            statement.close()
        return Delta(told.deltas, None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._state.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._state.select_sql(view, names, hidden)

    def merge(self, given: KindInput) -> Steps:
        """One round: the rows and values of the tick's keys, rows that close, values that go."""
        fetches: dict[str, Fetch] = {}
        if given.partials.num_rows:
            rows = self._wanted(given.partials)
            fetches["old"] = Fetch(self._state.name, self._by, rows)
        seen = [values.filter(pc.is_valid(values.column(VALUE))) for values in given.values]
        for index, values in enumerate(seen):
            if values.num_rows:
                wanted = self._wanted_values(index, values)
                name = self._values[index].name
                fetches[f"known{index}"] = Fetch(name, (*self._by, VALUE), wanted)
        closing = self._state.closing(given.views)
        if closing is not None:
            fetches["closing"] = closing
        past = self._past(given)
        for index, definition in enumerate(self._values if past is not None else ()):
            assert past is not None
            name = f"past{index}"
            fetches[name] = Fetch(definition.name, (VIEW,), past, time=WINDOW_START, columns=())
        answers: Sequence[pa.Table] = (yield list(fetches.values())) if fetches else []
        found = dict(zip(fetches, answers, strict=True))
        told, put = None, dict[int, pa.Table]()
        if "old" in found:
            slots = {"stage": given.partials, "old": found["old"], "views": given.views}
            for index, values in enumerate(seen):
                if values.num_rows:
                    known = found[f"known{index}"]
                    put[index] = self._fresh[index].run(values=values, known=known)
                    slots[f"fresh{index}"] = put[index]
            told = self._merge.run(**slots)
        more = [
            TableDelta(definition.name, found.get(f"past{index}"), put.get(index))
            for index, definition in enumerate(self._values)
            if f"past{index}" in found or index in put
        ]
        return self._state.delta(told, found.get("closing"), *more)

    def _wanted(self, rows: pa.Table) -> pa.Table:
        """The keys and windows of rows of the tick, perhaps some that they are set aside from."""
        if self._is_hopping:
            return self._windows.run(rows=rows)
        return _renamed(rows, self._by)

    def _wanted_values(self, index: int, values: pa.Table) -> pa.Table:
        if self._is_hopping:
            return self._value_windows[index].run(values=values)
        return _renamed(values, (*self._by, VALUE))

    def _past(self, given: KindInput) -> pa.Table | None:
        """Of the views whose turn it is: up to when the windows start that nothing reaches."""
        length = self._length_max
        if length is None or not self._values:
            return None
        views, bounds = (given.everywhere.column(name).to_pylist() for name in (VIEW, BOUND))
        past = [
            {VIEW: view, LOW: None, HIGH: bound - length}
            for view, bound in zip(views, bounds, strict=True)
            if is_turn(given.tick, view)
        ]
        fields = [(VIEW, pa.int32()), (LOW, pa.int64()), (HIGH, pa.int64())]
        return pa.Table.from_pylist(past, schema=pa.schema(fields)) if past else None

    @property
    def _length_max(self) -> int | None:
        """How long a window is at most."""
        if isinstance(self._window, CalendarWindow):
            return _DAYS_MAX[self._window.unit.lower()] * _DAY
        return self._window.size_microseconds if self._window is not None else None

    @property
    def _is_hopping(self) -> bool:
        window = self._window
        return isinstance(window, Window) and window.size_microseconds != window.slide_microseconds

    # SQL

    def _held(self, rows: str) -> str:
        """Every pane of `rows` once for each of the windows that hold it and take it."""
        if self._window is None:
            return f"SELECT * FROM {rows}"
        placed = f"SELECT *, {PANE} AS {_START}, 0 AS {_PLACE} FROM {rows}"
        if self._is_hopping:
            assert isinstance(self._window, Window)
            placed = _hopping(self._window, rows)
        start = f"make_timestamptz({_START}) AS {WINDOW_START}"
        return f"SELECT *, {start} FROM ({placed}) WHERE {_TAKEN}"

    def _seen(self, values: str) -> str:
        return f"SELECT DISTINCT {text_of((*self._by, VALUE))} FROM ({self._held(values)})"

    def _fresh_sql(self, slot: Mapping[str, str]) -> str:
        """The tick's values that are not stored yet."""
        same = matched("s", "k", self._view.keys, self._group)
        return (
            f"SELECT s.* FROM ({self._seen(slot['values'])}) s "
            f"ANTI JOIN {slot['known']} k ON k.{VALUE} = s.{VALUE} AND {same}"
        )

    def _union_sql(self, slot: Mapping[str, str]) -> Iterator[str]:
        """Partial rows, stored rows and new values, with the same columns."""
        state = self._state
        is_windowed, is_calendar = self._window is not None, self._ends_vary
        counts = [quoted(column.name) for column in state.counts]
        partials = [quoted(column.name) for column in self._view.partials]
        group = [quoted(name) for name in self._by]
        before = [ROW, PASSES, *state.was]
        staged = [*group, ROWS, *partials, *(f"0 AS {name}" for name in counts)]
        staged += [f"NULL AS {name}" for name in before]
        stored = [*group, ROWS, *partials, *counts, ROW, PASSES, *state.was_stored]
        if is_windowed:
            staged.append(f"CASE WHEN {_PLACE} < {LATE} THEN {ROWS} ELSE 0 END AS {REVISION}")
            stored.append(REVISION)
        if is_calendar:
            staged.append(f"make_timestamptz({PANE_END}) AS {WINDOW_END}")
            stored.append(WINDOW_END)
        held = self._held(slot["stage"])
        yield f"SELECT {', '.join(staged)}, true AS {_STAGED} FROM ({held})"
        yield f"SELECT {', '.join(stored)}, false FROM {slot['old']}"
        for index in range(len(counts)):
            value = [*group, "0", *("NULL" for _ in partials)]
            value += ["1" if index == other else "0" for other in range(len(counts))]
            value += ["NULL" for _ in before]
            value += ["0"] * is_windowed + ["NULL"] * is_calendar
            yield f"SELECT {', '.join(value)}, false FROM {slot[f'fresh{index}']}"

    def _merge_sql(self, slot: Mapping[str, str]) -> str:
        """Old rows that no row of the tick belongs to fall away: cheaper than a join while they
        are few (measured)."""
        state = self._state
        summed = [ROWS, *(column.name for column in state.counts)]
        columns = [quoted(name) for name in self._by]
        columns += [
            f"CAST({partial.combine} AS {store_type(column.type)}) AS {quoted(column.name)}"
            for partial, column in zip(self._view.plan.partials, self._view.partials, strict=True)
        ]
        columns += [f"max({ROW}) AS {ROW}, true AS {KEPT}"]
        columns += [f"any_value({was}) AS {was}" for was in state.was]
        columns += [f"coalesce(bool_or({PASSES}), false) AS {PASSED}"]
        if self._window is not None:
            summed.append(REVISION)
            ends = f"max({WINDOW_END})"
            if isinstance(self._window, Window):
                size = self._window.size_microseconds
                ends = f"make_timestamptz(epoch_us({WINDOW_START}) + {size})"
            columns.append(f"{ends} AS {WINDOW_END}")
            was = f"CASE WHEN max({ROW}) NOTNULL THEN {ends} END"
            columns.append(f"{was} AS {WAS_ENDS}")
        columns += [f"CAST(sum({quoted(n)}) AS BIGINT) AS {quoted(n)}" for n in summed]
        merged = (
            f"SELECT {', '.join(columns)} FROM ({' UNION ALL '.join(self._union_sql(slot))}) "
            f"GROUP BY {text_of(self._by)} HAVING bool_or({_STAGED})"
        )
        return f"WITH merged AS ({merged}) {state.told_sql('merged', slot['views'])}"

    @property
    def _ends_vary(self) -> bool:
        """Whether the end of a window does not follow from its start."""
        return isinstance(self._window, CalendarWindow)


def _hopping(window: Window, rows: str) -> str:
    """Adds each window's start and its place among those that hold the pane, by end."""
    size, slide = window.size_microseconds, window.slide_microseconds
    origin = window.origin_microseconds
    last = f"{PANE} - ((({PANE} - {origin}) % {slide}) + {slide}) % {slide}"
    count = f"(_last - {PANE} + {size} + {slide} - 1) // {slide}"
    return (
        f"SELECT *, _last - (_count - 1 - {_PLACE}) * {slide} AS {_START} FROM ("
        f"SELECT *, unnest(range(_count)) AS {_PLACE} FROM ("
        f"SELECT *, {count} AS _count FROM (SELECT *, {last} AS _last FROM {rows})))"
    )


def _renamed(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The columns of rows whose pane is their window."""
    arrays = [
        rows.column(PANE).cast(TIMESTAMP.arrow) if name == WINDOW_START else rows.column(name)
        for name in names
    ]
    return pa.Table.from_arrays(arrays, names=list(names))
