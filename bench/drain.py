"""Drain: a log of five million events, against hand-written PySpark Structured Streaming.

Each contender runs in a fresh process with a Spark session that is already up, on the same cores
with the same heap, and writes the same five views durably into DuckDB. Headrace reads its log, the
others Parquet files with the same events. Rounds alternate the order; a ratio is taken within its
round, and the median of the rounds counts. Each output of each round is checked.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.children import duckdb_views, kept_views, run_child
from bench.events import CHUNK_EVENTS, Workload, tables
from bench.oracle import Rows, check_views, expected, write_parquet
from bench.preload import preload
from bench.results import Figure
from bench.shop import write_project

__all__ = ["drain"]

WORKLOAD = Workload(seed=9, rate=10_000)
CONTENDERS = ("headrace", "by_hand", "tuned")


def drain(work: Path, quick: bool) -> Iterator[Figure]:
    events, rounds = (3 * CHUNK_EVENTS, 1) if quick else (50 * CHUNK_EVENTS, 3)
    parquet = write_parquet(work / "drain-parquet", WORKLOAD, events)
    wanted = expected(parquet)
    project = work / "drain-project"
    write_project(project)
    preload(project, tables(WORKLOAD, events))
    taken: dict[str, list[Mapping[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in CONTENDERS if number % 2 == 0 else CONTENDERS[::-1]:
            place = work / f"drain-{name}-{number}"
            taken[name].append(_run(name, place, project, parquet[0].parent, events, wanted))
            shutil.rmtree(place)
    yield _figure("drain", events, [events / run["seconds"] for run in taken["headrace"]], taken)
    for name, contender in (("drain_ratio", "by_hand"), ("drain_ratio_tuned", "tuned")):
        pairs = zip(taken["headrace"], taken[contender], strict=True)
        ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
        yield _figure(name, events, ratios, {contender: taken[contender]})


def _run(
    name: str,
    place: Path,
    project: Path,
    parquet: Path,
    events: int,
    wanted: Mapping[str, Rows],
) -> Mapping[str, float]:
    if name == "headrace":
        shutil.copytree(project, place, copy_function=os.link)
        said = run_child("bench.engine_process", "drain", str(place), str(events))
        found = kept_views(place / "views")
    else:
        place.mkdir()
        cores = str(os.cpu_count() or 1)
        said = run_child(f"bench.spark_{name}", str(parquet), str(place), cores)
        found = duckdb_views(place / "views.duckdb")
    check_views(wanted, found)
    return said


def _figure(
    name: str,
    events: int,
    values: Sequence[float],
    taken: Mapping[str, Sequence[Mapping[str, float]]],
) -> Figure:
    details: dict[str, float | int | str] = {"events": events, "rounds": len(values)}
    for contender, runs in taken.items():
        details[f"{contender}_per_s"] = events / statistics.median(r["seconds"] for r in runs)
        cpu = statistics.median(r["cpu_seconds"] for r in runs)
        details[f"{contender}_cpu_s_per_million"] = cpu / events * 1_000_000
    details["least"], details["most"] = min(values), max(values)
    return Figure(name, statistics.median(values), details)
