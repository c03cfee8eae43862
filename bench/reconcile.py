"""Reconcile: how long `headrace reconcile` takes for a view of five million events, as a command:
its own start, its own Spark, reading the log and comparing every row.

The views are filled by the engine first, which is not measured. The command itself says that the
rows are equal to the log; that the log's views are right is checked against the oracle as ever.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from bench.children import kept_views, run_child
from bench.events import CHUNK_EVENTS, Workload, tables
from bench.oracle import check_views, expected
from bench.preload import preload
from bench.results import Figure
from bench.run import Run
from bench.shop import CHECKOUT, write_project

__all__ = ["reconcile"]

WORKLOAD = Workload(seed=21, rate=10_000)
VIEW = "income_by_user"


def reconcile(work: Path, run: Run) -> Iterator[Figure]:
    chunks, rounds = (3, 1) if run.quick else (50, 3)
    count = chunks * CHUNK_EVENTS
    project, warm_up = work / "reconcile", work / "warm-up"
    write_project(project)
    preload(project, tables(WORKLOAD, count))
    write_project(warm_up)
    preload(warm_up, tables(WORKLOAD, CHUNK_EVENTS))
    run_child("bench.engine_process", "drain", str(project), str(warm_up))
    check_views(
        expected(pa.Table.from_batches(list(tables(WORKLOAD, count)))),
        kept_views(project / "views"),
    )
    seconds = []
    for _ in range(rounds):
        began = time.monotonic()
        said = _proven(project)
        seconds.append(time.monotonic() - began)
        if said["events"] != count or not said["equal"]:
            raise RuntimeError(f"reconcile says {said}")
    details = {"events": count, "rows": said["rows"], "rounds": rounds, "most": max(seconds)}
    yield Figure("reconcile_5m", statistics.median(seconds), details)


def _proven(project: Path) -> dict[str, int]:
    command = [sys.executable, "-m", "headrace", "reconcile", VIEW, "--json"]
    ended = subprocess.run(
        [*command, "--project", str(project)], cwd=CHECKOUT, capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError(f"reconcile ended with {ended.returncode}: {ended.stderr[-500:]}")
    said: dict[str, int] = json.loads(ended.stdout)
    return said
