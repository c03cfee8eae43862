"""The call by which another process gets a view's rows at one tick."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest


def test_a_snapshot_is_written_where_the_asker_wants_it(shop: Any) -> None:
    tick = shop.tick(income=[("ann", "1.50"), (None, "2.00")])
    shop.tick(income=[("ann", "1.00")])
    shop.add_dead_letter("income")
    folder = shop.settings.run_directory / "proof-17"
    folder.mkdir(parents=True)
    asked = {"folder": "proof-17", "ticks": True}
    answer = shop.http.post("/v1/views/INCOME/snapshot", json=asked)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["view"], said["tick"], said["rows"]) == ("income", tick + 2, 2)
    assert said["next_offsets"] == {"0": shop.store.catalog()["income"].next_offsets[0]}
    assert said["dead"] == [[0, 17]]
    assert [t for t, _ in said["ticks"]] == [tick, tick + 1, tick + 2]
    rows = pq.read_table(folder / "rows.parquet").to_pylist()
    assert {row["k0"]: (row["c0"], str(row["c1"]), row["c2"]) for row in rows} == {
        "ann": ("ann", "2.50", 2),
        None: (None, "2.00", 1),
    }
    one = {"folder": "proof-17", "filters": {"user_id": "ann"}}
    assert shop.http.post("/v1/views/income/snapshot", json=one).json()["rows"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"folder": "proof-18"},
        {"folder": "../run"},
        {"folder": "proof-1/../.."},
        {"folder": ""},
        {"folder": 7},
        {},
        {"folder": "proof-19", "more": 1},
        {"folder": "proof-19", "filters": {"nothing": "x"}},
    ],
)
def test_it_writes_nowhere_else(shop: Any, body: dict[str, Any]) -> None:
    (shop.settings.run_directory / "proof-19").mkdir(parents=True)
    answer = shop.http.post("/v1/views/income/snapshot", json=body)
    assert answer.status_code == 400, answer.text
    assert list(shop.settings.run_directory.rglob("*.parquet")) == []


def test_an_unknown_view_is_not_found(shop: Any) -> None:
    (shop.settings.run_directory / "proof-20").mkdir(parents=True)
    answer = shop.http.post("/v1/views/nothing/snapshot", json={"folder": "proof-20"})
    assert answer.status_code == 404
