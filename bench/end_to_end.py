"""End to end: from POST to being in all five views, sustained; and the memory it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.calls import Caller
from bench.events import CHUNK_EVENTS, Workload
from bench.load import Load, LoadResult, LoadSpec
from bench.oracle import check_views, expected, write_parquet
from bench.processes import MemoryWatch, Running, StartFailed, cpu_seconds, started, wait_until
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = [
    "Taken",
    "check_running",
    "end_to_end",
    "take_in",
    "wait_for_engine",
    "wait_for_events",
]

SIZE = 1_000
CONNECTIONS = 8  # as for the ingest of batches of this size
RATE_MAX = 600_000  # prepared for
CATCH_UP_SECONDS_MAX = 300.0
READY_SECONDS_MAX = 120.0
WARM_UP_EVENTS = 5 * CHUNK_EVENTS
GROWTH_MEBIBYTES_PER_MINUTE_MAX = 30.0  # of the second half of the run; below it counts as flat


def end_to_end(work: Path, run: Run) -> Iterator[Figure]:
    """The rate counts every event until the last is in the views, the time the engine still needs
    after the last acknowledgement included."""
    seconds = 10.0 if run.quick else 60.0
    workload = Workload(seed=5, rate=300_000)
    project = work / "end-to-end"
    write_project(project)
    with started(project, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        _warm_up(running, caller)
        spec = LoadSpec(
            port=running.port,
            workload=workload,
            events=int(RATE_MAX * seconds),
            size=SIZE,
            connections=CONNECTIONS,
            seconds=seconds,
        )
        memory = MemoryWatch(running)
        memory.start()
        taken = take_in(running, caller, spec, WARM_UP_EVENTS)
        memory.stop()
        check_running(caller, work, {workload: taken.result.events, _WARM_UP: WARM_UP_EVENTS})
    yield Figure("end_to_end", taken.rate, taken.details)
    yield Figure(
        "memory",
        memory.mebibytes_max,
        {
            **memory.details,
            "flat": memory.mebibytes_per_minute() <= GROWTH_MEBIBYTES_PER_MINUTE_MAX,
            "growth_mib_per_minute": memory.mebibytes_per_minute(),
            "seconds": memory.samples[-1].at - memory.samples[0].at,
        },
    )


@dataclass(frozen=True)
class Taken:
    """What it took to take events in, from the first request until every view had read the last.
    `behind` is how many were not read when the last was acknowledged."""

    result: LoadResult
    ended: float
    behind: int
    cpu: float

    @property
    def seconds(self) -> float:
        return self.ended - self.result.began

    @property
    def rate(self) -> float:
        return self.result.events / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        return self.cpu / self.result.events * 1_000_000

    @property
    def details(self) -> dict[str, float]:
        return {
            "events": self.result.events,
            "seconds": self.seconds,
            "acknowledged_per_s": self.result.rate,
            "behind_at_the_end": self.behind,
            "ack_p99_ms": self.result.latency_milliseconds["p99"],
            "generator_core": self.result.core,
            "headrace_cores": self.cpu / self.seconds,
        }


def take_in(
    running: Running,
    caller: Caller,
    spec: LoadSpec,
    before: int,
    seconds_max: float | None = None,
    view: str | None = None,
) -> Taken:
    """`before` is how many events of the workload's one stream the views have read already; with
    `view` only this one counts."""

    def read() -> int:
        return caller.events_read() if view is None else caller.read_by_view().get(view, -1)

    with Load(spec) as load:
        cpu_before = cpu_seconds(running.tree())
        result = load.run()
        behind = before + result.events - read()
        wait_until(
            lambda: read() >= before + result.events,
            seconds_max or CATCH_UP_SECONDS_MAX,
            f"{before + result.events} events in the views",
            gap=0.05,
        )
        ended = time.monotonic()
        cpu = cpu_seconds(running.tree()) - cpu_before
    return Taken(result, ended, behind, cpu)


_WARM_UP = Workload(seed=6, rate=300_000)


def _warm_up(running: Running, caller: Caller) -> None:
    """Let the JVM compile and the plans be prepared, as in a system that has run for a while."""
    spec = LoadSpec(running.port, _WARM_UP, WARM_UP_EVENTS, SIZE, CONNECTIONS, seconds=60.0)
    with Load(spec) as load:
        result = load.run()
    if result.events != WARM_UP_EVENTS:
        raise StartFailed(f"the warm-up got only {result.events} events in")
    wait_for_events(caller, WARM_UP_EVENTS)


def wait_for_engine(running: Running, caller: Caller) -> None:
    def is_ready() -> bool:
        if running.process.poll() is not None:
            raise StartFailed(f"it ended while starting:\n{running.tail()}")
        return caller.get("/readyz")[0] == 200

    try:
        wait_until(is_ready, READY_SECONDS_MAX, "the engine", gap=0.1)
    except StartFailed as error:
        raise StartFailed(f"{error}; it said:\n{running.tail()}") from error


def wait_for_events(caller: Caller, events: int) -> None:
    wait_until(
        lambda: caller.events_in_views() >= events,
        CATCH_UP_SECONDS_MAX,
        f"{events} events in the views",
        gap=0.05,
    )


def check_running(caller: Caller, work: Path, sent: dict[Workload, int]) -> None:
    """That the running project's views hold exactly what was sent. Raises Difference."""
    files = []
    for workload, events in sent.items():
        directory = work / f"sent-{time.monotonic_ns()}"
        files += write_parquet(directory, workload, events)
    check_views(expected(files), caller.views())
    for file in files:
        file.unlink()
