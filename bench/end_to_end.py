"""End to end: from POST to being in all five views, sustained; and the memory it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.calls import Caller
from bench.events import CHUNK_EVENTS, Workload
from bench.load import Load, LoadResult, LoadSpec
from bench.oracle import check_views, expected, write_parquet
from bench.processes import MemoryWatch, Running, StartFailed, cpu_seconds, started, wait_until
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = ["check_running", "end_to_end", "wait_for_engine", "wait_for_events"]

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
        with Load(spec) as load:
            memory = MemoryWatch(running)
            memory.start()
            cpu_before = cpu_seconds(running.tree())
            result = load.run()
            behind = WARM_UP_EVENTS + result.events - caller.events_in_views()
            wait_for_events(caller, WARM_UP_EVENTS + result.events)
            ended = time.monotonic()
            cpu = cpu_seconds(running.tree()) - cpu_before
            memory.stop()
        check_running(caller, work, {workload: result.events, _WARM_UP: WARM_UP_EVENTS})
    yield _rate(result, ended, behind, cpu)
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


def _rate(result: LoadResult, ended: float, behind: int, cpu: float) -> Figure:
    seconds = ended - result.began
    return Figure(
        "end_to_end",
        result.events / seconds,
        {
            "events": result.events,
            "seconds": seconds,
            "acknowledged_per_s": result.rate,
            "behind_at_the_end": behind,
            "ack_p99_ms": result.latency_milliseconds["p99"],
            "generator_core": result.core,
            "headrace_cores": cpu / seconds,
        },
    )


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
