"""Many streams, and many views: how long after its acknowledgement an event is visible in all views
of its stream, in projects whose views have twelve shapes and four kinds.

Requests fall due on a fixed schedule whatever the system does (open loop), and a probe, which is
the only reader, asks for one view after the other, fifty times a second, each view always by the
same query. All views of a project are seen at one tick, so an answer, whichever view it shows, says
how far all of them are: an event is visible when an answer of the tick in which the last view of
its stream took it, or of a later one, has arrived. Which tick that was the store tells afterwards.
A request counts as visible when everything is that had been *sent* to its stream when it was
acknowledged, so the figure can only be too high.

In the end every stream is told by a heartbeat that it is complete, and every view is compared, row
by row, with a batch query.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench.batch import Query, Snapshot, check_views
from bench.calls import Caller
from bench.end_to_end import CATCH_UP_SECONDS_MAX, wait_for_engine
from bench.events import CHUNK_EVENTS
from bench.load import Acknowledged, Load, LoadSpec
from bench.probe import Probe, seen_after
from bench.processes import cpu_seconds, started, wait_until
from bench.readings import Readings, create_stream, events_of, written
from bench.results import Figure
from bench.run import Run
from bench.shapes import ROWS, shaped

__all__ = ["MANY_STREAMS", "MANY_VIEWS", "Many", "many", "write_project"]

KEYS = 1_000
WARM_UP_EVENTS = CHUNK_EVENTS  # in the closed loop, so that every key is stored
WARM_UP_SECONDS_MAX = 120.0
CONNECTIONS = 4
SETTLE_SECONDS = 10.0  # at the start, left out: the JVM still compiles
COMPLETE_UP_TO = "2026-02-01T00:00:00Z"  # after all readings, and before the clock's time


@dataclass(frozen=True)
class Many:
    """`size` is how many events a request has; requests go to the streams by turns."""

    figure: str
    streams: int
    partitions: int
    views_per_stream: int
    requests_per_second: int
    size: int

    @property
    def rate(self) -> int:
        return self.requests_per_second * self.size

    @property
    def stream_names(self) -> tuple[str, ...]:
        return tuple(f"readings_{number:02}" for number in range(self.streams))

    def views(self) -> Mapping[str, _View]:
        found = {}
        for number in range(self.streams * self.views_per_stream):
            stream = self.stream_names[number // self.views_per_stream]
            shape, query = shaped(stream, number)
            name = f"{shape.name}_{number:02}"
            found[name] = _View(stream, query, f"/v1/views/{name}?limit={ROWS}{shape.asked}")
        return found


@dataclass(frozen=True)
class _View:
    stream: str
    query: Query
    path: str


MANY_STREAMS = Many("many_streams_p99", 30, 1, 2, requests_per_second=300, size=10)
MANY_VIEWS = Many("many_views_p99", 1, 4, 40, requests_per_second=100, size=50)


def many(wanted: Many, work: Path, run: Run) -> Iterator[Figure]:
    seconds = 5.0 if run.quick else 25.0
    settle = 3.0 if run.quick else SETTLE_SECONDS
    workload = Readings(41, wanted.rate, KEYS, wanted.stream_names)
    views = wanted.views()
    project = work / wanted.figure
    write_project(project, wanted)
    with started(project, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        with Load(_spec(running.port, workload, wanted, WARM_UP_SECONDS_MAX)) as load:
            load.run()
        _wait_for_views(caller, views, events_of(workload.streams, WARM_UP_EVENTS, wanted.size))
        spec = _spec(running.port, workload, wanted, settle + seconds, WARM_UP_EVENTS)
        paths = [view.path for view in views.values()]
        with Load(spec) as load, Probe(running.port, paths, _tick_of) as probe:
            cpu_before = cpu_seconds(running.tree())
            result = load.run()
            cpu = cpu_seconds(running.tree()) - cpu_before
            reads = probe.reads
            events = WARM_UP_EVENTS + result.events
            _wait_for_views(caller, views, events_of(workload.streams, events, wanted.size))
            probe.wait_for(caller.tick())
        files = written(work / "sent", workload, events, wanted.size)
        _complete(caller, views)
        rows = {name: caller.snapshot(project, name) for name in views}
    check_views({name: view.query for name, view in views.items()}, files, rows)
    _check_counts(views, files, rows)
    settled = [a for a in result.acknowledged if a.due >= result.began + settle]
    before = events_of(workload.streams, WARM_UP_EVENTS, wanted.size)
    ticks = needed_ticks(settled, before, {n: v.stream for n, v in views.items()}, rows)
    waits = np.array(seen_after(settled, ticks, probe.seen)) * 1_000
    acknowledging = np.array([a.at - a.due for a in settled]) * 1_000
    elapsed = result.ended - result.began
    details = {
        "p50_ms": float(np.percentile(waits, 50)),
        "p95_ms": float(np.percentile(waits, 95)),
        "max_ms": float(waits.max()),
        "due_to_ack_p99_ms": float(np.percentile(acknowledging, 99)),
        "views": len(views),
        "ticks_per_s": _ticks_per_second(probe.seen, result.began + settle, result.ended),
        "reads_per_s": reads / elapsed,
        "events_per_s": result.events / elapsed,
        "headrace_cores": cpu / elapsed,
        "cpu_s_per_million": cpu / result.events * 1_000_000,
        "generator_core": result.core,
    }
    yield Figure(wanted.figure, float(np.percentile(waits, 99)), details)


def write_project(directory: Path, wanted: Many) -> None:
    directory.mkdir(parents=True)
    (directory / "headrace.toml").write_text('name = "many"\n\n[gateway]\nport = 0\n')
    streams = [create_stream(name, wanted.partitions) for name in wanted.stream_names]
    views = [
        f"CREATE MATERIALIZED VIEW {name} AS\n{view.query.definition};\n"
        for name, view in wanted.views().items()
    ]
    (directory / "many.sql").write_text("\n".join([*streams, *views]))


def _spec(port: int, workload: Readings, wanted: Many, seconds: float, first: int = 0) -> LoadSpec:
    """Without `first` the warm-up, which goes as fast as it can."""
    events = -(-int(wanted.rate * seconds) // CHUNK_EVENTS) * CHUNK_EVENTS
    return LoadSpec(
        port=port,
        workload=workload,
        events=first + events if first else WARM_UP_EVENTS,
        size=wanted.size,
        connections=CONNECTIONS,
        seconds=seconds,
        requests_per_second=wanted.requests_per_second if first else 0.0,
        first=first,
    )


def _tick_of(said: object) -> int:
    assert isinstance(said, dict)
    return int(said["freshness"]["tick"])


def _wait_for_views(caller: Caller, views: Mapping[str, _View], sent: Mapping[str, int]) -> None:
    def have_read() -> bool:
        read = caller.read_by_view()
        return all(read.get(name, -1) >= sent[view.stream] for name, view in views.items())

    wait_until(have_read, CATCH_UP_SECONDS_MAX, f"{sent} in the views", gap=0.05)


def _complete(caller: Caller, views: Mapping[str, _View]) -> None:
    """Until every window is closed, so that views that show closed ones alone show all."""
    caller.complete({view.stream for view in views.values()}, COMPLETE_UP_TO)
    wanted = datetime.fromisoformat(COMPLETE_UP_TO)

    def are_complete() -> bool:
        known = caller.watermarks()
        return all(at is not None and at >= wanted for at in known.values()) and bool(known)

    wait_until(are_complete, CATCH_UP_SECONDS_MAX, "every window to close", gap=0.05)


def _check_counts(
    views: Mapping[str, _View], files: Mapping[str, Sequence[Path]], rows: Mapping[str, Snapshot]
) -> None:
    """That the store's account of the ticks comes to what was sent: the figure rests on it."""
    for name, view in views.items():
        sent = sum(pq.read_metadata(file).num_rows for file in files[view.stream])
        reached = rows[name].reached
        if not reached or reached[-1][1] != sent:
            raise ValueError(f"{name} was sent {sent} events; its ticks say {reached[-1:]}")


def needed_ticks(
    acknowledged: Sequence[Acknowledged],
    before: Mapping[str, int],
    stream_of: Mapping[str, str],
    rows: Mapping[str, Snapshot],
) -> list[int]:
    """For each acknowledgement the tick by which every view of its stream had taken all that had
    been sent to the stream. `before` is how many events the streams had got before the load."""
    views: dict[str, list[tuple[list[int], list[int]]]] = {}
    for name, stream in stream_of.items():
        ticks, counts = zip(*rows[name].reached, strict=True)
        views.setdefault(stream, []).append((list(counts), list(ticks)))
    return [
        max(
            ticks[bisect_left(counts, before[each.stream] + each.begun)]
            for counts, ticks in views[each.stream]
        )
        for each in acknowledged
    ]


def _ticks_per_second(seen: Sequence[tuple[int, float]], began: float, ended: float) -> float:
    within = [tick for tick, at in seen if began <= at <= ended]
    return (within[-1] - within[0]) / (ended - began) if within else 0.0
