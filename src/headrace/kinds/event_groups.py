"""Views by event group: what an event opens, and another or a timeout closes, is one row.

Where groups begin and end depends on all events of a key before them. So the events are kept, each
with the inputs of its aggregates, and a tick finds the groups of the keys it touches anew: from
the last group that was open when its first event came, or else from that event on. What lies
before can no longer be another way, since nothing was open there.

    event_group_SHAPE          one row per group: the place of its first event, and in ENDS from
                               when on it is final
    event_group_SHAPE_events   VIEW, keys, time, place in the log, whether it opens or closes, the
                               watermark before it, whether it was late, ROWS, partials, values of
                               distincts

Which events form a group is found in Python, for all keys at once (event_group.py).

Events stay for as long as something may change their group. A group that has ended by the bound of
a partition takes no event of it any more; none can begin before it and take it in either: that one
would end with it, or a timeout after its own beginning. An event in no group goes a timeout later,
when no group that reaches it can still begin. A group whose first event is no longer kept is
settled: no tick writes it again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import Calculator, conformed, matched, quoted, store_type
from headrace.kinds.contract import BOUND, PARTITION, Delta, KindInput, Steps
from headrace.kinds.event_group import KEY, find_groups
from headrace.kinds.inputs import BOUNDS, VIEWS, partials_schema
from headrace.kinds.state_table import (
    BIGINT,
    BOOLEAN,
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
    CLOSES,
    LATE,
    OPENS,
    PANE,
    POSITION,
    REJECTED_WINDOWS,
    ROWS,
    BoundColumn,
    BoundView,
    EventGroup,
)
from headrace.model.plan import PASSED as WATERMARK  # of the event; a row's is another thing
from headrace.model.tables import HIGH, LOW, ROW, VIEW, Fetch, TableDefinition, TableDelta

__all__ = ["EventGroupKind"]

ENDS = "_ends"  # TIMESTAMP: the watermark from which on the group is final
_STAGED = "_staged"  # BOOLEAN: of this tick
_GROUP = "_group"  # BIGINT: the number of the event's group in this tick
_FIRST = "_first_time"  # BIGINT: of the key's events in this tick
_SINCE = ("_since0", "_since1", "_since2")  # a time and a place in the log


class EventGroupKind:
    feed_is_rows = False

    def __init__(self, view: BoundView, calculator: Calculator) -> None:
        assert isinstance(view.plan.window, EventGroup)
        self._timeout = view.plan.window.timeout_microseconds
        self._view = view
        self.shape = shape_of("event_group", view)
        partition, offset = POSITION
        place = (BoundColumn(partition, INT), BoundColumn(offset, BIGINT))
        self.key = (*view.keys, BoundColumn(WINDOW_START, TIMESTAMP), *place)
        more = (BoundColumn(ENDS, TIMESTAMP),)
        self._state = StateTable(self.shape, view, self.key, more, ends=ENDS)
        self.public = self._state.public
        self._by = (VIEW, *(column.name for column in view.keys))
        own = [(PANE, BIGINT), (partition, INT), (offset, BIGINT), (OPENS, BOOLEAN)]
        own += [(CLOSES, BOOLEAN), (WATERMARK, BIGINT), (LATE, INT), (ROWS, BIGINT)]
        self._events = TableDefinition(
            f"{self.shape}_events",
            (
                BoundColumn(VIEW, INT),
                *view.keys,
                *(BoundColumn(name, type_) for name, type_ in own),
                *view.partials,
                *(BoundColumn(distinct.name, distinct.type) for distinct in view.distincts),
            ),
            (VIEW, *POSITION),
            (self._by,),
        )
        self._expiring = (*self._by, PANE, *POSITION, OPENS, CLOSES)
        self.tables = (self._state.definition(self._by), self._events)
        self._prepare(calculator)

    def _prepare(self, calculator: Calculator) -> None:
        stage, groups, events = (
            partials_schema(self._view),
            self._state.fetched,
            self._events.schema,
        )
        grouped = events.append(pa.field(_STAGED, pa.bool_()))
        grouped = grouped.append(pa.field(_GROUP, pa.int64()))
        expiring = pa.schema([events.field(name) for name in self._expiring])
        expiring = expiring.append(pa.field(ROW, pa.int64()))
        near = {"stage": stage, "groups": groups, "events": events}
        self._reaches = calculator.prepare({"stage": stage}, self._reach_sql)
        self._near = calculator.prepare(near, self._near_sql)
        self._near_and_settled = calculator.prepare(near, self._near_and_settled_sql)
        self._merge = calculator.prepare(
            {"grouped": grouped, "groups": groups, "views": VIEWS}, self._merge_sql
        )
        self._expiring_events = calculator.prepare(
            {"stage": stage, "events": expiring, "bounds": BOUNDS}, self._expiring_sql
        )
        gone = pa.schema([events.field(name) for name in (VIEW, *POSITION)])
        self._kept = calculator.prepare({"stage": stage, "gone": gone}, self._kept_sql)

    def seed(self, view: int) -> Delta:
        return Delta((), None)

    def select_sql(self, view: int, names: Sequence[str]) -> str:
        return self._state.select_sql(view, names)

    def keyed_select_sql(self, view: int, names: Sequence[str], hidden: Sequence[str]) -> str:
        return self._state.select_sql(view, names, hidden)

    def near_events(
        self, view: int, partials: pa.Table
    ) -> Generator[Sequence[Fetch], Sequence[pa.Table], pa.Table | None]:
        """Of one view, whose partials these are (VIEW may be missing): the events among them whose
        REJECTED_WINDOWS is not positive, and the stored ones they may be grouped with; in KEY a
        number for the keys; in the order of that, of time and of the log. A group whose events are
        no longer kept is there by what opens and what closes it. None where there are none."""
        numbers = pa.repeat(pa.scalar(view, pa.int32()), partials.num_rows)
        if VIEW in partials.column_names:
            partials = partials.drop_columns([VIEW])
        partials = partials.add_column(0, VIEW, numbers)
        reaches = self._reaches.run(stage=partials)
        if reaches.num_rows == 0:
            return None
        groups, events = yield self._near_fetches(reaches)
        found = self._near_and_settled.run(stage=partials, groups=groups, events=events)
        return found.drop_columns([VIEW])

    def merge(self, given: KindInput) -> Steps:
        """One round: the groups and events of the tick's keys from a timeout before its first event
        on; and the events of those views whose turn it is to let expired ones go."""
        reaches = self._reaches.run(stage=given.partials) if given.partials.num_rows else None
        is_fed = reaches is not None and reaches.num_rows > 0
        closing, expiring = self._state.closing(given.views), self._expiry_fetch(given)
        fetches = [] if reaches is None or not is_fed else self._near_fetches(reaches)
        fetches += [fetch for fetch in (closing, expiring) if fetch is not None]
        answers = list((yield fetches)) if fetches else []
        expired = self._expired(given, answers.pop()) if expiring is not None else None
        closed = answers.pop() if closing is not None else None
        told, deltas = None, []
        if is_fed:
            groups, events = answers
            near = self._near.run(stage=given.partials, groups=groups, events=events)
            told = self._merge.run(grouped=self._grouped(near), groups=groups, views=given.views)
        if is_fed or expired is not None:
            deltas.append(self._events_delta(given.partials, expired))
        return self._state.delta(told, closed, *deltas)

    def _near_fetches(self, reaches: pa.Table) -> list[Fetch]:
        return [
            Fetch(self.shape, self._by, reaches, time=WINDOW_START),
            Fetch(self._events.name, self._by, reaches, PANE, self._events.schema.names),
        ]

    def _grouped(self, near: pa.Table) -> pa.Table:
        keys, times = (near.column(name).to_numpy() for name in (KEY, PANE))
        opens, closes = (near.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES))
        groups = find_groups(keys, times, opens, closes, self._timeout)
        numbers = pa.array(groups.numbers(near.num_rows))
        return near.append_column(_GROUP, numbers).filter(pc.greater_equal(numbers, 0))

    # Expiry

    def _expiry_fetch(self, given: KindInput) -> Fetch | None:
        """The events before the last bound of each view whose turn it is."""
        views = given.bounds.column(VIEW).to_pylist()
        bounds: dict[int, int] = {}
        for view, bound in zip(views, given.bounds.column(BOUND).to_pylist(), strict=True):
            if is_turn(given.tick, view):
                bounds[view] = max(bound, bounds.get(view, bound))
        if not bounds:
            return None
        rows = pa.table(
            {
                VIEW: pa.array(list(bounds), pa.int32()),
                LOW: pa.nulls(len(bounds), pa.int64()),
                HIGH: pa.array([bound - 1 for bound in bounds.values()], pa.int64()),
            }
        )
        return Fetch(self._events.name, (VIEW,), rows, PANE, self._expiring)

    def _expired(self, given: KindInput, events: pa.Table) -> pa.Table:
        """Which of these events and the tick's own may go: their places, and ROW where they are
        stored. The groups are those after the tick, since its events may be before the bound; and
        they go whole, since what is left of one would be taken for another.

        The groups that are gone already are not among them: so the first event of a key that opens
        one does begin one."""
        found = self._expiring_events.run(stage=given.partials, events=events, bounds=given.bounds)
        keys, times, bounds = (found.column(name).to_numpy() for name in (KEY, PANE, BOUND))
        opens, closes = (found.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES))
        groups = find_groups(keys, times, opens, closes, self._timeout)
        limits = times[groups.starts] + self._timeout
        ends = np.where(groups.is_closed, times[groups.ends - 1] + 1, limits)
        numbers = groups.numbers(found.num_rows)
        # What is in no group could be reached by one that begins up to a timeout before it.
        ends = np.append(ends, 0)[numbers]
        ends[numbers < 0] = times[numbers < 0] + self._timeout
        return found.select([VIEW, *POSITION, ROW]).filter(pa.array(ends <= bounds))

    def _events_delta(self, partials: pa.Table, expired: pa.Table | None) -> TableDelta:
        if expired is None:
            staged = partials.filter(pc.less_equal(partials.column(REJECTED_WINDOWS), 0))
            put = conformed(staged, self._events.schema)
            return TableDelta(self._events.name, None, put)
        put = self._kept.run(stage=partials, gone=expired.drop_columns([ROW]))
        rows = expired.column(ROW).drop_null()
        gone = pa.Table.from_arrays([rows], names=[ROW]) if len(rows) else None
        return TableDelta(self._events.name, gone, put if put.num_rows else None)

    def _kept_sql(self, slot: Mapping[str, str]) -> str:
        place = " AND ".join(f"g.{name} = s.{name}" for name in (VIEW, *POSITION))
        return (
            f"SELECT {text_of(self._events.schema.names)} FROM {slot['stage']} s "
            f"ANTI JOIN {slot['gone']} g ON {place} WHERE {REJECTED_WINDOWS} <= 0"
        )

    def _expiring_sql(self, slot: Mapping[str, str]) -> str:
        """In the order of key, time and place, with the bound of each event's partition."""
        columns = text_of(self._expiring)
        both = (
            f"SELECT {columns}, {ROW} FROM {slot['events']} UNION ALL "
            f"SELECT {columns}, NULL FROM {slot['stage']} WHERE {REJECTED_WINDOWS} <= 0"
        )
        number = f"dense_rank() OVER (ORDER BY {text_of(self._by, 'e.')}) AS {KEY}"
        lowest = "CAST('-9223372036854775808' AS BIGINT)"
        return (
            f"SELECT e.*, {number}, coalesce(b.{BOUND}, {lowest}) AS {BOUND} FROM ({both}) e "
            f"LEFT JOIN {slot['bounds']} b "
            f"ON b.{VIEW} = e.{VIEW} AND b.{PARTITION} = e.{POSITION[0]} "
            f"WHERE e.{VIEW} IN (SELECT {VIEW} FROM {slot['bounds']}) "
            f"ORDER BY {KEY}, {PANE}, {', '.join(POSITION)}"
        )

    # SQL

    def _same(self, left: str, right: str) -> str:
        numbered = (BoundColumn(VIEW, INT), *self._view.keys)
        return matched(left, right, self._view.keys, numbered)

    def _firsts_sql(self, slot: Mapping[str, str]) -> str:
        by = text_of(self._by)
        return (
            f"SELECT {by}, min({PANE}) AS {_FIRST} FROM {slot['stage']} "
            f"WHERE {REJECTED_WINDOWS} <= 0 GROUP BY {by}"
        )

    def _reach_sql(self, slot: Mapping[str, str]) -> str:
        """No group that began a timeout before a key's first event is open when that comes."""
        return (
            f"SELECT {text_of(self._by)}, {_FIRST} - {self._timeout - 1} AS {LOW}, "
            f"CAST(NULL AS BIGINT) AS {HIGH} FROM ({self._firsts_sql(slot)})"
        )

    def _touched_sql(self, slot: Mapping[str, str]) -> str:
        """The staged keys, numbered, with the event from which on their groups are found anew: the
        first of the last group before them. A time alone would not do: the group before that one
        may end at the same time."""
        start = f"epoch_us(s.{WINDOW_START})"
        place = ", ".join(f"s.{name}" for name in POSITION)
        last = f"max(({start}, {place}))"
        since = ", ".join(
            f"coalesce(({last})[{index + 1}], {unless}) AS {name}"
            for index, (name, unless) in enumerate(
                zip(_SINCE, (f"k.{_FIRST}", "-1", "-1"), strict=True)
            )
        )
        by = text_of(self._by, "k.")
        return (
            f"SELECT {by}, row_number() OVER () AS {KEY}, {since} "
            f"FROM ({self._firsts_sql(slot)}) k LEFT JOIN {slot['groups']} s "
            f"ON {self._same('s', 'k')} AND {start} < k.{_FIRST} "
            f"AND {start} > k.{_FIRST} - {self._timeout} GROUP BY {by}, k.{_FIRST}"
        )

    def _near_sql(self, slot: Mapping[str, str], settled: str = "") -> str:
        """The staged events and those they may be grouped with, in order."""
        columns = text_of(self._events.schema.names)
        both = (
            f"SELECT {columns}, false AS {_STAGED} FROM {slot['events']} "
            f"UNION ALL SELECT {columns}, true FROM {slot['stage']}"
            f" WHERE {REJECTED_WINDOWS} <= 0{settled}"
        )
        place = ", ".join(f"e.{name}" for name in (PANE, *POSITION))
        since = ", ".join(f"t.{name}" for name in _SINCE)
        return (
            f"SELECT e.*, t.{KEY} FROM ({both}) e JOIN ({self._touched_sql(slot)}) t "
            f"ON {self._same('e', 't')} AND e.{PANE} >= t.{_SINCE[0]} "
            f"AND ({place}) >= ({since}) ORDER BY t.{KEY}, {place}"
        )

    def _near_and_settled_sql(self, slot: Mapping[str, str]) -> str:
        """What is applied is never in a group that is settled: merging need not know of these."""
        return self._near_sql(slot, f" UNION ALL {self._settled_sql(slot)}")

    def _settled_sql(self, slot: Mapping[str, str]) -> str:
        """Groups without events, each as one event that opens it and one that closes it. What is
        kept of the time at which a group closed came after its end, so that goes first there."""
        kept = " AND ".join(f"e.{name} = s.{name}" for name in (VIEW, *POSITION))
        bare = (
            f"SELECT *, {ENDS} <> {WINDOW_END} AS {CLOSES} FROM {slot['groups']} s "
            f"ANTI JOIN {slot['events']} e ON {kept}"
        )
        at_once = f"{CLOSES} AND {WINDOW_END} = {WINDOW_START}"
        known = {quoted(name): quoted(name) for name in self._by}
        known |= {quoted(LATE): "0", quoted(WATERMARK): "0", quoted(ROWS): "0"}
        partition, offset = map(quoted, POSITION)
        opening = {**known, partition: partition, offset: offset, quoted(OPENS): "true"}
        opening |= {quoted(PANE): f"epoch_us({WINDOW_START})", quoted(CLOSES): at_once}
        closing = {**known, partition: partition, offset: "-1", quoted(OPENS): "false"}
        closing |= {quoted(PANE): f"epoch_us({WINDOW_END})", quoted(CLOSES): "true"}
        first, last = (
            ", ".join(made.get(quoted(name), "NULL") for name in self._events.schema.names)
            for made in (opening, closing)
        )
        return (
            f"SELECT {first}, false FROM ({bare}) UNION ALL "
            f"SELECT {last}, false FROM ({bare}) WHERE {CLOSES} AND NOT ({at_once})"
        )

    def _merge_sql(self, slot: Mapping[str, str]) -> str:
        """The groups that have other events than before, and those that are no more. Stored groups
        whose first event is not among the events are settled, or lie before them, and stay."""
        state = self._state
        place = (VIEW, *POSITION)
        known = " AND ".join(f"g.{name} = s.{name}" for name in place)
        chosen = ", ".join(
            f"CASE WHEN m.{ROWS} IS NULL THEN o.{name} ELSE m.{name} END AS {name}"
            for name in (quoted(name) for name in (VIEW, *(c.name for c in state.state)))
        )
        was = "".join(f"o.{name}, " for name in state.was)
        stored = f"SELECT s.*, {', '.join(state.was_stored)} FROM {slot['groups']} s"
        same = f"o.{ROW} NOTNULL AND m.{ROWS} = o.{ROWS} AND NOT m.{_STAGED}"
        rows = (
            f"SELECT {chosen}, o.{ROW}, m.{ROWS} NOTNULL AS {KEPT}, {was}"
            f"o.{PASSES} AS {PASSED}, o.{ENDS} AS {WAS_ENDS} FROM merged m "
            f"FULL JOIN ({stored} SEMI JOIN {slot['grouped']} g ON {known}) o "
            f"ON {' AND '.join(f'm.{name} = o.{name}' for name in place)} "
            f"WHERE NOT coalesce({same}, false)"
        )
        merged = f"merged AS MATERIALIZED ({self._merged_sql(slot)})"
        return f"WITH {merged} {state.told_sql(f'({rows})', slot['views'])}"

    def _merged_sql(self, slot: Mapping[str, str]) -> str:
        first = f"min(({PANE}, {', '.join(POSITION)}))"
        is_closed = f"bool_or({CLOSES})"
        limit = f"min({PANE}) + {self._timeout}"
        columns = [
            *(f"any_value({quoted(name)}) AS {quoted(name)}" for name in self._by),
            f"make_timestamptz(min({PANE})) AS {WINDOW_START}",
            *(f"({first})[{i}] AS {name}" for i, name in enumerate(POSITION, start=2)),
            f"make_timestamptz(CASE WHEN {is_closed} THEN max({PANE}) ELSE {limit} END)"
            f" AS {WINDOW_END}",
            f"CAST(sum(CASE WHEN {LATE} > 0 THEN {ROWS} ELSE 0 END) AS BIGINT) AS {REVISION}",
            f"CAST(sum({ROWS}) AS BIGINT) AS {ROWS}",
            *(
                f"CAST({partial.combine} AS {store_type(column.type)}) AS {quoted(column.name)}"
                for partial, column in zip(
                    self._view.plan.partials, self._view.partials, strict=True
                )
            ),
            *(
                f"count(DISTINCT {quoted(d.name)}) AS {quoted(d.name)}"
                for d in self._view.distincts
            ),
            f"make_timestamptz(CASE WHEN {is_closed} THEN max({PANE}) + 1 ELSE {limit} END)"
            f" AS {ENDS}",
            f"bool_or({_STAGED}) AS {_STAGED}",
        ]
        return f"SELECT {', '.join(columns)} FROM {slot['grouped']} GROUP BY {_GROUP}"
