"""Nexmark's bids and queries are what they are said to be."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from bench.bids import SCHEMA, Bids
from bench.events import CHUNK_EVENTS, encoded
from bench.nexmark import QUERIES, project
from bench.taken_in import write_project

from headrace.compile import load_project

pytestmark = pytest.mark.contract
BIDS = Bids(seed=1)


def test_bids_are_of_about_250_bytes_and_say_what_the_columns_hold() -> None:
    rows, lines = BIDS.columns(2), encoded(BIDS, 2).to_pylist()
    assert rows.schema == SCHEMA
    assert rows.equals(BIDS.columns(2))
    assert 240 < sum(len(line) for line in lines) / CHUNK_EVENTS < 260
    for index in range(0, CHUNK_EVENTS, 997):
        said, row = json.loads(lines[index]), rows.slice(index, 1).to_pylist()[0]
        assert said.pop("date_time") == row.pop("date_time").isoformat(
            timespec="microseconds"
        ).replace("+00:00", "Z")
        assert said == row


def test_half_the_bids_are_for_the_hot_auction_and_disorder_is_bounded() -> None:
    rows = BIDS.columns(5)
    numbers = np.arange(5 * CHUNK_EVENTS, 6 * CHUNK_EVENTS)
    newest = numbers // 46 * 3 + 2 + 1_000
    auctions = rows.column("auction").to_numpy()
    assert (auctions <= newest).all()
    assert (auctions >= newest - 101).all()
    assert 0.5 < (auctions % 100 == 0).mean() < 0.52
    assert 0.75 < (rows.column("bidder").to_numpy() % 100 == 0).mean() < 0.77
    at = rows.column("date_time").cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(at) - at
    assert 150_000 < behind.max() < 200_000


def test_the_queries_are_valid_and_have_rows(tmp_path: Path) -> None:
    write_project(tmp_path / "project", project(QUERIES))
    found = load_project(tmp_path / "project")
    assert {view.name for view in found.views} == set(QUERIES)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("bids", pa.Table.from_batches([BIDS.columns(0)]))
        for name, query in QUERIES.items():
            row = connection.execute(query.batch or query.definition).fetchone()
            assert row is not None, name
