"""Random events in random ticks, out of order and tied, give the groups that one walk over all of
them gives; and the changes replayed give the view."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from group_cases import FINALS, Event, grouped_view, model, partials_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import rows_of, tick_write

from headrace.model.settings import StoreSettings
from headrace.store.contract import Counts, Store, ViewChange, ViewWrite
from headrace.store.duck import open_store


def shown(store: Store, view: str = "groups") -> Counter[tuple[Any, ...]]:
    return Counter(rows_of(store, f"SELECT {', '.join(FINALS)} FROM {view}"))


def replayed(
    kept: Counter[tuple[Any, ...]], changes: Sequence[ViewChange], view: str = "groups"
) -> None:
    for change in (change for change in changes if change.view == view):
        for rows, sign in ((change.before, -1), (change.after, 1)):
            for row in rows.select(FINALS).to_pylist():
                kept[tuple(row.values())] += sign
    assert min(kept.values(), default=0) >= 0
    for row in [row for row, number in kept.items() if number == 0]:
        del kept[row]


RAW = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.integers(0, 1),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(-9, 9),
    st.sampled_from(["x", "y", None]),
    st.booleans(),
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ticks=st.lists(st.lists(RAW, max_size=8), min_size=1, max_size=8),
    timeout=st.sampled_from([1, 6, 100]),
    data=st.data(),
)
def test_groups_are_those_of_one_walk(
    ticks: list[list[tuple[Any, ...]]], timeout: int, data: st.DataObject
) -> None:
    """Also of a view that publishes a group when it is final, and takes that back where the group
    then ends later: what it shows is what its changes add up to, and final."""
    view = grouped_view(timeout)
    closed = replace(view, plan=replace(view.plan, view="closed", emits_on_close=True))
    offsets = [0, 0]
    events: list[Event] = []
    kept: Counter[tuple[Any, ...]] = Counter()
    kept_closed: Counter[tuple[Any, ...]] = Counter()
    watermark = data.draw(st.integers(0, 10), label="watermark")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "store.duckdb"
        store = open_store(file, StoreSettings())
        for one in (view, closed):
            store.create_view(one, {})
        generation = store.claim()
        for raw in ticks:
            staged = []
            for key, partition, *rest in raw:
                staged.append(Event(key, partition, offsets[partition], *rest))
                offsets[partition] += 1
            events += staged
            watermark += data.draw(st.integers(0, 15), label="watermark moves")
            counts = Counts(read=len(staged), applied=len(staged))
            writes = [
                ViewWrite(name, partials_of(staged) if staged else None, {}, {}, counts, watermark)
                for name in ("groups", "closed")
            ]
            changes = store.commit(tick_write(store, generation, *writes))
            replayed(kept, changes)
            replayed(kept_closed, changes, "closed")
            assert kept == model(events, timeout)
            assert kept == shown(store)
            assert kept_closed == model(events, timeout, watermark)
            assert kept_closed == shown(store, "closed")
            assert all(
                all(rows.column("final").to_pylist())
                for change in changes
                if change.view == "closed"
                for rows in (change.before, change.after)
            )
            if data.draw(st.booleans(), label="reopen"):
                store.close()
                store = open_store(file, StoreSettings())
                for one in (view, closed):
                    store.open_view(one)
                generation = store.claim()
        for one in (view, closed):
            store.drop_view(one.name)
        store.close()


def commit(store: Store, generation: int, events: list[Event]) -> ViewChange:
    counts = Counts(read=len(events), applied=len(events))
    write = ViewWrite("groups", partials_of(events), {}, {}, counts, None)
    (change,) = store.commit(tick_write(store, generation, write))
    return change


def test_an_event_that_splits_a_group_takes_the_old_row_back(store: Store) -> None:
    """And groups after it that have the same events as before stay where they are."""
    store.create_view(grouped_view(100), {})
    generation = store.claim()

    def event(offset: int, time: int, opens: bool = False, closes: bool = False) -> Event:
        return Event("a", 0, offset, time, opens, closes, 1, None, False)

    first = [event(0, 0, opens=True), event(1, 10, opens=True), event(2, 20, closes=True)]
    later = [event(3, 50, opens=True), event(4, 60, closes=True)]
    assert commit(store, generation, [*first, *later]).after.num_rows == 2
    change = commit(store, generation, [event(5, 5, closes=True)])
    assert change.before.select(["since", "up_to"]).to_pylist() == [{"since": 0, "up_to": 20}]
    assert sorted(change.after.column("since").to_pylist()) == [0, 10]


@pytest.mark.parametrize("timeout", [10])
def test_a_group_that_is_no_more_is_taken_back(store: Store, timeout: int) -> None:
    store.create_view(grouped_view(timeout), {})
    generation = store.claim()
    opening = Event("a", 0, 0, 12, True, False, 1, None, False)
    commit(store, generation, [opening])
    earlier = Event("a", 0, 1, 5, True, False, 1, None, False)
    change = commit(store, generation, [earlier])
    assert change.before.column("since").to_pylist() == [12]
    assert change.after.column("since").to_pylist() == [5]
    assert change.after.column("events").to_pylist() == [2]


def test_a_group_that_begins_when_another_ends_is_told_from_its_last_event(store: Store) -> None:
    view = grouped_view(100)
    store.create_view(view, {})
    generation = store.claim()
    ending = Event("a", 0, 1, 25, True, True, None, None, False)  # it could open a group as well
    ticks = [
        [Event("a", 0, 0, 10, True, False, None, None, False), ending],
        [Event("a", 1, 0, 25, True, False, None, None, False)],
        [Event("a", 0, 2, 26, False, True, None, None, False)],
    ]
    events: list[Event] = []
    for staged in ticks:
        events += staged
        counts = Counts(read=len(staged), applied=len(staged))
        write = ViewWrite("groups", partials_of(staged), {}, {}, counts, None)
        store.commit(tick_write(store, generation, write))
        assert shown(store) == model(events, 100)
