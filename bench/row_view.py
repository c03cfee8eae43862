"""A view of rows, end to end: every event becomes a row of eight columns.

Readings go over HTTP in bodies of 5,000, durable, and the clock runs until the view has read the
last of them; the first ones, an eighth of all, are not counted. Then the view is compared, row by
row, with a batch query.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.batch import Query
from bench.readings import SCHEMA, Readings, create_stream
from bench.results import Figure
from bench.run import Run
from bench.taken_in import Project, measured

__all__ = ["PROJECT", "row_view"]

EVENTS, QUICK_EVENTS = 4_000_000, 400_000
KEYS = 100_000
STREAM = "readings"
PROJECT = Project(
    "row_view",
    create_stream(STREAM, 4),
    {"kept": Query(f"SELECT {', '.join(SCHEMA.names)} FROM {STREAM}")},
)


def row_view(work: Path, run: Run) -> Iterator[Figure]:
    workload = Readings(seed=43, rate=100_000, keys=KEYS, streams=(STREAM,))
    events = run.events_or(EVENTS, QUICK_EVENTS)
    taken, memory = measured(work, run, PROJECT, workload, events)
    details = {
        **taken.details,
        "cpu_s_per_million": taken.cpu_s_per_million,
        "memory_mib": memory.mebibytes_max,
    }
    yield Figure("row_view", taken.rate, details)
