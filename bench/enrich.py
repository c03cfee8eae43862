"""A stream that joins a table, end to end: events a second from the request into a grouped view.

`enrich_1m` joins readings by position with a table of a million sensors, `asof` as of the reading's
time with the tariffs of a hundred thousand, ten versions each. The table is posted first, and goes
on changing a hundred times a second: in a column that the view does not read, so that the batch
query need not know when. Readings go over HTTP, durable, and the clock runs until the view has read
the last of them; the first ones, an eighth of all, are not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.batch import Query, check_views
from bench.calls import Caller
from bench.end_to_end import Taken, take_in, wait_for_engine
from bench.events import CHUNK_EVENTS, START_MICROSECONDS
from bench.load import LoadSpec
from bench.oracle import write_parquet
from bench.processes import MemoryWatch, started, wait_until
from bench.readings import Readings, create_stream
from bench.results import Figure
from bench.run import Run
from bench.taken_in import CONNECTIONS, LOAD_SECONDS_MAX, SIZE, Project, write_project

__all__ = ["WORKS", "Enriched", "enrich"]

EVENTS, QUICK_EVENTS = 4_000_000, 400_000
RATE = 100_000  # readings per second of event time
CHANGES_PER_SECOND = 100
BODY_ROWS = 5_000
VERSIONS, VERSION_MICROSECONDS = 10, 4_000_000
STREAM, TABLE, VIEW = "readings", "sensors", "by_area"
_START = "TIMESTAMPTZ '2026-01-01 00:00:00+00'"
_PRICE = f"(sensor % 7 + least({VERSIONS - 1}, datediff('microsecond', {_START}, read_at)"
_PRICE += f" // {VERSION_MICROSECONDS}))"


@dataclass(frozen=True)
class Enriched:
    """`rows` are of the table as it is posted first; `make` gives one of them."""

    figure: str
    keys: int
    table: str
    query: Query
    rows: int
    make: Callable[[int], dict[str, Any]]


def _sensor(number: int) -> dict[str, Any]:
    return {"sensor": number, "area": f"area-{number % 97}", "note": "new"}


def _tariff(number: int) -> dict[str, Any]:
    sensor, version = divmod(number, VERSIONS)
    at = START_MICROSECONDS + version * VERSION_MICROSECONDS if version else 0
    valid_from = datetime.fromtimestamp(at / 1_000_000, UTC).isoformat()
    price = sensor % 7 + version
    return {"sensor": sensor, "price": price, "note": "new", "valid_from": valid_from}


WORKS = (
    Enriched(
        "enrich_1m",
        1_000_000,
        f"CREATE TABLE {TABLE} (sensor BIGINT, area STRING, note STRING, PRIMARY KEY (sensor));",
        Query(
            f"SELECT s.area, count(*) AS events, sum(r.amount) AS total FROM {STREAM} r "
            f"JOIN {TABLE} s ON s.sensor = r.sensor GROUP BY s.area",
            "SELECT 'area-' || (sensor % 97) AS area, count(*) AS events, sum(amount) AS total "
            f"FROM {STREAM} GROUP BY ALL",
        ),
        1_000_000,
        _sensor,
    ),
    Enriched(
        "asof",
        100_000,
        f"CREATE TABLE {TABLE} (sensor BIGINT, price BIGINT, note STRING, valid_from TIMESTAMP, "
        "PRIMARY KEY (sensor)) WITH HISTORY VALID FROM valid_from;",
        Query(
            f"SELECT r.room, count(*) AS events, sum(r.level * s.price) AS cost FROM {STREAM} r "
            f"JOIN {TABLE} FOR SYSTEM_TIME AS OF r.read_at AS s ON s.sensor = r.sensor "
            "GROUP BY r.room",
            f"SELECT room, count(*) AS events, CAST(sum(level * {_PRICE}) AS BIGINT) AS cost "
            f"FROM {STREAM} GROUP BY room",
        ),
        100_000 * VERSIONS,
        _tariff,
    ),
)


class _Changes(threading.Thread):
    """Rows that are posted again, with another note, until it is stopped."""

    def __init__(self, port: int, work: Enriched) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._work = work
        self._stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        with Caller(self._port) as caller:
            while not self._stopped.wait(1 / CHANGES_PER_SECOND):
                number = self.count * 7_919 % self._work.rows
                row = {**self._work.make(number), "note": f"note {self.count}"}
                caller.post_rows(TABLE, [row])
                self.count += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def enrich(work: Enriched, directory: Path, run: Run) -> Iterator[Figure]:
    project = Project(work.figure, f"{create_stream(STREAM, 4)}\n{work.table}", {VIEW: work.query})
    folder = directory / work.figure
    write_project(folder, project)
    events = run.events_or(EVENTS, QUICK_EVENTS)
    share = 10 if run.quick else 1
    work = replace(work, keys=work.keys // share, rows=work.rows // share)
    uncounted = max(events // 8 // CHUNK_EVENTS, 1) * CHUNK_EVENTS
    workload = Readings(seed=53, rate=RATE, keys=work.keys, streams=(STREAM,))
    with started(folder, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        _post_table(caller, work)
        memory = MemoryWatch(running)
        changes = _Changes(running.port, work)

        def load(first: int, last: int) -> Taken:
            spec = LoadSpec(
                running.port, workload, last, SIZE, CONNECTIONS, LOAD_SECONDS_MAX, first=first
            )
            return take_in(running, caller, spec, first, LOAD_SECONDS_MAX, view=VIEW)

        changes.start()
        load(0, uncounted)
        memory.start()
        taken = load(uncounted, events)
        memory.stop()
        changes.stop()
        found = {VIEW: caller.snapshot(folder, VIEW)}
    files = write_parquet(directory / f"sent-{work.figure}", workload, events)
    check_views(project.queries, {STREAM: files}, found)
    details = {
        **taken.details,
        "rows": work.rows,
        "changes_meanwhile": changes.count,
        "cpu_s_per_million": taken.cpu_s_per_million,
        "memory_mib": memory.mebibytes_max,
    }
    yield Figure(work.figure, taken.rate, details)


def _post_table(caller: Caller, work: Enriched) -> None:
    for first in range(0, work.rows, BODY_ROWS):
        last = min(first + BODY_ROWS, work.rows)
        caller.post_rows(TABLE, [work.make(number) for number in range(first, last)])
    wait_until(
        lambda: caller.read_by_view().get(TABLE, -1) >= work.rows,
        LOAD_SECONDS_MAX,
        "the table",
        gap=0.1,
    )
