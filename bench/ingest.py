"""Ingest: events per second acknowledged durable by the gateway alone, by size of request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bench.events import CHUNK_EVENTS, Workload
from bench.load import Load, LoadResult, LoadSpec
from bench.oracle import Difference, check_log
from bench.processes import cpu_seconds, started
from bench.results import Figure
from bench.run import Run
from bench.shop import STREAM, write_project
from headrace.compile import load_project
from headrace.log.embedded.backend import open_reader
from headrace.model.settings import load_settings

__all__ = ["ingest", "stored_batches"]


@dataclass(frozen=True)
class _Case:
    """`rate_max` is how many events per second are prepared for."""

    size: int
    connections: int
    rate_max: int


CASES = (
    _Case(1, 64, 60_000),
    _Case(100, 32, 500_000),
    _Case(1_000, 8, 1_200_000),
    _Case(10_000, 4, 1_200_000),
)


def ingest(size: int, work: Path, run: Run) -> Iterator[Figure]:
    (case,) = (case for case in CASES if case.size == size)
    seconds, warm_up = (2.0, 1.0) if run.quick else (10.0, 2.0)
    workload = Workload(seed=size, rate=300_000)
    project = work / f"ingest-{size}"
    write_project(project)
    with started(project, run.checkout, gateway_only=True) as running:
        spec = LoadSpec(
            port=running.port,
            workload=workload,
            events=_whole_chunks(case.rate_max * (seconds + warm_up)),
            size=size,
            connections=case.connections,
            seconds=seconds,
            warm_up_seconds=warm_up,
        )
        with Load(spec) as load:
            before = cpu_seconds(running.tree())
            result = load.run()
            gateway_cpu = cpu_seconds(running.tree()) - before
    _check(project, workload, result)
    elapsed = result.ended - result.began
    yield Figure(
        f"ingest_{size}",
        result.rate,
        {
            "connections": case.connections,
            "p50_ms": result.latency_milliseconds["p50"],
            "p99_ms": result.latency_milliseconds["p99"],
            "generator_core": result.core,
            "gateway_core": gateway_cpu / elapsed,
            "seconds": result.measured_seconds,
        },
    )


def _whole_chunks(events: float) -> int:
    return -(-int(events) // CHUNK_EVENTS) * CHUNK_EVENTS


def _check(project: Path, workload: Workload, result: LoadResult) -> None:
    """The log's ends are what was acknowledged, and its events are those that were sent."""
    ends, batches = stored_batches(project)
    if sum(ends) != result.events:
        raise Difference(f"{result.events} events acknowledged, but the log ends at {ends}")
    check_log(workload, result.events, batches)


def stored_batches(project: Path) -> tuple[tuple[int, ...], Iterator[pa.RecordBatch]]:
    """The log's ends, and everything in it."""
    settings = load_settings(project)
    reader = open_reader(settings.log_directory, load_project(project).streams)
    ends = reader.ends(STREAM)

    def batches() -> Iterator[pa.RecordBatch]:
        for partition, end in enumerate(ends):
            for found in reader.read(STREAM, partition, 0, end):
                yield found.batch
        reader.close()

    return ends, batches()
