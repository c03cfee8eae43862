"""Views of one shape share tables and merges, and readers notice nothing of it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from store_cases import (
    SECOND,
    Opener,
    bound_view,
    rows_of,
    sales,
    tick_write,
    view_write,
    windowed_sales,
)

from headrace.model.errors import MergeError
from headrace.model.plan import BoundView
from headrace.store.contract import Store

ONE = Decimal("1.00")
NAMES = ("one", "two", "three")


def summed(name: str) -> BoundView:
    return bound_view(
        name,
        keys={"user": "STRING"},
        partials=(("n", "sum", "BIGINT", 'sum("n")'),),
        finals=(("user", "STRING", '"user"'), ("n", "BIGINT", '"n"')),
    )


def test_each_view_of_a_shape_has_its_own_rows_and_changes(open_backend: Opener) -> None:
    store = open_backend()
    views = [sales(name) for name in NAMES]
    for view in views:
        store.create_view(view, {})
    generation = store.claim()
    for tick in range(3):
        writes = [
            view_write(view, [("ann", place + 1, ONE, place + 1, ONE)])
            for place, view in enumerate(views)
            if place <= tick
        ]
        changes = store.commit(tick_write(store, generation, *writes))
        assert [change.view for change in changes] == list(NAMES[: tick + 1])
    for reopened in (False, True):
        if reopened:
            store.close()
            store = open_backend()
        for place, name in enumerate(NAMES):
            assert rows_of(store, f"SELECT payments FROM {name}") == [((place + 1) * (3 - place),)]
            feed = [change.after.to_pylist()[0]["payments"] for change in store.changes(name, 0, 9)]
            assert feed == [(place + 1) * n for n in range(1, 4 - place)]
            page = store.read_view(name, {"user": "ann"}, [], 5, None)
            assert page.table.num_rows == 1
        assert store.metrics()["view_rows"] == dict.fromkeys(NAMES, 1)


def test_of_a_shape_the_view_that_cannot_be_merged_is_named(store: Store) -> None:
    views = [summed(name) for name in NAMES]
    for view in views:
        store.create_view(view, {})
    generation = store.claim()
    store.commit(
        tick_write(store, generation, *(view_write(v, [("ann", 1, 2**63 - 1)]) for v in views))
    )
    more = [view_write(v, [("ann" if v.name == "two" else "bob", 1, 7)]) for v in views]
    with pytest.raises(MergeError) as caught:
        store.commit(tick_write(store, generation, *more))
    assert caught.value.view == "two"
    assert store.last_tick() == 1
    rest = [write for write in more if write.view != "two"]
    store.commit(tick_write(store, generation, *rest))
    counts = [rows_of(store, f"SELECT count(*) FROM {name}")[0][0] for name in NAMES]
    assert counts == [2, 1, 2]


def test_views_of_a_shape_come_and_go_by_themselves(open_backend: Opener) -> None:
    store = open_backend()
    for name in NAMES:
        store.create_view(sales(name), {})
    generation = store.claim()
    row = [("ann", 1, ONE, 1, ONE)]

    def tick(*names: str) -> None:
        store.commit(
            tick_write(store, generation, *(view_write(sales(name), row) for name in names))
        )

    tick(*NAMES)
    store.drop_view("two")
    tick("one", "three")
    store.create_view(sales("two"), {})
    tick(*NAMES)
    assert [rows_of(store, f"SELECT payments FROM {name}") for name in NAMES] == [
        [(3,)],
        [(1,)],
        [(3,)],
    ]
    for name in NAMES:
        store.drop_view(name)
    assert store.catalog() == {}
    store.create_view(sales("one"), {})
    tick("one")
    assert rows_of(store, "SELECT payments FROM one") == [(1,)]


def test_each_view_of_a_shape_has_its_own_watermark(store: Store) -> None:
    views = [windowed_sales(name) for name in NAMES]
    for view in views:
        store.create_view(view, {})
    row = [("ann", 0, 0, 1, ONE, 1, ONE)]
    writes = [view_write(v, row, watermark=2 * SECOND * n) for n, v in enumerate(views)]
    store.commit(tick_write(store, store.claim(), *writes))
    final = [rows_of(store, f"SELECT final FROM {name}") for name in NAMES]
    assert final == [[(False,)], [(False,)], [(True,)]]


def test_columns_of_one_shape_may_be_called_differently(store: Store) -> None:
    other = replace(
        sales("two"),
        finals=tuple(
            (replace(column, name=f"{column.name} of two"), sql)
            for column, sql in sales("two").finals
        ),
    )
    for view in (sales("one"), other):
        store.create_view(view, {})
    row = [("ann", 1, ONE, 1, ONE)]
    writes = [view_write(view, row) for view in (sales("one"), other)]
    changes = store.commit(tick_write(store, store.claim(), *writes))
    names = ["user", "income", "payments", "most"]
    others = [f"{name} of two" for name in names]
    assert [change.after.column_names for change in changes] == [names, others]
    assert store.changes("two", 0, 5)[0].after.column_names == others
    assert store.read_view("two", {}, [], 5, None).table.column_names == others
    assert rows_of(store, 'SELECT "payments of two" FROM two') == [(1,)]
