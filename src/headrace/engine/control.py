"""What the engine tells those who serve, from any thread, without waiting for a tick."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from headrace.engine.rebuilds import Asked, RebuildAsked
from headrace.engine.versions import missing_of
from headrace.engine.views import Halt, LiveView
from headrace.log.contract import LogReader
from headrace.model.definitions import Lookup
from headrace.model.errors import LogError, QueryError, RequestError
from headrace.serve.operate.control import (
    EngineStatus,
    RebuildReport,
    StreamReport,
    TickDurations,
    ViewReport,
)
from headrace.store.contract import Store, StoredDecision, ViewStatus

__all__ = ["EngineControl"]

DURATIONS_MAX = 1_000
UNDER_WAY = ("building", "held")  # of a rebuild

_CopyNow = tuple[LiveView, tuple[int, ...]]


@dataclass(frozen=True)
class _Copied:
    """How far a copy is."""

    stream: str
    starts: tuple[int, ...]
    next_offsets: tuple[int, ...]
    halt: Halt | None


class EngineControl:
    """The tick's thread writes through `set_…` and `ticked`; serving threads read. How far a view
    is the store says, as soon as it has the view: queries are answered from then on."""

    def __init__(self, reader: LogReader, store: Store) -> None:
        self._reader = reader
        self._store = store
        self._lock = threading.Lock()
        self._state = "starting"
        self._detail = "Spark is starting"
        self._generation = 0
        self._tick = store.last_tick()
        self._committed_at: int | None = None
        self._durations: deque[float] = deque(maxlen=DURATIONS_MAX)
        self._events_total = 0
        self._ticks_total = 0
        self._reports: dict[str, ViewReport] = {}
        self._lookups: dict[str, frozenset[Lookup]] = {}  # of views that join tables
        self._halts: set[tuple[str, int, int]] = set()  # stream, partition, offset
        self._asked: list[tuple[str, Asked]] = []
        self._rebuilds: dict[str, RebuildReport] = {}  # the newest of each view
        self._copies: dict[str, _Copied] = {}
        self._decided: list[tuple[list[StoredDecision], Future[None]]] = []
        self._late_applied: list[tuple[str, str]] = []
        self.violations = 0  # sums that did not come out even
        self.wake = threading.Event()

    def set_state(self, state: str, detail: str = "", generation: int | None = None) -> None:
        with self._lock:
            self._state, self._detail = state, detail
            self._generation = self._generation if generation is None else generation

    def set_views(
        self, views: Sequence[LiveView], tick: int, copies: Mapping[str, _CopyNow] | None = None
    ) -> None:
        """Publish what is committed. Called before the first tick and after each. `copies` are the
        copies of views with where each began."""
        found = {
            name: _Copied(copy.stream.name, starts, copy.next_offsets, copy.halt)
            for name, (copy, starts) in (copies or {}).items()
        }
        front: dict[str, tuple[int, ...]] = {}
        for view in views:
            if view.is_running:
                come = front.get(view.stream.name, view.next_offsets)
                furthest = tuple(map(max, come, view.next_offsets))
                front[view.stream.name] = furthest
        reports = {
            view.name: ViewReport(
                stream=view.stream.name,
                state=_state(view, front.get(view.stream.name, ())),
                detail=_detail(view),
                next_offsets=dict(enumerate(view.next_offsets)),
                watermark_microseconds=view.watermark_microseconds,
                counts=view.totals,
                held_back_partition=view.held_back.partition,
                held_back_maximum=view.held_back.maximum,
            )
            for view in views
        }
        halts = {
            (view.stream.name, view.halt.partition, view.halt.offset)
            for view in [*views, *(copy for copy, _ in (copies or {}).values())]
            if view.halt is not None
        }
        with self._lock:
            decided = {(d.stream, d.partition, d.offset) for ds, _ in self._decided for d in ds}
            self._reports = reports
            self._lookups = {view.name: view.lookups for view in views if view.lookups}
            self._copies = found
            self._halts = halts - decided
            self._tick = tick

    def ticked(self, seconds: float, events: int, committed_at_microseconds: int) -> None:
        with self._lock:
            self._durations.append(seconds * 1_000)
            self._events_total += events
            self._ticks_total += 1
            self._committed_at = committed_at_microseconds

    def set_rebuild(
        self,
        view: str,
        state: str,
        detail: str = "",
        *,
        tick: int | None = None,
        is_followed: bool | None = None,
    ) -> None:
        with self._lock:
            known = self._rebuilds.get(view, RebuildReport(state))
            if state == "held" and known.state != "building":
                return  # it is being swapped or dropped by now
            self._rebuilds[view] = replace(
                self._progress(view, known),
                state=state,
                detail=detail,
                tick=tick,
                followed=is_followed,
            )

    def take_rebuilds(self) -> list[tuple[str, Asked]]:
        """What is asked for, by view: that a copy is begun, "swap" for one that is held, or
        "cancel"."""
        self.wake.clear()  # first: what is asked for from now on wakes the engine again
        with self._lock:
            taken, self._asked = self._asked, []
        return taken

    def take_decisions(self) -> list[tuple[list[StoredDecision], Future[None]]]:
        """What was decided, and whom to tell when it is recorded."""
        with self._lock:
            taken, self._decided = self._decided, []
        return taken

    def take_late_applied(self) -> list[tuple[str, str]]:
        """(stream, view) whose events set aside someone wants applied."""
        with self._lock:
            taken, self._late_applied = self._late_applied, []
        return taken

    def status(self) -> EngineStatus:
        with self._lock:
            reports = dict(self._reports)
            status = EngineStatus(
                state=self._state,
                detail=self._detail,
                generation=self._generation,
                tick=self._tick,
                committed_at_microseconds=self._committed_at,
                durations=_percentiles(self._durations),
            )
        views = {
            name: replace(
                report,
                pending_events=self._behind(report.stream, report.next_offsets),
                rebuild=self._under_way(name),
            )
            for name, report in reports.items()
        }
        streams: dict[str, StreamReport] = {}
        for report in views.values():
            known = streams.get(report.stream)
            pending = max(report.pending_events, known.pending_events if known else 0)
            streams[report.stream] = StreamReport(
                state="live",
                ends=dict(enumerate(self.ends(report.stream))),
                pending_events=pending,
                events=self._behind(report.stream, {}),
            )
        return replace(status, streams=streams, views=views)

    def pending(self, view: str) -> int:
        entry = self._store.catalog().get(view)
        return self._behind(entry.stream, entry.next_offsets) if entry else 0

    def watermark(self, view: str) -> int | None:
        entry = self._store.catalog().get(view)
        return entry.watermark_microseconds if entry else None

    def standstill(self, view: str) -> ViewStatus | None:
        with self._lock:
            report = self._reports.get(view)
            if report is None or report.state in ("live", "catching_up"):
                return None
            rebuild = self._rebuilds.get(view)
            if rebuild is not None and rebuild.state == "building":
                return None  # its copy takes its place
            halts = {stream for stream, _, _ in self._halts}
            if report.state == "halted" and report.stream not in halts:
                return None  # what it waited for is decided
            return ViewStatus(report.state, report.detail)

    def log_identity(self) -> str:
        try:
            return self._reader.identity()
        except LogError:
            return ""

    def ends(self, stream: str) -> tuple[int, ...]:
        try:
            return self._reader.ends(stream)
        except LogError:
            return ()

    def rebuild(self, view: str, *, hold: bool = False, from_oldest: bool = False) -> None:
        with self._lock:
            report = self._reports.get(view)
            if report is None:
                raise RequestError(
                    404,
                    "view-unknown",
                    f"there is no view {view!r} to rebuild",
                    hint=f"views are {', '.join(sorted(self._reports)) or 'none'}",
                )
            lookups = self._lookups.get(view, frozenset())
        entry = self._store.catalog().get(view)
        missing = ""
        if entry is not None and entry.stream == report.stream and not from_oldest:
            partitions = range(len(self._reader.oldest(entry.stream)))
            starts = [entry.start_offsets.get(partition, 0) for partition in partitions]
            missing = missing_of(self._reader, self._store, entry.stream, lookups, starts)
        if missing:
            raise RequestError(
                409,
                "log-too-short",
                f"view {view} cannot be rebuilt as it was: {missing}",
                hint="with from_oldest (headrace rebuild --from-oldest) it begins where it can, "
                "and the earlier events no longer count",
            )
        with self._lock:
            known = self._rebuilds.get(view)
            if known is not None and known.state in UNDER_WAY:
                events = self._progress(view, known)
                raise RequestError(
                    409,
                    "rebuild-running",
                    f"a copy of view {view} is being built already: it is {known.state}, and has "
                    f"{events.events:,} of {events.events_total:,} events",
                    hint="wait for it, or cancel it: headrace rebuild --cancel",
                )
            self._rebuilds[view] = RebuildReport("building")
            self._asked.append((view, RebuildAsked(hold, from_oldest)))
        self.wake.set()

    def rebuilt(self, view: str) -> RebuildReport | None:
        with self._lock:
            known = self._rebuilds.get(view)
            return None if known is None else self._progress(view, known)

    def _under_way(self, view: str) -> RebuildReport | None:
        found = self.rebuilt(view)
        return found if found is not None and found.state in UNDER_WAY else None

    def _progress(self, view: str, known: RebuildReport) -> RebuildReport:
        copy = self._copies.get(view)
        if copy is None or known.state not in UNDER_WAY:
            return known
        behind = self._behind(copy.stream, dict(enumerate(copy.next_offsets)))
        total = self._behind(copy.stream, dict(enumerate(copy.starts)))
        detail = known.detail if copy.halt is None else copy.halt.reason
        return replace(known, detail=detail, events=total - behind, events_total=total)

    def swap(self, view: str) -> None:
        with self._lock:
            known = self._rebuilds.get(view)
            if known is None or known.state != "held":
                raise RequestError(
                    409,
                    "rebuild-not-held",
                    f"no copy of view {view} waits to take its place",
                    hint="ask for one with hold, and wait until its state is held",
                )
            self._rebuilds[view] = replace(known, state="building")
            self._asked.append((view, "swap"))
        self.wake.set()

    def cancel(self, view: str) -> None:
        with self._lock:
            known = self._rebuilds.get(view)
            if known is None or known.state not in UNDER_WAY:
                raise RequestError(409, "rebuild-none", f"no copy of view {view} is being built")
            self._rebuilds[view] = replace(known, state="cancelled")
            self._asked.append((view, "cancel"))
        self.wake.set()

    def resume(self, stream: str, decision: str) -> tuple[Sequence[tuple[int, int]], Future[None]]:
        with self._lock:
            views = [name for name, r in self._reports.items() if r.stream == stream]
            if not views:
                raise _no_stream(stream, {r.stream for r in self._reports.values()})
            places = sorted((p, o) for name, p, o in self._halts if name == stream)
            if not places:
                raise QueryError(
                    f"no view of stream {stream} is halted",
                    hint="headrace status shows the views' states",
                    status=409,
                )
            recorded: Future[None] = _answer()
            decisions = [StoredDecision(stream, p, o, decision) for p, o in places]
            self._decided.append((decisions, recorded))
            self._halts = {halt for halt in self._halts if halt[0] != stream}
        self.wake.set()
        return places, recorded

    def apply_late(self, stream: str, view: str | None) -> None:
        with self._lock:
            views = [name for name, r in self._reports.items() if r.stream == stream]
            if not views:
                raise _no_stream(stream, {r.stream for r in self._reports.values()})
            if view is not None and view not in views:
                raise QueryError(
                    f"stream {stream} has no view {view!r}",
                    hint=f"its views are {', '.join(sorted(views))}",
                    status=404,
                )
            chosen = views if view is None else [view]
            self._late_applied += [(stream, name) for name in chosen]
        self.wake.set()

    def metrics(self) -> Mapping[str, float]:
        with self._lock:
            return {
                "ticks_total": float(self._ticks_total),
                "tick_events_total": float(self._events_total),
                "generation": float(self._generation),
                "conservation_violations_total": float(self.violations),
            }

    def _behind(self, stream: str, next_offsets: Mapping[int, int]) -> int:
        return sum(
            self._reader.rows_of(stream, partition, next_offsets.get(partition, 0), end)
            for partition, end in enumerate(self.ends(stream))
            if next_offsets.get(partition, 0) < end
        )


def _answer() -> Future[Any]:
    """Nobody who asked can take it back by leaving: the tick's thread will set it."""
    answer: Future[Any] = Future()
    answer.set_running_or_notify_cancel()
    return answer


def _no_stream(stream: str, known: set[str]) -> QueryError:
    return QueryError(
        f"there is no stream {stream!r} with views",
        hint=f"streams with views are {', '.join(sorted(known)) or 'none'}",
        status=404,
    )


def _state(view: LiveView, front: Sequence[int]) -> str:
    """A running view is live when it has come as far as any view of its stream, in each
    partition."""
    if view.halt is not None:
        return "halted"
    if view.is_running and (view.waits_for or view.next_offsets != tuple(front)):
        return "catching_up"
    return view.status.state


def _detail(view: LiveView) -> str:
    if view.halt is not None:
        return view.halt.reason
    if view.is_running and view.waits_for:
        return f"waits for table {view.waits_for}"
    return view.status.detail


def _percentiles(durations: Sequence[float] | deque[float]) -> TickDurations:
    if not durations:
        return TickDurations()
    ordered = sorted(durations)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return TickDurations(len(ordered), durations[-1], at(0.5), at(0.95), at(0.99))
