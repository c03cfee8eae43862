"""What a tick brings to the store, made of what was computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.engine.computing import Computed, Computer
from headrace.engine.counting import view_counts
from headrace.engine.late_events import decided_to_drop, dropped_windows
from headrace.engine.late_windows import JoinedWindows, applied_rows
from headrace.engine.lookups import TABLE
from headrace.engine.single_events import stored_events
from headrace.engine.views import LiveView, reached_offsets
from headrace.log.contract import LogReader, Range
from headrace.model.definitions import LatePolicy, Stream
from headrace.spark.leaf import OFFSET, PARTITION
from headrace.spark.prepared_plan import PartialTables
from headrace.store.contract import (
    Moved,
    Store,
    StoreDeadLetter,
    StreamCounts,
    StreamWrite,
    ViewWrite,
)

__all__ = ["Writes", "distinct_tables"]

COUNTS_MAX = 64  # of ranges that views may move over, kept
OLDEST_TICKS = 1_000  # so often the store is told from where on events can be read


def distinct_tables(view: LiveView, tables: PartialTables) -> dict[str, pa.Table]:
    """The view's distinct values by the name of the distinct; those without any are left out."""
    return {
        d.name: tables[(view.name, d.name)]
        for d in view.running_plan.distincts
        if (view.name, d.name) in tables
    }


class Writes:
    def __init__(self, reader: LogReader, store: Store, computer: Computer) -> None:
        self._reader = reader
        self._store = store
        self._computer = computer
        self._counted = lru_cache(COUNTS_MAX)(self._count)

    def streams(
        self, written: Sequence[tuple[LiveView, ViewWrite, Computed]]
    ) -> tuple[StreamWrite, ...]:
        """For each stream that this tick brings further than any before it. What was accepted is
        what Spark counted for one of the views, whatever the offsets say."""
        streams: dict[str, StreamWrite] = {}
        for view, write, done in written:
            name = view.stream.name
            reached = reached_offsets(self._store, view.stream)
            if (
                name in streams
                or not done.rows
                or any(r.start < reached.get(r.partition, 0) for r in done.ranges)
            ):
                continue
            counts = write.counts
            counted = counts.applied + counts.filtered + counts.sided + counts.dropped
            streams[name] = StreamWrite(
                name,
                {**reached, **{r.partition: r.end for r in done.ranges}},
                StreamCounts(
                    advanced=done.rows,
                    accepted=counted + counts.dead,
                    duplicate=done.duplicates,
                ),
                dedup_keys=done.verdict.dedup_keys,
                duplicates=done.verdict.duplicates,
                dedup_keys_since=done.verdict.dedup_keys_since,
                oldest=self._oldest(view.stream),
            )
        return tuple(streams.values())

    def _oldest(self, stream: Stream) -> Mapping[int, int]:
        """Now and then, where something is recorded of single events."""
        if stream.deduplication is None or self._store.last_tick() % OLDEST_TICKS:
            return {}
        return dict(enumerate(self._reader.oldest(stream.name)))

    def view(
        self, view: LiveView, done: Computed, watermark: int | None, state_expiry: Mapping[int, int]
    ) -> ViewWrite:
        plan = view.running_plan.plan
        partials = done.tables.get((view.name, None))
        dropped: tuple[tuple[int, int, int], ...] = ()
        joined = done.joined.get(view.name, JoinedWindows())
        if partials is not None:
            if view.stream.late_policy is LatePolicy.DROP and plan.window is not None:
                dropped = tuple(dropped_windows(plan, partials, joined))
            partials = applied_rows(plan, partials)
        if view.stream.late_policy is LatePolicy.HALT and view.name in done.late:
            decided = decided_to_drop(done.late[view.name])
            dropped = tuple(dropped_windows(plan, decided, joined))
        dead = self._dead_letters(view, done)
        return ViewWrite(
            view=view.name,
            partials=partials if partials is not None and partials.num_rows else None,
            distincts=distinct_tables(view, done.tables),
            next_offsets=dict(enumerate(done.next_offsets)),
            counts=view_counts(view, done, len(dead)),
            watermark_microseconds=watermark,
            dead=dead,
            late_side_output=self._computer.late_side_output(done, view),
            dropped=dropped,
            dropped_for="late" if view.stream.late_policy is LatePolicy.DROP else "decided",
            state_expiry=state_expiry,
            moved=self._moved(view, done.next_offsets),
        )

    def _moved(self, view: LiveView, next_offsets: tuple[int, ...]) -> Moved:
        """Counted afresh, and once for all views that move alike."""
        previous = view.next_offsets
        events = self._counted(view.stream.name, previous, next_offsets)
        return Moved(dict(enumerate(previous)), events)

    def _count(self, stream: str, previous: tuple[int, ...], then: tuple[int, ...]) -> int:
        return sum(
            self._reader.rows_of(stream, partition, start, end)
            for partition, (start, end) in enumerate(zip(previous, then, strict=True))
            if start < end
        )

    def _dead_letters(self, view: LiveView, done: Computed) -> tuple[StoreDeadLetter, ...]:
        if view.name in done.rowless and done.rowless[view.name].num_rows:
            return self._without_row(view, done.rowless[view.name])
        reason = done.dead.get(view.name)
        if reason is None:
            return ()
        (only,) = done.ranges
        offset, raw = _event(self._reader, view.stream, only)
        return (
            StoreDeadLetter(
                view=view.name,
                stream=view.stream.name,
                partition=only.partition,
                offset=offset,
                reason=reason,
                raw=raw,
            ),
        )

    def _without_row(self, view: LiveView, places: pa.Table) -> tuple[StoreDeadLetter, ...]:
        events = stored_events(self._reader, view.stream, places).to_pylist()
        columns = (places.column(name).to_pylist() for name in (PARTITION, OFFSET, TABLE))
        return tuple(
            StoreDeadLetter(
                view=view.name,
                stream=view.stream.name,
                partition=partition,
                offset=offset,
                reason=f"table {table} has no row for it",
                raw=_json(event),
            )
            for partition, offset, table, event in zip(*columns, events, strict=True)
        )


def _event(reader: LogReader, stream: Stream, only: Range) -> tuple[int, str]:
    """Where the one event of the range stands, and its columns as JSON."""
    (found,) = reader.read_history(stream.name, only.partition, only.start, only.end)
    row: dict[str, Any] = found.batch.to_pylist()[0]
    return found.first_offset, _json(row)


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)
