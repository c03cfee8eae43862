"""Readings: what is sent is what is counted, by stream, and every key is stored."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.events import CHUNK_EVENTS, encoded, tables
from bench.readings import SCHEMA, Readings, events_of, written
from bench.state_ratio import lines

pytestmark = pytest.mark.contract
STREAMS = ("a", "b", "c")


def test_lines_say_what_the_columns_hold() -> None:
    workload = Readings(seed=1, rate=10_000, keys=100)
    rows, texts = workload.columns(1), encoded(workload, 1)
    assert rows.schema == SCHEMA
    assert rows.equals(workload.columns(1))
    for index in range(0, CHUNK_EVENTS, 997):
        said, row = json.loads(texts[index].as_py()), rows.slice(index, 1).to_pylist()[0]
        assert said.pop("amount") == str(row.pop("amount"))
        assert (
            said.pop("read_at")[:26] == row.pop("read_at").isoformat(timespec="microseconds")[:26]
        )
        assert said == row


def test_the_first_readings_are_of_every_sensor_once_and_then_all_are_alike() -> None:
    keys = CHUNK_EVENTS + 10_000
    workload = Readings(seed=1, rate=10_000, keys=keys)
    sensors = pa.chunked_array([b.column("sensor") for b in tables(workload, 2 * CHUNK_EVENTS)])
    assert sensors[:keys].to_pylist() == list(range(keys))
    later = sensors[keys:].to_numpy()
    assert 0.48 < (later < keys / 2).mean() < 0.52


def test_each_stream_gets_what_its_files_hold(tmp_path: Path) -> None:
    workload = Readings(seed=1, rate=10_000, keys=100, streams=STREAMS)
    events, size = CHUNK_EVENTS + 500, 50
    files = written(tmp_path / "sent", workload, events, size)
    found = {stream: sum(pq.read_metadata(f).num_rows for f in files[stream]) for stream in STREAMS}
    turns = Counter(STREAMS[body % len(STREAMS)] for body in range(events // size))
    assert found == events_of(STREAMS, events, size) == {s: turns[s] * size for s in STREAMS}
    second = pq.read_table(files["b"][0])
    assert second.slice(0, size).to_batches()[0].equals(workload.columns(0).slice(size, size))
    # The streams' turns go on where the first chunk's ended: its 2,000 bodies leave off at the b.
    later = pq.read_table(files["c"][1])
    assert later.slice(0, size).to_batches()[0].equals(workload.columns(1).slice(0, size))


def test_lines_go_on_from_any_number_and_over_chunks() -> None:
    workload = Readings(seed=1, rate=10_000, keys=100)
    wanted = encoded(workload, 0)[-3:].to_pylist() + encoded(workload, 1)[:2].to_pylist()
    found = lines(workload, CHUNK_EVENTS - 3)
    assert [next(found) for _ in wanted] == wanted
