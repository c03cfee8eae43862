"""The engine alone in a process; says what it measured as one line of JSON.

`python -m bench.engine_process drain PROJECT WARM_UP` takes in what the logs of two projects hold,
the second first and unmeasured; `… fill PROJECT WARM_UP` does the same and leaves the rows in the
store alone; `… ticks PROJECT EVENTS` appends 10,000 events at a time and does
one tick for each. The shop's rows are left in PROJECT/views.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.clock import Clock
from bench.events import Workload, tables
from bench.preload import Preloader, groups
from bench.shop import VIEWS
from headrace.compile import load_project
from headrace.engine.control import EngineControl
from headrace.engine.loop import Engine, NoSubscribers
from headrace.log.embedded.backend import open_reader
from headrace.model.settings import load_settings
from headrace.spark.session import start_spark, stop_spark
from headrace.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TICKS"]

TICKS = Workload(seed=4, rate=10_000)


def _drain(spark: SparkSession, project: Path) -> None:
    """Everything that it takes: making the views, preparing their plans, reading, merging."""
    with _opened(spark, project) as engine:
        while engine.step() is not None:
            pass


def _ticks(spark: SparkSession, project: Path, events: int) -> None:
    """The time of a tick is that of `step` alone: from asking the log for its ends to the durable
    commit and the publishing of changes."""
    milliseconds = []
    with closing(Preloader(project)) as preloader, _opened(spark, project) as engine:
        for group in groups(tables(TICKS, events)):
            preloader.append(group)
            began = time.perf_counter()
            result = engine.step()
            milliseconds.append((time.perf_counter() - began) * 1_000)
            if result is None or result.events != group.num_rows:
                raise RuntimeError(f"a tick of {group.num_rows} events gave {result}")
    print(json.dumps({"milliseconds": milliseconds}), flush=True)


@contextmanager
def _opened(spark: SparkSession, project: Path) -> Iterator[Engine]:
    settings = load_settings(project)
    settings.log_directory.mkdir(parents=True, exist_ok=True)
    definitions = load_project(project)
    with (
        closing(open_store(settings.store_file, settings.store)) as store,
        closing(open_reader(settings.log_directory, definitions.streams)) as reader,
    ):
        control = EngineControl(reader, store)
        engine = Engine(settings, definitions, spark, reader, store, control, NoSubscribers())
        with closing(engine):
            engine.open()
            yield engine


def _keep_views(project: Path) -> None:
    settings = load_settings(project)
    (project / "views").mkdir()
    with closing(open_store(settings.store_file, settings.store)) as store:
        for view in VIEWS:
            result = store.query(f"SELECT * FROM {view.name}")
            found = pa.Table.from_batches(result.batches, result.schema)
            pq.write_table(found, project / "views" / f"{view.name}.parquet")


def main() -> None:
    what, project = sys.argv[1], Path(sys.argv[2])
    spark = start_spark(load_settings(project))
    if what in ("drain", "fill"):
        _drain(spark, Path(sys.argv[3]))
        clock = Clock()
        _drain(spark, project)
        clock.stop()
    else:
        _ticks(spark, project, int(sys.argv[3]))
    if what != "fill":
        _keep_views(project)
    stop_spark(spark)


if __name__ == "__main__":
    main()
