"""Tables in every backend: the newest change of each key, and which changes the log must keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from change_cases import (
    Change,
    Request,
    folded,
    partials,
    random_changes,
    random_requests,
    requests_table,
    table_view,
)
from store_cases import Opener, rows_of, sales

from headrace.model.errors import LookUpError, QueryError, StoreError
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


def looked_up(store: Store, requests: Sequence[Request], as_of: bool) -> list[tuple[bool, str]]:
    asked = requests_table(requests, "id")
    found = store.look_up("customers", asked, ["name"], as_of)
    assert found.column_names == ["_found", "name"]
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def assert_looked_up(
    store: Store, rng: random.Random, seen: Sequence[Change], *, lowest: int = 0
) -> None:
    for as_of in (False, True):
        from_ = max(lowest, store.complete_since("customers", as_of))
        requests = random_requests(rng, seen, from_, 60)
        assert looked_up(store, requests, as_of) == [r.found(seen, as_of) for r in requests]


def test_events_find_the_rows_of_their_positions(open_backend: Opener, seed: int) -> None:
    rng = random.Random(seed)
    changes = random_changes(rng, 120, partitions=PARTITIONS)
    view = table_view(has_history=True)
    store = open_backend()
    store.create_view(view, start())
    generation = store.claim()
    assert looked_up(store, [Request("a", 0, 0, 0)], False) == [(False, None)]
    since = 0
    for done in range(0, len(changes), 15):
        store.keep_versions("customers", since)
        commit(store, generation, view, changes[done : done + 15])
        assert store.complete_since("customers") <= since
        assert_looked_up(store, rng, changes[: done + 15])
        since = max(since, changes[done].position - 10)
    complete = [store.complete_since("customers", as_of) for as_of in (False, True)]
    assert complete[0] > 0
    store.close()
    store = open_backend()
    store.open_view(view)
    assert [store.complete_since("customers", as_of) for as_of in (False, True)] == complete
    assert_looked_up(store, rng, changes)


def test_a_look_up_that_cannot_be_answered_says_so(store: Store) -> None:
    view = table_view()
    store.create_view(view, start())
    generation = store.claim()
    for n in range(1, 3):
        commit(store, generation, view, [Change(0, n, "a", "x", False, n, n, n)])
    assert store.complete_since("customers") == 2, "nobody said that it is looked up"
    request = requests_table([Request("b", 1, 0, 0)], "id")
    with pytest.raises(LookUpError, match=r"customers no longer .* position 1; .* from 2 on"):
        store.look_up("customers", request, ["name"], False)
    with pytest.raises(StoreError, match="table customers has no column nowhere"):
        store.look_up("customers", request, ["name", "nowhere"], False)
    with pytest.raises(StoreError, match="table customers has no history"):
        store.look_up("customers", request, ["name"], True)
    with pytest.raises(StoreError, match="column id"):
        store.look_up("customers", request.drop_columns(["id"]), ["name"], False)
    with pytest.raises(StoreError, match="is not open"):
        store.look_up("unknown", request, [], False)
    store.create_view(sales(), {})
    with pytest.raises(StoreError, match="view sales is no table"):
        store.look_up("sales", request, [], False)


@pytest.mark.parametrize("is_posted", [True, False])
def test_a_copy_knows_no_more_than_a_compacted_log(store: Store, is_posted: bool) -> None:
    view = table_view(has_history=True)
    if is_posted:
        view = replace(view, plan=replace(view.plan, stream="customers"))
    copy = replace(view, plan=replace(view.plan, view=copy_name("customers")))
    rng = random.Random(3)
    changes = random_changes(rng, 60, partitions=PARTITIONS)
    store.create_view(view, start())
    generation = store.claim()
    for done in range(0, 60, 20):
        commit(store, generation, view, changes[done : done + 20])
    before = store.complete_since("customers")
    assert before == max(change.position for change in changes)
    store.keep_versions("customers", 0)
    store.create_view(copy, start())
    for done in range(0, 60, 20):
        commit(store, generation, copy, changes[done : done + 20])
    store.swap(tick(store, generation), "customers")
    assert store.complete_since("customers") == (before if is_posted else 0)
    assert_looked_up(store, rng, changes)
    more = [Change(0, 1_000, "a", "z", False, 9, before + 5, 0)]
    commit(store, generation, view, more)
    assert_looked_up(store, rng, [*changes, *more], lowest=before)
    store.drop_view("customers")
    store.create_view(view, start())
    commit(store, generation, view, changes[:20])
    commit(store, generation, view, changes[20:])
    assert store.complete_since("customers") > 0, "what was said is of the table that was"
