"""One tick: one transaction from offset ranges to published rows.

1. Choose: the leading group of every stream that has news, or else one group that is behind.
2. Compute: Spark reads those ranges and gives the partials of every view in them; views that fail
   on data are set apart, and the others go on without them (computing.py).
3. Commit: partials, offsets, counts, watermarks, late events, dead letters and the ledger row, all
   or nothing.
4. Move on: only now do the views in memory stand at their new offsets.

Whatever dies before 3 is done again from the ledger, by this engine or the next one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.engine.computing import Computed, Computer
from headrace.engine.counting import view_counts
from headrace.engine.late_events import dropped_windows
from headrace.engine.late_windows import applied_rows
from headrace.engine.source import Range
from headrace.engine.views import Isolation, LiveView, ViewGroup, choose_ranges, group_views
from headrace.log.contract import NO_EVENT_TIME, RECEIVED_AT, LogReader
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.errors import LogOffsetError, MergeError
from headrace.model.settings import Settings
from headrace.store.contract import (
    Store,
    StoreDeadLetter,
    StreamCounts,
    StreamWrite,
    TickWrite,
    ViewChange,
    ViewStatus,
    ViewWrite,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TickResult", "Ticker"]

log = logging.getLogger("headrace.engine")

RECENT_ROWS = 1_000
OLDEST_TICKS = 1_000  # so often the store is told from where on events can be read


@dataclass(frozen=True)
class TickResult:
    """`tick` is None when nothing was stored: views only came to a halt."""

    tick: int | None
    events: int
    seconds: float
    changes: Sequence[ViewChange]


class Ticker:
    """Runs ticks, one at a time, on the thread that calls."""

    def __init__(
        self,
        spark: SparkSession,
        reader: LogReader,
        store: Store,
        settings: Settings,
        generation: int,
        watched: Callable[[], frozenset[str]],
    ) -> None:
        self._reader = reader
        self._store = store
        self._settings = settings
        self._generation = generation
        self._watched = watched
        self._tick = store.last_tick()
        self._computer = Computer(spark, reader, store, settings)

    def close(self) -> None:
        self._computer.close()

    def prepare(self, views: Sequence[LiveView]) -> None:
        """Make the plans of the views as they stand, so that the first tick need not."""
        ends = {view.stream.name: self._reader.ends(view.stream.name) for view in views}
        for group in group_views(views, ends, self._settings.engine.tick_rows_max):
            self._computer.prepare(group)

    def run(self, views: Sequence[LiveView], catch_up: bool) -> TickResult | None:
        """One tick over the leading groups, or with `catch_up` over the first group behind them.
        None when there is nothing to do. Raises what is nobody's data's fault."""
        started = time.time_ns() // 1_000
        begun = time.perf_counter()
        self._computer.forget()
        # 1. Choose.
        ends = {view.stream.name: self._reader.ends(view.stream.name) for view in views}
        groups = group_views(views, ends, self._settings.engine.tick_rows_max)
        chosen = [(group, self._choose(group)) for group in groups]
        work = [(g, r) for g, r in chosen if r and g.is_leading != catch_up]
        if not work:
            return None
        # 2. Compute.
        computed = [
            done
            for group, ranges in (work[:1] if catch_up else work)
            for done in self._computer.compute(group, ranges)
        ]
        # 3. Commit.
        written, changes = self._commit([done for done in computed if done.rows], started)
        # 4. Move on.
        for view, write, done in written:
            self._advance(view, write, done)
        for done in computed:
            self._halt(done)
        return TickResult(
            tick=self._tick if written else None,
            events=max((write.counts.read for _, write, _ in written), default=0),
            seconds=time.perf_counter() - begun,
            changes=changes,
        )

    def _choose(self, group: ViewGroup) -> tuple[Range, ...]:
        group = self._within_stream(group)
        growth = self._computer.growth(group)
        bytes_max = self._settings.engine.tick_bytes_max * growth
        ranges = choose_ranges(replace(group, rows_max=group.rows_max * growth))
        size = sum(
            self._reader.size_bytes(group.stream.name, r.partition, r.start, r.end) for r in ranges
        )
        if size <= bytes_max:
            return ranges
        rows = sum(r.rows for r in ranges)
        return choose_ranges(replace(group, rows_max=max(1, rows * bytes_max // size)))

    def _within_stream(self, group: ViewGroup) -> ViewGroup:
        """Events that some view has passed before and events that none has are never in one tick:
        the stream counts what becomes of its events when they are passed first."""
        reached = self._reached(group.stream)
        past = tuple(reached.get(partition, 0) for partition in range(len(group.limit)))
        if all(mine >= gone for mine, gone in zip(group.next_offsets, past, strict=True)):
            return group
        limit = tuple(min(most, gone) for most, gone in zip(group.limit, past, strict=True))
        return replace(group, limit=limit)

    def _commit(
        self, computed: Sequence[Computed], started: int
    ) -> tuple[list[tuple[LiveView, ViewWrite, Computed]], Sequence[ViewChange]]:
        remaining = list(computed)
        while remaining:
            written = [
                (view, self._view_write(view, done, watermark), done)
                for done in remaining
                for watermark in [self._watermark(done.group.stream, done.next_offsets)]
                for view in done.views
            ]
            streams = self._stream_writes(written)
            write = TickWrite(
                tick=self._tick + 1,
                generation=self._generation,
                started_at_microseconds=started,
                views=tuple(write for _, write, _ in written),
                streams=streams,
            )
            try:
                changes = self._store.commit(write, self._watched())
            except MergeError as error:
                remaining = self._without(remaining, error)
                continue
            self._tick += 1
            self._computer.forget()
            return written, changes
        return [], ()

    def _without(self, computed: Sequence[Computed], error: MergeError) -> list[Computed]:
        """The same work less the view whose partials the store cannot take."""
        kept: list[Computed] = []
        for done in computed:
            failing = [view for view in done.views if view.name == error.view]
            if not failing:
                kept.append(done)
                continue
            others = tuple(view for view in done.views if view.name != error.view)
            if others:
                kept.append(replace(done, views=others))
            alone = replace(done.group, views=(failing[0],))
            kept.extend(self._computer.isolate(alone, done.ranges, error.message))
        return kept

    def _stream_writes(
        self, written: Sequence[tuple[LiveView, ViewWrite, Computed]]
    ) -> tuple[StreamWrite, ...]:
        """For each stream that this tick brings further than any before it. What was accepted is
        what Spark counted for one of the views, whatever the offsets say."""
        streams: dict[str, StreamWrite] = {}
        for view, write, done in written:
            name = view.stream.name
            reached = self._reached(view.stream)
            if name in streams or any(r.start < reached.get(r.partition, 0) for r in done.ranges):
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
                seen=done.verdict.seen,
                duplicates=done.verdict.duplicates,
                seen_since=done.verdict.seen_since,
                oldest=self._oldest(view.stream),
            )
        return tuple(streams.values())

    def _reached(self, stream: Stream) -> Mapping[int, int]:
        progress = self._store.streams().get(stream.name)
        return progress.next_offsets if progress is not None else {}

    def _oldest(self, stream: Stream) -> Mapping[int, int]:
        """Now and then, where something is recorded of single events."""
        if stream.deduplication is None or self._tick % OLDEST_TICKS:
            return {}
        return dict(enumerate(self._reader.oldest(stream.name)))

    def _view_write(self, view: LiveView, done: Computed, watermark: int | None) -> ViewWrite:
        plan = view.running_plan.plan
        partials = done.tables.get((view.name, None))
        dropped: tuple[tuple[int, int, int], ...] = ()
        if partials is not None:
            if view.stream.late_policy is LatePolicy.DROP and plan.window is not None:
                dropped = tuple(dropped_windows(plan, partials))
            partials = applied_rows(plan, partials)
        dead = self._dead_letters(view, done)
        return ViewWrite(
            view=view.name,
            partials=partials if partials is not None and partials.num_rows else None,
            distincts={
                d.name: done.tables[(view.name, d.name)]
                for d in view.running_plan.distincts
                if (view.name, d.name) in done.tables
            },
            next_offsets=dict(enumerate(done.next_offsets)),
            counts=view_counts(view, done, len(dead)),
            watermark_microseconds=_later(view.watermark_microseconds, watermark),
            dead=dead,
            sided=self._computer.sided(done, view),
            dropped=dropped,
        )

    def _dead_letters(self, view: LiveView, done: Computed) -> tuple[StoreDeadLetter, ...]:
        reason = done.dead.get(view.name)
        if reason is None:
            return ()
        (only,) = done.ranges
        return (
            StoreDeadLetter(
                view=view.name,
                stream=view.stream.name,
                partition=only.partition,
                offset=only.start,
                reason=reason,
                raw=_event_json(self._reader, view.stream, only),
            ),
        )

    def _watermark(self, stream: Stream, offsets: Sequence[int]) -> int | None:
        """The least over the partitions that have had events; None when none has. It may step
        back when an empty partition gets its first, see `_later`."""
        marks = [
            mark
            for partition, offset in enumerate(offsets)
            if (mark := _highest_event_time(self._reader, stream, partition, offset)) is not None
        ]
        return min(marks) - stream.delay_microseconds if marks else None

    def _halt(self, done: Computed) -> None:
        if done.halt is None:
            return
        for view in done.views:
            if view.next_offsets == done.next_offsets:
                view.halt = done.halt
        log.error("stream %s halts: %s", done.group.stream.name, done.halt.reason)

    def _advance(self, view: LiveView, write: ViewWrite, done: Computed) -> None:
        view.next_offsets = done.next_offsets
        view.watermark_microseconds = write.watermark_microseconds
        view.totals = view.totals.plus(write.counts)
        if view.isolation is not None:
            self._relax(view, view.isolation, done)

    def _relax(self, view: LiveView, isolation: Isolation, done: Computed) -> None:
        """After a success twice the rows; after too many dead letters the view stops."""
        rows = done.rows
        dead = view.name in done.dead
        isolation.dead_in_a_row = isolation.dead_in_a_row + 1 if dead else 0
        isolation.recent_rows += rows
        isolation.recent_dead += int(dead)
        limits = self._settings.engine
        if (
            isolation.dead_in_a_row >= limits.dead_letters_in_a_row_max
            or isolation.recent_dead >= limits.dead_letters_per_thousand_max
        ):
            detail = (
                f"stopped: {isolation.recent_dead} of the last {isolation.recent_rows} events "
                f"failed, the last with {done.dead.get(view.name, '')}"
            )
            view.status = ViewStatus("failed", detail)
            self._store.set_status(view.name, view.status)
            log.error("view %s %s", view.name, detail)
            return
        if isolation.recent_rows >= RECENT_ROWS:
            isolation.recent_rows = isolation.recent_dead = 0
        isolation.rows_max = isolation.rows_max * 2
        if view.next_offsets == isolation.target:
            view.isolation = None


def _later(known: int | None, found: int | None) -> int | None:
    """What was said to be complete stays so: events before it are late."""
    return found if known is None or (found is not None and found > known) else known


def _highest_event_time(
    reader: LogReader, stream: Stream, partition: int, offset: int
) -> int | None:
    """The partition's highest event time (microseconds) before the offset."""
    if offset == 0:
        return None
    clock = stream.event_time or RECEIVED_AT
    try:
        (last,) = reader.read_history(stream.name, partition, offset - 1, offset, [clock])
    except LogOffsetError:
        return None
    found = max(int(last.batch.column(0)[0].value), last.maximum_before)
    return None if found == NO_EVENT_TIME else found


def _event_json(reader: LogReader, stream: Stream, only: Range) -> str:
    (found,) = reader.read_history(stream.name, only.partition, only.start, only.end)
    row: dict[str, Any] = found.batch.to_pylist()[0]
    return json.dumps(row, default=str, ensure_ascii=False)
