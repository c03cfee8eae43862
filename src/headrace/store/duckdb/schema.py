"""The SQL of one view: its tables, its public view, and the statements of its merge.

Everything here is text made from a BoundView. Tables are named by the view's number, so that a
user's names appear only as quoted column and view names.

    _headrace.state_N         keys, window_start, window_end, revision, _rows, partials,
                              distinct counts, an id that every written row gets anew, and,
                              without a window, a hash of the keys (indexed once large)
    _headrace.values_N_I      the values seen by distinct I: keys, window_start, value
    _headrace.read_N          public columns and the hidden keys, for stable paging
    main.NAME                 public columns
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from headrace.kinds.calculator import matched, quoted, store_type
from headrace.model.plan import (
    BEYOND,
    LATE,
    PANE,
    PANE_END,
    ROWS,
    BoundColumn,
    BoundView,
    CalendarWindow,
    Window,
)
from headrace.model.types import DataType
from headrace.store.duckdb.finality import FINAL, Passing, final_sql

__all__ = ["ViewSchema"]

BIGINT = DataType("BIGINT")
TIMESTAMP = DataType("TIMESTAMP")
BOOLEAN = DataType("BOOLEAN")
WINDOW_START = "window_start"
WINDOW_END = "window_end"
REVISION = "revision"
VALUE = "value"


class ViewSchema:
    """`prefix` starts no column of the view, so names made with it never meet a user's."""

    def __init__(self, view: BoundView, number: int) -> None:
        self.view = view
        self.number = number
        self.window = view.plan.window
        self.keys = view.keys
        windowed = self.window is not None
        start = (BoundColumn(WINDOW_START, TIMESTAMP),) if windowed else ()
        end = (BoundColumn(WINDOW_END, TIMESTAMP),) if windowed else ()
        revision = (BoundColumn(REVISION, BIGINT),) if windowed else ()
        counts = tuple(BoundColumn(d.name, BIGINT) for d in view.distincts)
        rows = (BoundColumn(ROWS, BIGINT),)
        self.group = (*view.keys, *start, *self._more_group())
        self.value_group = self.group
        self.state = (*self.group, *end, *revision, *rows, *view.partials, *counts)
        self.state += self._more_state()
        self._summed = (*revision, *rows)
        self.counts = counts
        shown = tuple((column, quoted(column.name)) for column in revision)
        self.finals = (*view.finals, *shown)
        self.emits_on_close = view.plan.emits_on_close
        self.ends = WINDOW_END  # the column with the watermark from which on a row is final
        self.was_ends: str | None = None  # in a merge's result: what it was, where it may change
        names = [column.name for column in self.state] + [column.name for column, _ in self.finals]
        self.prefix = "_h"
        while any(name.lower().startswith(self.prefix) for name in names):
            self.prefix += "_"
        self.id = f"{self.prefix}id"
        self.hash = f"{self.prefix}hash" if self.keys and not windowed else None
        self.passes = f"{self.prefix}passes"
        self.passed = f"{self.prefix}passed"
        self.changed = f"{self.prefix}changed"
        self.after = tuple(f"{self.prefix}after{i}" for i in range(len(self.finals)))
        self.before = tuple(f"{self.prefix}before{i}" for i in range(len(self.finals)))
        self.hidden = tuple(f"{self.prefix}key{i}" for i in range(len(self.group)))
        self.state_table = f"_headrace.state_{number}"
        self.index = f"keys_{number}"
        self.read_view = f"_headrace.read_{number}"

    def _more_group(self) -> tuple[BoundColumn, ...]:
        """What tells rows apart beside keys and start; below: further state columns."""
        return ()

    def _more_state(self) -> tuple[BoundColumn, ...]:
        return ()

    def values_table(self, index: int) -> str:
        return f"_headrace.values_{self.number}_{index}"

    # Arrow schemas of the slots

    @cached_property
    def stage_schema(self) -> pa.Schema:
        """What a tick brings: the columns of a partial table (see BoundView)."""
        pane = []
        if self.window:
            pane = [(PANE, pa.int64()), (LATE, pa.int32()), (BEYOND, pa.int32())]
        if isinstance(self.window, CalendarWindow):
            pane.append((PANE_END, pa.int64()))
        keys = [(column.name, column.type.arrow) for column in self.keys]
        partials = [(column.name, column.type.arrow) for column in self.view.partials]
        return pa.schema([*keys, *pane, (ROWS, pa.int64()), *partials])

    def value_stage_schema(self, index: int) -> pa.Schema:
        pane = []
        if self.window:
            pane = [(PANE, pa.int64()), (LATE, pa.int32()), (BEYOND, pa.int32())]
        keys = [(column.name, column.type.arrow) for column in self.keys]
        value = (VALUE, self.view.distincts[index].type.arrow)
        return pa.schema([*keys, *pane, value])

    def value_schema(self, index: int) -> pa.Schema:
        group = [(column.name, column.type.arrow) for column in self.value_group]
        return pa.schema([*group, (VALUE, self.view.distincts[index].type.arrow)])

    @cached_property
    def written_schema(self) -> pa.Schema:
        """A row of the state table."""
        state = [(column.name, column.type.arrow) for column in self.state]
        return pa.schema([*state, (self.id, pa.int64())])

    @cached_property
    def old_schema(self) -> pa.Schema:
        """A state row with its finals, as they were when it was written."""
        finals = [
            (name, column.type.arrow)
            for name, (column, _) in zip(self.after, self.finals, strict=True)
        ]
        return pa.schema([*self.written_schema, *finals, (self.passes, pa.bool_())])

    @cached_property
    def public(self) -> tuple[BoundColumn, ...]:
        final = (BoundColumn(FINAL, BOOLEAN),) if self.window is not None else ()
        return (*(column for column, _ in self.finals), *final)

    @cached_property
    def public_schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type.arrow) for column in self.public])

    # Tables and views

    def create_statements(self) -> list[str]:
        state = ", ".join(f"{quoted(c.name)} {store_type(c.type)}" for c in self.state)
        hashed = f", {self.hash} UBIGINT" if self.hash else ""
        statements = [f"CREATE TABLE {self.state_table} ({state}, {self.id} BIGINT{hashed})"]
        group = "".join(f"{quoted(c.name)} {store_type(c.type)}, " for c in self.value_group)
        for index, distinct in enumerate(self.view.distincts):
            statements.append(
                f"CREATE TABLE {self.values_table(index)} "
                f"({group}{VALUE} {store_type(distinct.type)})"
            )
        hidden = "".join(
            f", {quoted(c.name)} AS {quoted(name)}"
            for c, name in zip(self.group, self.hidden, strict=True)
        )
        read = f"CREATE VIEW {self.read_view} AS {self._select_sql(hidden)}"
        return [*statements, read, self.public_view_statement()]

    def public_view_statement(self) -> str:
        return f"CREATE OR REPLACE VIEW {quoted(self.view.name)} AS {self._select_sql()}"

    def _select_sql(self, hidden: str = "") -> str:
        finals = self._finals_sql()
        where = self._passes
        if self.window is not None:
            finals += f", {final_sql(self.number, self.ends)} AS {FINAL}"
        if self.emits_on_close:
            where += f" AND {final_sql(self.number, self.ends)}"
        return f"SELECT {finals}{hidden} FROM {self.state_table} WHERE {where}"

    def _finals_sql(self) -> str:
        return ", ".join(
            f"{sql} AS {quoted(column.name)}"
            for (column, _), sql in zip(self.finals, self._final_sql, strict=True)
        )

    def closed_sql(self, passing: Passing, next_id: int) -> str:
        """The rows shown whose windows end within what was passed, of those with a lower id."""
        within = f"{self._passes} AND {passing.sql(self.ends)} AND {self.id} < {next_id}"
        return (
            f"SELECT {self._finals_sql()}, true AS {FINAL} FROM {self.state_table} WHERE {within}"
        )

    @property
    def _final_sql(self) -> list[str]:
        return [f"CAST(({sql}) AS {store_type(c.type)})" for c, sql in self.finals]

    # The merge

    def staging_sql(self, slot: str) -> str:
        """Partial rows as state rows: every pane becomes the windows that hold it."""
        keys = [quoted(column.name) for column in self.keys]
        partials = [quoted(column.name) for column in self.view.partials]
        if self.window is None:
            return f"SELECT {', '.join([*keys, ROWS, *partials])} FROM {slot}"
        revision = f"CASE WHEN {self.prefix}i < {LATE} THEN {ROWS} ELSE 0 END AS {REVISION}"
        columns = [*keys, self._start_sql, *self._end_sql(), revision, ROWS, *partials]
        return f"SELECT {', '.join(columns)} FROM ({self._expanded_sql(slot)}) WHERE {self._taken}"

    def values_sql(self, slot: str) -> str:
        """Values as rows of the values table, each once, NULL left out."""
        keys = [quoted(column.name) for column in self.keys]
        if self.window is None:
            return f"SELECT DISTINCT {', '.join([*keys, VALUE])} FROM {slot} WHERE {VALUE} NOTNULL"
        columns = ", ".join([*keys, self._start_sql, VALUE])
        source = self._expanded_sql(slot)
        return f"SELECT DISTINCT {columns} FROM ({source}) WHERE {VALUE} NOTNULL AND {self._taken}"

    def _end_sql(self) -> list[str]:
        """Only where the window's end does not follow from its start."""
        if not isinstance(self.window, CalendarWindow):
            return []
        return [f"make_timestamptz({PANE_END}) AS {WINDOW_END}"]

    @property
    def _taken(self) -> str:
        """Whether the event is applied to the window, see BEYOND."""
        i = f"{self.prefix}i"
        return f"CASE WHEN {BEYOND} < 0 THEN {i} < -{BEYOND} ELSE {i} >= {BEYOND} END"

    @property
    def _start_sql(self) -> str:
        return f"make_timestamptz({self.prefix}start) AS {WINDOW_START}"

    def _expanded_sql(self, slot: str) -> str:
        """Adds the window's start and its place `i` among the pane's windows, by end."""
        assert isinstance(self.window, (Window, CalendarWindow))
        p = self.prefix
        if isinstance(self.window, CalendarWindow) or (
            self.window.size_microseconds == self.window.slide_microseconds
        ):
            return f"SELECT *, {PANE} AS {p}start, 0 AS {p}i FROM {slot}"
        size, slide = self.window.size_microseconds, self.window.slide_microseconds
        origin = self.window.origin_microseconds
        last = f"{PANE} - ((({PANE} - {origin}) % {slide}) + {slide}) % {slide}"
        count = f"({p}last - {PANE} + {size} + {slide} - 1) // {slide}"
        return (
            f"SELECT *, {p}last - ({p}count - 1 - {p}i) * {slide} AS {p}start FROM ("
            f"SELECT *, unnest(range({p}count)) AS {p}i FROM ("
            f"SELECT *, {count} AS {p}count FROM (SELECT *, {last} AS {p}last FROM {slot})))"
        )

    def matches_sql(self, left: str, right: str) -> str:
        """NULL keys are a group like any other; window starts are never NULL."""
        return matched(left, right, self.keys, self.group)

    def old_columns_sql(self) -> str:
        """State rows with finals, in the order of old_schema."""
        state = [quoted(column.name) for column in self.state]
        finals = [
            f"{sql} AS {quoted(name)}"
            for name, sql in zip(self.after, self._final_sql, strict=True)
        ]
        return ", ".join([*state, quoted(self.id), *finals, f"{self._passes} AS {self.passes}"])

    @property
    def _passes(self) -> str:
        """The condition that public rows meet."""
        return f"coalesce(({self.view.having}), false)" if self.view.having else "true"

    def hash_sql(self) -> str:
        """Only narrows a search: rows of one hash are still compared by their keys."""
        return f"hash({', '.join(quoted(column.name) for column in self.keys)})"

    def insert_sql(self, slot: str) -> str:
        hashed = f", {self.hash_sql()}" if self.hash else ""
        return f"INSERT INTO {self.state_table} SELECT *{hashed} FROM {slot}"

    def rehash_statements(self) -> list[str]:
        """For a DuckDB whose hash() gives other numbers than the one that wrote them."""
        return [
            f"DROP INDEX IF EXISTS _headrace.{self.index}",
            f"UPDATE {self.state_table} SET {self.hash} = {self.hash_sql()}",
        ]

    def index_statement(self) -> str:
        return f"CREATE INDEX IF NOT EXISTS {self.index} ON {self.state_table} ({self.hash})"

    def hashed_in_sql(self, hashes: Sequence[int]) -> str:
        """Literals alone: DuckDB uses the index for this and for nothing more complicated."""
        return f"{self.state_table} WHERE {self.hash} IN ({', '.join(map(str, hashes))})"

    def touched_sql(self, slot: str) -> str:
        """The state rows that a tick's partials belong to."""
        match = self.matches_sql("s", "g")
        source = f"(SELECT s.* FROM {self.state_table} s SEMI JOIN staging g ON {match})"
        if not self.group:
            source = self.state_table
        return (
            f"WITH staging AS ({self.staging_sql(slot)}) "
            f"SELECT {self.old_columns_sql()} FROM {source}"
        )

    def merge_sql(self, stage: str, old: str, values: list[str]) -> str:
        """New state rows, the id of the row each replaces, finals after and before, and whether
        the public row differs. Reads slots only, so its plan is made once. Old rows that no
        staged row belongs to fall away: cheaper than a join while they are few (measured)."""
        summed = [quoted(column.name) for column in (*self._summed, *self.counts)]
        ends = [WINDOW_END] if self._end_sql() else []
        carried = [*(quoted(c.name) for c in (*self.group, *self._summed)), *ends]
        partials = [quoted(column.name) for column in self.view.partials]
        counts = [quoted(column.name) for column in self.counts]
        after = [quoted(name) for name in self.after]
        staged = f"{self.prefix}staged"
        empty = [f"NULL AS {name}" for name in (self.id, *after, self.passes)]
        new_rows = [*carried, *partials, *(f"0 AS {c}" for c in counts), *empty]
        old_rows = [*carried, *partials, *counts, self.id, *after, self.passes]
        both = (
            f"SELECT {', '.join(new_rows)}, true AS {staged} FROM ({self.staging_sql(stage)}) "
            f"UNION ALL SELECT {', '.join(old_rows)}, false FROM {old}"
        )
        group = [quoted(column.name) for column in self.group]
        aggregates = [
            *group,
            *(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in summed),
            *(f"max({name}) AS {name}" for name in ends),
            *self._combined_sql(),
        ]
        by = f" GROUP BY {', '.join(group)}" if group else ""
        merged = f"SELECT {', '.join(aggregates)} FROM ({both}){by} HAVING bool_or({staged})"
        return f"WITH merged AS ({merged}), {self._finished_sql(self._complete_sql(values))}"

    def _combined_sql(self) -> list[str]:
        """The partials of rows of one group combined, and of the old one among them what it was."""
        combined = [
            f"CAST({partial.combine} AS {store_type(column.type)}) AS {quoted(column.name)}"
            for partial, column in zip(self.view.plan.partials, self.view.partials, strict=True)
        ]
        before = [
            f"any_value({quoted(now)}) AS {quoted(was)}"
            for now, was in zip(self.after, self.before, strict=True)
        ]
        passed = f"coalesce(bool_or({self.passes}), false) AS {self.passed}"
        return [*combined, f"max({self.id}) AS {self.id}", *before, passed]

    def _finished_sql(self, complete: str, more: Sequence[str] = ()) -> str:
        """Adds finals, and whether the public row differs."""
        rest = ", ".join([*map(quoted, self.before), self.passed, *more])
        return (
            f"complete AS ({complete}), "
            f"finished AS (SELECT {self.old_columns_sql()}, {rest} FROM complete) "
            f"SELECT *, {self._changed_sql()} AS {self.changed} FROM finished"
        )

    def _complete_sql(self, values: list[str]) -> str:
        """Adds the window's end, and to each distinct count the values that are new."""
        columns, joins = [], []
        for column in self.state:
            if isinstance(self.window, Window) and column.name == WINDOW_END:
                size = self.window.size_microseconds
                columns.append(
                    f"make_timestamptz(epoch_us(m.{WINDOW_START}) + {size}) AS {WINDOW_END}"
                )
            elif column in self.counts:
                index = self.counts.index(column)
                name = quoted(column.name)
                columns.append(f"m.{name} + coalesce(v{index}.n, 0) AS {name}")
            else:
                columns.append(f"m.{quoted(column.name)}")
        group = ", ".join(quoted(column.name) for column in self.group)
        for index, slot in enumerate(values):
            by = f"{group}, count(*) AS n FROM {slot} GROUP BY {group}"
            counted = by if group else f"count(*) AS n FROM {slot}"
            joins.append(
                f" LEFT JOIN (SELECT {counted}) v{index} ON {self.matches_sql('m', f'v{index}')}"
            )
        rest = ", ".join(f"m.{quoted(name)}" for name in (self.id, *self.before, self.passed))
        return f"SELECT {', '.join(columns)}, {rest} FROM merged m{''.join(joins)}"

    def _changed_sql(self) -> str:
        differs = " OR ".join(
            f"{quoted(now)} IS DISTINCT FROM {quoted(was)}"
            for now, was in zip(self.after, self.before, strict=True)
        )
        return f"({self.passes} OR {self.passed}) AND ({self.passes} <> {self.passed} OR {differs})"

    def fresh_values_sql(self, index: int, slot: str) -> str:
        """The tick's values that the values table does not hold yet."""
        match = self.matches_sql("v", "g")
        return (
            f"SELECT g.* FROM ({self.values_sql(slot)}) g "
            f"ANTI JOIN {self.values_table(index)} v ON v.{VALUE} = g.{VALUE} AND {match}"
        )
