"""A table of ten million rows, end to end: changes from the request into it, and a rebuild.

Readings of ten million sensors go over HTTP in bodies of 5,000, durable; the table keeps the newest
of each sensor. The first ones, one of each sensor, are not counted. Of the others the clock runs
until the table has read the last of them. Then the table is filled again from its log, beside the
one that is read, and the time is that of the whole rebuild, all changes included. After both the
table is compared, row by row, with a batch query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench.batch import Query, check_views
from bench.calls import Caller
from bench.end_to_end import Taken, take_in, wait_for_engine
from bench.load import LoadSpec
from bench.oracle import write_parquet
from bench.processes import MemoryWatch, started, wait_until
from bench.readings import Readings, create_stream
from bench.results import Figure
from bench.run import Run
from bench.taken_in import CONNECTIONS, LOAD_SECONDS_MAX, SIZE, Project, write_project

__all__ = ["NEWEST", "PROJECT", "table_fold"]

ROWS, QUICK_ROWS = 10_000_000, 300_000
CHANGES, QUICK_CHANGES = 2_000_000, 200_000
STEP_EVENTS = 2_000_000  # prepared at a time
REBUILD_SECONDS_MAX = 1_800.0
STREAM, TABLE = "readings", "newest"
PROJECT = Project(
    "table_fold",
    f"""\
{create_stream(STREAM, 4)}
CREATE TABLE {TABLE} FROM {STREAM} KEY (sensor) SEQUENCE BY read_at COLUMNS * EXCEPT (id, note);
""",
    {},
)
NEWEST = {
    TABLE: Query(
        "",
        f"SELECT sensor, arg_max(level, read_at) AS level, arg_max(amount, read_at) AS amount, "
        f"max(read_at) AS read_at FROM {STREAM} GROUP BY sensor",
    )
}


def table_fold(work: Path, run: Run) -> Iterator[Figure]:
    directory = work / PROJECT.name
    write_project(directory, PROJECT)
    rows = QUICK_ROWS if run.quick else ROWS
    events = rows + (QUICK_CHANGES if run.quick else CHANGES)
    workload = Readings(seed=47, rate=100_000, keys=rows, streams=(STREAM,))
    with started(directory, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)

        def load(first: int, last: int) -> Taken:
            spec = LoadSpec(
                running.port, workload, last, SIZE, CONNECTIONS, LOAD_SECONDS_MAX, first=first
            )
            return take_in(running, caller, spec, first, LOAD_SECONDS_MAX)

        for first in range(0, rows, STEP_EVENTS):
            load(first, min(first + STEP_EVENTS, rows))
        memory = MemoryWatch(running)
        memory.start()
        taken = load(rows, events)
        found = [caller.snapshot(directory, TABLE)]
        seconds = _rebuilt(caller)
        memory.stop()
        found.append(caller.snapshot(directory, TABLE))
    files = write_parquet(work / "sent", workload, events)
    for snapshot in found:
        check_views(NEWEST, {STREAM: files}, {TABLE: snapshot})
    used = {"memory_mib": memory.mebibytes_max}
    cost = {"cpu_s_per_million": taken.cpu_s_per_million}
    yield Figure("table_fold", taken.rate, {"rows": rows, **taken.details, **cost, **used})
    yield Figure("table_rebuild_10m", seconds, {"rows": rows, "changes": events, **used})


def _rebuilt(caller: Caller) -> float:
    """The seconds until a copy of the table has taken its place."""
    began = time.monotonic()
    caller.rebuild(TABLE)
    wait_until(
        lambda: caller.rebuild_state(TABLE) == "done", REBUILD_SECONDS_MAX, "the rebuild", gap=0.1
    )
    return time.monotonic() - began
