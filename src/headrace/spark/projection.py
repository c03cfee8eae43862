"""The one query of a small tick: every view of every stream, each event by itself.

Nothing is grouped. An event gives a view the keys and partials that a group of this one event would
have, and the store combines them as it combines the partials of ticks. So one plan without an
exchange serves sums and minima, distinct values, sorted aggregates and windows of all kinds alike.

Each view has columns of its own, in a table as wide as the widest stream: columns of equal type are
shared between streams. An expression is computed only for the events that its view takes and that
meet its WHERE. What another event or another stream's would make of it is never asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlglot
from sqlglot import expressions as exp

from headrace.log.contract import LogAddress
from headrace.model.definitions import Stream
from headrace.model.plan import ROWS, BoundView, Partial
from headrace.model.types import DataType
from headrace.spark.aggregations import (
    groupings_of,
    looked_up_among,
    needed_columns,
    with_beyond,
)
from headrace.spark.event_annotations import DECISION
from headrace.spark.event_query import TIME
from headrace.spark.event_tables import EventTables
from headrace.spark.leaf import EVENT_TIME, OFFSET, PARTITION, WATERMARK, Source
from headrace.spark.passes import FILTERED, single_sql
from headrace.spark.slots import Slots
from headrace.spark.streams_leaf import STREAM, VIEWS_PER_WORD, StreamsSource, views_column
from headrace.spark.windows import MICROSECONDS

__all__ = ["Projection", "StreamViews", "build_projection", "is_projectable"]

_FLOATING = ("FLOAT", "DOUBLE")
_NAMED = re.compile(r"\s+AS\s", re.IGNORECASE)
_PLACE = {
    PARTITION: (f"`{PARTITION}`", "INT"),
    OFFSET: (f"`{OFFSET}`", "BIGINT"),
    WATERMARK: (f"`{WATERMARK}`", "BIGINT"),
    DECISION: (f"`{DECISION}`", "TINYINT"),
    TIME: (MICROSECONDS, "BIGINT"),
}


@dataclass(frozen=True)
class StreamViews:
    """A stream, its views, and Spark's type of every expression that these mention, by its text."""

    stream: Stream
    views: tuple[BoundView, ...]
    types: Mapping[str, DataType]


@dataclass(frozen=True)
class _Table:
    """A partial table: its columns as (name, column of the result, type); a column of None is a one
    for every row. Rows without a `value` are left out."""

    columns: tuple[tuple[str, str | None, DataType], ...]
    value: str | None = None


@dataclass(frozen=True)
class _ViewLayout:
    """`taken` is the column that says whether the view takes the row, `has_where` whether a row
    that it does not take was filtered; `tables` are its partial tables by distinct."""

    name: str
    taken: str
    has_where: bool
    has_window: bool
    tables: Mapping[str | None, _Table]


@dataclass(frozen=True)
class _StreamLayout:
    stream: Stream
    views: tuple[_ViewLayout, ...]
    places: Mapping[str, str]  # columns of the result


@dataclass(frozen=True)
class Projection:
    """The query over what `source` reads, and how to take its result apart. Streams and views have
    the numbers of their places in `layouts`."""

    source: StreamsSource
    layouts: tuple[_StreamLayout, ...]
    conditions: Mapping[str, str]
    outputs: Mapping[str, str]
    types: Mapping[str, str]  # Spark's names of the outputs' types

    def sql(self, from_name: str) -> str:
        conditions = "".join(f", {sql} AS {name}" for name, sql in self.conditions.items())
        outputs = ", ".join(f"{sql} AS {name}" for name, sql in self.outputs.items())
        return (
            f"SELECT `{STREAM}`, {', '.join(self.conditions)}, {outputs} "
            f"FROM (SELECT *{conditions} FROM {from_name})"
        )

    def split(self, result: pa.Table, views: Mapping[int, Sequence[int]]) -> dict[int, EventTables]:
        """The tables of the views with these numbers, by the number of their stream."""
        result = result.combine_chunks()
        numbers = result.column(STREAM).to_numpy()
        found = {}
        for number, wanted in views.items():
            start, end = np.searchsorted(numbers, [number, number + 1])
            piece = result.slice(start, end - start)
            found[number] = _split_stream(self.layouts[number], wanted, piece)
        return found


def _split_stream(layout: _StreamLayout, wanted: Sequence[int], piece: pa.Table) -> EventTables:
    tables: dict[tuple[str, str | None], pa.Table] = {}
    places: dict[tuple[str, str | None], pa.Table] = {}
    here = pa.table([piece.column(c) for c in layout.places.values()], list(layout.places))
    for number in wanted:
        view = layout.views[number]
        taken = piece.column(view.taken).to_numpy()
        if view.has_where:
            filtered = np.array([len(taken) - np.count_nonzero(taken)], dtype=np.int64)
            tables[(view.name, FILTERED)] = pa.table([pa.array(filtered)], [ROWS])
        for distinct, table in view.tables.items():
            chosen = taken
            if table.value is not None:
                chosen = taken & piece.column(table.value).is_valid().to_numpy()
            key = (view.name, distinct)
            rows = _rows(table, piece, chosen)
            if rows.num_rows == 0:
                continue
            tables[key] = with_beyond(rows, layout.stream)
            if view.has_window:
                places[key] = here if chosen.all() else here.filter(pa.array(chosen))
    return EventTables(tables, places)


def _rows(table: _Table, piece: pa.Table, chosen: npt.NDArray[np.bool_]) -> pa.Table:
    names = [name for name, _, _ in table.columns]
    arrays = []
    for _, column, of_type in table.columns:
        if column is None:
            arrays.append(pa.array(np.ones(piece.num_rows, dtype=np.int64)))
        else:
            found = piece.column(column)
            arrays.append(found.cast(of_type.arrow) if of_type.is_numeric else found)
    rows = pa.table(arrays, names)
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def is_projectable(view: BoundView) -> bool:
    """Spark's GROUP BY makes 0.0 of -0.0; within arrays and structs that has no expression."""
    keys = [*(key.type for key in view.keys), *(distinct.type for distinct in view.distincts)]
    return not any(of.is_nested and any(name in of.name for name in _FLOATING) for of in keys)


@dataclass
class _Columns:
    """The columns of a result that streams share; `sql` has each stream's expression for one."""

    slots: Slots
    sql: dict[str, dict[int, str]] = field(default_factory=dict)

    def sharer(self, number: int, names: Mapping[str, str]) -> _Sharer:
        return _Sharer(self, number, names)

    def cases(self) -> dict[str, str]:
        """By column. What several streams have alike is computed by one expression."""
        return {name: _cases(by) for name, by in self.sql.items()}

    def types(self) -> dict[str, str]:
        return {name: of_type for (_, of_type, _), name in self.slots.names.items()}


def _cases(by_number: Mapping[int, str]) -> str:
    alike: dict[str, list[str]] = {}
    for number, sql in by_number.items():
        alike.setdefault(sql, []).append(str(number))
    whens = [f"WHEN `{STREAM}` IN ({', '.join(ns)}) THEN {sql}" for sql, ns in alike.items()]
    return f"CASE {' '.join(whens)} END"


@dataclass
class _Sharer:
    """One stream's use of shared columns; equal expressions are one column."""

    columns: _Columns
    number: int
    names: Mapping[str, str]
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def take(self, sql: str, of_type: str) -> str:
        name = self.known.get(sql)
        if name is None:
            name = self.known[sql] = self.columns.slots.take("", of_type, self.used)
            self.columns.sql.setdefault(name, {})[self.number] = sql
        return name

    def renamed(self, sql: str) -> str:
        """The expression over the slots that the leaf puts the stream's columns in. Only the names
        of columns change: the rest of the text is what Spark was asked about before. A struct
        takes the names of its fields from the columns, so there they are said."""
        places = []
        for column in sqlglot.parse_one(sql, dialect="spark").find_all(exp.Column):
            first = column.parts[0]
            slot = self.names.get(first.name.lower())
            if slot is None:
                continue
            start, end = first.meta["start"], first.meta["end"] + 1
            is_field = isinstance(column.parent, (exp.PropertyEQ, exp.Tuple))
            if is_field and len(column.parts) == 1 and not _NAMED.match(sql, end):
                slot = f"{slot} AS `{first.name}`"
            places.append((start, end, slot))
        for start, end, slot in sorted(places, reverse=True):
            sql = f"{sql[:start]}{slot}{sql[end:]}"
        return sql


def build_projection(log: LogAddress, streams: Sequence[StreamViews]) -> Projection:
    inputs = Slots("i")
    sources, columns = [], []
    conditions, outputs = _Columns(Slots("t")), _Columns(Slots("o"))
    layouts = []
    for number, one in enumerate(streams):
        groupings = [g for view in one.views for g in groupings_of(view.plan, one.stream)]
        names = (*needed_columns(one.stream, groupings), *(n for n in _PLACE if n != TIME))
        names = tuple(dict.fromkeys((*names, EVENT_TIME)))
        plans = [view.plan for view in one.views]
        source = Source(log, one.stream, names, looked_up_among(names, plans))
        used: dict[tuple[str, str], int] = {}
        slots = {inputs.take("", source.type_of(n).name, used): n for n in source.columns}
        sources.append(source)
        columns.append(slots)
        by_name = {name.lower(): slot for slot, name in slots.items()}
        own = conditions.sharer(number, by_name), outputs.sharer(number, by_name)
        layouts.append(_stream_layout(one, *own))
    types = {
        slot: next(s.type_of(c[slot]) for s, c in zip(sources, columns, strict=True) if slot in c)
        for slot in inputs.names.values()
    }
    words = -(-max(len(one.views) for one in streams) // VIEWS_PER_WORD)
    whole = StreamsSource(tuple(sources), tuple(columns), types, words)
    return Projection(whole, tuple(layouts), conditions.cases(), outputs.cases(), outputs.types())


def _stream_layout(one: StreamViews, conditions: _Sharer, outputs: _Sharer) -> _StreamLayout:
    views = tuple(
        _view_layout(one, number, view, conditions, outputs)
        for number, view in enumerate(one.views)
    )
    places = {
        name: outputs.take(outputs.renamed(sql), of_type) for name, (sql, of_type) in _PLACE.items()
    }
    return _StreamLayout(one.stream, views, places)


def _view_layout(
    one: StreamViews, number: int, view: BoundView, conditions: _Sharer, outputs: _Sharer
) -> _ViewLayout:
    word, bit = divmod(number, VIEWS_PER_WORD)
    is_on = f"(`{views_column(word)}` & {1 << bit}L) <> 0L"
    where = view.plan.where
    if where is not None:
        is_on = f"IF({is_on}, coalesce(({conditions.renamed(where)}), false), false)"
    taken = conditions.take(is_on, "BOOLEAN")

    def output(sql: str, of_type: DataType) -> str:
        """Of a column alone there is nothing to compute that could fail."""
        text = outputs.renamed(sql)
        if not isinstance(sqlglot.parse_one(sql, dialect="spark"), exp.Column):
            text = f"IF({taken}, {text}, NULL)"
        return outputs.take(text, of_type.name)

    tables = {}
    bound = {column.name: column.type for column in view.partials}
    for grouping in groupings_of(view.plan, one.stream):
        columns: list[tuple[str, str | None, DataType]] = []
        for name, sql in grouping.keys:
            of_type = one.types[sql]
            text = sql if grouping.is_single else _normal(sql, of_type)
            columns.append((name, output(text, of_type), of_type))
        if grouping.distinct is None:
            columns.append((ROWS, None, DataType("BIGINT")))
        for partial in grouping.partials:
            of_input = one.types[partial.input]
            of_type = bound.get(partial.name, of_input)
            sql, given = _partial(partial, of_input, of_type)
            columns.append((partial.name, output(sql, given), of_type))
        value = columns[-1][1] if grouping.distinct is not None else None
        tables[grouping.distinct] = _Table(tuple(columns), value)
    has_window = view.plan.window is not None
    return _ViewLayout(view.name, taken, where is not None, has_window, tables)


def _partial(partial: Partial, of_input: DataType, of_type: DataType) -> tuple[str, DataType]:
    """The partial of one event, and the type in which Spark gives it: sums are widened after."""
    sql = single_sql(partial.function, (partial.input, *partial.order))
    if partial.function == "count":
        return sql, DataType("BIGINT")
    if partial.function in ("avg", "m2"):
        return sql, DataType("DOUBLE")
    if partial.function == "sum" and not of_input.is_numeric:
        return f"CAST({sql} AS {of_type})", of_type
    return sql, of_input


def _normal(sql: str, of_type: DataType) -> str:
    """A key as GROUP BY makes it: one zero and one NaN."""
    if of_type.name not in _FLOATING:
        return sql
    name = of_type.name
    return f"IF(isnan({sql}), CAST('NaN' AS {name}), ({sql}) + CAST(0 AS {name}))"
