"""Freshness: how long after its acknowledgement an event is visible in a query.

Requests fall due a hundred times a second whatever the system does (open loop). A probe, which is
the only reader, asks fifty times a second for the view of totals, which counts all events. A
request counts as visible when a query's answer, at the moment it has arrived, counts at least all
events that had been *sent* when the request was acknowledged: requests under way are waited for
too, so the figure can only be too high.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.calls import TOTALS_PATH, Caller, events_in
from bench.end_to_end import check_running, wait_for_engine, wait_for_events
from bench.events import CHUNK_EVENTS, Workload
from bench.load import Load, LoadResult, LoadSpec
from bench.probe import Probe, visible_after
from bench.processes import cpu_seconds, started
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = ["RATES", "figures_of", "freshness"]

RATES = {"1k": 1_000, "10k": 10_000, "50k": 50_000}
REQUESTS_PER_SECOND = 100
CONNECTIONS = 4
SETTLE_SECONDS = 3.0  # at the start, left out: the JVM still compiles
PERCENTILES = {"1k": (50, 99), "10k": (50, 99), "50k": (99,)}
_WARM_UP = Workload(seed=6, rate=10_000)


def figures_of(label: str) -> tuple[str, ...]:
    found = tuple(f"freshness_p{percentile}_{label}" for percentile in PERCENTILES[label])
    return (*found, "cpu_10k") if label == "10k" else found


def freshness(label: str, work: Path, run: Run) -> Iterator[Figure]:
    """One rate, on a project of its own."""
    seconds = 5.0 if run.quick else 25.0
    rate = RATES[label]
    project = work / "freshness"
    write_project(project)
    with started(project, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        with Load(_spec(running.port, _WARM_UP, 10_000, 10.0)) as load:
            before = load.run().events
        wait_for_events(caller, before)
        workload = Workload(seed=rate, rate=rate)
        with (
            Load(_spec(running.port, workload, rate, seconds + SETTLE_SECONDS)) as load,
            Probe(running.port, [TOTALS_PATH], events_in) as probe,
        ):
            cpu_before = cpu_seconds(running.tree())
            result = load.run()
            cpu = cpu_seconds(running.tree()) - cpu_before
            probe.wait_for(before + result.events)
        check_running(caller, work, {_WARM_UP: before, workload: result.events})
    yield from _figures(label, before, result, probe, cpu)


def _spec(port: int, workload: Workload, rate: int, seconds: float) -> LoadSpec:
    return LoadSpec(
        port=port,
        workload=workload,
        events=-(-int(rate * seconds) // CHUNK_EVENTS) * CHUNK_EVENTS,
        size=rate // REQUESTS_PER_SECOND,
        connections=CONNECTIONS,
        seconds=seconds,
        requests_per_second=REQUESTS_PER_SECOND,
    )


def _figures(
    label: str, before: int, result: LoadResult, probe: Probe, cpu: float
) -> Iterator[Figure]:
    settled = [a for a in result.acknowledged if a.due >= result.began + SETTLE_SECONDS]
    waits = np.array(visible_after(settled, before, probe.seen)) * 1_000
    acknowledging = np.array([a.at - a.due for a in settled]) * 1_000
    seconds = result.ended - result.began
    details = {
        "p95_ms": float(np.percentile(waits, 95)),
        "max_ms": float(waits.max()),
        "due_to_ack_p99_ms": float(np.percentile(acknowledging, 99)),
        "due_to_visible_p99_ms": float(np.percentile(acknowledging + waits, 99)),
        "reads_per_s": probe.reads / seconds,
        "requests": len(settled),
        "headrace_cores": cpu / seconds,
        "generator_core": result.core,
    }
    for percentile in PERCENTILES[label]:
        value = float(np.percentile(waits, percentile))
        yield Figure(f"freshness_p{percentile}_{label}", value, details)
    if label == "10k":
        yield Figure("cpu_10k", cpu / seconds, {"reads_per_s": probe.reads / seconds})
