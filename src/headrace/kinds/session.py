"""Views by session: events of a key at most a gap apart are one row.

Where a session begins and ends depends on its neighbours. So a tick's panes and the sessions of
their keys that they may reach are put in the order of time and cut wherever more than the gap lies
between: Spark's rule, by which events exactly a gap apart are still together. All events of a pane
are in one session.

    session_SHAPE             one row per session; `window_end` is the last event's time + the gap
    session_SHAPE_values_I    VIEW, keys, PANE, VALUE: a value of a session, in one of its panes

Sessions only ever grow together, so a value is stored once for its session. What the new number of
values is follows from those of the tick that the session lacks; only where several sessions become
one, all their values are needed. So these are fetched in a second round, when it is known which
sessions merge.

Nothing expires: a session that is open may grow backwards without end, by events that are in time
each, because the session they join is open.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, matched, quoted, store_type
from headrace.kinds.contract import Delta, KindInput, Steps
from headrace.kinds.inputs import VALUE, VIEWS, partials_schema, values_schemas
from headrace.kinds.state_table import (
    BIGINT,
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
    shape_of,
    text_of,
)
from headrace.model.plan import (
    FIRST,
    LAST,
    LATE,
    PANE,
    REJECTED_WINDOWS,
    ROWS,
    BoundColumn,
    BoundView,
    SessionWindow,
)
from headrace.model.tables import HIGH, LOW, ROW, VIEW, Fetch, TableDefinition, TableDelta

__all__ = ["SessionKind"]

_TAKEN = f"{REJECTED_WINDOWS} <= 0"  # of the one window that a pane is in, see REJECTED_WINDOWS
_ISLAND = "_island"  # BIGINT: when the session begins
_END = "_island_end"  # BIGINT: its last event
_ABSORBED = "_absorbed"  # BIGINT: how many stored sessions become part of it
_STAGED = "_staged"  # BOOLEAN: of this tick


class SessionKind:
    feed_is_rows = False

    def __init__(self, view: BoundView, calculator: Calculator) -> None:
        assert isinstance(view.plan.window, SessionWindow)
        self._gap = view.plan.window.gap_microseconds
        self._view = view
        self.shape = shape_of("session", view)
        self.key = (*view.keys, BoundColumn(WINDOW_START, TIMESTAMP))
        self._state = StateTable(self.shape, view, self.key)
        self.public = self._state.public
        self._by = (VIEW, *(column.name for column in view.keys))
        self._numbered = (BoundColumn(VIEW, INT), *view.keys)
        self._values = tuple(
            TableDefinition(
                f"{self.shape}_values_{index}",
                (*self._numbered, BoundColumn(PANE, BIGINT), BoundColumn(VALUE, distinct.type)),
                (*self._by, PANE, VALUE),
                ((*self._by, VALUE), self._by),
            )
            for index, distinct in enumerate(view.distincts)
        )
        self.tables = (self._state.definition(self._by), *self._values)
        self._prepare(calculator)

    def _prepare(self, calculator: Calculator) -> None:
        stage, views = partials_schema(self._view), VIEWS
        old = self._state.fetched
        keys = [(column.name, column.type.arrow) for column in self._numbered]
        times = [(name, pa.int64()) for name in (_ISLAND, _END, _ABSORBED)]
        islands = pa.schema([*keys, *times])
        staged = values_schemas(self._view)
        known = [definition.schema for definition in self._values]
        fresh = [schema.append(pa.field(_ISLAND, pa.int64())) for schema in known]
        self._reaches = calculator.prepare({"stage": stage}, self._reach_sql)
        self._islands = calculator.prepare({"stage": stage, "old": old}, self._spans_sql)
        self._wanted = [
            calculator.prepare({"values": schema, "islands": islands}, self._wanted_sql)
            for schema in staged
        ]
        self._fresh = [
            calculator.prepare(
                {"values": schema, "islands": islands, "known": table}, self._fresh_sql
            )
            for schema, table in zip(staged, known, strict=True)
        ]
        slots = {"stage": stage, "old": old, "views": views}
        slots |= {f"fresh{index}": schema for index, schema in enumerate(fresh)}
        slots |= {f"known{index}": schema for index, schema in enumerate(known)}
        self._merge = calculator.prepare(slots, self._merge_sql)

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._state.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._state.select_sql(view, names, hidden)

    def sessions(
        self, view: int, keys: pa.Table, from_microseconds: int
    ) -> Generator[Sequence[Fetch], Sequence[pa.Table], pa.Table]:
        """Keys, window_start and window_end of the view's sessions of these keys that end then or
        later. Without keys, `keys` plays no part."""
        columns = (*self._by[1:], WINDOW_START, WINDOW_END)
        count = keys.num_rows if len(self._by) > 1 else 1
        rows = {VIEW: pa.repeat(pa.scalar(view, pa.int32()), count)}
        rows |= {name: keys.column(name) for name in self._by[1:]}
        rows[LOW] = pa.repeat(pa.scalar(from_microseconds, pa.int64()), count)
        rows[HIGH] = pa.nulls(count, pa.int64())
        fetch = Fetch(self.shape, self._by, pa.table(rows), time=WINDOW_END, columns=columns)
        (found,) = yield [fetch]
        return found.select(columns)

    def merge(self, given: KindInput) -> Steps:
        """1. The sessions of the tick's keys from its first event on. 2. With distinct values: of
        sessions that grow the tick's values, of those that merge all."""
        reaches = self._reaches.run(stage=given.partials) if given.partials.num_rows else None
        closing = self._state.closing(given.views)
        fetches = []
        if reaches is not None and reaches.num_rows:
            fetches.append(Fetch(self.shape, self._by, reaches, time=WINDOW_END))
        if closing is not None:
            fetches.append(closing)
        answers = list((yield fetches)) if fetches else []
        closed = answers.pop() if closing is not None else None
        if not answers:
            return self._state.delta(None, closed)
        (old,) = answers
        slots = {"stage": given.partials, "old": old, "views": given.views}
        deltas: list[TableDelta] = []
        if self._values:
            islands = self._islands.run(stage=given.partials, old=old)
            grown, merged = self._value_fetches(given.values, islands)
            found = iter((yield [*grown.values(), *merged.values()]) if grown or merged else [])
            known = [
                [next(found)] if index in fetches else []
                for fetches in (grown, merged)
                for index in range(len(self._values))
            ]
            for index, definition in enumerate(self._values):
                some, all_ = known[index], known[index + len(self._values)]
                fresh = self._fresh[index].run(
                    values=given.values[index],
                    islands=islands,
                    known=_concatenated([*some, *all_], definition.schema),
                )
                slots[f"fresh{index}"] = fresh
                slots[f"known{index}"] = _concatenated(all_, definition.schema)
                if fresh.num_rows:
                    put = fresh.select(definition.schema.names)
                    deltas.append(TableDelta(definition.name, put=put))
        # A stored session that begins when one of these does ends after the tick's first event, or
        # is the one that an earlier beginning comes from.
        return self._state.delta(self._merge.run(**slots), closed, *deltas, known=old)

    def _value_fetches(
        self, values: Sequence[pa.Table], islands: pa.Table
    ) -> tuple[dict[int, Fetch], dict[int, Fetch]]:
        """By distinct: the tick's values in sessions that grow, and all of those that merge."""
        grown, merged = {}, {}
        several = islands.filter(pc.greater(islands.column(_ABSORBED), 1))
        bounds = [pc.add(several.column(_ISLAND), 1 - self._gap), several.column(_END)]
        keys = [several.column(name) for name in self._by]
        spans = pa.Table.from_arrays([*keys, *bounds], names=[*self._by, LOW, HIGH])
        for index, definition in enumerate(self._values):
            wanted = self._wanted[index].run(values=values[index], islands=islands)
            if wanted.num_rows:
                on = (*self._by, VALUE)
                grown[index] = Fetch(definition.name, on, wanted, time=PANE)
            if spans.num_rows:
                merged[index] = Fetch(definition.name, self._by, spans, time=PANE)
        return grown, merged

    # SQL

    def _same(self, left: str, right: str) -> str:
        return matched(left, right, self._view.keys, self._numbered)

    def _in_island(self, values: str, island: str) -> str:
        """Every pane of a session, and none of another, begins less than a gap before it or in
        it."""
        return (
            f"{self._same(values, island)} AND {values}.{PANE} > {island}.{_ISLAND} - {self._gap} "
            f"AND {values}.{PANE} <= {island}.{_END}"
        )

    def _reach_sql(self, slot: Mapping[str, str]) -> str:
        """From when on the sessions end that some pane of a key may belong to. Later sessions are
        few: mostly a tick's events are the newest of their keys."""
        return (
            f"SELECT {text_of(self._by)}, min({FIRST}) AS {LOW}, CAST(NULL AS BIGINT) AS {HIGH} "
            f"FROM {slot['stage']} WHERE {_TAKEN} GROUP BY {text_of(self._by)}"
        )

    def _rows_sql(self, slot: Mapping[str, str]) -> str:
        """Partial rows and stored ones alike."""
        partials = [quoted(column.name) for column in self._view.partials]
        counts = [quoted(column.name) for column in self._state.counts]
        new = [
            *(quoted(name) for name in self._by),
            f"{FIRST} AS _start, {LAST} AS _last",
            f"CASE WHEN {LATE} > 0 THEN {ROWS} ELSE 0 END AS {REVISION}",
            ROWS,
            *partials,
            f"NULL AS {ROW}",
            *(f"NULL AS {name}" for name in counts),
        ]
        old = [
            *(quoted(name) for name in self._by),
            f"epoch_us({WINDOW_START}), epoch_us({WINDOW_END}) - {self._gap}",
            REVISION,
            ROWS,
            *partials,
            ROW,
            *counts,
        ]
        return (
            f"SELECT {', '.join(new)}, true AS {_STAGED} FROM {slot['stage']} WHERE {_TAKEN} "
            f"UNION ALL SELECT {', '.join(old)}, false FROM {slot['old']}"
        )

    def _islands_sql(self, slot: Mapping[str, str]) -> str:
        """Adds when the session of each row begins. Of rows that begin at one time any may come
        first: all of them see it."""
        by = f"PARTITION BY {text_of(self._by)} ORDER BY _start"
        before = f"({by} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        return (
            f"SELECT *, max(_begins) OVER ({by}) AS {_ISLAND} FROM ("
            f"SELECT *, CASE WHEN _start <= max(_last) OVER {before} + {self._gap} THEN NULL "
            f"ELSE _start END AS _begins FROM ({self._rows_sql(slot)}))"
        )

    def _spans_sql(self, slot: Mapping[str, str]) -> str:
        """The sessions that the tick touches, as they will be."""
        return (
            f"SELECT {text_of(self._by)}, {_ISLAND}, max(_last) AS {_END}, "
            f"count({ROW}) AS {_ABSORBED} FROM ({self._islands_sql(slot)}) "
            f"GROUP BY {text_of((*self._by, _ISLAND))} HAVING bool_or({_STAGED})"
        )

    def _wanted_sql(self, slot: Mapping[str, str]) -> str:
        return (
            f"SELECT DISTINCT {text_of((*self._by, VALUE), 'v.')}, "
            f"i.{_ISLAND} - {self._gap - 1} AS {LOW}, i.{_END} AS {HIGH} "
            f"FROM {slot['values']} v JOIN {slot['islands']} i ON {self._in_island('v', 'i')} "
            f"WHERE v.{VALUE} NOTNULL AND v.{_TAKEN} AND i.{_ABSORBED} = 1"
        )

    def _fresh_sql(self, slot: Mapping[str, str]) -> str:
        """The values that a session did not have, each in the first of the tick's panes."""
        staged = (
            f"SELECT {text_of(self._by, 'v.')}, min(v.{PANE}) AS {PANE}, v.{VALUE}, "
            f"i.{_ISLAND}, i.{_END} "
            f"FROM {slot['values']} v JOIN {slot['islands']} i ON {self._in_island('v', 'i')} "
            f"WHERE v.{VALUE} NOTNULL AND v.{_TAKEN} "
            f"GROUP BY {text_of(self._by, 'v.')}, v.{VALUE}, i.{_ISLAND}, i.{_END}"
        )
        return (
            f"SELECT {text_of((*self._by, PANE, VALUE, _ISLAND))} FROM ({staged}) s "
            f"ANTI JOIN {slot['known']} k "
            f"ON k.{VALUE} = s.{VALUE} AND {self._in_island('k', 's')}"
        )

    def _merge_sql(self, slot: Mapping[str, str]) -> str:
        partials = [
            f"CAST({partial.combine} AS {store_type(column.type)}) AS {quoted(column.name)}"
            for partial, column in zip(self._view.plan.partials, self._view.partials, strict=True)
        ]
        state = self._state
        columns = [
            *(quoted(name) for name in self._by),
            f"{_ISLAND}, max(_last) AS {_END}",
            f"make_timestamptz({_ISLAND}) AS {WINDOW_START}",
            f"make_timestamptz(max(_last) + {self._gap}) AS {WINDOW_END}",
            *(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in (REVISION, ROWS)),
            *partials,
            f"count({ROW}) AS {_ABSORBED}",
            *(f"max({quoted(column.name)}) AS {quoted(column.name)}" for column in state.counts),
            # The stored session that begins when the new one does is the row that is replaced.
            f"max({ROW}) FILTER (_start = {_ISLAND}) AS {ROW}",
        ]
        merged = (
            f"SELECT {', '.join(columns)} FROM islands "
            f"GROUP BY {text_of((*self._by, _ISLAND))} HAVING bool_or({_STAGED})"
        )
        both = f"({self._counted_sql(slot)} UNION ALL {self._gone_sql(slot['old'])})"
        return (
            f"WITH islands AS MATERIALIZED ({self._islands_sql(slot)}), "
            f"merged AS MATERIALIZED ({merged}) {state.told_sql(both, slot['views'])}"
        )

    def _result(self, named: Mapping[str, str]) -> str:
        """The columns of a row for `told_sql`, in their order."""
        names = [VIEW, *(column.name for column in self._state.state), ROW]
        columns = [f"{named.get(n, f'm.{quoted(n)}')} AS {quoted(n)}" for n in names]
        columns.append(f"{named[KEPT]} AS {KEPT}")
        shown = zip(self._state.shown, self._state.was, strict=True)
        columns += [f"o.{quoted(column.name)} AS {was}" for column, was in shown]
        return ", ".join([*columns, f"o.{PASSES} AS {PASSED}, o.{WINDOW_END} AS {WAS_ENDS}"])

    def _counted_sql(self, slot: Mapping[str, str]) -> str:
        """Adds the numbers of distinct values. Those of merged sessions may be the same ones, so
        they are counted anew."""
        named, joins = {KEPT: "true"}, f" LEFT JOIN {slot['old']} o ON o.{ROW} = m.{ROW}"
        for index, column in enumerate(self._state.counts):
            fresh, known = f"n{index}", f"k{index}"
            by = text_of((*self._by, _ISLAND))
            joins += (
                f" LEFT JOIN (SELECT {by}, count(*) AS n FROM {slot[f'fresh{index}']} "
                f"GROUP BY {by}) {fresh} "
                f"ON {self._same('m', fresh)} AND {fresh}.{_ISLAND} = m.{_ISLAND}"
            )
            by = text_of((*self._by, _ISLAND), "m.")
            joins += (
                f" LEFT JOIN (SELECT {by}, count(DISTINCT v.{VALUE}) AS n "
                f"FROM merged m JOIN {slot[f'known{index}']} v ON {self._in_island('v', 'm')} "
                f"WHERE m.{_ABSORBED} > 1 GROUP BY {by}) {known} "
                f"ON {self._same('m', known)} AND {known}.{_ISLAND} = m.{_ISLAND}"
            )
            before = f"CASE WHEN m.{_ABSORBED} = 1 THEN m.{quoted(column.name)} ELSE {known}.n END"
            named[column.name] = f"coalesce({before}, 0) + coalesce({fresh}.n, 0)"
        return f"SELECT {self._result(named)} FROM merged m{joins}"

    def _gone_sql(self, old: str) -> str:
        """The stored sessions that became part of one that begins earlier."""
        named = {column.name: "NULL" for column in self._state.state}
        named |= {name: f"o.{quoted(name)}" for name in (*self._by, WINDOW_START, WINDOW_END, ROW)}
        gone = (
            f"SELECT r.{ROW} FROM islands r SEMI JOIN merged m "
            f"ON {self._same('r', 'm')} AND r.{_ISLAND} = m.{_ISLAND} "
            f"WHERE r.{ROW} NOTNULL AND r._start <> r.{_ISLAND}"
        )
        return (
            f"SELECT {self._result({**named, KEPT: 'false'})} "
            f"FROM {old} o WHERE o.{ROW} IN ({gone})"
        )


def _concatenated(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    chosen = [table.select(schema.names) for table in tables]
    return pa.concat_tables(chosen) if chosen else schema.empty_table()
