"""A copy is filled beside its view, seen by nobody, and takes its place in one tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
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

from headrace.compile import parse_sql
from headrace.model.errors import ChangesExpiredError, FencedError, QueryError, StoreError
from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import (
    Counts,
    StoreDeadLetter,
    TickWrite,
    ViewChange,
    ViewStatus,
    ViewWrite,
    copy_name,
)
from headrace.store.store import ViewStore

ONE = Decimal("1.00")
COPY = copy_name("sales")
STREAM = parse_sql(
    "CREATE STREAM events (user STRING, at TIMESTAMP NOT NULL)"
    " WATERMARK at DELAY OF INTERVAL 1 SECOND LATE SIDE;",
    "events.sql",
).streams[0]


def opened(open_backend: Opener, settings: StoreSettings | None = None) -> ViewStore:
    store = open_backend(settings)
    assert isinstance(store, ViewStore)
    return store


def copy_of(view: BoundView) -> BoundView:
    return replace(view, plan=replace(view.plan, view=copy_name(view.name)))


def paid(view: BoundView, users: Sequence[str], end: int, **more: Any) -> ViewWrite:
    """One payment by each of these users; the view has come to `end` after it."""
    rows = [(user, 1, ONE, 1, ONE) for user in users]
    return view_write(view, rows, offsets={0: end}, **more)


def swap(store: ViewStore, generation: int, view: str = "sales") -> ViewChange | None:
    write = TickWrite(store.last_tick() + 1, generation, 1_700_000_000_000_000, ())
    return store.swap(write, view)


def payments(store: ViewStore) -> dict[str, int]:
    return dict(rows_of(store, "SELECT user, payments FROM sales"))  # type: ignore[arg-type]


def counts(table: pa.Table) -> dict[str, int]:
    return {row["user"]: row["payments"] for row in table.to_pylist()}


def assert_hidden(store: ViewStore) -> None:
    assert list(store.catalog()) == ["sales"]
    assert store.copies()["sales"].next_offsets == {0: 3}
    assert list(store.metrics()["view_rows"]) == ["sales"]
    assert store.dead_letters(None, 10) == []
    assert store.late("events", 10).dropped == ()
    assert payments(store) == {"ann": 2, "bob": 1}
    assert [change.tick for change in store.changes("sales", 0, 10)] == [1, 2]
    for read in (
        lambda: store.read_view(COPY, {}, [], 10, None),
        lambda: store.describe(COPY),
        lambda: store.changes(COPY, 0, 10),
        lambda: store.dead_letters(COPY, 10),
        lambda: store.query(f"SELECT * FROM {COPY}"),
    ):
        with pytest.raises(QueryError):
            read()


def test_a_copy_is_seen_by_nobody_and_its_view_goes_on(open_backend: Opener) -> None:
    store = opened(open_backend)
    view, copy = sales(), copy_of(sales())
    with pytest.raises(StoreError, match="no view sales"):
        store.create_view(copy, {0: 0})
    store.create_view(view, {0: 0})
    store.declare_stream(STREAM)
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(view, ["ann", "bob"], 2)))
    store.create_view(copy, {0: 0})
    dead = (StoreDeadLetter(COPY, "events", 0, 0, "why", "{}"),)
    late = replace(
        paid(copy, [], 3, dead=dead, counts=Counts(read=3, dead=1, dropped=2)),
        dropped=((0, SECOND, 2),),
    )
    changes = store.commit(tick_write(store, generation, paid(view, ["ann"], 3), late))
    assert [change.view for change in changes] == ["sales"]
    assert_hidden(store)
    store.close()
    store = opened(open_backend)
    store.open_view(view)
    store.open_view(copy)
    assert_hidden(store)
    store.drop_view(COPY)
    assert store.copies() == {}
    assert payments(store) == {"ann": 2, "bob": 1}


def test_an_equal_copy_takes_the_place_and_followers_notice_nothing(
    open_backend: Opener,
) -> None:
    store = opened(open_backend)
    view, copy = sales(), copy_of(sales())
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(view, ["ann", "bob"], 2)))
    store.create_view(copy, {0: 0})
    store.commit(tick_write(store, generation, paid(copy, ["ann"], 1)))
    both = (paid(view, ["bob"], 3), paid(copy, ["bob", "bob"], 3))
    store.commit(tick_write(store, generation, *both))
    before = store.changes("sales", 0, 10)
    with pytest.raises(FencedError):
        swap(store, generation - 1)
    told = swap(store, generation)
    assert told is not None
    assert (told.view, told.tick, told.before.num_rows, told.after.num_rows) == ("sales", 4, 0, 0)
    store.close()
    store = opened(open_backend)
    store.open_view(view)
    assert payments(store) == {"ann": 1, "bob": 2}
    assert store.copies() == {}
    entry = store.catalog()["sales"]
    assert (entry.next_offsets, entry.totals) == ({0: 3}, Counts(read=3, applied=3))
    assert entry.status == ViewStatus("live")
    assert store.changes("sales", 0, 10) == before
    assert store.metrics()["view_rows"] == {"sales": 2}
    store.commit(tick_write(store, store.claim(), paid(view, ["bob"], 4)))
    assert [change.tick for change in store.changes("sales", 1, 10)] == [3, 5]
    assert counts(store.changes("sales", 3, 10)[0].after) == {"bob": 3}
    assert store.ledger(10).num_rows == 5


def test_what_differs_reaches_followers_as_pairs_of_rows(open_backend: Opener) -> None:
    store = opened(open_backend)
    view = sales()
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(view, ["ann", "bob", "eve"], 3)))
    changed = copy_of(sales(fingerprint="f2"))
    store.create_view(changed, {0: 0})
    users = ["ann", "bob", "bob"]
    write = view_write(changed, [(u, 1, ONE, 1, ONE) for u in [*users, None]], offsets={0: 4})
    store.commit(tick_write(store, generation, write))
    told = swap(store, generation)
    assert told is not None
    assert counts(told.before) == {"bob": 1, "eve": 1}
    assert counts(told.after) == {"bob": 2, None: 1}
    assert store.catalog()["sales"].fingerprint == "f2"
    store.close()
    store = opened(open_backend)
    first, last = store.changes("sales", 0, 10)
    assert (first.tick, last.tick) == (1, 3)
    assert (last.before, last.after) == (told.before, told.after)
    assert payments(store) == {"ann": 1, "bob": 2, None: 1}


def test_more_changes_than_are_kept_cannot_be_followed(open_backend: Opener) -> None:
    store = opened(open_backend, StoreSettings(changes_rows_max=3))
    view, copy = sales(), copy_of(sales())
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(view, ["ann"], 1)))
    store.create_view(copy, {0: 0})
    store.commit(tick_write(store, generation, paid(copy, ["a", "b", "c"], 3)))
    assert swap(store, generation) is None
    assert payments(store) == {"a": 1, "b": 1, "c": 1}
    for after in (0, 1, 2):
        with pytest.raises(ChangesExpiredError):
            store.changes("sales", after, 10)
    assert store.changes("sales", 3, 10) == []
    store.commit(tick_write(store, generation, paid(view, ["a"], 4)))
    assert [change.tick for change in store.changes("sales", 3, 10)] == [4]


@pytest.mark.parametrize("other", ["columns", "keys"])
def test_other_columns_or_keys_cannot_be_followed(open_backend: Opener, other: str) -> None:
    store = opened(open_backend)
    store.create_view(sales(), {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(sales(), ["ann"], 1)))
    keys = {"user": "STRING", "n": "BIGINT"} if other == "keys" else {"user": "STRING"}
    finals = (
        ("user", "STRING", '"user"'),
        ("income", "DECIMAL(28,2)", '"total"'),
        ("payments" if other == "keys" else "paid", "BIGINT", '"n"'),
        ("most", "DECIMAL(18,2)", "CAST(1 AS DECIMAL(18,2))"),
    )
    changed = bound_view(
        COPY,
        keys=keys,
        partials=(("total", "sum", "DECIMAL(28,2)", 'sum("total")'),)
        + (() if other == "keys" else (("n", "count", "BIGINT", 'sum("n")'),)),
        finals=finals,
        fingerprint="f2",
    )
    store.create_view(changed, {0: 0})
    rows = [("ann", 7, 1, ONE)] if other == "keys" else [("ann", 1, ONE, 1)]
    store.commit(tick_write(store, generation, view_write(changed, rows, offsets={0: 1})))
    assert swap(store, generation) is None
    assert [name for name, _ in store.describe("sales")][2] == finals[2][0]
    assert len(rows_of(store, "SELECT * FROM sales")) == 1
    with pytest.raises(ChangesExpiredError):
        store.changes("sales", 1, 10)


def test_a_view_without_keys_and_one_with_windows(open_backend: Opener) -> None:
    store = opened(open_backend)
    total = bound_view("total", finals=(("n", "BIGINT", '"n"'),), is_global=True)
    windowed = windowed_sales()
    generation = store.claim()
    for view in (total, windowed):
        for one in (view, copy_of(view)):
            store.create_view(one, {0: 0})

    def windows(view: BoundView, n: int) -> ViewWrite:
        rows = [("ann", 0, 0, 1, ONE, n, ONE), ("ann", 3 * SECOND, 0, 1, ONE, 1, ONE)]
        return view_write(view, rows, offsets={0: 2}, watermark=4 * SECOND)

    def total_of(view: BoundView, n: int) -> ViewWrite:
        return view_write(view, [(1, n)], offsets={0: 1})

    write = (windows(windowed, 1), total_of(total, 5))
    beside = (windows(copy_of(windowed), 2), total_of(copy_of(total), 7))
    store.commit(tick_write(store, generation, *write, *beside))
    told = swap(store, generation, "total")
    assert told is not None
    assert (told.before.to_pylist(), told.after.to_pylist()) == ([{"n": 5}], [{"n": 7}])
    told = swap(store, generation)
    assert told is not None
    (before,), (after,) = told.before.to_pylist(), told.after.to_pylist()
    assert (before["payments"], after["payments"]) == (1, 2)
    assert before["final"] is after["final"] is True
    assert rows_of(store, "SELECT final FROM sales ORDER BY ALL") == [(False,), (True,)]
    assert store.changes("sales", 1, 9) == [told]


ROWS_VIEW = """
CREATE STREAM events (user STRING, at TIMESTAMP NOT NULL) WATERMARK at LATE DROP;
CREATE MATERIALIZED VIEW sales AS SELECT user FROM events;
"""


def rows_view() -> BoundView:
    from headrace.compile import bind_view, plan_view
    from headrace.model.types import parse_type

    project = parse_sql(ROWS_VIEW, "events.sql")
    plan = plan_view(project, project.views[0])
    types = zip(plan.keys, ("INT", "BIGINT", "STRING"), strict=True)
    keys = {key.name: parse_type(type_) for key, type_ in types}
    return bind_view(
        plan,
        project.streams[0],
        keys=keys,
        partials={},
        distincts={},
        outputs={"user": parse_type("STRING")},
    )


def came(view: BoundView, start: int, users: Sequence[str]) -> ViewWrite:
    rows = [(0, start + place, user, 1) for place, user in enumerate(users)]
    names = [*(key.name for key in view.keys), "_rows"]
    types = [*(key.type.arrow for key in view.keys), pa.int64()]
    columns = [pa.array(list(c), t) for c, t in zip(zip(*rows, strict=True), types, strict=True)]
    n = len(users)
    counted = Counts(read=n, applied=n)
    partials = pa.Table.from_arrays(columns, names=names)
    return ViewWrite(view.name, partials, {}, {0: start + n}, counts=counted,
                     watermark_microseconds=None)  # fmt: skip


def added(store: ViewStore, after: int = 0) -> list[tuple[int, list[str]]]:
    found = store.changes("sales", after, 20)
    return [(c.tick, sorted(c.after.column("user").to_pylist())) for c in found]


@pytest.mark.parametrize("is_whole", [True, False])
def test_rows_that_are_the_feed_keep_their_ticks(open_backend: Opener, is_whole: bool) -> None:
    store = opened(open_backend)
    view, copy = rows_view(), copy_of(rows_view())
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, came(view, 0, ["a", "b"])))
    store.commit(tick_write(store, generation, came(view, 2, ["c"])))
    store.create_view(copy, {0: 0})
    store.commit(tick_write(store, generation, came(view, 3, ["d"]), came(copy, 0, ["a"])))
    rest = ["b" if is_whole else "x", "c", "d"]
    store.commit(tick_write(store, generation, came(copy, 1, rest)))
    history = [(1, ["a", "b"]), (2, ["c"]), (3, ["d"])]
    assert added(store) == history
    told = swap(store, generation)
    assert told is not None
    differs = ([], []) if is_whole else (["b"], ["x"])
    assert (told.before.column(0).to_pylist(), told.after.column(0).to_pylist()) == differs
    store.close()
    store = opened(open_backend)
    store.open_view(view)
    generation = store.claim()
    store.commit(tick_write(store, generation, came(view, 4, ["e"])))
    if is_whole:
        assert added(store) == [*history, (6, ["e"])]
    else:
        with pytest.raises(ChangesExpiredError):
            added(store, 4)
    assert added(store, 5) == [(6, ["e"])]
    assert len(rows_of(store, "SELECT * FROM sales")) == 5


def test_rows_from_before_the_feed_are_no_news_after_the_swap(open_backend: Opener) -> None:
    store = opened(open_backend, StoreSettings(changes_ticks_max=2))
    view, copy = rows_view(), copy_of(rows_view())
    store.create_view(view, {0: 0})
    store.create_view(copy, {0: 0})
    generation = store.claim()
    for place, user in enumerate("abcd"):
        store.commit(tick_write(store, generation, came(view, place, [user])))
    both = (came(view, 4, ["e"]), came(copy, 0, list("abcde")))
    store.commit(tick_write(store, generation, *both))
    assert swap(store, generation) is not None
    assert added(store, 3) == [(4, ["d"]), (5, ["e"])]


def aside(view: str, places: Sequence[int], **more: Any) -> ViewWrite:
    """Events of these offsets are set aside, each from one window."""
    moment = pa.timestamp("us", tz="UTC")
    n = len(places)
    sided = pa.table(
        {
            "window_start": pa.array([0] * n, moment),
            "window_end": pa.array([3 * SECOND] * n, moment),
            "watermark": pa.array([99 * SECOND] * n, moment),
            "_partition": pa.array([0] * n, pa.int32()),
            "_offset": pa.array(places, pa.int64()),
            "user": pa.array(["ann"] * n, pa.string()),
        }
    )
    write = view_write(windowed_sales(view), [], offsets={0: 4}, counts=Counts(read=4, sided=4))
    return replace(write, late_side_output=sided, dropped=((0, SECOND, len(view)),), **more)


def test_late_events_of_the_copy_become_the_views(open_backend: Opener) -> None:
    store = opened(open_backend)
    store.declare_stream(STREAM)
    view, copy = windowed_sales(), copy_of(windowed_sales())
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, aside("sales", [0, 1, 2])))

    def apply(name: str, place: int, end: int) -> None:
        counted = Counts(read=end - 4, applied=end - 4)
        write = view_write(windowed_sales(name), [], offsets={0: end}, counts=counted)
        store.commit(tick_write(store, generation, replace(write, applied=((0, place),))))

    apply("sales", 1, 6)
    store.create_view(copy, {0: 0})
    assert store.replays("events", COPY) == [(0, 1, 6)]
    store.commit(tick_write(store, generation, aside(COPY, [0, 1, 3])))
    assert store.late_side_output("events", COPY, 9) == [(0, 0), (0, 1), (0, 3)]
    assert rows_of(store, "SELECT DISTINCT view FROM events_late") == [("sales",)]
    assert [count.view for count in store.late("events", 9).sided] == ["sales"]
    apply(COPY, 1, 6)
    assert store.replays("events", COPY) == []
    assert store.replays("events", "sales") == []
    assert swap(store, generation) is not None
    assert store.late_side_output("events", "sales", 9) == [(0, 0), (0, 3)]
    assert store.late_side_output("events", COPY, 9) == []
    assert store.replays("events", "sales") == []
    sql = "SELECT view, _offset, _applied_in_tick FROM events_late ORDER BY ALL"
    assert rows_of(store, sql) == [("sales", 0, None), ("sales", 1, 4), ("sales", 3, None)]
    assert [(d.view, d.events) for d in store.late("events", 9).dropped] == [("sales", len(COPY))]
    store.create_view(copy, {0: 0})
    assert store.replays("events", COPY) == [(0, 1, 6)]
    store.commit(tick_write(store, generation, aside(COPY, [1])))
    apply(COPY, 1, 6)
    store.drop_view(COPY)
    with store._backend.snapshot() as connection:
        known = connection.execute("SELECT DISTINCT view FROM _headrace.replays").fetchall()
    assert known == [("sales",)]


def test_whoever_looked_the_view_up_before_the_swap_reads_the_copy(
    open_backend: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = opened(open_backend)
    view, copy = sales(), copy_of(sales())
    store.create_view(view, {0: 0})
    generation = store.claim()
    store.commit(tick_write(store, generation, paid(view, ["ann", "bob"], 2)))
    page = store.read_view("sales", {}, [], 1, None)
    for read in (
        lambda: store.read_view("sales", {}, [], 9, None).table.num_rows,
        lambda: store.read_view("sales", {}, [], 1, page.next_cursor).table.num_rows + 1,
        lambda: len(store.changes("sales", 0, 9)) + 1,
        lambda: store.snapshot("sales", tmp_path / "rows.parquet", {}).rows,
    ):
        store.create_view(copy, {0: 0})
        store.commit(tick_write(store, generation, paid(copy, ["ann", "bob"], 2)))
        snapshot = store._queries.read

        def swapped(snapshot: Any = snapshot) -> Any:
            monkeypatch.undo()
            swap(store, generation)
            return snapshot()

        monkeypatch.setattr(store._queries, "read", swapped)
        assert read() == 2
        assert store.copies() == {}


def test_a_copy_may_take_the_place_again_and_again(
    open_backend: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.store.copies.FORMERS_MAX", 2)
    store = opened(open_backend)
    view, copy = sales(), copy_of(sales())
    store.create_view(view, {0: 0})
    generation = store.claim()
    followed = [[1], [1, 4], [1, 4, 7], None]
    for turn, ticks in enumerate(followed):
        write = paid(view, ["ann"], turn + 1)
        store.commit(tick_write(store, generation, write))
        if ticks is None:
            continue
        assert [change.tick for change in store.changes("sales", 0, 10)] == ticks
        snapshot = store.snapshot("sales", tmp_path / "rows.parquet", {}, with_ticks=True)
        assert [tick for tick, _ in snapshot.ticks] == ticks
        store.create_view(copy, {0: 0})
        store.commit(tick_write(store, generation, paid(copy, ["ann"] * (turn + 1), turn + 1)))
        beside = store.snapshot(COPY, tmp_path / "copy.parquet", {})
        assert (beside.view, beside.rows, beside.next_offsets) == (COPY, 1, {0: turn + 1})
        assert swap(store, generation) is not None
    assert payments(store) == {"ann": 4}
    with pytest.raises(ChangesExpiredError):
        store.changes("sales", 7, 10)
    assert [change.tick for change in store.changes("sales", 9, 10)] == [10]
