"""What the engine offers to those who serve: its status, how far behind each view is, rebuilds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from headrace.store.contract import Counts, ViewStatus

__all__ = [
    "Control",
    "EngineStatus",
    "RebuildReport",
    "StreamReport",
    "TickDurations",
    "ViewReport",
]


@dataclass(frozen=True)
class TickDurations:
    """Milliseconds over the engine's newest ticks; `ticks` says over how many. Zero without any."""

    ticks: int = 0
    last: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class StreamReport:
    """`state` is live or failed; `ends` are the log's ends per partition as last seen, `events`
    how many events the log and its archive hold. `pending_events` counts what the slowest view of
    the stream has not taken yet."""

    state: str
    detail: str = ""
    ends: Mapping[int, int] = field(default_factory=dict)
    pending_events: int = 0
    events: int = 0


@dataclass(frozen=True)
class RebuildReport:
    """The newest rebuild of a view. `state` is building, held (the copy is as far as its view and
    waits to be told to take its place), done, failed or cancelled; `detail` says why, for people.
    `events` of `events_total` are in the copy. Once it is done, `tick` is the one that swapped, and
    `followed` says whether the differences reached those who follow the view as changes."""

    state: str
    detail: str = ""
    events: int = 0
    events_total: int = 0
    tick: int | None = None
    followed: bool | None = None


@dataclass(frozen=True)
class ViewReport:
    """`state` is live, catching_up, halted, failed or changed; `detail` says why, for people.
    `counts` are the totals since the view was created. `held_back_partition` is the one
    with the lowest watermark (-1: none in particular), `held_back_maximum` its highest event time
    in microseconds. `rebuild` is there while a copy of the view is being built."""

    stream: str
    state: str
    detail: str = ""
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    pending_events: int = 0
    watermark_microseconds: int | None = None
    counts: Counts = field(default_factory=Counts)
    held_back_partition: int = -1
    held_back_maximum: int = 0
    rebuild: RebuildReport | None = None


@dataclass(frozen=True)
class EngineStatus:
    """`state` is starting, live or failed. `tick` is the last committed one, 0 before the first."""

    state: str
    detail: str = ""
    generation: int = 0
    tick: int = 0
    committed_at_microseconds: int | None = None
    durations: TickDurations = field(default_factory=TickDurations)
    streams: Mapping[str, StreamReport] = field(default_factory=dict)
    views: Mapping[str, ViewReport] = field(default_factory=dict)


class Control(Protocol):
    """Every call is made from serving threads while ticks run: it returns at once and never waits
    for a tick. What it says about progress is what is committed, never what is under way."""

    def status(self) -> EngineStatus: ...

    def pending(self, view: str) -> int:
        """Events in the log that the view has not taken yet. 0 for a view it does not know."""

    def watermark(self, view: str) -> int | None:
        """The view's committed watermark in microseconds; None while there is none. Never
        decreases, and never runs ahead of what a query that starts now will see."""

    def standstill(self, view: str) -> ViewStatus | None:
        """How the view stands, if it takes in nothing more until somebody does something about it;
        None for one that goes on, or that is not open yet."""

    def log_identity(self) -> str:
        """What tells the project's log from any other; "" while it cannot be read."""

    def ends(self, stream: str) -> tuple[int, ...]:
        """The ends of a stream in the log, per partition; empty while it cannot be read."""

    def rebuild(self, view: str, *, hold: bool = False, from_oldest: bool = False) -> None:
        """Ask for a copy to be built beside the view, which takes its place once it has come as
        far; returns before it is begun. `hold`: only once `swap` is called. `from_oldest`: where
        the log no longer reaches the view's start, begin where the log does. Raises RequestError:
        404 for a view that is not defined, 409 while a copy of it is being built, and when the log
        does not reach its start."""

    def rebuilt(self, view: str) -> RebuildReport | None:
        """How the newest rebuild of the view stands; None where there was none in this process."""

    def swap(self, view: str) -> None:
        """Let a copy that is held take its view's place. Raises RequestError (409)."""

    def cancel(self, view: str) -> None:
        """Drop the copy that is being built. Raises RequestError (409) where there is none."""

    def resume(self, stream: str, decision: str) -> tuple[Sequence[tuple[int, int]], Future[None]]:
        """Decide (apply, side or drop) the late event that the stream's views halted before, and
        let them go on. Gives the (partition, offset) decided, and what is done once that is
        durable; the views have not gone on by then. Raises
        QueryError (409) when no view of the stream is halted, 404 for an unknown stream."""

    def apply_late(self, stream: str, view: str | None) -> None:
        """Ask for the events set aside for the view (None: for every view of the stream) to be
        applied now, as revisions; returns before it is done. Raises QueryError (404)."""

    def metrics(self) -> Mapping[str, float]:
        """Further figures for /metrics by name, without the `headrace_` in front. A name that ends
        in `_total` only grows; others may move both ways."""
