"""Sliding: events per second through whole ticks into a view that looks back over ten seconds of
each of 100,000 sensors, out of order and some of it late.

The log is filled first; a smaller one is taken in before the clock starts, so that compiled code is
measured. The oracle is one batch query over the same events.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from bench.children import run_child
from bench.oracle import Difference
from bench.results import Figure
from bench.run import Run
from headrace.compile import load_project
from headrace.log.contract import Group, PartitionBatch, stored_schema
from headrace.log.embedded.backend import open_writer
from headrace.model.settings import load_settings

__all__ = ["sliding"]

SENSORS = 100_000
RATE = 100_000  # events per second of event time
BATCH_EVENTS = 50_000
START = 1_767_225_600_000_000
OUT_OF_ORDER = 2_000_000  # microseconds; events later than the delay are LATE_SHARE of all
LATE_SHARE = 0.001
OVER = "OVER (PARTITION BY sensor ORDER BY read_at RANGE BETWEEN INTERVAL 10 SECONDS PRECEDING AND"
VIEW = f"""SELECT sensor, read_at, value,
  sum(value) {OVER} CURRENT ROW) AS total,
  count(value) {OVER} CURRENT ROW) AS n,
  max(value) {OVER} CURRENT ROW) AS most
FROM readings"""
PROJECT = f"""
CREATE STREAM readings (sensor STRING NOT NULL, read_at TIMESTAMP NOT NULL, value INT)
WATERMARK read_at DELAY OF INTERVAL 5 SECONDS LATE REVISE
PARTITION BY (sensor) INTO 2 PARTITIONS;
CREATE MATERIALIZED VIEW moving AS {VIEW};
"""


def sliding(work: Path, run: Run) -> Iterator[Figure]:
    count = 200_000 if run.quick else 2_000_000
    events = _prepare(work / "measured", count, seed=1)
    _prepare(work / "warm-up", min(count, 800_000), seed=2)
    projects = (str(work / "measured"), str(work / "warm-up"))
    said = run_child("bench.engine_process", "fill", *projects)
    _check(work / "measured", events)
    details = {
        "events": count,
        "sensors": SENSORS,
        "cpu_s_per_million": said["cpu_seconds"] / count * 1_000_000,
    }
    yield Figure("sliding", count / said["seconds"], details)


def _prepare(project: Path, count: int, seed: int) -> pa.Table:
    """A project whose log holds the events; sensors go to the partitions by turns."""
    project.mkdir()
    (project / "definitions.sql").write_text(PROJECT)
    settings = load_settings(project)
    settings.log_directory.mkdir(parents=True)
    streams = load_project(project).streams
    random = np.random.default_rng(seed)
    writer = open_writer(settings.log_directory, streams, settings.log, settings.gateway)
    schema = stored_schema(streams[0])
    batches = []
    for start in range(0, count, BATCH_EVENTS):
        sensors = random.integers(0, SENSORS, BATCH_EVENTS)
        batch = _batch(random, sensors, start, schema)
        for partition in (0, 1):
            mine = batch.filter(pa.array(sensors % 2 == partition))
            writer.append(Group(batches=(PartitionBatch("readings", partition, mine),)))
        batches.append(batch)
    writer.close()
    return pa.Table.from_batches(batches)


def _batch(
    random: np.random.Generator, sensors: np.ndarray, start: int, schema: pa.Schema
) -> pa.RecordBatch:
    rows = len(sensors)
    times = START + (start + np.arange(rows)) * 1_000_000 // RATE
    times -= random.integers(0, OUT_OF_ORDER, rows)
    times -= np.where(random.random(rows) < LATE_SHARE, 6_000_000, 0)
    values = pa.array(random.integers(-1_000, 1_000, rows), pa.int32())
    columns = {
        "sensor": pa.array(np.char.add("sensor-", sensors.astype(str))),
        "read_at": pa.array(times).cast(pa.timestamp("us", "UTC")),
        "value": values,
        "_received_at": pa.repeat(pa.scalar(time.time_ns() // 1_000, pa.int64()), rows),
    }
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check(project: Path, events: pa.Table) -> None:
    """Raises Difference unless the view holds the rows of the batch query, each as often."""
    with duckdb.connect(str(load_settings(project).store_file), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("readings", events)
        names = "sensor, read_at, value, total, n, most"
        found, wanted = f"SELECT {names} FROM moving", f"SELECT {names} FROM ({VIEW})"
        for first, second in ((found, wanted), (wanted, found)):
            rows = connection.execute(f"{first} EXCEPT ALL {second} LIMIT 3").fetchall()
            if rows:
                raise Difference(f"rows of the view and of the batch query differ: {rows}")
