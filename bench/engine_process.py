"""`python -m bench.engine_process drain|ticks PROJECT EVENTS`: the engine alone in a process.

`drain` takes in what the log holds; `ticks` appends 10,000 events at a time and does one tick for
each. Both say what they measured as one line of JSON, and leave the views' rows in PROJECT/views.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.clock import Clock
from bench.events import Workload, tables
from bench.preload import Preloader, groups
from bench.shop import VIEWS
from headrace.compile import load_project
from headrace.engine.control import EngineControl
from headrace.engine.engine import Engine
from headrace.engine.session import start_spark, stop_spark
from headrace.log.embedded import open_reader
from headrace.model.settings import load_settings
from headrace.store.contract import Store, ViewChange
from headrace.store.duck import open_store

__all__ = ["TICKS"]

TICKS = Workload(seed=4, rate=10_000)
PAGE_ROWS = 100_000


class _Nobody:
    """No subscriber: changes are stored, and passed on to nobody."""

    def watched(self) -> frozenset[str]:
        return frozenset()

    def publish(
        self,
        changes: Sequence[ViewChange],
        *,
        tick: int | None = None,
        committed_at_microseconds: int | None = None,
    ) -> None:
        return None

    def expire(self, view: str) -> None:
        return None


def _drain(engine: Engine, clock: Clock) -> None:
    while engine.step() is not None:
        pass
    clock.stop()


def _ticks(engine: Engine, project: Path, events: int) -> None:
    """The time of a tick is that of `step` alone: from asking the log for its ends to the durable
    commit and the publishing of changes."""
    milliseconds = []
    preloader = Preloader(project)
    for group in groups(tables(TICKS, events)):
        preloader.append(group)
        began = time.perf_counter()
        result = engine.step()
        milliseconds.append((time.perf_counter() - began) * 1_000)
        if result is None or result.events != group.num_rows:
            raise RuntimeError(f"a tick of {group.num_rows} events gave {result}")
    preloader.close()
    print(json.dumps({"milliseconds": milliseconds}), flush=True)


def _keep_views(store: Store, directory: Path) -> None:
    directory.mkdir()
    for view in VIEWS:
        result = store.query(f"SELECT * FROM {view.name}")
        found = pa.Table.from_batches(result.batches, result.schema)
        pq.write_table(found, directory / f"{view.name}.parquet")


def main() -> None:
    what, project, events = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    settings = load_settings(project)
    settings.log_directory.mkdir(parents=True, exist_ok=True)
    definitions = load_project(project)
    store = open_store(settings.store_file, settings.store)
    reader = open_reader(settings.log_directory, definitions.streams)
    spark = start_spark(settings)
    clock = Clock()
    control = EngineControl(reader)
    engine = Engine(settings, definitions, spark, reader, store, control, _Nobody())
    engine.open()
    if what == "drain":
        _drain(engine, clock)
    else:
        _ticks(engine, project, events)
    engine.close()
    _keep_views(store, project / "views")
    stop_spark(spark)
    reader.close()
    store.close()


if __name__ == "__main__":
    main()
