"""One tick: one transaction from offset ranges to published rows.

1. Choose: the leading group of every stream that has news, or else one group that is behind.
2. Compute: Spark reads those ranges and gives the partials of every view in them.
3. Set apart: a view that failed on data leaves the tick; the others go on without it.
4. Commit: partials, offsets, counts, watermarks, dead letters and the ledger row, all or nothing.
5. Move on: only now do the views in memory stand at their new offsets.

Whatever dies before 4 is done again from the ledger, by this engine or the next one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from headrace.engine.failures import data_failure
from headrace.engine.prepared import PartialTables, PreparedPlan
from headrace.engine.source import Range
from headrace.engine.views import Isolation, LiveView, ViewGroup, choose_ranges, group_views
from headrace.log.contract import NO_EVENT_TIME, RECEIVED_AT, LogReader
from headrace.model.definitions import Stream
from headrace.model.errors import LogOffsetError, MergeError
from headrace.model.plan import LATE, ROWS
from headrace.model.settings import Settings
from headrace.store.contract import (
    Counts,
    Store,
    StoreDeadLetter,
    TickWrite,
    ViewChange,
    ViewStatus,
    ViewWrite,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TickResult", "Ticker"]

log = logging.getLogger("headrace.engine")

PLANS_MAX = 64
RECENT_ROWS = 1_000


@dataclass(frozen=True)
class TickResult:
    tick: int
    events: int
    seconds: float
    changes: Sequence[ViewChange]


@dataclass(frozen=True)
class _Computed:
    group: ViewGroup
    ranges: tuple[Range, ...]
    views: tuple[LiveView, ...]
    tables: PartialTables
    dead: Mapping[str, str]  # view → reason, when the range is the one event that fails


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
        self._spark = spark
        self._reader = reader
        self._store = store
        self._settings = settings
        self._generation = generation
        self._watched = watched
        self._tick = store.last_tick()
        self._lanes = settings.engine.cores_used
        self._pool = ThreadPoolExecutor(max(2, 2 * self._lanes), "headrace-lane")
        self._plans: dict[tuple[str, ...], PreparedPlan] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def prepare(self, views: Sequence[LiveView]) -> None:
        """Make the plans of the views as they stand, so that the first tick need not."""
        ends = {view.stream.name: self._reader.ends(view.stream.name) for view in views}
        for group in group_views(views, ends, self._settings.engine.tick_rows_max):
            self._plan(group.stream, group.views).warm_up()

    def run(self, views: Sequence[LiveView], catch_up: bool) -> TickResult | None:
        """One tick over the leading groups, or with `catch_up` over the first group behind them.
        None when there is nothing to do. Raises what is nobody's data's fault."""
        started = time.time_ns() // 1_000
        begun = time.perf_counter()
        # 1. Choose.
        ends = {view.stream.name: self._reader.ends(view.stream.name) for view in views}
        groups = group_views(views, ends, self._settings.engine.tick_rows_max)
        chosen = [(group, self._choose(group)) for group in groups]
        work = [(g, r) for g, r in chosen if r and g.is_leading != catch_up]
        if not work:
            return None
        # 2. and 3.
        computed = [
            done
            for group, ranges in (work[:1] if catch_up else work)
            for done in self._compute(group, ranges)
        ]
        # 4.
        written, changes = self._commit(computed, started)
        # 5.
        for view, write, done in written:
            self._advance(view, write, done)
        return TickResult(
            tick=self._tick,
            events=max((write.counts.read for _, write, _ in written), default=0),
            seconds=time.perf_counter() - begun,
            changes=changes,
        )

    def _choose(self, group: ViewGroup) -> tuple[Range, ...]:
        growth = self._growth(group)
        bytes_max = self._settings.engine.tick_bytes_max * growth
        ranges = choose_ranges(replace(group, rows_max=group.rows_max * growth))
        size = sum(
            self._reader.size_bytes(group.stream.name, r.partition, r.start, r.end) for r in ranges
        )
        if size <= bytes_max:
            return ranges
        rows = sum(r.rows for r in ranges)
        return choose_ranges(replace(group, rows_max=max(1, rows * bytes_max // size)))

    def _growth(self, group: ViewGroup) -> int:
        if group.views[0].isolation is not None:
            return 1
        plan = self._plans.get(_plan_key(group.stream, group.views))
        return plan.growth if plan is not None else 1

    def _compute(self, group: ViewGroup, ranges: tuple[Range, ...]) -> list[_Computed]:
        """The group's partials; when its shared plan fails on data, each view's on its own."""
        try:
            tables = self._plan(group.stream, group.views).run(ranges, self._is_large(ranges))
            return [_Computed(group, ranges, group.views, tables, {})]
        except Exception as error:
            reason = data_failure(error)
            if reason is None:
                raise
        if len(group.views) > 1:
            alone = [replace(group, views=(view,)) for view in group.views]
            return [done for one in alone for done in self._compute(one, ranges)]
        return self._isolate(group, ranges, reason)

    def _isolate(self, group: ViewGroup, ranges: tuple[Range, ...], reason: str) -> list[_Computed]:
        """The view leaves the tick and tries again with half the rows, until one event is left."""
        (view,) = group.views
        rows = sum(r.rows for r in ranges)
        if rows == 1:
            return [_Computed(group, ranges, group.views, {}, {view.name: reason})]
        target = list(group.next_offsets)
        for r in ranges:
            target[r.partition] = r.end
        kept = view.isolation or Isolation(target=tuple(target), rows_max=rows)
        kept.rows_max = rows // 2
        view.isolation = kept
        log.warning("view %s failed on data among %s events: %s", view.name, rows, reason)
        return []

    def _commit(
        self, computed: Sequence[_Computed], started: int
    ) -> tuple[list[tuple[LiveView, ViewWrite, _Computed]], Sequence[ViewChange]]:
        remaining = list(computed)
        while remaining:
            written = [
                (view, self._view_write(view, done, watermark), done)
                for done in remaining
                for watermark in [self._watermark(done.group.stream, _moved(done))]
                for view in done.views
            ]
            write = TickWrite(
                tick=self._tick + 1,
                generation=self._generation,
                started_at_microseconds=started,
                views=tuple(write for _, write, _ in written),
            )
            try:
                changes = self._store.commit(write, self._watched())
            except MergeError as error:
                remaining = self._without(remaining, error)
                continue
            self._tick += 1
            return written, changes
        return [], ()

    def _without(self, computed: Sequence[_Computed], error: MergeError) -> list[_Computed]:
        """The same work less the view whose partials the store cannot take."""
        kept: list[_Computed] = []
        for done in computed:
            failing = [view for view in done.views if view.name == error.view]
            if not failing:
                kept.append(done)
                continue
            others = tuple(view for view in done.views if view.name != error.view)
            if others:
                kept.append(replace(done, views=others))
            alone = replace(done.group, views=(failing[0],))
            kept.extend(self._isolate(alone, done.ranges, error.message))
        return kept

    def _view_write(self, view: LiveView, done: _Computed, watermark: int | None) -> ViewWrite:
        partials = done.tables.get((view.name, None))
        rows = sum(r.rows for r in done.ranges)
        applied = pc.sum(partials.column(ROWS)).as_py() if partials is not None else 0
        late = 0
        if partials is not None and view.running_plan.plan.window is not None:
            was_late = pc.greater(partials.column(LATE), 0)
            late = pc.sum(partials.column(ROWS).filter(was_late)).as_py() or 0
        dead = self._dead_letters(view, done)
        return ViewWrite(
            view=view.name,
            partials=partials,
            distincts={
                d.name: done.tables[(view.name, d.name)]
                for d in view.running_plan.distincts
                if (view.name, d.name) in done.tables
            },
            next_offsets=dict(enumerate(_moved(done))),
            counts=Counts(
                read=rows,
                applied=applied,
                filtered=rows - applied - len(dead),
                late=late,
                dead=len(dead),
            ),
            watermark_microseconds=_later(view.watermark_microseconds, watermark),
            dead=dead,
        )

    def _dead_letters(self, view: LiveView, done: _Computed) -> tuple[StoreDeadLetter, ...]:
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

    def _advance(self, view: LiveView, write: ViewWrite, done: _Computed) -> None:
        view.next_offsets = _moved(done)
        view.watermark_microseconds = write.watermark_microseconds
        view.totals = view.totals.plus(write.counts)
        if view.isolation is not None:
            self._relax(view, view.isolation, done)

    def _relax(self, view: LiveView, isolation: Isolation, done: _Computed) -> None:
        """After a success twice the rows; after too many dead letters the view stops."""
        rows = sum(r.rows for r in done.ranges)
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

    def _plan(self, stream: Stream, views: Sequence[LiveView]) -> PreparedPlan:
        key = _plan_key(stream, views)
        plan = self._plans.pop(key, None)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.pop(next(iter(self._plans)))
            plan = PreparedPlan(
                self._spark,
                self._settings.log_directory,
                stream,
                [view.running_plan.plan for view in views],
                self._lanes,
                self._pool,
                self._settings.engine.tick_growth_max,
            )
        self._plans[key] = plan
        return plan

    def _is_large(self, ranges: Sequence[Range]) -> bool:
        return sum(r.rows for r in ranges) >= self._settings.engine.shuffle_rows_min


def _plan_key(stream: Stream, views: Sequence[LiveView]) -> tuple[str, ...]:
    """By name too: a plan's tables carry the names of its views, and two may be defined alike."""
    plans = sorted(f"{view.name} {view.running_plan.plan.fingerprint}" for view in views)
    return (stream.name, *plans)


def _moved(done: _Computed) -> tuple[int, ...]:
    offsets = list(done.group.next_offsets)
    for r in done.ranges:
        offsets[r.partition] = r.end
    return tuple(offsets)


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
