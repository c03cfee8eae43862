"""What a tick costs by what is stored: the same ticks over a million keys and over ten thousand.

Two projects run side by side. Every key of each is stored in three views: grouped by key, by key
and window, and as sessions. Then single bodies go to the one and to the other by turns, their keys
uniform over all that are stored; each is one tick, whose duration the engine tells. What counts is
the ratio of the medians. In the end both projects' views are compared with batch queries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np

from bench.batch import Query, check_views
from bench.calls import Caller
from bench.end_to_end import CATCH_UP_SECONDS_MAX, wait_for_engine
from bench.events import CHUNK_EVENTS, encoded
from bench.load import Load, LoadSpec
from bench.oracle import write_parquet
from bench.processes import started, wait_until
from bench.readings import Readings, create_stream
from bench.results import Figure
from bench.run import Run
from bench.taken_in import Project, write_project

__all__ = ["PROJECT", "Side", "lines", "state_ratio"]

MANY_KEYS, FEW_KEYS = 1_000_000, 10_000
QUICK_MANY_KEYS = 100_000
SIZES = {600: "state_ratio_600", 10_000: "state_ratio_10k"}
ROUNDS = {600: (60, 150), 10_000: (15, 50)}  # uncounted and counted
QUICK_ROUNDS = {600: (5, 10), 10_000: (2, 5)}
LOAD_SIZE = 5_000
LOAD_CONNECTIONS = 4
LOAD_SECONDS_MAX = 600.0
TICK_SECONDS_MAX = 60.0
RATE = 100_000  # so many readings share one second of event time: all lie within one hour
STREAM = "readings"
_BOUNDS = "window.start AS window_start, window.end AS window_end"
PROJECT = Project(
    "state",
    create_stream(STREAM, 4),
    {
        "by_sensor": Query(
            "SELECT sensor, count(*) AS events, sum(amount) AS total, max(level) AS most"
            f" FROM {STREAM} GROUP BY sensor"
        ),
        "hourly": Query(
            f"SELECT {_BOUNDS}, sensor, count(*) AS events, sum(level) AS levels"
            f" FROM {STREAM} GROUP BY window(read_at, '1 hour'), sensor",
            "SELECT date_trunc('hour', read_at) AS window_start,"
            " date_trunc('hour', read_at) + INTERVAL 1 HOUR AS window_end,"
            f" sensor, count(*) AS events, sum(level) AS levels FROM {STREAM} GROUP BY ALL",
        ),
        # The readings span less than the gap, so each sensor has one session.
        "sessions": Query(
            f"SELECT sensor, {_BOUNDS}, count(*) AS events FROM {STREAM}"
            " GROUP BY session_window(read_at, '1 hour'), sensor",
            "SELECT sensor, min(read_at) AS window_start,"
            " max(read_at) + INTERVAL 1 HOUR AS window_end, count(*) AS events"
            f" FROM {STREAM} GROUP BY sensor",
        ),
    },
)


def state_ratio(work: Path, run: Run) -> Iterator[Figure]:
    many = QUICK_MANY_KEYS if run.quick else MANY_KEYS
    with contextlib.ExitStack() as stack:
        sides = [Side(keys, work / f"keys-{keys}") for keys in (many, FEW_KEYS)]
        for side in sides:
            side.start(stack, run)
        figures = [_measured(size, sides, run) for size in SIZES]
        for side in sides:
            side.check()
    yield from figures


def _measured(size: int, sides: Sequence[Side], run: Run) -> Figure:
    uncounted, counted = (QUICK_ROUNDS if run.quick else ROUNDS)[size]
    taken: list[list[float]] = [[] for _ in sides]
    for number in range(uncounted + counted):
        for side, values in zip(sides, taken, strict=True):
            milliseconds = side.tick(size)
            if number >= uncounted and milliseconds is not None:
                values.append(milliseconds)
    return _figure(size, *taken)


def _figure(size: int, many: list[float], few: list[float]) -> Figure:
    over_many, over_few = float(np.median(many)), float(np.median(few))
    details = {
        "ms_many_keys": over_many,
        "ms_few_keys": over_few,
        "p95_ms_many_keys": float(np.percentile(many, 95)),
        "p95_ms_few_keys": float(np.percentile(few, 95)),
        "ticks": min(len(many), len(few)),
    }
    return Figure(SIZES[size], over_many / over_few, details)


class Side:
    """One of the two projects. `keys` are whole chunks, or fewer than one holds."""

    def __init__(self, keys: int, work: Path) -> None:
        self._work = work
        self._workload = Readings(seed=47, rate=RATE, keys=keys, streams=(STREAM,))
        self._sent = max(keys, CHUNK_EVENTS)
        self._lines: Iterator[str] = lines(self._workload, self._sent)
        self._project = work / PROJECT.name

    def start(self, stack: contextlib.ExitStack, run: Run) -> None:
        """Returns when the project runs and every key is stored."""
        write_project(self._project, PROJECT)
        running = stack.enter_context(started(self._project, run.checkout))
        self._caller = stack.enter_context(Caller(running.port))
        wait_for_engine(running, self._caller)
        spec = LoadSpec(
            running.port,
            self._workload,
            self._sent,
            LOAD_SIZE,
            LOAD_CONNECTIONS,
            LOAD_SECONDS_MAX,
        )
        with Load(spec) as load:
            load.run()
        self._wait(CATCH_UP_SECONDS_MAX)

    def tick(self, size: int) -> float | None:
        """One body taken in; the milliseconds of its tick, None where it was not one tick."""
        body = "".join(islice(self._lines, size)).encode()
        before = self._caller.engine()
        status, said = self._caller.post_events(body, STREAM)
        if status != 200 or said["accepted"] != size:
            raise RuntimeError(f"POST /v1/events answered {status}: {said}")
        self._sent += size
        self._wait(TICK_SECONDS_MAX)
        # The engine tells the duration of a tick only after what the tick has read.
        last = before["tick_milliseconds"]["last"]
        wait_until(
            lambda: self._caller.engine()["tick_milliseconds"]["last"] != last,
            TICK_SECONDS_MAX,
            "the duration of a tick",
        )
        after = self._caller.engine()
        is_one = after["tick"] == before["tick"] + 1
        return float(after["tick_milliseconds"]["last"]) if is_one else None

    def _wait(self, seconds: float) -> None:
        wait_until(
            lambda: self._caller.events_read() >= self._sent, seconds, f"{self._sent} in the views"
        )

    def check(self) -> None:
        """Raises Difference where a view is not what its batch query gives."""
        rows = {view: self._caller.snapshot(self._project, view) for view in PROJECT.queries}
        files = write_parquet(self._work / "sent", self._workload, self._sent)
        check_views(PROJECT.queries, {STREAM: files}, rows)


def lines(workload: Readings, first: int) -> Iterator[str]:
    """The workload's events from number `first` on, as a body has them."""
    for chunk in count(first // CHUNK_EVENTS):
        begin = max(0, first - chunk * CHUNK_EVENTS)
        yield from encoded(workload, chunk)[begin:].to_pylist()
