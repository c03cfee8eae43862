"""The SQL of a view by event group: what differs from other windows.

Where groups begin and end depends on all events of a key before them. So the events are kept, each
with the inputs of its aggregates, and a tick finds the groups of the keys it touches anew: from
the last group that was open when its first event came, or else from that event on. What lies
before can no longer be another way, since nothing was open there.

    _headrace.events_N        keys, time, place in the log, whether it opens or closes, the
                              watermark before it, whether it was late, ROWS, partials, values of
                              distincts
    _headrace.state_N         one row per group, as for every window; the place of its first event,
                              and from when on it is final

Events stay for as long as something may change their group (settled.py). A group whose first event
is no longer kept is settled: no tick writes it again.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from headrace.kinds.calculator import quoted, store_type
from headrace.model.plan import (
    BEYOND,
    CLOSES,
    LATE,
    OPENS,
    PANE,
    PASSED,
    POSITION,
    ROWS,
    BoundColumn,
    BoundView,
    EventGroup,
)
from headrace.model.types import DataType
from headrace.store.duckdb.schema import (
    BIGINT,
    REVISION,
    TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    ViewSchema,
)

__all__ = ["EventGroupSchema"]

INT = DataType("INT")
BOOLEAN = DataType("BOOLEAN")
ENDS = "_ends"  # TIMESTAMP: the watermark from which on the group is final


class EventGroupSchema(ViewSchema):
    def __init__(self, view: BoundView, number: int) -> None:
        super().__init__(view, number)
        assert isinstance(view.plan.window, EventGroup)
        self.ends = ENDS
        self.was = self.was_ends = f"{self.prefix}was_ends"
        self.timeout = view.plan.window.timeout_microseconds
        self.events_table = f"_headrace.events_{number}"
        own = [(PANE, BIGINT), *zip(POSITION, (INT, BIGINT), strict=True)]
        own += [(OPENS, BOOLEAN), (CLOSES, BOOLEAN), (PASSED, BIGINT), (LATE, INT), (ROWS, BIGINT)]
        values = [BoundColumn(d.name, d.type) for d in view.distincts]
        self.events = (
            *view.keys,
            *(BoundColumn(name, type_) for name, type_ in own),
            *view.partials,
            *values,
        )
        p = self.prefix
        self.key, self.staged = f"{p}key", f"{p}staged"
        self.since = tuple(f"{p}since{i}" for i in range(3))  # a time and a place in the log
        self.group_number, self.gone = f"{p}group", f"{p}gone"
        self._keys = [quoted(column.name) for column in view.keys]

    def _more_group(self) -> tuple[BoundColumn, ...]:
        return (BoundColumn(POSITION[0], INT), BoundColumn(POSITION[1], BIGINT))

    def _more_state(self) -> tuple[BoundColumn, ...]:
        return (BoundColumn(ENDS, TIMESTAMP),)

    @cached_property
    def stage_schema(self) -> pa.Schema:
        return pa.schema([*((c.name, c.type.arrow) for c in self.events), (BEYOND, pa.int32())])

    @cached_property
    def grouped_schema(self) -> pa.Schema:
        """Events of touched keys with the number of their group."""
        events = [(c.name, c.type.arrow) for c in self.events]
        return pa.schema([*events, (self.staged, pa.bool_()), (self.group_number, pa.int64())])

    @cached_property
    def touched_schema(self) -> pa.Schema:
        keys = [(c.name, c.type.arrow) for c in self.keys]
        since = zip(self.since, (pa.int64(), pa.int32(), pa.int64()), strict=True)
        return pa.schema([*keys, (self.key, pa.int64()), *since])

    def create_statements(self) -> list[str]:
        columns = ", ".join(f"{quoted(c.name)} {store_type(c.type)}" for c in self.events)
        return [f"CREATE TABLE {self.events_table} ({columns})", *super().create_statements()]

    def insert_events_sql(self, slot: str) -> str:
        columns = ", ".join(quoted(c.name) for c in self.events)
        return f"INSERT INTO {self.events_table} SELECT {columns} FROM {slot} WHERE {BEYOND} <= 0"

    # The merge

    def touched_keys_sql(self, stage: str, low: int) -> str:
        """The staged keys, numbered, with the event from which on their groups are found anew: the
        first of the last group before them. A time alone would not do: the group before that one
        may end at the same time. No staged event is before `low`, a literal: so old parts of the
        state are not read."""
        by = f" GROUP BY {', '.join(self._keys)}" if self._keys else ""
        first, open_ = f"{self.prefix}first", f"{self.prefix}open"
        names = "".join(f"k.{name}, " for name in self._keys)
        firsts = ", ".join([*self._keys, f"min({PANE}) AS {first}"])
        match = " AND ".join(
            [
                *self._same("s", "k"),
                f"s.{open_} < k.{first}",
                f"s.{open_} > k.{first} - {self.timeout}",
            ]
        )
        group = ", ".join([*self._keys, *POSITION, f"epoch_us({WINDOW_START}) AS {open_}"])
        recent = (
            f"SELECT {group} "
            f"FROM {self.state_table} WHERE {WINDOW_START} > make_timestamptz({low - self.timeout})"
        )
        last = f"max((s.{open_}, {', '.join(f's.{name}' for name in POSITION)}))"
        unless = (f"k.{first}", "-1", "-1")
        since = ", ".join(
            f"coalesce(({last})[{i + 1}], {unless[i]}) AS {name}"
            for i, name in enumerate(self.since)
        )
        return (
            f"SELECT {names}row_number() OVER () AS {self.key}, {since} "
            f"FROM (SELECT {firsts} FROM {stage} WHERE {BEYOND} <= 0{by}) k "
            f"LEFT JOIN ({recent}) s ON {match} GROUP BY {names}k.{first}"
        )

    def _same(self, left: str, right: str) -> list[str]:
        return [f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in self._keys]

    def _is_since(self, time: str, of: str) -> str:
        since = [f"t.{name}" for name in self.since]
        place = ", ".join([time, *(f"{of}.{name}" for name in POSITION)])
        return f"{time} >= {since[0]} AND ({place}) >= ({', '.join(since)})"

    def near_events_sql(
        self, stage: str, touched: str, low: int, *, with_settled: bool = False
    ) -> str:
        """The staged events and those they may be grouped with, in order."""
        columns = [quoted(c.name) for c in self.events]
        match = " AND ".join([*self._same("e", "t"), self._is_since(f"e.{PANE}", "e")])
        chosen = ", ".join(columns)
        both = (
            f"SELECT {chosen}, false AS {self.staged} FROM {self.events_table} "
            f"WHERE {PANE} > {low - self.timeout} "
            f"UNION ALL SELECT {chosen}, true FROM {stage} WHERE {BEYOND} <= 0"
        )
        if with_settled:
            both += f" UNION ALL {self._settled_sql(low)}"
        qualified = ", ".join(f"e.{name}" for name in (*columns, self.staged))
        return (
            f"SELECT {qualified}, t.{self.key} FROM ({both}) e JOIN {touched} t ON {match} "
            f"ORDER BY t.{self.key}, e.{PANE}, e.{POSITION[0]}, e.{POSITION[1]}"
        )

    def _settled_sql(self, low: int) -> str:
        """Groups without events, each as one event that opens it and one that closes it. What is
        kept of the time at which a group closed came after its end, so that goes first there."""
        kept = f"e.{POSITION[0]} = s.{POSITION[0]} AND e.{POSITION[1]} = s.{POSITION[1]}"
        bare = (
            f"SELECT *, {ENDS} <> {WINDOW_END} AS {CLOSES} FROM (SELECT * FROM {self.state_table} "
            f"WHERE {WINDOW_START} > make_timestamptz({low - self.timeout})) s "
            f"ANTI JOIN (SELECT * FROM {self.events_table} WHERE {PANE} > {low - self.timeout}) e "
            f"ON {kept}"
        )
        at_once = f"{CLOSES} AND {WINDOW_END} = {WINDOW_START}"
        known = {LATE: "0", PASSED: "0", ROWS: "0"}
        opening = {**known, PANE: f"epoch_us({WINDOW_START})", OPENS: "true", CLOSES: at_once}
        opening |= {name: name for name in POSITION}
        closing = {**known, PANE: f"epoch_us({WINDOW_END})", OPENS: "false", CLOSES: "true"}
        closing |= {POSITION[0]: POSITION[0], POSITION[1]: "-1"}
        closing |= {name: name for name in self._keys}
        opening |= {name: name for name in self._keys}
        first, last = (
            ", ".join(made.get(c.name, made.get(quoted(c.name), "NULL")) for c in self.events)
            for made in (opening, closing)
        )
        return (
            f"SELECT {first}, false FROM ({bare}) UNION ALL "
            f"SELECT {last}, false FROM ({bare}) WHERE {CLOSES} AND NOT ({at_once})"
        )

    def near_groups_sql(self, touched: str, low: int) -> str:
        """The groups as they are, of which some may become others."""
        start = f"epoch_us(s.{WINDOW_START})"
        match = " AND ".join([*self._same("s", "t"), self._is_since(start, "s")])
        return (
            f"SELECT {self.old_columns_sql()} FROM (SELECT s.* FROM {self.state_table} s "
            f"SEMI JOIN {touched} t ON {match} "
            f"WHERE s.{WINDOW_START} > make_timestamptz({low - self.timeout}))"
        )

    def group_sql(self, grouped: str, old: str) -> str:
        """As `merge_sql`, of the groups that have other events than before; `gone` are rows
        whose group is no more. Those without a first event are settled, and stay."""
        state = [quoted(column.name) for column in self.state]
        after = [quoted(name) for name in self.after]
        place = " AND ".join(f"m.{name} = o.{name}" for name in POSITION)
        chosen = ", ".join(
            f"CASE WHEN m.{ROWS} IS NULL THEN o.{name} ELSE m.{name} END AS {name}"
            for name in state
        )
        before = "".join(
            f", o.{now} AS {quoted(was)}" for now, was in zip(after, self.before, strict=True)
        )
        is_same = f"o.{self.id} NOTNULL AND m.{ROWS} = o.{ROWS} AND NOT m.{self.staged}"
        opened = " AND ".join(f"g.{name} = s.{name}" for name in POSITION)
        complete = (
            f"SELECT {chosen}, o.{self.id}{before}, "
            f"coalesce(o.{self.passes}, false) AS {self.passed}, m.{ROWS} IS NULL AS {self.gone}, "
            f"o.{ENDS} AS {self.was} FROM merged m "
            f"FULL JOIN (SELECT s.* FROM {old} s SEMI JOIN {grouped} g ON {opened}) o ON {place} "
            f"WHERE NOT coalesce({is_same}, false)"
        )
        merged = f"merged AS MATERIALIZED ({self._merged_sql(grouped)})"
        return f"WITH {merged}, {self._finished_sql(complete, [self.gone, self.was])}"

    def _changed_sql(self) -> str:
        """Also where only the end differs, by which a row is final or not."""
        return f"{super()._changed_sql()} OR {ENDS} IS DISTINCT FROM {self.was}"

    def _merged_sql(self, grouped: str) -> str:
        first = f"min(({PANE}, {', '.join(POSITION)}))"
        is_closed = f"bool_or({CLOSES})"
        combined = [
            f"CAST({partial.combine} AS {store_type(column.type)}) AS {quoted(column.name)}"
            for partial, column in zip(self.view.plan.partials, self.view.partials, strict=True)
        ]
        counts = [
            f"count(DISTINCT {quoted(d.name)}) AS {quoted(d.name)}" for d in self.view.distincts
        ]
        limit = f"min({PANE}) + {self.timeout}"
        columns = [
            *(f"any_value({name}) AS {name}" for name in self._keys),
            f"make_timestamptz(min({PANE})) AS {WINDOW_START}",
            f"({first})[2] AS {POSITION[0]}",
            f"({first})[3] AS {POSITION[1]}",
            f"make_timestamptz(CASE WHEN {is_closed} THEN max({PANE}) ELSE {limit} END)"
            f" AS {WINDOW_END}",
            f"CAST(sum(CASE WHEN {LATE} > 0 THEN {ROWS} ELSE 0 END) AS BIGINT) AS {REVISION}",
            f"CAST(sum({ROWS}) AS BIGINT) AS {ROWS}",
            *combined,
            *counts,
            f"make_timestamptz(CASE WHEN {is_closed} THEN max({PANE}) + 1 ELSE {limit} END)"
            f" AS {ENDS}",
            f"bool_or({self.staged}) AS {self.staged}",
        ]
        return f"SELECT {', '.join(columns)} FROM {grouped} GROUP BY {self.group_number}"
