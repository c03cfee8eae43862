"""The engine's life: open every view, then tick for as long as it is wanted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.engine.compaction import Compactions
from headrace.engine.control import EngineControl
from headrace.engine.opening import open_view_anew, open_views
from headrace.engine.rebuilds import Copy, RebuildAsked, Rebuilds
from headrace.engine.shared_plan import Planning
from headrace.engine.table_order import Cut, TableOrder
from headrace.engine.tick import Ticker, TickResult
from headrace.engine.versions import Versions
from headrace.engine.views import LiveView
from headrace.log.contract import LogReader
from headrace.model.definitions import Project
from headrace.model.errors import ConservationError, EngineError, FencedError, HeadraceError
from headrace.model.settings import Settings
from headrace.store.contract import INCIDENT, Store, StoredDecision, ViewChange, ViewStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Engine", "NoSubscribers", "Publisher"]

log = logging.getLogger("headrace.engine")

# How long to wait between two looks at the log, by the seconds without an event before it: the
# sleep itself is most of what an idle engine costs.
POLL_SECONDS = ((0.0, 0.002), (1.0, 0.01), (5.0, 0.02))
PACED_ROWS_MIN = 50_000  # a tick of so many means heavy load
PACE_LOOK_SECONDS = 0.02
CHECKPOINT_AFTER_SECONDS = 5.0
RETENTION_FLOOR_SECONDS = 1.0
FAILURE_PAUSE_SECONDS = 0.5
LATE_APPLIED_MAX = 5_000  # events set aside that one tick applies
ASIDE_MAX = 10_000_000  # events set aside that a view is asked for


class Publisher(Protocol):
    """Whoever passes changes on to subscribers. No call may wait."""

    def watched(self) -> frozenset[str]: ...

    def publish(
        self,
        changes: Sequence[ViewChange],
        *,
        tick: int | None = None,
        committed_at_microseconds: int | None = None,
    ) -> None: ...

    def moved(self) -> None:
        """A view has come further, or no longer goes on, or goes on again."""

    def expire(self, view: str) -> None:
        """The view was rebuilt, and its earlier changes do not lead to its rows: its subscribers
        must read it again."""


class NoSubscribers:
    """A Publisher for engines whose changes nobody follows: they are read from the store."""

    def watched(self) -> frozenset[str]:
        return frozenset()

    def publish(
        self,
        changes: Sequence[ViewChange],
        *,
        tick: int | None = None,
        committed_at_microseconds: int | None = None,
    ) -> None: ...

    def moved(self) -> None: ...

    def expire(self, view: str) -> None: ...


class Engine:
    """Owns the views of a project. All methods but `stop` belong to one thread."""

    def __init__(
        self,
        settings: Settings,
        project: Project,
        spark: SparkSession,
        reader: LogReader,
        store: Store,
        control: EngineControl,
        publisher: Publisher,
        planning: Planning | None = None,
    ) -> None:
        """With `planning` it goes on with what an engine before it has planned, and leaves it."""
        self._settings = settings
        self._project = project
        self._is_planning_own = planning is None
        types_file = settings.run_directory / "types.json"
        self._planning = planning or Planning(spark, reader.address, types_file)
        self._analysis = self._planning.analysis
        self._reader = reader
        self._store = store
        self._control = control
        self._publisher = publisher
        self._views: dict[str, LiveView] = {}
        self._rebuilds = Rebuilds(self._analysis, project, reader, store)
        self._compactions = Compactions(project, reader, store)
        self._order = TableOrder(project, reader)
        self._versions = Versions(project, reader, store)
        self._retention_floor_at = 0.0
        self._retention_floor: dict[str, tuple[int, ...]] = {}
        self._failures = 0
        self._stopping = False
        generation = store.claim()
        self._ticker = Ticker(
            spark, self._planning, reader, store, settings, generation, publisher.watched
        )
        control.set_state("starting", "opening the views", generation)

    def stop(self) -> None:
        """End after the tick that is under way. May be called from a signal handler."""
        self._stopping = True
        self._control.wake.set()

    def open(self) -> None:
        # Until it is known how far the views are, retention may take nothing.
        nothing_taken = {s.name: (0,) * s.partitions for s in self._project.streams}
        self._reader.set_retention_floor(nothing_taken)
        self._compactions.take_back()
        self._views = open_views(self._analysis, self._project, self._reader, self._store)
        self._versions.look()
        self._rebuilds.reopen()
        for name in self._rebuilds.copies:
            self._control.set_rebuild(name, "building")
        self._advance_retention_floor()
        self._tell()
        self._ticker.prepare(list(self._views.values()))
        self._analysis.keep()
        self._control.set_state("live")

    def run(self) -> None:
        """Tick until `stop`. Raises FencedError when a newer engine has taken over, and
        EngineError when the machinery fails again and again."""
        last_event = last_checkpoint = time.monotonic()
        self._ticker.prepare_grouped(list(self._views.values()))
        found: int | None = None  # the log at which the last step had nothing to do
        while not self._stopping:
            version = self._reader.version()
            if version != found or self._control.wake.is_set():
                self.rebuild_what_was_asked()
                self.decide_what_was_asked()
                result = self.step()
                found = version if result is None and not self._failures else None
            else:
                result = None
            now = time.monotonic()
            if now - self._retention_floor_at >= RETENTION_FLOOR_SECONDS:
                self._advance_retention_floor()
                self._compactions.look(self._all())
                self._versions.look()
            if result is not None:
                last_event = now
                self._pace(result, now)
                continue
            idle = now - last_event
            if idle >= CHECKPOINT_AFTER_SECONDS and last_checkpoint < last_event:
                self._tidy_up()
                last_checkpoint = now
            # Not wake.wait(), which costs half as much again: a request can wait so long.
            time.sleep(max(pause for after, pause in POLL_SECONDS if idle >= after))

    def _pace(self, result: TickResult, now: float) -> None:
        """Under heavy load a tick costs less by the event the more of them it takes; so the next
        one waits a little for more, unless there are enough already."""
        if result.events < PACED_ROWS_MIN or self.is_isolating:
            return
        until = now - result.seconds + self._settings.engine.pace_milliseconds / 1_000
        while (
            time.monotonic() < until
            and not self._control.wake.is_set()
            and self._pending() < self._settings.engine.tick_rows_max
        ):
            self._control.wake.wait(PACE_LOOK_SECONDS)

    def _pending(self) -> int:
        """The events that the view with most of them before it has not taken."""
        running = [view.name for view in self._views.values() if view.is_running]
        return max(map(self._control.pending, running), default=0)

    def _tidy_up(self) -> None:
        try:
            self._store.checkpoint()
        except HeadraceError as error:  # nothing is lost, and the next time may succeed
            log.error("%s", error.message)

    @property
    def is_isolating(self) -> bool:
        """Whether some view is being narrowed down to the event it fails on."""
        return any(view.is_running and view.isolation for view in self._all())

    def _all(self) -> list[LiveView]:
        """What ticks move: the views and their copies."""
        return [*self._views.values(), *(copy.live for copy in self._rebuilds.copies.values())]

    @property
    def is_failing(self) -> bool:
        """Whether the newest tick failed through nobody's data: it is to be done again."""
        return self._failures > 0

    def close(self) -> None:
        self._advance_retention_floor()
        self._compactions.close()
        if self._is_planning_own:
            self._planning.close()
        self._ticker.close()

    def step(self) -> TickResult | None:
        """One tick for the leading views, then one for a view that is behind, then one for each
        copy that has come as far as its view; None when there was nothing to do."""
        views = self._all()
        for view in views:
            self._replay_late(view)
        cut = self._order.cut(views)
        if cut is None:
            leading = self._attempt(lambda: self._ticker.run(views, catch_up=False))
            behind = self._attempt(lambda: self._ticker.run(views, catch_up=True))
        else:
            leading, behind = self._step_in_order(views, cut)
        swapped = self._finish_rebuilds()
        return leading or behind or swapped

    def _step_in_order(
        self, views: Sequence[LiveView], cut: Cut
    ) -> tuple[TickResult | None, TickResult | None]:
        """The same with the tables that are joined in a tick of their own, before the others."""
        run, waiting = self._ticker.run, _waiting(views)
        tables = self._attempt(lambda: run(views, False, cut.tables_first()))
        others = self._attempt(lambda: run(views, False, cut.then_others()))
        behind = self._attempt(lambda: run(views, True, cut.all()))
        if _waiting(views) != waiting:
            self._tell()
        return others or tables, behind

    def _attempt(self, run: Callable[[], TickResult | None]) -> TickResult | None:
        try:
            result = run()
        except FencedError:
            raise
        except ConservationError as error:
            self._stop_stream(error)
            return None
        except Exception as error:
            self._failures += 1
            if self._failures >= self._settings.engine.view_failures_max:
                raise EngineError(
                    f"{self._failures} ticks in a row failed, the last with: {error}",
                    hint="nothing was stored of them; the engine will be started anew",
                ) from error
            log.exception("a tick failed and will be done again")
            self._control.wake.wait(FAILURE_PAUSE_SECONDS * self._failures)
            return None
        if result is not None:
            self._failures = 0
            self._publish(result)
        return result

    def _publish(self, result: TickResult) -> None:
        self._tell()
        if result.tick is None:
            return
        committed_at = time.time_ns() // 1_000
        self._control.ticked(result.seconds, result.events, committed_at)
        self._publisher.publish(
            result.changes, tick=result.tick, committed_at_microseconds=committed_at
        )

    def _stop_stream(self, error: ConservationError) -> None:
        """Events that do not add up are an incident: nothing more of the stream is published."""
        log.critical("stream %s stops: %s", error.stream, error.message)
        self._control.violations += 1
        for view in self._all():
            if view.stream.name == error.stream and view.is_running:
                view.status = ViewStatus("failed", INCIDENT + error.message)
                self._store.set_status(view.name, view.status)
        self._tell()
        self._control.wake.set()  # the other streams' events of this tick are still to be taken

    def rebuild_what_was_asked(self) -> None:
        """Begin with the copies that someone wants, let those that are held go on, and drop those
        that nobody wants any more; the ticks after fill them."""
        for name, asked in self._control.take_rebuilds():
            if isinstance(asked, RebuildAsked):
                self._begin_rebuild(name, asked)
            elif asked == "swap":
                self._rebuilds.release(name)
            else:
                self._rebuilds.drop(name)
            self._tell()

    def _begin_rebuild(self, name: str, asked: RebuildAsked) -> None:
        definition = self._project.view(name)
        assert definition is not None, "only views that are defined can be asked for"
        log.info("rebuilding view %s", name)
        self._write_retention_floor(without=name)
        try:
            if name in self._store.catalog():
                self._rebuilds.begin(definition, asked)
            else:
                self._views[name] = open_view_anew(
                    self._analysis, self._project, definition, self._reader, self._store
                )
                status = self._views[name].status
                state = "done" if status.state == "live" else status.state
                self._control.set_rebuild(name, state, status.detail)
        except HeadraceError as error:
            log.error("view %s is not rebuilt: %s", name, error.message)
            self._fail_rebuild(name, error.message)
        self._advance_retention_floor()

    def _fail_rebuild(self, name: str, detail: str) -> None:
        self._rebuilds.drop(name)
        self._control.set_rebuild(name, "failed", detail)

    def _finish_rebuilds(self) -> TickResult | None:
        """Let the copies that are ready take their views' places; drop those that failed."""
        done: TickResult | None = None
        for name, copy in list(self._rebuilds.copies.items()):
            if copy.live.status.state == "failed":
                self._fail_rebuild(name, copy.live.status.detail)
            elif copy.is_ready(self._views[name]):
                if copy.is_held:
                    self._control.set_rebuild(name, "held")
                else:
                    done = self._swap(name, copy) or done
        return done

    def _swap(self, name: str, copy: Copy) -> TickResult | None:
        """A failure is the rebuild's alone: the view goes on as it was."""
        try:
            bound = self._rebuilds.bound_as_view(name)
            result = self._ticker.swap(self._views[name], copy.live)
        except FencedError:
            raise
        except Exception as error:
            log.exception("the copy of view %s cannot take its place", name)
            self._fail_rebuild(name, str(error))
            return None
        del self._rebuilds.copies[name]
        self._views[name] = replace(copy.live, name=name, bound=bound)
        log.info("view %s is rebuilt", name)
        self._control.set_rebuild(name, "done", tick=result.tick, is_followed=result.is_followed)
        if not result.is_followed:
            self._publisher.expire(name)
        self._publish(result)
        return result

    def decide_what_was_asked(self) -> None:
        """Record what was decided about late events and let the views that halted before them go
        on; apply the events set aside that someone wants applied."""
        for decisions, recorded in self._control.take_decisions():
            try:
                for decision in decisions:
                    self._decide(decision)
            except HeadraceError as error:
                recorded.set_exception(error)
                continue
            recorded.set_result(None)
        for stream, name in self._control.take_late_applied():
            self._apply_late(stream, self._views[name])

    def _decide(self, decision: StoredDecision) -> None:
        self._store.decide(decision)
        for view in self._all():
            halt = view.halt
            if halt is not None and decision == StoredDecision(
                view.stream.name, halt.partition, halt.offset, decision.decision
            ):
                view.halt = None
        log.info("late event decided: %s", decision)

    def _apply_late(self, stream: str, view: LiveView) -> None:
        """As far as the log still has them."""
        oldest = self._reader.oldest(stream)
        aside = self._store.late_side_output(stream, view.name, ASIDE_MAX)
        places = [(p, o) for p, o in aside if o >= oldest[p]]
        if len(places) < len(aside):
            gone = len(aside) - len(places)
            log.warning("%s late events of view %s are not in the log any more", gone, view.name)
        self._apply_places(view, places)
        self._rebuilds.applied_late(view)

    def _apply_places(self, view: LiveView, places: Sequence[tuple[int, int]]) -> bool:
        for start in range(0, len(places), LATE_APPLIED_MAX):
            some = places[start : start + LATE_APPLIED_MAX]
            apply = partial(self._ticker.apply_late, view, some)
            can = view.is_open and all(self._views[table].is_open for table in view.tables)
            if not can or self._attempt(apply) is None:
                return False
        return True

    def _replay_late(self, view: LiveView) -> None:
        """A view that was rebuilt takes in again what had been applied to it afterwards, where it
        had been."""
        due = {(p, o) for p, o, come in view.replays if come <= view.next_offsets[p]}
        if not due or not view.is_open:
            return
        aside = self._store.late_side_output(view.stream.name, view.name, ASIDE_MAX)
        if self._apply_places(view, [place for place in aside if place in due]):
            view.replays = tuple(r for r in view.replays if (r[0], r[1]) not in due)

    def _tell(self) -> None:
        copies = {name: (c.live, c.starts) for name, c in self._rebuilds.copies.items()}
        self._control.set_views(list(self._views.values()), self._store.last_tick(), copies)
        self._publisher.moved()

    def _advance_retention_floor(self) -> None:
        self._retention_floor_at = time.monotonic()
        self._write_retention_floor(without=None)

    def _write_retention_floor(self, without: str | None) -> None:
        """Where the slowest view of each stream stands. A view that is refused holds too: it may
        be repaired. One about to be rebuilt holds everything there is."""
        floor: dict[str, tuple[int, ...]] = {}
        for view in self._all():
            offsets = view.next_offsets
            if view.name == without:
                offsets = (0,) * len(offsets)
            known = floor.get(view.stream.name, offsets)
            floor[view.stream.name] = tuple(min(a, b) for a, b in zip(known, offsets, strict=True))
        if floor != self._retention_floor:
            self._reader.set_retention_floor(floor)
            self._retention_floor = floor


def _waiting(views: Sequence[LiveView]) -> list[tuple[str, str]]:
    """Which views wait for which table."""
    return [(view.name, view.waits_for) for view in views if view.waits_for]
