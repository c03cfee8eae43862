"""A project of one stream taken in whole: what it costs from the first request until every view has
read the last event, and whether every view then holds the rows of its batch query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.batch import Query, check_views
from bench.calls import Caller
from bench.end_to_end import Taken, take_in, wait_for_engine
from bench.events import CHUNK_EVENTS, Events
from bench.load import LoadSpec
from bench.oracle import write_parquet
from bench.processes import MemoryWatch, started
from bench.run import Run

__all__ = ["CONNECTIONS", "LOAD_SECONDS_MAX", "SIZE", "Project", "measured", "write_project"]

SIZE = 5_000
CONNECTIONS = 4
UNCOUNTED_SHARE = 8  # one in so many
LOAD_SECONDS_MAX = 3_600.0


class Project(NamedTuple):
    """`stream` is the definition of the one stream, `queries` are the views by name."""

    name: str
    stream: str
    queries: Mapping[str, Query]


def measured(
    work: Path, run: Run, project: Project, workload: Events, events: int
) -> tuple[Taken, MemoryWatch]:
    """The first events, one in eight, are not counted: compiled code is measured. Raises Difference
    where a view is not what its batch query gives."""
    directory = work / project.name
    write_project(directory, project)
    uncounted = max(events // UNCOUNTED_SHARE // CHUNK_EVENTS, 1) * CHUNK_EVENTS
    if events <= uncounted:
        raise ValueError(f"{events} events are too few: the first {uncounted} are not counted")
    with started(directory, run.checkout) as running, Caller(running.port) as caller:
        wait_for_engine(running, caller)
        memory = MemoryWatch(running)
        memory.start()

        def load(first: int, last: int) -> Taken:
            spec = LoadSpec(
                running.port, workload, last, SIZE, CONNECTIONS, LOAD_SECONDS_MAX, first=first
            )
            return take_in(running, caller, spec, first, LOAD_SECONDS_MAX)

        load(0, uncounted)
        taken = load(uncounted, events)
        memory.stop()
        rows = {view: caller.snapshot(directory, view) for view in project.queries}
    (stream,) = workload.streams
    check_views(project.queries, {stream: _written(work, workload, events)}, rows)
    return taken, memory


def _written(work: Path, workload: Events, events: int) -> Sequence[Path]:
    """The events as files, once for all that are measured in this folder."""
    (stream,) = workload.streams
    directory = work / f"sent-{stream}"
    if directory.exists():
        return sorted(directory.iterdir())
    return write_parquet(directory, workload, events)


def write_project(directory: Path, project: Project) -> None:
    directory.mkdir(parents=True)
    (directory / "headrace.toml").write_text(f'name = "{project.name}"\n\n[gateway]\nport = 0\n')
    views = [
        f"CREATE MATERIALIZED VIEW {name} AS\n{query.definition};\n"
        for name, query in project.queries.items()
    ]
    (directory / "definitions.sql").write_text("\n".join([project.stream, *views]))
