"""Pages of a view: filters, order, cursors."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import SECOND, Opener, bound_view, sales, tick_write, view_write, windowed_sales

from headrace.model.errors import QueryError
from headrace.model.settings import StoreSettings
from headrace.store.contract import Store

ONE = Decimal("1.00")


def read_all(store: Store, limit: int, order: list[tuple[str, bool]]) -> list[dict[str, Any]]:
    rows, cursor = [], None
    while True:
        page = store.read_view("things", {}, order, limit, cursor)
        assert page.table.num_rows <= limit
        rows += page.table.to_pylist()
        cursor = page.next_cursor
        if cursor is None:
            return rows
        assert page.table.num_rows == limit


THINGS = bound_view(
    "things",
    keys={"a": "BIGINT", "b": "STRING", "c": "DOUBLE"},
    partials=(("n", "max", "BIGINT", 'max("n")'),),
    finals=(("b", "STRING", '"b"'), ("c", "DOUBLE", '"c"'), ("n", "BIGINT", '"n"')),
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 4),
        st.none() | st.sampled_from(["", "a", "A", "é", "'", "z"]),
        st.none() | st.sampled_from([0.1, -1e300, float("inf"), 5e-324, 0.30000000000000004]),
        st.none() | st.integers(0, 2),
    ),
    max_size=30,
    unique_by=lambda row: row[:3],
)
ORDERS = st.lists(
    st.tuples(st.sampled_from(["b", "c", "n"]), st.booleans()), max_size=3, unique_by=lambda o: o[0]
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS, order=ORDERS, limit=st.integers(1, 7))
def test_pages_together_are_the_view_in_order(
    store: Store, rows: list[tuple[Any, ...]], order: list[tuple[str, bool]], limit: int
) -> None:
    if "things" in store.catalog():
        store.drop_view("things")
    store.create_view(THINGS, {})
    write = view_write(THINGS, [(a, b, c, 1, n) for a, b, c, n in rows] or None)
    store.commit(tick_write(store, store.claim(), write))
    expected = [{"b": b, "c": c, "n": n} for _, b, c, n in rows]
    for name, descending in reversed(order):
        expected.sort(
            key=lambda row: (
                (row[name] is None, row[name] if row[name] is not None else 0)
                if name != "b"
                else (row[name] is None, (row[name] or "").encode())
            ),
            reverse=descending,
        )
    found = read_all(store, limit, order)
    assert len(found) == len(expected)
    columns = [name for name, _ in order]
    assert [[row[c] for c in columns] for row in found] == [
        [row[c] for c in columns] for row in expected
    ]
    assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.fixture(scope="module")
def sold(shared_store: Store) -> Store:
    view = windowed_sales(
        finals=(
            ("window_start", "TIMESTAMP", '"window_start"'),
            ("user", "STRING", '"user"'),
            ("income", "DECIMAL(28,2)", '"total"'),
            ("payments", "BIGINT", '"n"'),
            ("is_large", "BOOLEAN", '"n" > 5'),
            ("code", "BINARY", 'encode("user")'),
        )
    )
    shared_store.create_view(view, {})
    rows = [
        (f"user {u}", w * 3 * SECOND, 0, 1, Decimal(u) + Decimal("0.50"), u, ONE)
        for u in range(10)
        for w in range(10)
    ]
    shared_store.commit(tick_write(shared_store, shared_store.claim(), view_write(view, rows)))
    return shared_store


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"user": "user 3"}, 10),
        ({"USER": "user 3"}, 10),
        ({"user": "user 3", "window_start": "1970-01-01T00:00:03Z"}, 1),
        ({"window_start": "1970-01-01T00:00:03.000000Z"}, 10),
        ({"window_start": "1970-01-01T02:00:03+02:00"}, 10),
        ({"income": "3.5"}, 10),
        ({"income": "3.50"}, 10),
        ({"payments": "7"}, 10),
        ({"is_large": "true"}, 40),
        ({"code": base64.b64encode(b"user 4").decode()}, 10),
        ({"user": "' OR true --"}, 0),
        ({"user": "nobody"}, 0),
    ],
)
def test_filters_are_values_of_the_column(sold: Store, filters: dict[str, str], count: int) -> None:
    assert sold.read_view("sales", filters, [], 1_000, None).table.num_rows == count


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"nothing": "1"}, "no column"),
        ({"payments": "7.4"}, "not a value"),
        ({"payments": "seven"}, "not a value"),
        ({"payments": ""}, "not a value"),
        ({"payments": "99999999999999999999"}, "not a value"),
        ({"income": "3.501"}, "not a value"),
        ({"income": "NaN"}, "not a value"),
        ({"income": "x"}, "not a value"),
        ({"window_start": "yesterday"}, "^'yesterday' is not a value of column window_start"),
        ({"is_large": "perhaps"}, "^'perhaps' is not a value of column is_large"),
        ({"code": "%%"}, "not a value"),
        ({"code": "AAAA\x00"}, "not a value"),
        ({"payments": "7\x00"}, "not a value"),
    ],
)
def test_filters_that_are_no_values(sold: Store, filters: dict[str, str], message: str) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        sold.read_view("sales", filters, [], 10, None)
    assert caught.value.status == 400


def test_a_cursor_belongs_to_its_query(sold: Store) -> None:
    order = [("income", True)]
    cursor = sold.read_view("sales", {}, order, 3, None).next_cursor
    assert cursor is not None
    assert sold.read_view("sales", {}, order, 7, cursor).table.num_rows == 7
    decoded = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    longer = base64.urlsafe_b64encode(json.dumps([*decoded, "x"]).encode()).decode()
    number = base64.urlsafe_b64encode(json.dumps([*decoded[:-1], 5]).encode()).decode()
    deep = base64.urlsafe_b64encode(b"[" * 40_000).decode()
    for wrong in ("", "x", "é", "e30", "W10", longer, number, deep, cursor[:-3], "A" * 100_000):
        with pytest.raises(QueryError, match="cursor"):
            sold.read_view("sales", {}, order, 3, wrong)
    for filters, other in (({"user": "user 1"}, order), ({}, [("income", False)]), ({}, [])):
        with pytest.raises(QueryError, match="cursor"):
            sold.read_view("sales", filters, other, 3, cursor)
    forged = base64.urlsafe_b64encode(json.dumps([decoded[0], "x'", "x", "y"]).encode()).decode()
    with pytest.raises(QueryError):
        sold.read_view("sales", {}, order, 3, forged)


def test_pages_go_on_where_they_were_while_rows_change(store: Store) -> None:
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    users = [f"user {i:03}" for i in range(100)]
    seen: list[str] = []
    cursor = None
    while True:
        rows = [(user, 1, ONE, 1, ONE) for user in users]
        store.commit(tick_write(store, generation, view_write(view, rows)))
        page = store.read_view("sales", {}, [("user", False)], 9, cursor)
        seen += page.table.column("user").to_pylist()
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == users


def walked(store: Store, limit: int) -> list[str]:
    users, cursor = [], None
    while True:
        page = store.read_view("sales", {}, [], limit, cursor)
        users += page.table.column("user").to_pylist()
        cursor = page.next_cursor
        if cursor is None:
            return users


def sold_to(store: Store, users: list[str]) -> None:
    view = sales()
    store.create_view(view, {})
    rows = [(user, 1, ONE, 1, ONE) for user in users]
    store.commit(tick_write(store, store.claim(), view_write(view, rows)))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_keys_of_any_characters_can_be_continued_from(store: Store, limit: int) -> None:
    users = ["", "\x00", "a", "a\x00", "a\x00b", "a\x01", "é" * 4_000, "😀"]
    sold_to(store, users)
    assert walked(store, limit) == users
    for user in users:
        found = store.read_view("sales", {"user": user}, [], 10, None).table
        assert found.column("user").to_pylist() == [user]


def test_a_page_ends_before_a_key_that_is_too_long(store: Store) -> None:
    users = ["a", "b" * 60_000, "c", "d", "e" * 60_000, "f"]
    sold_to(store, users)
    assert walked(store, 2) == walked(store, 3) == users
    first = store.read_view("sales", {}, [], 1, None)
    with pytest.raises(QueryError, match="short enough to continue from") as caught:
        store.read_view("sales", {}, [], 1, first.next_cursor)
    assert caught.value.status == 413
    assert "raise the limit" in caught.value.hint


def test_limits_and_unknown_views(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(query_rows_max=50))
    store.create_view(sales(), {})
    for limit in (0, -1, 51):
        with pytest.raises(QueryError, match="limit"):
            store.read_view("sales", {}, [], limit, None)
    with pytest.raises(QueryError) as caught:
        store.read_view("nothing", {}, [], 1, None)
    assert caught.value.status == 404
    assert "sales" in caught.value.hint
    with pytest.raises(QueryError):
        store.read_view("sales", {}, [("nothing", True)], 1, None)
    with pytest.raises(QueryError):
        store.describe("nothing")
