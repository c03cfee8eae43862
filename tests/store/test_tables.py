"""Tables in every backend: the newest change of each key, and which changes the log must keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from change_cases import Change, folded, partials, random_changes, table_view
from store_cases import Opener, rows_of, sales

from headrace.model.errors import QueryError, StoreError
from headrace.model.plan import BoundView
from headrace.store.contract import (
    Counts,
    Moved,
    Store,
    TableTotals,
    TickWrite,
    ViewChange,
    ViewWrite,
    copy_name,
)

PARTITIONS = 2


def write_of(store: Store, view: BoundView, changes: Sequence[Change]) -> ViewWrite:
    known = {**store.catalog(), **{copy_name(name): e for name, e in store.copies().items()}}
    ends = dict(known[view.name].next_offsets)
    moved = Moved(dict(ends), len(changes))
    for change in changes:
        ends[change.partition] = max(ends[change.partition], change.offset + 1)
    counts = Counts(read=len(changes), applied=len(changes))
    rows = partials(view, changes).drop_columns(["_view"])
    return ViewWrite(view.name, rows, {}, ends, counts, None, moved=moved)


def tick(store: Store, generation: int, *writes: ViewWrite) -> TickWrite:
    return TickWrite(store.last_tick() + 1, generation, 1_700_000_000_000_000, writes)


def commit(
    store: Store, generation: int, view: BoundView, changes: Sequence[Change]
) -> Sequence[ViewChange]:
    return store.commit(tick(store, generation, write_of(store, view, changes)))


def start() -> dict[int, int]:
    return dict.fromkeys(range(PARTITIONS), 0)


def needed(store: Store, partition: int, below: int) -> list[int]:
    arrays = store.needed_offsets("customers", partition, below)
    return [offset for array in arrays for offset in array.tolist()]


def assert_folded(store: Store, changes: Sequence[Change]) -> None:
    wanted = folded(changes)
    assert set(rows_of(store, "SELECT * FROM customers")) == wanted.rows
    assert store.metrics()["view_rows"]["customers"] == len(wanted.rows)
    totals = TableTotals(wanted.superseded, wanted.resurrected)
    assert store.table_totals("customers") == totals
    ends = store.catalog()["customers"].next_offsets
    for partition in range(PARTITIONS):
        rows = [c for c, _ in wanted.newest.values() if not c.deletes]
        mine = {c.offset for c in rows if c.partition == partition}
        found = needed(store, partition, ends[partition])
        assert mine <= set(found)
        assert found == sorted(set(found))
        half = ends[partition] // 2
        assert needed(store, partition, half) == [offset for offset in found if offset < half]


@pytest.mark.parametrize("has_history", [False, True])
def test_a_table_has_the_newest_change_of_each_key(
    open_backend: Opener, seed: int, has_history: bool
) -> None:
    rng = random.Random(seed)
    changes = random_changes(rng, 120, partitions=PARTITIONS)
    view = table_view(has_history=has_history)
    store = open_backend()
    store.create_view(view, start())
    generation = store.claim()
    done, held = 0, set[tuple[str | None, ...]]()
    while done < len(changes):
        count = rng.choice([1, 7, 30])
        for told in commit(store, generation, view, changes[done : done + count]):
            held -= {tuple(row.values()) for row in told.before.to_pylist()}
            held |= {tuple(row.values()) for row in told.after.to_pylist()}
        done = min(done + count, len(changes))
        assert held == folded(changes[:done]).rows
        assert_folded(store, changes[:done])
    followed = set[tuple[str | None, ...]]()
    for told in store.changes("customers", 0, 1_000):
        followed -= {tuple(row.values()) for row in told.before.to_pylist()}
        followed |= {tuple(row.values()) for row in told.after.to_pylist()}
    assert followed == held
    store.close()
    store = open_backend()
    store.open_view(view)
    assert_folded(store, changes)


def test_a_tick_that_is_done_again_after_a_failure_counts_once(store: Store) -> None:
    view = table_view()
    store.create_view(view, start())
    generation = store.claim()
    changes = random_changes(random.Random(1), 40, partitions=PARTITIONS)
    commit(store, generation, view, changes[:20])
    write = tick(store, generation, write_of(store, view, changes[20:]))
    with pytest.raises(StoreError):
        store.commit(replace(write, tick=write.tick + 1))
    assert_folded(store, changes[:20])
    store.commit(write)
    assert_folded(store, changes)


def test_a_copy_of_a_table_takes_its_place(store: Store) -> None:
    view = table_view()
    copy = replace(view, plan=replace(view.plan, view=copy_name("customers")))
    changes = random_changes(random.Random(2), 60, partitions=PARTITIONS)
    store.create_view(view, start())
    generation = store.claim()
    commit(store, generation, view, changes)
    store.create_view(copy, start())
    commit(store, generation, copy, changes[:25])
    assert_folded(store, changes)
    commit(store, generation, copy, changes[25:])
    change = store.swap(tick(store, generation), "customers")
    assert change is not None
    assert change.before.num_rows == change.after.num_rows == 0
    assert_folded(store, changes)
    store.drop_view("customers")
    with pytest.raises(QueryError):
        store.table_totals("customers")


def test_tables_of_one_shape_do_not_meet(store: Store) -> None:
    views = [table_view(name) for name in ("customers", "others")]
    for view in views:
        store.create_view(view, start())
    generation = store.claim()
    mine, other = (random_changes(random.Random(n), 50, partitions=PARTITIONS) for n in (3, 4))
    pairs = list(zip(views, (mine, other), strict=True))
    for part in (slice(0, 20), slice(20, 50)):
        writes = [write_of(store, view, changes[part]) for view, changes in pairs]
        store.commit(tick(store, generation, *writes))
    assert_folded(store, mine)
    assert set(rows_of(store, "SELECT * FROM others")) == folded(other).rows
    store.drop_view("others")
    assert_folded(store, mine)


def test_what_the_log_must_keep_is_said_only_of_what_a_table_has_read(store: Store) -> None:
    view = table_view()
    store.create_view(view, start())
    generation = store.claim()
    commit(store, generation, view, [Change(0, 4, "a", "x", False, 1, 1, 1)])
    assert needed(store, 0, 5) == [4]
    assert needed(store, 1, 0) == []
    with pytest.raises(StoreError, match="has read partition 0 up to offset 5"):
        needed(store, 0, 6)
    with pytest.raises(StoreError, match="is not open"):
        store.needed_offsets("unknown", 0, 0)
    offsets = store.needed_offsets("customers", 0, 5)
    commit(store, generation, view, [Change(0, 7, "a", "y", False, 2, 2, 2)])
    assert [array.tolist() for array in offsets] == [[4]], "as it was when it was asked"
    assert needed(store, 0, 8) == [7]
    store.create_view(sales(), {})
    with pytest.raises(StoreError, match="no table"):
        store.needed_offsets("sales", 0, 0)
    with pytest.raises(StoreError, match="no table"):
        store.table_totals("sales")
