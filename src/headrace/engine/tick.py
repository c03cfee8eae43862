"""One tick: one transaction from offset ranges to published rows.

1. Choose: the leading group of every stream that has news (events, or a watermark that was passed
   without any), or else one group that is behind.
2. Compute: Spark reads those ranges and gives the partials of every view in them; views that fail
   on data are set apart, and the others go on without them (computing.py).
3. Commit: partials, offsets, counts, watermarks, late events, dead letters and the ledger row, all
   or nothing.
4. Move on: only now do the views in memory stand at their new offsets.

Whatever dies before 3 is done again from the ledger, by this engine or the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.engine.computing import Computed, Computer
from headrace.engine.shared_plan import Planning
from headrace.engine.table_order import Bounds
from headrace.engine.views import (
    Isolation,
    LiveView,
    ViewGroup,
    choose_ranges,
    group_views,
    reached_offsets,
    up_to_replays,
)
from headrace.engine.watermarks import Watermark, read_watermark, settled_times
from headrace.engine.writes import Writes, distinct_tables
from headrace.log.contract import LogReader, Range
from headrace.model.errors import MergeError
from headrace.model.settings import Settings
from headrace.store.contract import (
    Counts,
    Moved,
    Store,
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


@dataclass(frozen=True)
class TickResult:
    """`tick` is None when nothing was stored: views only came to a halt. `is_followed` is False
    when a copy took a view's place and what differs cannot be told as changes."""

    tick: int | None
    events: int
    seconds: float
    changes: Sequence[ViewChange]
    is_followed: bool = True


class Ticker:
    """Runs ticks, one at a time, on the thread that calls."""

    def __init__(
        self,
        spark: SparkSession,
        planning: Planning,
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
        self._computer = Computer(spark, planning, reader, store, settings)
        self._writes = Writes(reader, store, self._computer)

    def close(self) -> None:
        self._computer.close()

    def prepare(self, views: Sequence[LiveView]) -> None:
        """Make the plan of small ticks, so that the first one need not."""
        self._computer.prepare(views)

    def prepare_grouped(self, views: Sequence[LiveView]) -> None:
        """Make the plans of large ticks for the views as they stand. Does not wait for them."""
        ends = {view.stream.name: self._reader.ends(view.stream.name) for view in views}
        for group in group_views(views, ends, self._settings.engine.tick_rows_max):
            self._computer.prepare_grouped(group)

    def run(
        self, views: Sequence[LiveView], catch_up: bool, bounds: Bounds | None = None
    ) -> TickResult | None:
        """One tick over the leading groups, or with `catch_up` over the first group behind them;
        over all views and as far as the log goes, or within `bounds`. None when there is nothing to
        do. Raises what is nobody's data's fault."""
        started = time.time_ns() // 1_000
        begun = time.perf_counter()
        self._computer.forget()
        self._computer.follow(views)
        # 1. Choose.
        bounds = bounds or Bounds(views, self._reader.ends)
        ends = {view.stream.name: bounds.ends(view.stream.name) for view in bounds.views}
        rows_max = self._settings.engine.tick_rows_max
        groups = group_views(bounds.views, ends, rows_max, bounds.limits)
        chosen = [(group, self._choose(group)) for group in groups]
        work = [(g, r) for g, r in chosen if r and g.is_leading != catch_up]
        passed = [] if catch_up else [g for g, r in chosen if not r and self._is_passed(g)]
        if not work and not passed:
            return None
        # 2. Compute.
        work = work[:1] if catch_up else work
        computed = self._computer.compute([(g, r) for g, r in work if _rows(r)])
        computed += [Computed(g, r, g.views, {}) for g, r in work if not _rows(r)]
        computed += [Computed(group, (), group.views, {}) for group in passed]
        # 3. Commit.
        stored = [done for done in computed if done.rows or done.halt is None]
        written, changes = self._commit(stored, started)
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

    def apply_late(self, view: LiveView, places: Sequence[tuple[int, int]]) -> TickResult:
        """A tick of its own in which the view takes in events that were set aside, as revisions of
        the windows they missed. Places are (partition, offset), ascending."""
        started = time.time_ns() // 1_000
        begun = time.perf_counter()
        tables, waited = self._computer.missed(view, places)
        counts = Counts(applied=waited, late=waited, sided=-waited)
        write = ViewWrite(
            view=view.name,
            partials=tables[(view.name, None)],
            distincts=distinct_tables(view, tables),
            next_offsets=dict(enumerate(view.next_offsets)),
            counts=counts,
            watermark_microseconds=view.watermark_microseconds,
            applied=tuple(places),
            moved=Moved(dict(enumerate(view.next_offsets)), 0),
        )
        whole = TickWrite(self._tick + 1, self._generation, started, (write,))
        changes = self._store.commit(whole, self._watched())
        self._tick += 1
        view.totals = view.totals.plus(counts)
        return TickResult(self._tick, 0, time.perf_counter() - begun, changes)

    def swap(self, view: LiveView, copy: LiveView) -> TickResult:
        """A tick in which the copy takes the view's place. Before it, in a tick of its own, what
        was said to be complete of the view is said of the copy too."""
        begun = time.perf_counter()
        known, mine = view.watermark_microseconds, copy.watermark_microseconds
        if known is not None and (mine is None or mine < known):
            offsets = dict(enumerate(copy.next_offsets))
            write = ViewWrite(
                copy.name, None, {}, offsets, Counts(), known, moved=Moved(offsets, 0)
            )
            self._store.commit(self._next_tick(write), frozenset())
            self._tick += 1
            copy.watermark_microseconds = known
        is_watched = view.name in self._watched()
        change = self._store.swap(self._next_tick(), view.name)
        self._tick += 1
        is_told = change is not None and (change.before.num_rows or change.after.num_rows)
        told = (change,) if change is not None and is_told and is_watched else ()
        return TickResult(
            self._tick, 0, time.perf_counter() - begun, told, is_followed=change is not None
        )

    def _next_tick(self, *views: ViewWrite) -> TickWrite:
        return TickWrite(self._tick + 1, self._generation, time.time_ns() // 1_000, views)

    def _is_passed(self, group: ViewGroup) -> bool:
        """Whether a heartbeat or an idle partition brought the watermark of views further that
        have taken all events."""
        if not group.is_leading or group.next_offsets != group.limit:
            return False
        found = read_watermark(self._reader, group.stream, group.next_offsets)
        return any(_later(v, found) != v.watermark_microseconds for v in group.views)

    def _mark(self, done: Computed) -> Watermark:
        return read_watermark(self._reader, done.group.stream, done.next_offsets)

    def _choose(self, group: ViewGroup) -> tuple[Range, ...]:
        group = up_to_replays(self._within_stream(group))
        bytes_max = self._settings.engine.tick_bytes_max
        ranges = choose_ranges(group, self._reader)
        size = sum(
            self._reader.size_bytes(group.stream.name, r.partition, r.start, r.end) for r in ranges
        )
        if size <= bytes_max:
            return ranges
        rows = _rows(ranges)
        smaller = replace(group, rows_max=max(1, rows * bytes_max // size))
        return choose_ranges(smaller, self._reader)

    def _within_stream(self, group: ViewGroup) -> ViewGroup:
        """Events that some view has passed before and events that none has are never in one tick:
        the stream counts what becomes of its events when they are passed first."""
        reached = reached_offsets(self._store, group.stream)
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
            marked = [(done, self._mark(done)) for done in remaining]
            written = [
                (view, self._write(view, done, mark), done)
                for done, mark in marked
                for view in done.views
            ]
            streams = self._writes.streams(written)
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
            for done, mark in marked:
                for view in done.views:
                    view.held_back = mark
            return written, changes
        return [], ()

    def _write(self, view: LiveView, done: Computed, mark: Watermark) -> ViewWrite:
        return self._writes.view(view, done, _later(view, mark), settled_times(view.stream, mark))

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


def _rows(ranges: Sequence[Range]) -> int:
    """None where compaction has left nothing of them: they are passed without a job."""
    return sum(r.rows for r in ranges)


def _later(view: LiveView, found: Watermark) -> int | None:
    """What was said to be complete stays so: events before it are late."""
    known, mark = view.watermark_microseconds, found.microseconds
    return mark if known is None or (mark is not None and mark > known) else known
