"""Freshness: how long after its acknowledgement an event is visible in a query.

Requests fall due a hundred times a second whatever the system does (open loop). A reader polls the
view of totals, which counts all events. A request counts as visible when a query's answer, at the
moment it has arrived, counts at least all events that had been *sent* when the request was
acknowledged: requests under way are waited for too, so the figure can only be too high.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.calls import Caller
from bench.end_to_end import check_running, wait_for_engine, wait_for_events
from bench.events import CHUNK_EVENTS, Workload
from bench.load import Acknowledged, Load, LoadResult, LoadSpec
from bench.oracle import Difference
from bench.processes import cpu_seconds, started
from bench.results import Figure
from bench.shop import TOTALS, write_project

__all__ = ["freshness", "visible_after"]

RATES = {"1k": 1_000, "10k": 10_000, "50k": 50_000}
REQUESTS_PER_SECOND = 100
CONNECTIONS = 4
POLL_GAP_SECONDS = 0.01
SETTLE_SECONDS = 3.0  # at the start, left out: the JVM still compiles
FIGURES = {"1k": ("p50", "p99"), "10k": ("p50", "p99"), "50k": ("p99",)}
_WARM_UP = Workload(seed=6, rate=10_000)


class _Poller(threading.Thread):
    """Notes when which number of events was first seen in an answer."""

    def __init__(self, port: int) -> None:
        super().__init__(name="poller", daemon=True)
        self._port = port
        self._ended = threading.Event()
        self.seen: list[tuple[int, float]] = []
        self.polls = 0
        self.went_backwards = False

    def run(self) -> None:
        with Caller(self._port) as caller:
            while not self._ended.wait(POLL_GAP_SECONDS):
                events = caller.events_in_views()
                self.polls += 1
                last = self.seen[-1][0] if self.seen else -1
                if events > last:
                    self.seen.append((events, time.monotonic()))
                self.went_backwards |= 0 <= events < last

    def stop(self) -> None:
        self._ended.set()
        self.join()


def freshness(work: Path, quick: bool) -> Iterator[Figure]:
    """All rates one after the other on one running project."""
    seconds = 5.0 if quick else 25.0
    project = work / "freshness"
    write_project(project)
    sent: dict[Workload, int] = {}
    found: list[Figure] = []
    with started(project) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        spec = _spec(running.port, _WARM_UP, 10_000, 10.0)
        with Load(spec) as load:
            sent[_WARM_UP] = load.run().events
        for label, rate in RATES.items():
            workload = Workload(seed=rate, rate=rate)
            before = sum(sent.values())
            wait_for_events(caller, before)
            poller = _Poller(running.port)
            with Load(_spec(running.port, workload, rate, seconds + SETTLE_SECONDS)) as load:
                poller.start()
                cpu_before = cpu_seconds(running.tree())
                result = load.run()
                cpu = cpu_seconds(running.tree()) - cpu_before
            sent[workload] = result.events
            wait_for_events(caller, before + result.events)
            time.sleep(2 * POLL_GAP_SECONDS)
            poller.stop()
            if poller.went_backwards:
                raise Difference(f"{TOTALS}: a query counted fewer events than one before it")
            found += _figures(label, before, result, poller, cpu)
        check_running(caller, work, sent)
    yield from found


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
    label: str, before: int, result: LoadResult, poller: _Poller, cpu: float
) -> Iterator[Figure]:
    settled = [a for a in result.acknowledged if a.due >= result.began + SETTLE_SECONDS]
    waits = np.array(visible_after(settled, before, poller.seen)) * 1_000
    acknowledging = np.array([a.at - a.due for a in settled]) * 1_000
    seconds = result.ended - result.began
    details = {
        "p95_ms": float(np.percentile(waits, 95)),
        "max_ms": float(waits.max()),
        "due_to_ack_p99_ms": float(np.percentile(acknowledging, 99)),
        "due_to_visible_p99_ms": float(np.percentile(acknowledging + waits, 99)),
        "polls_per_s": poller.polls / seconds,
        "requests": len(settled),
        "headrace_cores": cpu / seconds,
    }
    for percentile in FIGURES[label]:
        value = float(np.percentile(waits, int(percentile[1:])))
        yield Figure(f"freshness_{percentile}_{label}", value, details)


def visible_after(
    acknowledged: Sequence[Acknowledged], before: int, seen: Sequence[tuple[int, float]]
) -> list[float]:
    """Seconds from each acknowledgement to the first answer that counts everything sent by then;
    0 when an answer had shown it already."""
    counts = [count for count, _ in seen]
    times = [at for _, at in seen]
    waits = []
    for each in acknowledged:
        position = bisect_left(counts, before + each.begun)
        if position == len(counts):
            raise ValueError(f"{before + each.begun} events were never seen in the views")
        waits.append(max(0.0, times[position] - each.at))
    return waits
