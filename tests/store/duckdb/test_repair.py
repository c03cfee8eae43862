"""Replacing rows that a proof found wrong: compared and set, whole, and seen by everybody."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_cases import bound_view, sales, tick_write, view_write, windowed_sales

from headrace.model.errors import FencedError, StoreError
from headrace.model.plan import BoundView
from headrace.store.contract import Repair, Store

ONE = Decimal("1.00")


def rows_of(store: Store, view: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.read_view(view, {}, [], 100, None).table.to_pylist()
    return found


def ids(store: Store, view: str, file: Path) -> dict[Any, int]:
    """By the row's keys."""
    snapshot = store.snapshot(view, file, {})
    assert snapshot.has_ids
    rows = pq.read_table(file).to_pylist()
    return {tuple(row[f"k{i}"] for i in range(snapshot.keys)): row["id"] for row in rows}


def repair(
    store: Store, view: BoundView, *rows: tuple[Any, ...], tick: int | None = None
) -> Repair:
    """Rows are state columns, the id, and whether there is to be a row."""
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    table = pa.Table.from_arrays(columns, names=[f"s{i}" for i in range(len(columns))])
    return Repair(view.name, store.last_tick() if tick is None else tick, table)


def test_rows_are_replaced_added_and_taken_away(store: Store, tmp_path: Path) -> None:
    view = sales()
    store.create_view(view, {0: 0})
    generation = store.claim()
    rows = [(user, 1, ONE, 1, ONE) for user in ("ann", "bob", None)]
    store.commit(tick_write(store, generation, view_write(view, rows, offsets={0: 3})))
    known = ids(store, "sales", tmp_path / "a.parquet")
    asked = repair(
        store,
        view,
        ("ann", 5, Decimal(9), 5, Decimal(8), known[("ann",)], True),
        (None, None, None, None, None, known[(None,)], False),
        ("eve", 1, Decimal(2), 1, Decimal(2), None, True),
    )
    done = store.repair(asked, generation, 0)
    assert (done.tick, done.rows, done.moved) == (2, 3, 0)
    wanted = {("ann", Decimal(9), 5), ("bob", ONE, 1), ("eve", Decimal(2), 1)}
    found = {(r["user"], r["income"], r["payments"]) for r in rows_of(store, "sales")}
    assert found == wanted
    (change,) = done.changes
    assert {row["user"] for row in change.before.to_pylist()} == {"ann", None}
    assert {row["user"] for row in change.after.to_pylist()} == {"ann", "eve"}
    (kept,) = store.changes("sales", 1, 10)
    assert kept.after.equals(change.after)
    assert store.snapshot("sales", tmp_path / "b.parquet", {}).repairs == ((2, 3),)
    assert store.catalog()["sales"].next_offsets == {0: 3}
    # The next tick merges with the rows as they are now.
    store.commit(tick_write(store, generation, view_write(view, [("ann", 1, ONE, 1, ONE)])))
    assert {r["user"]: r["payments"] for r in rows_of(store, "sales")} == {
        "ann": 6,
        "bob": 1,
        "eve": 1,
    }


def test_a_row_that_moved_on_is_left_alone(store: Store, tmp_path: Path) -> None:
    view = windowed_sales()
    store.create_view(view, {})
    generation = store.claim()
    store.commit(tick_write(store, generation, view_write(view, [("a", 0, 0, 1, ONE, 1, ONE)])))
    (known,) = ids(store, "sales", tmp_path / "a.parquet").items()
    (user, start), row_id = known
    tick = store.last_tick()
    store.commit(tick_write(store, generation, view_write(view, [("a", 0, 0, 1, ONE, 1, ONE)])))
    state = (user, start, start, 0, 9, ONE, 9, ONE)
    done = store.repair(repair(store, view, (*state, row_id, True), tick=tick), generation, 0)
    assert (done.tick, done.rows, done.moved) == (None, 0, 1)
    done = store.repair(repair(store, view, (*state, None, True), tick=tick), generation, 0)
    assert (done.tick, done.moved) == (None, 1), "there is a row where the proof saw none"
    assert store.last_tick() == tick + 1
    assert [r["payments"] for r in rows_of(store, "sales")] == [2]


def test_a_global_view_has_its_one_row_replaced(
    open_backend: Callable[..., Store], tmp_path: Path
) -> None:
    store = open_backend()
    view = bound_view("all_of_it", is_global=True, finals=(("n", "BIGINT", '"n"'),))
    store.create_view(view, {})
    generation = store.claim()
    store.commit(tick_write(store, generation, view_write(view, [(3, 3)])))
    (row_id,) = ids(store, "all_of_it", tmp_path / "a.parquet").values()
    assert store.repair(repair(store, view, (7, 7, row_id, True)), generation, 0).rows == 1
    assert rows_of(store, "all_of_it") == [{"n": 7}]
    store.close()
    again = open_backend()
    again.open_view(view)
    assert rows_of(again, "all_of_it") == [{"n": 7}]
    with pytest.raises(FencedError):
        again.repair(repair(again, view, (8, 8, None, True)), generation - 1, 0)
    with pytest.raises(StoreError, match="cannot be repaired"):
        again.repair(Repair("nothing", 1, pa.table({})), generation, 0)


def test_a_row_that_was_taken_away_does_not_come_back(
    open_backend: Callable[..., Store], tmp_path: Path
) -> None:
    """Small ticks leave their rows beside the table; a store that opens writes those first."""
    store, view = open_backend(), sales()
    store.create_view(view, {})
    generation = store.claim()
    for user in ("ann", "bob"):
        store.commit(tick_write(store, generation, view_write(view, [(user, 1, ONE, 1, ONE)])))
    known = ids(store, "sales", tmp_path / "a.parquet")
    asked = repair(store, view, ("bob", None, None, None, None, known[("bob",)], False))
    assert store.repair(asked, generation, 0).rows == 1
    store.close()
    again = open_backend()
    again.open_view(view)
    assert [row["user"] for row in rows_of(again, "sales")] == ["ann"]
