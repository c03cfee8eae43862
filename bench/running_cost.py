"""What a running project costs when nothing happens, and how soon a second start is of use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.calls import Caller
from bench.end_to_end import check_running, wait_for_engine, wait_for_events
from bench.events import CHUNK_EVENTS, Workload, bodies
from bench.processes import START_SECONDS_MAX, cpu_seconds, started, wait_until
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project
from headrace.spark.class_archive import archive_file
from headrace.spark.java import find_java

__all__ = ["startup_and_idle"]

SIZE = 10_000
ARCHIVE_SECONDS_MAX = 240.0
LOOK_SECONDS = 0.2  # between two looks: each is a query and takes from what is starting
SETTLE_SECONDS = 8.0  # longer than the engine waits before it folds its files together


def startup_and_idle(work: Path, run: Run) -> Iterator[Figure]:
    """Start-up is a second start: from the command until an event that was posted as soon as the
    gateway took it is visible in a view, beside those of the run before. The first run goes on
    until Spark's classes are archived, which it does by itself (headrace.spark.class_archive)."""
    seconds = 5.0 if run.quick else 30.0
    workload = Workload(seed=7, rate=10_000)
    (chunk,) = bodies(workload, CHUNK_EVENTS, SIZE)
    project = work / "running-cost"
    write_project(project)
    with started(project, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        for number in range(len(chunk) - 1):
            _post(caller, bytes(chunk[number]))
        wait_for_events(caller, CHUNK_EVENTS - SIZE)
        archive = archive_file(find_java())
        wait_until(archive.exists, ARCHIVE_SECONDS_MAX, "the archive of classes")
    began = time.monotonic()
    with started(project, run.checkout) as running, Caller(running.port) as caller:
        wait_until(lambda: caller.get("/healthz")[0] == 200, START_SECONDS_MAX, "the gateway")
        accepting = time.monotonic() - began
        _post(caller, bytes(chunk[len(chunk) - 1]))
        wait_until(
            lambda: caller.events_in_views() == CHUNK_EVENTS,
            START_SECONDS_MAX,
            "live results",
            gap=LOOK_SECONDS,
        )
        live = time.monotonic() - began
        check_running(caller, work, {workload: CHUNK_EVENTS})
        time.sleep(SETTLE_SECONDS)
        tree = running.tree()
        java = [process for process in tree if process.name() == "java"]
        before, java_before = cpu_seconds(tree), cpu_seconds(java)
        began = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        idle = (cpu_seconds(tree) - before) / elapsed
        java_idle = (cpu_seconds(java) - java_before) / elapsed
    yield Figure("startup", live, {"accepting_events_s": accepting})
    yield Figure("idle_core", idle, {"of_it_java": java_idle, "seconds": elapsed})


def _post(caller: Caller, body: bytes) -> None:
    status, said = caller.post_events(body)
    if status != 200 or said["accepted"] != SIZE:
        raise RuntimeError(f"POST /v1/events answered {status}: {said}")
