"""Views as files against batch queries: what is equal, and what is not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.batch import Query, Snapshot, check_views
from bench.oracle import Difference

pytestmark = pytest.mark.contract
QUERIES = {
    "total": Query("SELECT k, sum(v) AS total FROM events GROUP BY k"),
    "rows": Query("unlike DuckDB's", "SELECT k, v FROM events WHERE v > 1"),
}
EVENTS = {"k": ["a", "a", "b", "b"], "v": [1, 2, 2, 2]}
TOTAL = {"c0": [3, 4], "c1": ["a", "b"], "k0": [0, 1]}
ROWS = {"c0": ["b", "a", "b"], "c1": [2, 2, 2], "c2": [0, 0, 0]}


def _check(tmp_path: Path, total: dict[str, list[object]], rows: dict[str, list[object]]) -> None:
    for name, columns in (("events", EVENTS), ("total", total), ("rows", rows)):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    found = {
        "total": Snapshot(tmp_path / "total.parquet", ("total", "k"), ()),
        "rows": Snapshot(tmp_path / "rows.parquet", ("k", "v", "revision"), ()),
    }
    check_views(QUERIES, {"events": [tmp_path / "events.parquet"]}, found)


def test_rows_are_compared_by_column_and_in_any_order(tmp_path: Path) -> None:
    _check(tmp_path, TOTAL, ROWS)


@pytest.mark.parametrize(
    ("total", "rows", "says"),
    [
        ({**TOTAL, "c0": [3, 5]}, ROWS, "total: .* in wanted alone"),
        ({"c0": [3], "c1": ["a"]}, ROWS, "total: .*2 rows wanted, 1 found"),
        ({"c0": [3, 4, 1], "c1": ["a", "b", "c"]}, ROWS, "total: .* in found alone"),
        (TOTAL, {"c0": ["b", "a"], "c1": [2, 2], "c2": [0, 0]}, "rows: .*3 rows wanted, 2 found"),
    ],
)
def test_a_wrong_missing_extra_or_uncounted_row_is_a_difference(
    tmp_path: Path, total: dict[str, list[object]], rows: dict[str, list[object]], says: str
) -> None:
    with pytest.raises(Difference, match=says):
        _check(tmp_path, total, rows)


def test_a_missing_column_is_a_difference(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c0": ["a"]}), tmp_path / "total.parquet")
    pq.write_table(pa.table(EVENTS), tmp_path / "events.parquet")
    with pytest.raises(Difference, match="has no columns \\['total'\\]"):
        check_views(
            {"total": QUERIES["total"]},
            {"events": [tmp_path / "events.parquet"]},
            {"total": Snapshot(tmp_path / "total.parquet", ("k",), ())},
        )
