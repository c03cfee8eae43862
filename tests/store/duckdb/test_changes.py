"""The change feed: bounds, expiry, rebuilt views; and what upkeep does to file and memory."""

from __future__ import annotations

from decimal import Decimal

import pytest
from store_cases import SECOND, Opener, rows_of, sales, tick_write, view_write, windowed_sales

from headrace.model.errors import ChangesExpiredError, QueryError, StoreError
from headrace.model.settings import StoreSettings
from headrace.store import changes

ONE = Decimal("1.00")
ROW = ("ann", 1, ONE, 1, ONE)


def test_ticks_beyond_the_bound_expire(open_backend: Opener) -> None:
    settings = StoreSettings(changes_ticks_max=10)
    store = open_backend(settings)
    view, quiet = sales(), sales("quiet")
    for made in (view, quiet):
        store.create_view(made, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, view_write(quiet, [ROW], offsets={0: 1})))
    for _ in range(30):
        store.commit(tick_write(store, generation, view_write(view, [ROW])))
    store.checkpoint()
    for reopened in (False, True):
        if reopened:
            store.close()
            store = open_backend(settings)
        last = store.last_tick()
        assert [c.tick for c in store.changes("sales", last - 10, 100)] == list(
            range(last - 9, last + 1)
        )
        assert [c.tick for c in store.changes("sales", last - 10, 3)] == [
            last - 9,
            last - 8,
            last - 7,
        ]
        for after in (0, 1, last - 11):
            with pytest.raises(ChangesExpiredError) as caught:
                store.changes("sales", after, 100)
            assert caught.value.hint
        assert store.changes("sales", last, 100) == []
        assert store.changes("sales", last + 5, 100) == []
        assert store.catalog()["quiet"].next_offsets == {0: 1}
        assert store.catalog()["quiet"].totals.read == 1


def test_changes_of_large_ticks_are_read_a_few_ticks_at_a_time(
    open_backend: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "READ_ROWS_MAX", 30)
    store = open_backend(StoreSettings())
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    for count in (1, 2, 20, 20, 40, 1):
        rows = [(f"user {i}", 1, ONE, 1, ONE) for i in range(count)]
        store.commit(tick_write(store, generation, view_write(view, rows)))
    reads, after = [], 0
    while found := store.changes("sales", after, 4):
        reads.append([change.tick for change in found])
        after = found[-1].tick
    assert reads == [[1, 2, 3, 4], [5], [6]]


def test_rows_beyond_the_bound_expire(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(changes_rows_max=100))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    rows = [(f"user {i}", 1, ONE, 1, ONE) for i in range(20)]
    for _ in range(10):
        store.commit(tick_write(store, generation, view_write(view, rows)))
    store.checkpoint()
    assert [c.tick for c in store.changes("sales", 8, 10)] == [9, 10]
    with pytest.raises(ChangesExpiredError):
        store.changes("sales", 7, 10)
    many = [(f"user {i}", 1, ONE, 1, ONE) for i in range(200)]
    store.commit(tick_write(store, generation, view_write(view, many)))
    store.checkpoint()
    assert store.changes("sales", 11, 10) == []
    with pytest.raises(ChangesExpiredError):
        store.changes("sales", 10, 10)
    assert rows_of(store, "SELECT sum(payments)::BIGINT FROM sales") == [(400,)]


def test_pruning_happens_while_ticks_go_on(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(changes_ticks_max=16))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    for _ in range(60):
        store.commit(tick_write(store, generation, view_write(view, [ROW])))
    with pytest.raises(ChangesExpiredError):
        store.changes("sales", 60 - 20, 100)
    assert len(store.changes("sales", 60 - 16, 100)) == 16


def test_a_rebuilt_view_cannot_be_followed_across_the_rebuild(open_backend: Opener) -> None:
    store = open_backend()
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    for _ in range(3):
        store.commit(tick_write(store, generation, view_write(view, [ROW])))
    store.drop_view("sales")
    store.create_view(view, {})
    store.commit(tick_write(store, generation, view_write(view, [ROW])))
    with pytest.raises(ChangesExpiredError, match="rebuild"):
        store.changes("sales", 2, 10)
    for after in (0, 3):
        assert [c.after.to_pylist()[0]["payments"] for c in store.changes("sales", after, 10)] == [
            1
        ]
    with pytest.raises(QueryError):
        store.changes("nothing", 0, 10)


def test_a_partial_table_of_the_wrong_shape_is_refused_whole(open_backend: Opener) -> None:
    store = open_backend()
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    write = view_write(view, [ROW])
    assert write.partials is not None
    for wrong in (
        write.partials.drop_columns(["most"]),
        write.partials.set_column(3, "n", [["many"]]),
    ):
        broken = tick_write(store, generation, view_write(view, None))
        with pytest.raises(StoreError, match="expected"):
            store.commit(
                type(broken)(
                    broken.tick,
                    generation,
                    0,
                    (type(write)("sales", wrong, {}, {0: 1}, write.counts, None),),
                )
            )
    store.commit(tick_write(store, generation, write))
    assert rows_of(store, "SELECT payments FROM sales") == [(1,)]


def test_the_file_does_not_grow_with_the_number_of_ticks(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(changes_ticks_max=20))
    view, windows = sales(), windowed_sales("windows")
    for made in (view, windows):
        store.create_view(made, {})
    generation = store.claim()
    keys = [f"user {i}" for i in range(200)]
    sizes = []
    for tick in range(150):
        store.commit(
            tick_write(
                store,
                generation,
                view_write(view, [(key, 1, ONE, 1, ONE) for key in keys]),
                view_write(windows, [(key, 3 * SECOND, 0, 1, ONE, 1, ONE) for key in keys]),
            )
        )
        if tick % 25 == 24:
            store.checkpoint()
            metrics = store.metrics()
            sizes.append(metrics["file_bytes"] + metrics["write_ahead_bytes"])
    assert sizes[-1] <= 2 * sizes[1]
    assert rows_of(store, "SELECT DISTINCT payments FROM sales") == [(150,)]
