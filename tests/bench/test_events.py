"""What is sent is what the oracle counts: the same events as bodies, as columns, as files."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.events import CHUNK_EVENTS, SCHEMA, USERS, Workload, bodies, encoded, tables
from bench.ingest import stored_batches
from bench.oracle import Difference, check_log, write_parquet
from bench.preload import preload
from bench.shop import write_project

pytestmark = pytest.mark.contract
WORKLOAD = Workload(seed=1, rate=10_000)


def _decoded(line: str) -> dict[str, object]:
    event: dict[str, object] = json.loads(line)
    event["amount"] = Decimal(str(event["amount"]))
    event["created_at"] = datetime.fromisoformat(str(event["created_at"]))
    return event


def test_lines_say_what_the_columns_hold() -> None:
    lines = encoded(WORKLOAD, 1)
    rows = WORKLOAD.columns(1)
    assert rows.schema == SCHEMA
    for index in range(0, CHUNK_EVENTS, 97):
        assert _decoded(lines[index].as_py()) == rows.slice(index, 1).to_pylist()[0]


def test_a_user_always_pays_the_same_and_events_are_about_140_bytes() -> None:
    rows = WORKLOAD.columns(0).to_pylist()
    paid = {
        row["user_id"]: {r["amount"] for r in rows if r["user_id"] == row["user_id"]}
        for row in rows[:50]
    }
    assert all(amounts == {Decimal(10 * int(user[0]) or 100)} for user, amounts in paid.items())
    assert len(set(USERS)) == 10
    size = sum(len(line.as_py()) for line in encoded(WORKLOAD, 0)) / CHUNK_EVENTS
    assert 130 < size < 150


def test_ids_differ_over_chunks() -> None:
    batches = list(tables(WORKLOAD, 2 * CHUNK_EVENTS + 5))
    ids = pa.chunked_array([batch.column("id") for batch in batches])
    assert len(ids) == 2 * CHUNK_EVENTS + 5
    assert len(ids.unique()) == len(ids)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_bodies_are_the_lines_cut_into_requests(size: int) -> None:
    (chunk,) = bodies(WORKLOAD, CHUNK_EVENTS, size)
    assert len(chunk) == CHUNK_EVENTS // size
    last = bytes(chunk[len(chunk) - 1])
    assert last == "".join(encoded(WORKLOAD, 0)[-size:].to_pylist()).encode()
    assert bytes(chunk[0]).count(b"\n") == size


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError):
        list(bodies(WORKLOAD, CHUNK_EVENTS, 300))


def test_a_seed_makes_other_events_and_again_the_same() -> None:
    assert WORKLOAD.columns(0).equals(WORKLOAD.columns(0))
    assert not WORKLOAD.columns(0).equals(Workload(2, 10_000).columns(0))


def test_files_hold_the_events_in_the_order_spark_takes_them(tmp_path: Path) -> None:
    files = write_parquet(tmp_path / "files", WORKLOAD, 2 * CHUNK_EVENTS)
    by_time = sorted(files, key=lambda file: file.stat().st_mtime)
    assert by_time == files
    stored = pa.concat_tables([pq.read_table(file) for file in files])
    wanted = pa.Table.from_batches(list(tables(WORKLOAD, 2 * CHUNK_EVENTS)))
    assert stored.cast(wanted.schema).equals(wanted)


def test_the_preloaded_log_is_told_from_one_that_lost_doubled_or_changed_an_event(
    tmp_path: Path,
) -> None:
    write_project(tmp_path)
    events = 30_000
    preload(tmp_path, tables(WORKLOAD, events))
    ends, batches = stored_batches(tmp_path)
    stored = list(batches)
    assert sum(ends) == events
    check_log(WORKLOAD, events, stored)
    with pytest.raises(Difference):
        check_log(WORKLOAD, events, [stored[0].slice(1), *stored[1:]])
    with pytest.raises(Difference):
        check_log(WORKLOAD, events, [*stored, stored[0].slice(0, 1)])
    changed = stored[0].to_pylist()
    changed[3]["currency"] = "XXX"
    with pytest.raises(Difference):
        check_log(
            WORKLOAD,
            events,
            [pa.RecordBatch.from_pylist(changed, schema=stored[0].schema), *stored[1:]],
        )
