"""Drain: a log of five million events, against hand-written PySpark Structured Streaming.

Each contender runs in a fresh process, on the same cores with the same heap, and keeps the same
five views in a DuckDB file. Headrace reads its log, the others Parquet files with the same events.
First each does the whole for other, fewer events, which are not measured: compiled code is
compared, not the start of a JVM. Then the clock runs from an empty store until the last view is
complete.
Rounds alternate the order; a ratio is taken within its round, and the median of the rounds counts.
Each output of each round is checked.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.children import duckdb_views, kept_views, run_child
from bench.events import CHUNK_EVENTS, Workload, tables
from bench.oracle import Rows, check_views, expected, write_parquet
from bench.preload import preload
from bench.results import Figure
from bench.run import Run
from bench.shop import write_project

__all__ = ["drain"]

WORKLOAD = Workload(seed=9, rate=10_000)
WARM_UP = Workload(seed=10, rate=10_000)
CONTENDERS = ("headrace", "by_hand", "tuned")


@dataclass(frozen=True)
class _Events:
    """The same events as a project's log and as files."""

    count: int
    project: Path
    parquet: Path
    files: Sequence[Path]


def _prepare(work: Path, name: str, workload: Workload, count: int) -> _Events:
    project, parquet = work / f"{name}-project", work / f"{name}-parquet"
    files = write_parquet(parquet, workload, count)
    write_project(project)
    preload(project, tables(workload, count))
    return _Events(count, project, parquet, files)


def drain(work: Path, run: Run) -> Iterator[Figure]:
    chunks, rounds = (3, 1) if run.quick else (50, 3)
    count = chunks * CHUNK_EVENTS
    warm_up = _prepare(work, "warm-up", WARM_UP, CHUNK_EVENTS if run.quick else 10 * CHUNK_EVENTS)
    events = _prepare(work, "drain", WORKLOAD, count)
    wanted = expected(events.files)
    taken: dict[str, list[Mapping[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]:
            place = work / f"{name}-{number}"
            place.mkdir()
            said, found = _run(name, place, events, warm_up)
            check_views(wanted, found)
            taken[name].append(said)
            shutil.rmtree(place)
    rates = [count / one["seconds"] for one in taken["headrace"]]
    yield _figure("drain", count, rates, {"headrace": taken["headrace"]})
    for name, contender in (("drain_ratio", "by_hand"), ("drain_ratio_tuned", "tuned")):
        pairs = zip(taken["headrace"], taken[contender], strict=True)
        ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
        yield _figure(name, count, ratios, {contender: taken[contender]})


def _run(
    name: str, place: Path, events: _Events, warm_up: _Events
) -> tuple[Mapping[str, float], dict[str, Rows]]:
    if name == "headrace":
        for source, target in ((events.project, "measured"), (warm_up.project, "warm-up")):
            shutil.copytree(source, place / target, copy_function=os.link)
        projects = (str(place / "measured"), str(place / "warm-up"))
        said = run_child("bench.engine_process", "drain", *projects)
        return said, kept_views(place / "measured" / "views")
    places = (str(events.parquet), str(warm_up.parquet), str(place))
    said = run_child(f"bench.spark_{name}", *places, str(os.cpu_count() or 1))
    return said, duckdb_views(place / "measured" / "views.duckdb")


def _figure(
    name: str,
    events: int,
    values: Sequence[float],
    taken: Mapping[str, Sequence[Mapping[str, float]]],
) -> Figure:
    details: dict[str, float] = {"events": events, "rounds": len(values)}
    for contender, runs in taken.items():
        details[f"{contender}_per_s"] = events / statistics.median(r["seconds"] for r in runs)
        cpu = statistics.median(r["cpu_seconds"] for r in runs)
        details[f"{contender}_cpu_s_per_million"] = cpu / events * 1_000_000
    details["least"], details["most"] = min(values), max(values)
    return Figure(name, statistics.median(values), details)
