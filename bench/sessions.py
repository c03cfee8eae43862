"""Sessions: a log of visits by a hundred thousand users is drained into one view by session.

As for `drain`, the engine has a process of its own and first drains another, smaller log, which is
not measured. Every round's output is checked.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from bench.children import run_child
from bench.oracle import Difference
from bench.preload import preload
from bench.results import Figure
from bench.run import Run
from bench.visits import SQL, USERS, VIEW, expected, kept, visits
from headrace.model.settings import load_settings

__all__ = ["sessions"]


def sessions(work: Path, run: Run) -> Iterator[Figure]:
    events, rounds = (300_000, 1) if run.quick else (4_000_000, 3)
    measured = _project(work / "project", 11, events)
    warm_up = _project(work / "warm-up", 12, events // 4)
    wanted = expected(pa.Table.from_batches(visits(11, events)))
    runs = []
    for number in range(rounds):
        place = work / f"round-{number}"
        place.mkdir()
        for source in (measured, warm_up):
            shutil.copytree(source, place / source.name, copy_function=os.link)
        projects = (str(place / source.name) for source in (measured, warm_up))
        runs.append(run_child("bench.engine_process", "fill", *projects))
        found = kept(load_settings(place / measured.name).store_file)
        if found != wanted:
            raise Difference(f"{VIEW}: {len(found)} rows found, {len(wanted)} expected")
        shutil.rmtree(place)
    rates = [events / one["seconds"] for one in runs]
    cpu = statistics.median(one["cpu_seconds"] for one in runs)
    details = {
        "events": events,
        "rounds": rounds,
        "keys": USERS,
        "rows": len(wanted),
        "cpu_s_per_million": cpu / events * 1_000_000,
        "least": min(rates),
        "most": max(rates),
    }
    yield Figure("sessions", statistics.median(rates), details)


def _project(directory: Path, seed: int, events: int) -> Path:
    directory.mkdir(parents=True)
    (directory / "headrace.toml").write_text('name = "bench"\n\n[gateway]\nport = 0\n')
    (directory / "visits.sql").write_text(SQL)
    preload(directory, visits(seed, events), "visits")
    return directory
