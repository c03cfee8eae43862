"""What the events of a tick find in tables, before Spark sees them.

Each look-up is done once for all views of a stream that share it. Where what is looked up by is
plain columns, these are read from the log; else Spark computes them first. The store answers all of
a look-up's events at once, each as of its own position: so whoever reads the events again, in ticks
of another size, alone or in a copy, finds the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.views import LiveView
from headrace.kinds.lookups import FOUND, REQUEST_POSITION, REQUEST_RECEIVED, REQUEST_TIME
from headrace.log.contract import RECEIVED_AT, LogReader, Range
from headrace.model.definitions import Column, Lookup, Stream
from headrace.model.plan import JoinPlan, ViewPlan
from headrace.spark.aggregations import Grouping, column_name, name_as_bigint
from headrace.spark.event_annotations import EventAnnotations
from headrace.spark.event_query import EventQuery
from headrace.spark.leaf import EVENT_TIME, OFFSET, PARTITION, POSITION, Source
from headrace.spark.looked_up import write_looked_up
from headrace.store.contract import Store

__all__ = ["TABLE", "LookUps"]

TABLE = "table"

_PLACE = (PARTITION, OFFSET, POSITION)
_OWN = (*_PLACE, EVENT_TIME, RECEIVED_AT)  # what beside the stream's columns is read from the log
_FILE_NAME = "looked_up.arrow"

_Found = dict[str, pa.ChunkedArray]


class LookUps:
    """Used by the tick's thread alone."""

    def __init__(
        self, reader: LogReader, store: Store, event_query: EventQuery, directory: Path
    ) -> None:
        self._reader = reader
        self._store = store
        self._event_query = event_query
        self._directory = directory
        self._files: list[Path] = []
        self._known: dict[tuple[str, tuple[Range, ...]], tuple[_Found, str]] = {}
        for left in directory.glob(f"*.{_FILE_NAME}"):
            left.unlink()

    def forget(self) -> None:
        """The tick is over."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files.clear()
        self._known.clear()

    def add(
        self,
        stream: Stream,
        ranges: tuple[Range, ...],
        views: Sequence[LiveView],
        known: EventAnnotations,
        tables: Sequence[LiveView],
    ) -> EventAnnotations:
        """What is `known` of the events, with what these views look up for them; the tables are
        among `tables`. Raises what Spark raises over an expression that fails, and LookUpError
        where a table no longer knows rows as old as these events ask for."""
        joins = _once([join for view in views for join in view.running_plan.plan.joins])
        if not joins or not any(r.rows for r in ranges):
            return known
        found, file = self._known.get((stream.name, ranges), ({}, ""))
        if all(column.name in found for join in joins for column in join.columns):
            return replace(known, looked_up=file)
        events = self._events(stream, ranges, joins, known)
        found = {}
        for join in joins:
            asked = self._asked(stream, ranges, join, joins, events, found, known)
            found |= self._looked_up(join, _names(join, tables), asked)
        file = self._write(stream, events, found)
        self._known[(stream.name, ranges)] = (found, file)
        return replace(known, looked_up=file)

    def rowless(
        self, plan: ViewPlan, stream: Stream, ranges: tuple[Range, ...], annotations_file: str
    ) -> pa.Table:
        """The places of the events that are dead letters of the view for want of a row, and TABLE,
        the first that has none. Spark is asked only when this can be."""
        found, _ = self._known.get((stream.name, ranges), ({}, ""))
        joins = [join for join in plan.joins if join.dead is not None]
        may_be = any(join.has_condition or not _is_whole(join, found) for join in joins if found)
        if not may_be:
            return pa.table({PARTITION: [], OFFSET: [], TABLE: []})
        whens = " ".join(f"WHEN {join.dead} THEN '{join.lookup.table}'" for join in joins)
        table = f"CASE {whens} END"
        grouping = Grouping(plan.view, None, None, ((TABLE, table),), ())
        looked_up = [column for join in plan.joins for column in join.columns]
        return self._event_query.ask(
            stream,
            grouping,
            f"{table} IS NOT NULL",
            [(TABLE, table)],
            ranges,
            annotations_file,
            looked_up,
        )

    def _events(
        self,
        stream: Stream,
        ranges: Sequence[Range],
        joins: Sequence[JoinPlan],
        known: EventAnnotations,
    ) -> pa.Table:
        """Their places and the plain columns that they are looked up by, in the order of the
        places, without the events that `known` leaves out."""
        names = list(_PLACE)
        for text in (text for join in joins for text in _texts(join.lookup)):
            name = _plain(text, stream)
            names += [name] if name is not None else []
        if any(join.lookup.as_of is not None for join in joins):
            names.append(RECEIVED_AT)
        source = Source(self._reader.address, stream, tuple(dict.fromkeys(names)))
        ordered = sorted(ranges, key=lambda r: (r.partition, r.start))
        batches = [batch for r in ordered for batch in source.read(r, known)]
        schema = pa.schema([(name, source.type_of(name).arrow) for name in source.columns])
        alike = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
        return pa.Table.from_batches(alike, schema)

    def _asked(
        self,
        stream: Stream,
        ranges: Sequence[Range],
        join: JoinPlan,
        joins: Sequence[JoinPlan],
        events: pa.Table,
        found: _Found,
        known: EventAnnotations,
    ) -> pa.Table:
        """The requests of this look-up, one for each event."""
        lookup = join.lookup
        types = [*(of_type.arrow for of_type in join.key_types)]
        columns: dict[str, pa.ChunkedArray] = {}
        computed: list[tuple[str, str]] = []
        wanted = dict(lookup.keys)
        if lookup.as_of is not None:
            wanted[REQUEST_TIME] = lookup.as_of
            types.append(pa.timestamp("us", "UTC"))
        for name, text in wanted.items():
            column = _plain(text, stream)
            if column is not None:
                columns[name] = events.column(column)
            elif column_name(text) in found:
                columns[name] = found[column_name(text)]
            else:
                computed.append((name, text))
        if computed:
            answer = self._compute(stream, ranges, computed, joins, events, found, known)
            columns |= {name: answer.column(name) for name, _ in computed}
        arrays = [columns[name].cast(of) for name, of in zip(wanted, types, strict=True)]
        requests = pa.table(arrays, list(wanted))
        requests = requests.append_column(REQUEST_POSITION, events.column(POSITION))
        if lookup.as_of is not None:
            requests = requests.append_column(REQUEST_RECEIVED, events.column(RECEIVED_AT))
        return requests

    def _compute(
        self,
        stream: Stream,
        ranges: Sequence[Range],
        columns: Sequence[tuple[str, str]],
        joins: Sequence[JoinPlan],
        events: pa.Table,
        found: _Found,
        known: EventAnnotations,
    ) -> pa.Table:
        """What else they are looked up by, which may rest on what they have found so far."""
        if found:
            known = replace(known, looked_up=self._write(stream, events, found))
        file = ""
        if not known.is_empty:
            path = self._path(stream)
            known.write(path)
            file = str(path)
        numbered = [(f"c{number}", text) for number, (_, text) in enumerate(columns)]
        grouping = Grouping("", None, None, tuple(numbered), ())
        looked_up = [c for join in joins for c in join.columns]
        answer = self._event_query.ask(stream, grouping, "true", numbered, ranges, file, looked_up)
        assert answer.num_rows == events.num_rows, "Spark was asked about the same events"
        chosen = [answer.column(name) for name, _ in numbered]
        return pa.table(chosen, [name for name, _ in columns])

    def _looked_up(self, join: JoinPlan, names: Mapping[str, str], asked: pa.Table) -> _Found:
        """By the names that the columns have among the event's. `names` are those they have in the
        table."""
        lookup = join.lookup
        wanted = [names[c.name] for c in join.columns if c.name != lookup.found]
        answer = self._store.look_up(lookup.table, asked, wanted, lookup.as_of is not None)
        return {
            c.name: answer.column(names.get(c.name, FOUND)).cast(c.type.arrow) for c in join.columns
        }

    def _write(self, stream: Stream, events: pa.Table, found: _Found) -> str:
        file = self._path(stream)
        write_looked_up(file, events.select([PARTITION, OFFSET]), found)
        return str(file)

    def _path(self, stream: Stream) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / f"{stream.name}.{uuid.uuid4().hex}.{_FILE_NAME}"
        self._files.append(file)
        return file


def _once(joins: Sequence[JoinPlan]) -> list[JoinPlan]:
    """Each look-up once, with the columns that any view uses of it; one that rests on others comes
    after them. Those that nobody uses anything of are left out."""
    columns: dict[str, dict[str, Column]] = {}
    for join in joins:
        columns.setdefault(join.lookup.name, {}).update({c.name: c for c in join.columns})
    once = {join.lookup.name: join for join in reversed(joins)}
    chosen = (once[name] for name in columns if columns[name])
    return [replace(join, columns=tuple(columns[join.lookup.name].values())) for join in chosen]


def _texts(lookup: Lookup) -> list[str]:
    return [*(text for _, text in lookup.keys), *([lookup.as_of] if lookup.as_of else [])]


def _is_whole(join: JoinPlan, found: _Found) -> bool:
    """Whether every event has found a row."""
    return bool(pc.all(found[join.lookup.found], min_count=0).as_py())


def _plain(text: str, stream: Stream) -> str | None:
    """The column of the log's events that the expression is, or that it makes wider; None for any
    other expression."""
    name = column_name(text)
    column = stream.column(name)
    if column is not None:
        return column.name
    column = stream.column(name_as_bigint(text))
    if column is not None and column.type.is_integer:
        return column.name
    return name if name in _OWN else None


def _names(join: JoinPlan, tables: Sequence[LiveView]) -> dict[str, str]:
    """The names that the table's columns have in the table, by those they have among the event's
    columns."""
    table = next(table for table in tables if table.name == join.lookup.table)
    finals = [final.name for final in table.running_plan.plan.finals]
    return {join.lookup.column(name): name for name in finals}
