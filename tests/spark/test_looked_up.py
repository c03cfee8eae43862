"""What events found in tables is given to just these events, whatever of them is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.log.contract import LogBatch
from headrace.spark.looked_up import load_looked_up, write_looked_up


def events(offsets: list[int]) -> LogBatch:
    runs = np.array(list(enumerate(offsets)), dtype=np.int64)
    return LogBatch(runs, [(0, 1)], 0, pa.record_batch({"id": pa.array(offsets)}))


@pytest.mark.parametrize(
    ("partition", "offsets", "prices"),
    [
        (0, [3, 4, 7], [30, 40, 70]),
        (0, [4], [40]),
        (0, [4, 5, 7], [40, None, 70]),  # 5 is a duplicate, which looks up nothing
        (0, [1, 9], [None, None]),
        (2, [4, 5], [-4, -5]),
        (2, [5, 6], [-5, None]),
        (1, [3, 4], [None, None]),
    ],
)
def test_rows_are_found_by_place(
    tmp_path: Path, partition: int, offsets: list[int], prices: list[int | None]
) -> None:
    partitions, known = pa.array([0, 0, 0, 2, 2], pa.int32()), pa.array([3, 4, 7, 4, 5])
    price = pa.chunked_array([[30, 40], [70, -4, -5]], pa.int64())
    file = tmp_path / "found.arrow"
    write_looked_up(file, pa.table([partitions, known], ["p", "o"]), {"price": price})
    found = load_looked_up(str(file))
    rows = found.rows(partition, events(offsets))
    assert found.column("price", rows, pa.int64()).to_pylist() == prices
    assert found.column("other", rows, pa.string()).to_pylist() == [None] * len(offsets)


def test_without_a_file_nothing_is_found(tmp_path: Path) -> None:
    found = load_looked_up("")
    rows = found.rows(0, events([1, 2]))
    assert found.column("price", rows, pa.int64()).to_pylist() == [None, None]


def test_a_file_without_events_has_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "none.arrow"
    none = pa.table({"p": pa.array([], pa.int32()), "o": pa.array([], pa.int64())})
    write_looked_up(file, none, {"price": pa.chunked_array([], pa.int64())})
    rows = load_looked_up(str(file)).rows(0, events([1]))
    assert load_looked_up(str(file)).column("price", rows, pa.int64()).to_pylist() == [None]
