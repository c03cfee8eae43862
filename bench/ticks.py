"""Ticks: how long one of 10,000 events takes with five views, the store's transaction included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.children import kept_views, run_child
from bench.engine_process import TICKS
from bench.events import tables
from bench.oracle import check_views, expected
from bench.preload import GROUP_EVENTS
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = ["ticks"]


def ticks(work: Path, run: Run) -> Iterator[Figure]:
    """Ticks before the tail is taken let the JVM compile what is hot."""
    warm_up, measured = (10, 20) if run.quick else (150, 400)
    project = work / "ticks"
    write_project(project)
    events = (warm_up + measured) * GROUP_EVENTS
    said = run_child("bench.engine_process", "ticks", str(project), str(events))
    check_views(
        expected(pa.Table.from_batches(list(tables(TICKS, events)))),
        kept_views(project / "views"),
    )
    taken = np.array(said["milliseconds"][warm_up:])
    p50, p95, p99 = np.percentile(taken, [50, 95, 99])
    details = {
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "max_ms": float(taken.max()),
        "ticks": len(taken),
        "first_ms": float(said["milliseconds"][0]),
    }
    yield Figure("tick_p99", float(p99), details)
