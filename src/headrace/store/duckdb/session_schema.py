"""The SQL of a view by session: what differs from other windows.

Where a session begins and ends depends on its neighbours. So a tick's panes and the sessions of
their keys that they may reach are put in the order of time and cut wherever more than the gap lies
between: Spark's rule, by which events exactly a gap apart are still together. All events of a pane
are in one session.

    _headrace.state_N         as for every window; `window_end` is the last event's time + the gap
    _headrace.values_N_I      keys, pane, value: panes stay what they are when sessions merge
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from headrace.kinds.calculator import matched, quoted
from headrace.model.plan import (
    BEYOND,
    FIRST,
    LAST,
    LATE,
    PANE,
    ROWS,
    BoundColumn,
    BoundView,
    SessionWindow,
)
from headrace.store.duckdb.schema import (
    BIGINT,
    REVISION,
    VALUE,
    WINDOW_END,
    WINDOW_START,
    ViewSchema,
)

__all__ = ["SessionSchema"]

TAKEN = f"{BEYOND} <= 0"  # of the one window that a pane is in, see BEYOND


class SessionSchema(ViewSchema):
    """`absorbed` lists the ids of the old rows that became part of a new row."""

    def __init__(self, view: BoundView, number: int) -> None:
        super().__init__(view, number)
        assert isinstance(self.window, SessionWindow)
        self.gap = self.window.gap_microseconds
        self.value_group = (*self.keys, BoundColumn(PANE, BIGINT))
        self.absorbed = f"{self.prefix}absorbed"
        self._was_end = f"{self.prefix}was_end"

    @cached_property
    def stage_schema(self) -> pa.Schema:
        keys = [(column.name, column.type.arrow) for column in self.keys]
        pane = [(PANE, pa.int64()), (LATE, pa.int32()), (BEYOND, pa.int32())]
        bounds = [(ROWS, pa.int64()), (FIRST, pa.int64()), (LAST, pa.int64())]
        partials = [(column.name, column.type.arrow) for column in self.view.partials]
        return pa.schema([*keys, *pane, *bounds, *partials])

    def _same_keys(self, left: str, right: str) -> str:
        return matched(left, right, self.keys, self.keys)

    def _key_list(self) -> list[str]:
        return [quoted(column.name) for column in self.keys]

    def reached_sql(self, slot: str, first: int, last: int) -> str:
        """The sessions that some pane of their key may belong to. No pane has an event before
        `first` or after `last`: these are literals, so that old row groups are not read."""
        keys = "".join(f"{name}, " for name in self._key_list())
        by = f" GROUP BY {', '.join(self._key_list())}" if keys else ""
        p = self.prefix
        spans = (
            f"SELECT {keys}make_timestamptz(min({FIRST})) AS {p}from, "
            f"make_timestamptz(max({LAST}) + {self.gap}) AS {p}to FROM {slot} WHERE {TAKEN}{by}"
        )
        return (
            f"SELECT {self.old_columns_sql()} FROM (SELECT s.* FROM {self.state_table} s"
            f" SEMI JOIN ({spans}) g ON {self._same_keys('s', 'g')}"
            f" AND s.{WINDOW_END} >= g.{p}from AND s.{WINDOW_START} <= g.{p}to"
            f" WHERE s.{WINDOW_END} >= make_timestamptz({first}::BIGINT)"
            f" AND s.{WINDOW_START} <= make_timestamptz({last + self.gap}::BIGINT))"
        )

    def sessions_sql(self, slot: str, first: int) -> str:
        columns = ", ".join(f"s.{name}" for name in [*self._key_list(), WINDOW_START, WINDOW_END])
        keys = f" SEMI JOIN {slot} g ON {self._same_keys('s', 'g')}" if self.keys else ""
        return (
            f"SELECT {columns} FROM {self.state_table} s{keys}"
            f" WHERE s.{WINDOW_END} >= make_timestamptz({first}::BIGINT)"
        )

    def values_sql(self, slot: str) -> str:
        columns = ", ".join([*self._key_list(), PANE, VALUE])
        return f"SELECT DISTINCT {columns} FROM {slot} WHERE {VALUE} NOTNULL AND {TAKEN}"

    def fresh_values_sql(self, index: int, slot: str) -> str:
        match = matched("v", "g", self.keys, self.value_group)
        return (
            f"SELECT g.* FROM ({self.values_sql(slot)}) g "
            f"ANTI JOIN {self.values_table(index)} v ON v.{VALUE} = g.{VALUE} AND {match}"
        )

    def reached_values_sql(self, index: int, slot: str, first: int) -> str:
        """The values of the tick's keys in panes from `first` on."""
        columns = ", ".join(f"v.{name}" for name in [*self._key_list(), PANE, VALUE])
        return (
            f"SELECT {columns} FROM {self.values_table(index)} v"
            f" SEMI JOIN {slot} g ON {self._same_keys('v', 'g')} WHERE v.{PANE} >= {first}"
        )

    def merge_sql(self, stage: str, old: str, values: list[str]) -> str:
        """As for every window, with the ids of the old rows that each new row takes the place of.
        What it was before is said only where that is one row."""
        first, last = f"{self.prefix}first", f"{self.prefix}last"
        keys = self._key_list()
        partials = [quoted(column.name) for column in self.view.partials]
        after = [quoted(name) for name in self.after]
        empty = [f"NULL AS {name}" for name in (self.id, *after, self.passes)]
        revision = f"CASE WHEN {LATE} > 0 THEN {ROWS} ELSE 0 END AS {REVISION}"
        bounds = [f"{FIRST} AS {first}", f"{LAST} AS {last}"]
        new_rows = [*keys, *bounds, revision, ROWS, *partials, *empty]
        bounds = [f"epoch_us({WINDOW_START})", f"epoch_us({WINDOW_END}) - {self.gap}"]
        old_rows = [*keys, *bounds, REVISION, ROWS, *partials, self.id, *after, self.passes]
        staged = f"{self.prefix}staged"
        both = (
            f"SELECT {', '.join(new_rows)}, true AS {staged} FROM {stage} WHERE {TAKEN} "
            f"UNION ALL SELECT {', '.join(old_rows)}, false FROM {old}"
        )
        island = f"{self.prefix}island"
        aggregates = [
            *keys,
            f"make_timestamptz({island}) AS {WINDOW_START}",
            f"make_timestamptz(max({last}) + {self.gap}) AS {WINDOW_END}",
            *(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in (REVISION, ROWS)),
            *self._combined_sql(),
            f"list({self.id}) FILTER ({self.id} NOTNULL) AS {self.absorbed}",
            f"make_timestamptz(max({last}) FILTER (NOT {staged}) + {self.gap}) AS {self._was_end}",
        ]
        merged = (
            f"SELECT {', '.join(aggregates)} FROM ({self._islands_sql(both, island)}) "
            f"GROUP BY {', '.join([*keys, island])} HAVING bool_or({staged})"
        )
        finished = self._finished_sql(self._complete_sql(values), [self.absorbed, self._was_end])
        return f"WITH merged AS ({merged}), {finished}"

    def _islands_sql(self, rows: str, island: str) -> str:
        """Adds when the session of each row begins. Of rows that begin at one time any may come
        first: all of them see it."""
        first, last, begins = (f"{self.prefix}{name}" for name in ("first", "last", "begins"))
        by = f"PARTITION BY {', '.join(self._key_list())} " if self.keys else ""
        before = f"({by}ORDER BY {first} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        return (
            f"SELECT *, max({begins}) OVER ({by}ORDER BY {first}) AS {island} FROM ("
            f"SELECT *, CASE WHEN {first} <= max({last}) OVER {before} + {self.gap} THEN NULL "
            f"ELSE {first} END AS {begins} FROM ({rows}))"
        )

    def _complete_sql(self, values: list[str]) -> str:
        """Adds the numbers of distinct values, counted anew: those of merged sessions may be the
        same ones."""
        columns, joins = [], []
        for column in self.state:
            name = quoted(column.name)
            counted = column in self.counts
            place = self.counts.index(column) if counted else 0
            columns.append(f"coalesce(v{place}.n, 0) AS {name}" if counted else f"m.{name}")
        group = ", ".join(f"m.{quoted(column.name)}" for column in self.group)
        for index, slot in enumerate(values):
            found = (
                f"SELECT {group}, count(DISTINCT v.{VALUE}) AS n FROM merged m JOIN {slot} v"
                f" ON {self._same_keys('m', 'v')} AND v.{PANE} > epoch_us(m.{WINDOW_START}) - "
                f"{self.gap} AND v.{PANE} <= epoch_us(m.{WINDOW_END}) - {self.gap} GROUP BY {group}"
            )
            joins.append(f" LEFT JOIN ({found}) v{index} ON {self.matches_sql('m', f'v{index}')}")
        rest = [
            f"m.{self.id}",
            *(f"m.{quoted(name)}" for name in self.before),
            f"m.{self.passed} AND coalesce(len(m.{self.absorbed}), 0) = 1 AS {self.passed}",
            f"m.{self.absorbed}, m.{self._was_end}",
        ]
        return f"SELECT {', '.join([*columns, *rest])} FROM merged m{''.join(joins)}"

    def _changed_sql(self) -> str:
        """Also where only the end differs, which no column need show: whether the row is final
        follows from it."""
        return f"{super()._changed_sql()} OR {WINDOW_END} IS DISTINCT FROM {self._was_end}"
