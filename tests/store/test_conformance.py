"""What every store backend must do. A backend joins by adding itself to conftest.BACKENDS."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from store_cases import (
    HOPPING,
    SECOND,
    Opener,
    bound_view,
    rows_of,
    sales,
    tick_write,
    view_write,
    windowed_sales,
)

from headrace.model.errors import (
    ConservationError,
    FencedError,
    MergeError,
    QueryError,
    StoreError,
    StoreLockedError,
    ViewChangedError,
)
from headrace.model.settings import StoreSettings
from headrace.store.contract import Counts, Store, StoreDeadLetter, TickWrite, ViewStatus
from headrace.store.opening import open_store

ONE = Decimal("1.00")


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_tick_merges_partials_by_key_with_null_as_a_group(store: Store) -> None:
    view = sales()
    store.create_view(view, {0: 0})
    generation = store.claim()
    rows = [("ann", 2, Decimal("3.50"), 2, Decimal("2.50")), (None, 1, ONE, 1, None)]
    for _ in range(3):
        store.commit(tick_write(store, generation, view_write(view, rows)))
    assert sorted(rows_of(store, "SELECT * FROM sales"), key=str) == [
        ("ann", Decimal("10.50"), 6, Decimal("2.50")),
        (None, Decimal("3.00"), 3, None),
    ]


def test_several_partial_rows_of_one_key_in_one_tick_are_combined(store: Store) -> None:
    view = sales()
    store.create_view(view, {})
    row = ("ann", 1, ONE, 1, ONE)
    store.commit(tick_write(store, store.claim(), view_write(view, [row, row, row])))
    assert rows_of(store, "SELECT payments FROM sales") == [(3,)]


def test_changes_hold_rows_before_and_after_and_leave_out_equal_ones(store: Store) -> None:
    view = sales(finals=(("user", "STRING", '"user"'), ("most", "DECIMAL(18,2)", '"most"')))
    store.create_view(view, {})
    generation = store.claim()
    first = store.commit(
        tick_write(
            store,
            generation,
            view_write(view, [("ann", 1, ONE, 1, ONE), ("bob", 1, ONE, 1, ONE)]),
        )
    )
    assert first[0].before.num_rows == 0
    assert first[0].after.num_rows == 2
    two = Decimal("2.00")
    second = store.commit(
        tick_write(
            store,
            generation,
            view_write(view, [("ann", 1, ONE, 1, ONE), ("bob", 1, two, 1, two)]),
        )
    )
    assert second[0].before.to_pylist() == [{"user": "bob", "most": ONE}]
    assert second[0].after.to_pylist() == [{"user": "bob", "most": two}]
    unchanged = store.commit(
        tick_write(store, generation, view_write(view, [("ann", 1, ONE, 1, ONE)]))
    )
    assert unchanged == []
    kept = store.changes("sales", 0, 10)
    assert [change.tick for change in kept] == [1, 2]
    assert kept[1].before.equals(second[0].before)
    assert kept[1].after.equals(second[0].after)
    assert kept[1].after.schema == pa.schema(
        [("user", pa.string()), ("most", pa.decimal128(18, 2))]
    )


def test_only_wanted_changes_are_returned_but_all_are_kept(store: Store) -> None:
    one, two = sales("one"), sales("two")
    for view in (one, two):
        store.create_view(view, {})
    row = [("ann", 1, ONE, 1, ONE)]
    write = tick_write(store, store.claim(), view_write(one, row), view_write(two, row))
    assert [change.view for change in store.commit(write, frozenset({"two"}))] == ["two"]
    assert len(store.changes("one", 0, 10)) == 1


def test_having_lets_rows_enter_and_leave(store: Store) -> None:
    view = sales(
        partials=(("total", "sum", "BIGINT", 'sum("total")'),),
        finals=(("user", "STRING", '"user"'), ("total", "BIGINT", '"total"')),
        having='"total" > 10',
    )
    store.create_view(view, {})
    generation = store.claim()
    seen = []
    for amount in (5, 10, -12, 20, None):
        changes = store.commit(
            tick_write(store, generation, view_write(view, [("ann", 1, amount)]))
        )
        seen.append(
            [([r["total"] for r in c.before.to_pylist()], [r["total"] for r in c.after.to_pylist()])
             for c in changes]
        )  # fmt: skip
    assert seen == [[], [([], [15])], [([15], [])], [([], [23])], []]
    assert rows_of(store, "SELECT total FROM sales") == [(23,)]


@pytest.mark.parametrize(
    "counts", [Counts(read=2, applied=1), Counts(read=1, applied=1, dropped=1)]
)
def test_a_tick_whose_events_do_not_add_up_is_refused(store: Store, counts: Counts) -> None:
    view = sales()
    store.create_view(view, {0: 0})
    row = ("ann", 1, ONE, 1, ONE)
    write = view_write(view, [row], offsets={0: counts.read}, counts=counts)
    with pytest.raises(ConservationError) as raised:
        store.commit(tick_write(store, store.claim(), write))
    assert raised.value.stream == "events"
    assert store.last_tick() == 0
    assert rows_of(store, "SELECT * FROM sales") == []


def test_offsets_that_move_further_than_events_were_read_are_refused(store: Store) -> None:
    view = sales()
    store.create_view(view, {0: 0})
    write = replace(view_write(view, None), next_offsets={0: 2})
    with pytest.raises(ConservationError, match="moved by 2 events, but 0 were read"):
        store.commit(TickWrite(1, store.claim(), 0, (write,)))


def test_tumbling_windows_have_utc_bounds_and_count_late_rows(store: Store) -> None:
    view = windowed_sales()
    store.create_view(view, {})
    generation = store.claim()
    for late in (0, 1):
        row = ("ann", 3 * SECOND, late, 2, ONE, 2, ONE)
        store.commit(tick_write(store, generation, view_write(view, [row])))
    assert rows_of(store, "SELECT window_start, window_end, payments, revision FROM sales") == [
        (at(3), at(6), 4, 2)
    ]
    page = store.read_view("sales", {}, [], 10, None)
    assert page.table.schema.field("window_start").type == pa.timestamp("us", "UTC")


def test_a_pane_belongs_to_every_window_that_holds_it(store: Store) -> None:
    view = windowed_sales(window=HOPPING)
    store.create_view(view, {})
    row = ("ann", 5 * SECOND, 2, 1, ONE, 1, ONE)  # windows start at 1, 5, 9, …; size 10
    store.commit(tick_write(store, store.claim(), view_write(view, [row])))
    found = rows_of(store, "SELECT window_start, window_end, revision FROM sales ORDER BY ALL")
    assert found == [(at(-3), at(7), 1), (at(1), at(11), 1), (at(5), at(15), 0)]


def test_a_global_view_has_one_row_before_any_event(store: Store) -> None:
    view = bound_view(
        "everything",
        partials=(
            ("n", "count", "BIGINT", 'sum("n")'),
            ("total", "sum", "BIGINT", 'sum("total")'),
        ),
        distincts={"users": "STRING"},
        finals=(
            ("n", "BIGINT", '"n"'),
            ("total", "BIGINT", '"total"'),
            ("users", "BIGINT", '"users"'),
        ),
        is_global=True,
    )
    store.create_view(view, {})
    assert rows_of(store, "SELECT * FROM everything") == [(0, None, 0)]
    write = view_write(view, [(2, 2, 7)], values={"users": [("a",), ("b",), ("a",), (None,)]})
    changes = store.commit(tick_write(store, store.claim(), write))
    assert changes[0].before.to_pylist() == [{"n": 0, "total": None, "users": 0}]
    assert rows_of(store, "SELECT * FROM everything") == [(2, 7, 2)]
    assert store.read_view("everything", {}, [], 1, None).next_cursor is None


def test_distinct_values_count_once_per_key_and_window(store: Store) -> None:
    view = windowed_sales(
        distincts={"cards": "BIGINT"},
        finals=(("user", "STRING", '"user"'), ("cards", "BIGINT", '"cards"')),
    )
    store.create_view(view, {})
    generation = store.claim()
    for values in ([1, 2, None], [2, 3], [1]):
        rows = [(user, 0, 0, 1, ONE, 1, ONE) for user in (None, "ann")]
        cards = [(user, 0, v) for user in (None, "ann") for v in values if user or v != 3]
        write = view_write(view, rows, values={"cards": cards})
        store.commit(tick_write(store, generation, write))
    shown = rows_of(store, "SELECT user, cards FROM sales")
    assert sorted(shown, key=str) == [("ann", 3), (None, 2)]


def test_a_view_that_emits_on_close_shows_a_window_once_it_is_final(store: Store) -> None:
    view = windowed_sales()
    view = replace(view, plan=replace(view.plan, emits_on_close=True))
    store.create_view(view, {})
    generation = store.claim()

    def tick(rows: list[tuple[object, ...]] | None, watermark: int) -> list[list[tuple[int, int]]]:
        write = view_write(view, rows, watermark=watermark)
        changes = store.commit(tick_write(store, generation, write))
        assert all(row["final"] for c in changes for row in c.after.to_pylist())
        return [
            sorted((row["payments"], row["revision"]) for row in rows.to_pylist())
            for change in changes
            for rows in (change.before, change.after)
        ]

    def event(pane: int, late: int = 0) -> tuple[object, ...]:
        return ("ann", pane * SECOND, late, 1, ONE, 1, ONE)

    assert tick([event(0), event(3)], 1 * SECOND) == []
    assert rows_of(store, "SELECT payments FROM sales") == []
    assert tick(None, 3 * SECOND) == [[], [(1, 0)]]
    assert rows_of(store, "SELECT payments, final FROM sales") == [(1, True)]
    assert tick([event(0, late=1), event(3)], 6 * SECOND) == [[(1, 0)], [(2, 0), (2, 1)]]
    assert tick(None, 9 * SECOND) == []
    assert sorted(rows_of(store, "SELECT payments, revision FROM sales")) == [(2, 0), (2, 1)]


def test_final_follows_the_watermark_without_a_change_of_rows(store: Store) -> None:
    view = windowed_sales()
    store.create_view(view, {})
    generation = store.claim()
    row = ("ann", 0, 0, 1, ONE, 1, ONE)
    store.commit(tick_write(store, generation, view_write(view, [row], watermark=2 * SECOND)))
    assert rows_of(store, "SELECT final FROM sales") == [(False,)]
    store.commit(tick_write(store, generation, view_write(view, None, watermark=3 * SECOND)))
    assert rows_of(store, "SELECT final FROM sales") == [(True,)]
    late = ("ann", 0, 1, 1, ONE, 1, ONE)
    (change,) = store.commit(tick_write(store, generation, view_write(view, [late])))
    before, after = change.before.to_pylist()[0], change.after.to_pylist()[0]
    assert (before["revision"], before["final"]) == (0, True)
    assert (after["revision"], after["final"]) == (1, True)


def test_progress_survives_reopening(open_backend: Opener) -> None:
    store = open_backend()
    view, idle = windowed_sales(), sales("idle")
    store.create_view(view, {0: 5, 1: 0})
    store.create_view(idle, {0: 1})
    generation = store.claim()
    row = ("ann", 0, 0, 1, ONE, 1, ONE)
    letter = StoreDeadLetter("sales", "events", 1, 8, "division by zero", '{"a": 0}')
    for tick in range(3):
        store.commit(
            tick_write(
                store,
                generation,
                view_write(
                    view,
                    [row],
                    offsets={1: 4 * (1 + tick)},
                    counts=Counts(read=4, applied=1, filtered=2, late=1, dead=1),
                    watermark=tick * SECOND,
                    dead=(letter,),
                ),
            )
        )
    store.set_status("sales", ViewStatus("live", "all well"))
    store.close()
    store = open_backend()
    assert store.last_tick() == 3
    entry = store.catalog()["sales"]
    assert entry.next_offsets == {0: 5, 1: 12}
    assert entry.totals == Counts(read=12, applied=3, filtered=6, late=3, dead=3)
    assert entry.watermark_microseconds == 2 * SECOND
    assert entry.status == ViewStatus("live", "all well")
    assert store.catalog()["idle"].next_offsets == {0: 1}
    assert store.dead_letters("sales", 10) == [letter] * 3
    assert store.dead_letters("idle", 10) == []
    ledger = store.ledger(2).to_pylist()
    assert [(row["tick"], row["generation"], row["events"]) for row in ledger] == [
        (3, generation, 4),
        (2, generation, 4),
    ]
    store.open_view(view)
    changes = store.commit(tick_write(store, store.claim(), view_write(view, [row])))
    assert changes[0].before.to_pylist()[0]["payments"] == 3
    assert changes[0].after.to_pylist()[0]["payments"] == 4


def test_an_older_generation_is_fenced(store: Store) -> None:
    view = sales()
    store.create_view(view, {})
    old = store.claim()
    new = store.claim()
    assert new > old
    with pytest.raises(FencedError):
        store.commit(tick_write(store, old, view_write(view, [("ann", 1, ONE, 1, ONE)])))
    assert store.last_tick() == 0
    store.commit(tick_write(store, new, view_write(view, [("ann", 1, ONE, 1, ONE)])))


def test_a_claim_survives_reopening(open_backend: Opener) -> None:
    first = open_backend()
    generation = first.claim()
    first.close()
    assert open_backend().claim() > generation


def test_a_tick_must_follow_the_last(store: Store) -> None:
    generation = store.claim()
    with pytest.raises(StoreError, match="does not follow"):
        store.commit(TickWrite(5, generation, 0, ()))


def test_a_tick_without_views_is_recorded(store: Store) -> None:
    store.commit(tick_write(store, store.claim()))
    assert store.ledger(5).num_rows == 1


def test_data_that_cannot_be_merged_names_the_view_and_stores_nothing(store: Store) -> None:
    good, bad = sales("good"), sales("bad", partials=(("n", "sum", "BIGINT", 'sum("n")'),),
                                     finals=(("n", "BIGINT", '"n"'),))  # fmt: skip
    for view in (good, bad):
        store.create_view(view, {0: 0})
    generation = store.claim()
    largest = 2**63 - 1
    fine = view_write(good, [("ann", 1, ONE, 1, ONE)], offsets={0: 1})
    store.commit(tick_write(store, generation, fine, view_write(bad, [("ann", 1, largest)])))
    with pytest.raises(MergeError) as caught:
        store.commit(
            tick_write(store, generation, fine, view_write(bad, [("ann", 1, 1), ("b", 1, 2)]))
        )
    assert caught.value.view == "bad"
    assert store.last_tick() == 1
    assert rows_of(store, "SELECT payments FROM good") == [(1,)]
    store.commit(tick_write(store, generation, fine, view_write(bad, [("b", 1, 2)])))
    assert rows_of(store, "SELECT payments FROM good") == [(2,)]
    assert sorted(rows_of(store, "SELECT n FROM bad")) == [(2,), (largest,)]


def test_a_changed_definition_is_refused_and_a_rebuild_starts_empty(open_backend: Opener) -> None:
    store = open_backend()
    view = sales(distincts={"cards": "BIGINT"})
    store.create_view(view, {0: 3})
    row = ("ann", 1, ONE, 1, ONE)
    store.commit(tick_write(store, store.claim(), view_write(view, [row], offsets={0: 9})))
    with pytest.raises(StoreError, match="already"):
        store.create_view(sales("SALES"), {})
    store.close()
    store = open_backend()
    changed = sales(fingerprint="f2")
    with pytest.raises(ViewChangedError) as caught:
        store.open_view(changed)
    assert "rebuild sales" in caught.value.hint
    assert rows_of(store, "SELECT payments FROM sales") == [(1,)]
    store.drop_view("sales")
    with pytest.raises(QueryError):
        store.read_view("sales", {}, [], 10, None)
    assert store.catalog() == {}
    store.create_view(changed, {0: 0})
    assert store.catalog()["sales"].next_offsets == {0: 0}
    assert store.catalog()["sales"].totals == Counts()
    assert rows_of(store, "SELECT * FROM sales") == []
    store.commit(tick_write(store, store.claim(), view_write(changed, [row])))
    assert rows_of(store, "SELECT payments FROM sales") == [(1,)]


def test_a_view_that_is_not_open_cannot_be_written(open_backend: Opener) -> None:
    store = open_backend()
    store.create_view(sales(), {})
    store.close()
    store = open_backend()
    with pytest.raises(StoreError, match="not open"):
        store.commit(tick_write(store, store.claim(), view_write(sales(), None)))


def test_a_second_opening_is_refused(open_backend: Opener) -> None:
    open_backend()
    with pytest.raises(StoreLockedError):
        open_backend()


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.duckdb"
    store = open_store(file, StoreSettings())
    store.claim()
    store.close()
    open_store(file, StoreSettings()).close()
    with duckdb.connect(str(file)) as connection:
        connection.execute("DELETE FROM _headrace.numbers WHERE name = 'format'")
    with pytest.raises(StoreError, match="another version") as caught:
        open_store(file, StoreSettings())
    assert "filled again from the log" in caught.value.hint


def test_answers_carry_the_tick_they_saw(store: Store) -> None:
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    assert store.query("SELECT 1").freshness.tick == 0
    for tick in (1, 2):
        store.commit(tick_write(store, generation, view_write(view, [("a", 1, ONE, 1, ONE)])))
        assert store.query("SELECT * FROM sales").freshness.tick == tick
        page = store.read_view("sales", {}, [], 1, None)
        assert page.freshness.tick == tick
        assert page.freshness.committed_at_microseconds > 1_700_000_000_000_000


def test_metrics_name_views_bytes_and_queries(store: Store, backend: str) -> None:
    view = sales()
    store.create_view(view, {})
    store.commit(tick_write(store, store.claim(), view_write(view, [("a", 1, ONE, 1, ONE)])))
    metrics = store.metrics()
    assert metrics["view_rows"] == {"sales": 1}
    bytes_stored = metrics["file_bytes"] + metrics["write_ahead_bytes"]
    assert (bytes_stored > 0) == (backend != "memory")
    assert metrics["queries_running"] == 0
    assert metrics["tick"] == 1


def test_a_tick_counts_once_though_what_follows_its_commit_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = sales()
    store.create_view(view, {0: 0})
    generation = store.claim()

    def fails(*_: object) -> None:
        monkeypatch.undo()
        raise duckdb.OutOfMemoryException("failed to allocate")

    for _ in range(3):
        monkeypatch.setattr("headrace.store.dedup_keys.DedupKeys.accept", fails)
        write = tick_write(store, generation, view_write(view, [("ann", 1, ONE, 1, ONE)]))
        store.commit(write)
        assert store.last_tick() == write.tick
    assert rows_of(store, "SELECT payments FROM sales") == [(3,)]
    assert store.ledger(1_000).column("tick").to_pylist() == [3, 2, 1]


def test_a_closed_view_is_not_read_until_it_is_opened_again(open_backend: Opener) -> None:
    store = open_backend()
    view = sales()
    store.create_view(view, {0: 0})
    store.commit(tick_write(store, store.claim(), view_write(view, [("ann", 1, ONE, 1, ONE)])))
    store.set_status("sales", ViewStatus("removed", "it is gone"))
    for read in (
        lambda: store.read_view("sales", {}, [], 10, None),
        lambda: store.describe("sales"),
        lambda: store.changes("sales", 0, 10),
        lambda: store.query("SELECT * FROM sales"),
    ):
        with pytest.raises(QueryError):
            read()
    store.close()
    store = open_backend()
    store.open_view(view)
    store.set_status("sales", ViewStatus("live"))
    assert rows_of(store, "SELECT payments FROM sales") == [(1,)]
    assert store.read_view("sales", {}, [], 10, None).table.num_rows == 1
