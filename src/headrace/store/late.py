"""Late events that were not applied, and what operators decided about them.

late_N         the events of stream N that are set aside: one row per event, view and window it
               missed, with the event's own columns
STREAM_late    the same for everybody
dropped        how many events were dropped, by view, window and reason
decisions      what was decided about the late events of streams that halt
replays        events set aside that had been applied to views since rebuilt, and how far the view
               had come in their partition by then
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import quoted, text_literal
from headrace.model.definitions import Stream
from headrace.model.errors import StoreError
from headrace.model.plan import BoundColumn
from headrace.model.tables import ROW, Fetch, TableDefinition, TableDelta
from headrace.model.types import DataType
from headrace.store.backend import SCHEMA, Backend, Commit
from headrace.store.books import DECISIONS, DROPPED, LATE_STREAMS, REPLAYS, gone, rows_of
from headrace.store.catalog import StoredView
from headrace.store.contract import (
    COPY_PREFIX,
    LATE_SUFFIX,
    StoredDecision,
    ViewWrite,
    copied_view,
)
from headrace.store.late_counts import (
    DecisionTaken,
    DroppedCount,
    LateCounts,
    SetAsideCount,
    late_column,
)

__all__ = ["Late", "read_applied", "read_decisions"]

_SET_ASIDE, _APPLIED, _APPLIED_AT = "_set_aside_in_tick", "_applied_in_tick", "_applied_at_offset"
_OWN = (
    ("view", "STRING"),
    ("window_start", "TIMESTAMP"),
    ("window_end", "TIMESTAMP"),
    ("watermark", "TIMESTAMP"),
    ("_partition", "INT"),
    ("_offset", "BIGINT"),
    (_SET_ASIDE, "BIGINT"),
    (_APPLIED, "BIGINT"),
    (_APPLIED_AT, "BIGINT"),
)
_EVENT = ("view", "_partition", "_offset")
_KEY = (*_EVENT, "window_start", "window_end")
_PLACE = ("partition", "offset")
_IS_SHOWN = f"NOT starts_with(view, {text_literal(COPY_PREFIX)})"
_CLOCKS = (("_event_time", "TIMESTAMP"), ("_skew", "BIGINT"), ("_quality", "STRING"))

Marking = Generator[Sequence[Fetch], Sequence[pa.Table], list[TableDelta]]


class Late:
    """Called by the one that writes, but for `counts`; `names` is replaced as a whole, so that
    readers need no lock."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._numbers: dict[str, int] = {}
        self._decisions: dict[str, list[StoredDecision]] | None = None

    def load(self, connection: duckdb.DuckDBPyConnection) -> None:
        found = connection.execute(
            f"SELECT stream, number FROM {SCHEMA}.{LATE_STREAMS.name}"
        ).fetchall()
        self._numbers = {stream: int(number) for stream, number in found}

    @property
    def names(self) -> Mapping[str, str]:
        """The public views of late events, each with its stream."""
        return {stream + LATE_SUFFIX: stream for stream in self._numbers}

    def _table(self, stream: str) -> TableDefinition:
        return self._backend.definitions()[_table_name(self._numbers[stream])]

    def declare(self, stream: Stream) -> None:
        """Make the table and the public view of the stream's late events. Where the stream has
        gained columns since, a new table takes the place of the old one, with its rows."""
        own = [BoundColumn(name, DataType(type_)) for name, type_ in _OWN]
        wanted = [BoundColumn(late_column(c.name), c.type) for c in stream.columns]
        wanted.append(BoundColumn("_received_at", DataType("TIMESTAMP")))
        if stream.clocks is not None:
            wanted += [BoundColumn(name, DataType(type_)) for name, type_ in _CLOCKS]
        old = self._table(stream.name) if stream.name in self._numbers else None
        columns = list(own if old is None else old.columns)
        there = {column.name.lower() for column in columns}
        missing = [column for column in wanted if column.name.lower() not in there]
        if old is not None and not missing:
            return
        number = max(self._numbers.values(), default=-1) + 1
        table = TableDefinition(
            _table_name(number), (*columns, *missing), _KEY, ((*_EVENT,), ("view",))
        )
        deltas = [
            TableDelta(
                LATE_STREAMS.name,
                gone(LATE_STREAMS, stream=[stream.name]),
                rows_of(LATE_STREAMS, {"stream": [stream.name], "number": [number]}),
            )
        ]
        if old is not None:
            (rows,) = self._backend.fetch([_everything(old)])
            deltas.append(TableDelta(table.name, put=_completed(rows, table.schema)))
        chosen = ", ".join(quoted(column.name) for column in table.columns)
        public = f"SELECT {chosen} FROM {SCHEMA}.{table.name} WHERE {_IS_SHOWN}"
        self._backend.commit(
            Commit(
                self._backend.generation,
                deltas,
                create=[table],
                drop=[] if old is None else [old.name],
                views={stream.name + LATE_SUFFIX: public},
            )
        )
        self._numbers = {**self._numbers, stream.name: number}

    # In a tick

    def deltas(
        self, tick: int, writes: Sequence[ViewWrite], stored: Mapping[str, StoredView]
    ) -> list[TableDelta]:
        """What the tick set aside and what it dropped."""
        asides: dict[str, list[pa.Table]] = {}
        for write in writes:
            if write.late_side_output is None or not write.late_side_output.num_rows:
                continue
            stream = stored[write.view].entry.stream
            if stream not in self._numbers:
                raise StoreError(f"the late events of stream {stream} have no table")
            count = write.late_side_output.num_rows
            rows = write.late_side_output.append_column(
                "view", pa.array([write.view] * count, pa.string())
            )
            rows = rows.append_column(_SET_ASIDE, pa.array(np.full(count, tick, dtype=np.int64)))
            rows = _completed(rows, self._table(stream).schema)
            asides.setdefault(stream, []).append(rows)
        found = [
            TableDelta(_table_name(self._numbers[stream]), put=pa.concat_tables(tables))
            for stream, tables in asides.items()
        ]
        dropped = [write for write in writes if write.dropped]
        if dropped:
            found.append(_dropped(tick, dropped, stored))
        return found

    def marking(
        self, tick: int, writes: Sequence[ViewWrite], stored: Mapping[str, StoredView]
    ) -> Marking:
        """The rows of events that are applied after all say so, and how far the view had come in
        the event's partition: events after that were judged with this one among those applied."""
        asked: list[tuple[str, ViewWrite]] = []
        for write in writes:
            stream = stored[write.view].entry.stream
            if write.applied and stream in self._numbers:
                asked.append((stream, write))
        if not asked:
            return []
        found = yield [self._of_events(stream, write) for stream, write in asked]
        deltas = []
        for (stream, write), rows in zip(asked, found, strict=True):
            waiting = rows.filter(pc.is_null(rows.column(_APPLIED)))
            if not waiting.num_rows:
                continue
            schema = self._table(stream).schema
            come = [write.next_offsets[p] for p in waiting.column("_partition").to_pylist()]
            marked = waiting.select(schema.names)
            for name, values in ((_APPLIED, [tick] * len(come)), (_APPLIED_AT, come)):
                place = schema.get_field_index(name)
                marked = marked.set_column(place, name, pa.array(values, pa.int64()))
            name = _table_name(self._numbers[stream])
            deltas.append(TableDelta(name, waiting.select([ROW]), marked.cast(schema)))
        return deltas

    def _of_events(self, stream: str, write: ViewWrite) -> Fetch:
        partitions, offsets = zip(*sorted(set(write.applied)), strict=True)
        schema = self._table(stream).schema
        columns = ([write.view] * len(offsets), partitions, offsets)
        rows = pa.Table.from_arrays(
            [pa.array(c, schema.field(name).type) for c, name in zip(columns, _EVENT, strict=True)],
            names=list(_EVENT),
        )
        return Fetch(_table_name(self._numbers[stream]), _EVENT, rows)

    # What is set aside

    def late_side_output(self, stream: str, view: str, limit: int) -> list[tuple[int, int]]:
        if stream not in self._numbers:
            return []
        with self._backend.snapshot() as connection:
            found = connection.execute(
                "SELECT DISTINCT _partition, _offset FROM"
                f" {SCHEMA}.{_table_name(self._numbers[stream])}"
                f" WHERE view = ? AND {_APPLIED} IS NULL ORDER BY ALL LIMIT ?",
                [view, limit],
            ).fetchall()
        return [(int(partition), int(offset)) for partition, offset in found]

    def replays(self, stream: str, view: str) -> list[tuple[int, int, int]]:
        if stream not in self._numbers:
            return []
        table = f"{SCHEMA}.{_table_name(self._numbers[stream])}"
        with self._backend.snapshot() as connection:
            found = connection.execute(
                'SELECT partition, "offset", min(come) FROM ('
                f'SELECT partition, "offset", come FROM {SCHEMA}.{REPLAYS.name}'
                " WHERE stream = $stream AND view = $known"
                f" UNION ALL SELECT _partition, _offset, {_APPLIED_AT} FROM {table}"
                f" WHERE view = $known AND {_APPLIED} IS NOT NULL) r"
                f" WHERE NOT EXISTS (SELECT 1 FROM {table} s WHERE s.view = $view"
                ' AND s._partition = r.partition AND s._offset = r."offset"'
                f" AND s.{_APPLIED} IS NOT NULL) GROUP BY ALL ORDER BY ALL",
                {"stream": stream, "view": view, "known": copied_view(view) or view},
            ).fetchall()
        return [(int(partition), int(offset), int(come)) for partition, offset, come in found]

    def renamed(self, copy: StoredView, view: str) -> list[TableDelta]:
        """What was set aside for the copy, and dropped, is the view's now; of the view's own
        nothing is left, see `forget`."""
        own, stream = copy.entry.view, copy.entry.stream
        fetches = [Fetch(DROPPED.name, ("view",), gone(DROPPED, view=[own]))]
        if stream in self._numbers:
            table = self._table(stream)
            fetches.append(Fetch(table.name, ("view",), gone(table, view=[own])))
        deltas = []
        for fetch, rows in zip(fetches, self._backend.fetch(fetches), strict=True):
            put = rows.select([name for name in rows.column_names if name != ROW])
            place = put.column_names.index("view")
            names = pa.array([view] * put.num_rows, pa.string())
            put = put.set_column(place, "view", names)
            deltas.append(TableDelta(fetch.table, rows.select([ROW]), put))
        return deltas

    def forget(self, view: str) -> list[TableDelta]:
        """The view begins anew: what was set aside for it is found again, and what was applied
        after that is to be applied at the same place."""
        deltas = [TableDelta(DROPPED.name, gone(DROPPED, view=[view]))]
        for stream, number in self._numbers.items():
            table = _table_name(number)
            own = gone(self._table(stream), view=[view])
            deltas.append(TableDelta(table, own))
            if copied_view(view) is not None:
                continue
            known = gone(REPLAYS, stream=[stream], view=[view])
            found, earlier = self._backend.fetch(
                [
                    Fetch(table, ("view",), own, columns=("_partition", "_offset", _APPLIED_AT)),
                    Fetch(REPLAYS.name, ("stream", "view"), known, columns=_PLACE),
                ]
            )
            there = set(zip(*(earlier.column(name).to_pylist() for name in _PLACE), strict=True))
            rows = zip(*(column.to_pylist() for column in found.columns[:3]), strict=True)
            come = {(p, o): at for p, o, at in rows if at is not None and (p, o) not in there}
            if come:
                partitions, offsets = zip(*come, strict=True)
                columns = {
                    "stream": [stream] * len(come),
                    "view": [view] * len(come),
                    "partition": partitions,
                    "offset": offsets,
                    "come": list(come.values()),
                }
                deltas.append(TableDelta(REPLAYS.name, put=rows_of(REPLAYS, columns)))
        return deltas

    # Decisions

    def decide(self, decision: StoredDecision) -> None:
        known = self.decisions(decision.stream)
        place = (decision.partition, decision.offset)
        if any((d.partition, d.offset) == place for d in known):
            raise StoreError(
                f"event {decision.offset} of partition {decision.partition} was decided before"
            )
        row = {
            "stream": [decision.stream],
            "partition": [decision.partition],
            "offset": [decision.offset],
            "decision": [decision.decision],
            "decided_at": [time.time_ns() // 1000],
        }
        delta = TableDelta(DECISIONS.name, put=rows_of(DECISIONS, row))
        self._backend.commit(Commit(self._backend.generation, [delta]))
        self._decisions = None

    def decisions(self, stream: str) -> Sequence[StoredDecision]:
        if self._decisions is None:
            with self._backend.snapshot() as connection:
                rows = connection.execute(
                    f'SELECT stream, partition, "offset", decision FROM {SCHEMA}.{DECISIONS.name}'
                    ' ORDER BY partition, "offset"'
                ).fetchall()
            self._decisions = {}
            for row in rows:
                self._decisions.setdefault(row[0], []).append(StoredDecision(*row))
        return self._decisions.get(stream, [])

    def counts(self, connection: duckdb.DuckDBPyConnection, stream: str, limit: int) -> LateCounts:
        """In a reader's snapshot, from any thread."""
        dropped = connection.execute(
            "SELECT view, epoch_us(window_start), epoch_us(window_end), sum(events)::BIGINT, reason"
            f" FROM {SCHEMA}.{DROPPED.name} WHERE stream = ? AND {_IS_SHOWN} GROUP BY ALL"
            " ORDER BY 3 DESC, 2 DESC, view LIMIT ?",
            [stream, limit + 1],
        ).fetchall()
        decisions = connection.execute(
            'SELECT partition, "offset", decision, epoch_us(decided_at)'
            f" FROM {SCHEMA}.{DECISIONS.name}"
            ' WHERE stream = ? ORDER BY decided_at DESC, partition, "offset" LIMIT ?',
            [stream, limit + 1],
        ).fetchall()
        return LateCounts(
            sided=self._sided_counts(connection, stream),
            dropped=tuple(DroppedCount(*row) for row in dropped[:limit]),
            decisions=tuple(DecisionTaken(*row) for row in decisions[:limit]),
            is_cut=max(len(dropped), len(decisions)) > limit,
        )

    def _sided_counts(
        self, connection: duckdb.DuckDBPyConnection, stream: str
    ) -> tuple[SetAsideCount, ...]:
        table = read_table_name(connection, stream)
        if table is None:
            return ()
        rows = connection.execute(
            "SELECT view, count(*) FILTER (missing > 0), count(*) FILTER (missing = 0) FROM ("
            f" SELECT view, count(*) - count({_APPLIED}) AS missing"
            f" FROM {table} WHERE {_IS_SHOWN} GROUP BY view, _partition, _offset)"
            " GROUP BY view ORDER BY view"
        ).fetchall()
        return tuple(SetAsideCount(*row) for row in rows)


def read_decisions(
    connection: duckdb.DuckDBPyConnection, stream: str
) -> tuple[tuple[int, int, str], ...]:
    found = connection.execute(
        f'SELECT partition, "offset", decision FROM {SCHEMA}.{DECISIONS.name} WHERE stream = ?',
        [stream],
    ).fetchall()
    return tuple((partition, offset, decision) for partition, offset, decision in found)


def read_applied(
    connection: duckdb.DuckDBPyConnection, view: StoredView
) -> tuple[tuple[int, int, int, int, int], ...]:
    """See Snapshot.applied. The stream's table of late events is there once it has had a policy
    that sets some aside."""
    table = read_table_name(connection, view.entry.stream)
    if table is None:
        return ()
    found = connection.execute(
        f"SELECT _partition, _offset, epoch_us(window_start), {_APPLIED}, {_APPLIED_AT}"
        f" FROM {table} WHERE view = ? AND {_APPLIED} IS NOT NULL",
        [view.entry.view],
    ).fetchall()
    return tuple((place, offset, start, tick, at) for place, offset, start, tick, at in found)


def read_table_name(connection: duckdb.DuckDBPyConnection, stream: str) -> str | None:
    """As the reader's snapshot has it."""
    found = connection.execute(
        f"SELECT number FROM {SCHEMA}.{LATE_STREAMS.name} WHERE stream = {text_literal(stream)}"
    ).fetchall()
    return f"{SCHEMA}.{_table_name(found[0][0])}" if found else None


def _table_name(number: int) -> str:
    return f"late_{number}"


def _everything(table: TableDefinition) -> Fetch:
    none = pa.Table.from_arrays([pa.nulls(1, pa.int64())] * 2, names=["_low", "_high"])
    return Fetch(table.name, (), none, _SET_ASIDE)


def _completed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns that are missing become NULL, those that are no longer wanted go."""
    there = set(rows.column_names)
    columns = [
        rows.column(of.name).cast(of.type) if of.name in there else pa.nulls(rows.num_rows, of.type)
        for of in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _dropped(
    tick: int, writes: Sequence[ViewWrite], stored: Mapping[str, StoredView]
) -> TableDelta:
    """Whole columns at once: one event alone may have missed thousands of windows."""
    starts, ends, events = zip(*(w for write in writes for w in write.dropped), strict=True)
    counts = [len(write.dropped) for write in writes]

    def repeated(values: Sequence[str]) -> list[str]:
        return [v for value, count in zip(values, counts, strict=True) for v in [value] * count]

    rows = {
        "tick": [tick] * len(events),
        "ordinal": range(len(events)),
        "view": repeated([write.view for write in writes]),
        "stream": repeated([stored[write.view].entry.stream for write in writes]),
        "window_start": starts,
        "window_end": ends,
        "events": events,
        "reason": repeated([write.dropped_for for write in writes]),
    }
    return TableDelta(DROPPED.name, put=rows_of(DROPPED, rows), are_keys_new=True)
