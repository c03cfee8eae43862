"""What de-duplication costs: the same log drained with it and without.

Five in a hundred events come twice: half of the second ones soon after the first, half some seconds
of event time later. The log is the same for both; only the stream's definition differs. Each runs
in a fresh process, after a warm-up that is not measured, the order alternating; a ratio is taken
within its round, and the median counts. Both outputs are checked: with the clause against the
events without their repetitions, without it against all that the log holds.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.children import kept_views, run_child
from bench.events import CHUNK_EVENTS, Workload, tables
from bench.oracle import Rows, check_views, expected
from bench.preload import preload
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = ["dedupe"]

WORKLOAD = Workload(seed=11, rate=10_000)
WARM_UP = Workload(seed=12, rate=10_000)
REPEATED_SHARE = 0.05
SOON_EVENTS = 5_000
CONTENDERS = ("plain", "deduplicated")


@dataclass(frozen=True)
class _Logs:
    """Two projects with the same log, and the oracle's rows for each."""

    events: int
    projects: Mapping[str, Path]
    wanted: Mapping[str, Mapping[str, Rows]]


def repeated(workload: Workload, events: int) -> Iterator[pa.RecordBatch]:
    """The workload's first `events` events, with repetitions after their firsts."""
    before: pa.RecordBatch | None = None
    for chunk, batch in enumerate(tables(workload, events)):
        random = np.random.default_rng([workload.seed, chunk, 1])
        rows = batch.num_rows
        soon = random.integers(0, rows, int(rows * REPEATED_SHARE / 2))
        parts = [batch, batch.take(pa.array(soon))]
        places = [np.arange(rows), soon + random.integers(1, SOON_EVENTS, len(soon))]
        if before is not None:
            later = random.integers(0, before.num_rows, len(soon))
            parts.append(before.take(pa.array(later)))
            places.append(random.integers(0, rows, len(later)))
        order = np.argsort(np.concatenate(places), kind="stable")
        joined = pa.Table.from_batches(parts).take(pa.array(order)).combine_chunks()
        yield from joined.to_batches()
        before = batch


def _prepare(work: Path, name: str, workload: Workload, events: int) -> _Logs:
    plain, deduplicated = (work / f"{name}-{contender}" for contender in CONTENDERS)
    write_project(plain)
    preload(plain, repeated(workload, events))
    shutil.copytree(plain, deduplicated, copy_function=os.link)
    (deduplicated / "shop.sql").unlink()
    (deduplicated / "headrace.toml").unlink()
    write_project(deduplicated, deduplicates=True)
    with_all = _written(work / f"{name}-all.parquet", repeated(workload, events))
    without = _written(work / f"{name}-firsts.parquet", tables(workload, events))
    rows = pq.read_metadata(with_all).num_rows
    wanted = {"plain": expected([with_all]), "deduplicated": expected([without])}
    return _Logs(rows, {"plain": plain, "deduplicated": deduplicated}, wanted)


def _written(file: Path, batches: Iterator[pa.RecordBatch]) -> Path:
    pq.write_table(pa.Table.from_batches(batches), file)
    return file


def dedupe(work: Path, run: Run) -> Iterator[Figure]:
    chunks, rounds = (3, 1) if run.quick else (30, 3)
    warm_up = _prepare(work, "warm-up", WARM_UP, CHUNK_EVENTS if run.quick else 10 * CHUNK_EVENTS)
    logs = _prepare(work, "dedupe", WORKLOAD, chunks * CHUNK_EVENTS)
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]:
            place = work / f"{name}-{number}"
            place.mkdir()
            for source, target in ((logs, "measured"), (warm_up, "warm-up")):
                shutil.copytree(source.projects[name], place / target, copy_function=os.link)
            said = run_child(
                "bench.engine_process", "drain", str(place / "measured"), str(place / "warm-up")
            )
            check_views(logs.wanted[name], kept_views(place / "measured" / "views"))
            taken[name].append(said["seconds"])
            shutil.rmtree(place)
    pairs = zip(taken["plain"], taken["deduplicated"], strict=True)
    ratios = [plain / deduplicated for plain, deduplicated in pairs]
    details: dict[str, float] = {"events": logs.events, "rounds": rounds}
    for name, seconds in taken.items():
        details[f"{name}_per_s"] = logs.events / statistics.median(seconds)
    details["least"], details["most"] = min(ratios), max(ratios)
    yield Figure("dedupe_ratio", statistics.median(ratios), details)
