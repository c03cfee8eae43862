"""Random events in random ticks, out of order and tied, give the groups that one walk over all of
them gives; and the changes replayed give the view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fed_store import fed_store
from group_cases import FINALS, Event, grouped_view, model, write_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import tick_write

from headrace.store.contract import Store, ViewChange

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
    backend: str, ticks: list[list[tuple[Any, ...]]], timeout: int, data: st.DataObject
) -> None:
    """Also of a view that publishes a group when it is final, and takes that back where the group
    then ends later: what it shows is what its changes add up to, and final."""
    view = grouped_view(timeout)
    closed = replace(view, plan=replace(view.plan, view="closed", emits_on_close=True))
    offsets = [0, 0]
    events: list[Event] = []
    watermark = data.draw(st.integers(0, 10), label="watermark")
    with fed_store(backend, view, closed, columns=FINALS) as fed:
        for raw in ticks:
            staged = []
            for key, partition, *rest in raw:
                staged.append(Event(key, partition, offsets[partition], *rest))
                offsets[partition] += 1
            events += staged
            watermark += data.draw(st.integers(0, 15), label="watermark moves")
            writes = [write_of(staged, watermark, name) for name in ("groups", "closed")]
            changes = fed.tick(*writes)
            fed.check(model(events, timeout))
            fed.check(model(events, timeout, watermark), "closed")
            assert all(
                all(rows.column("final").to_pylist())
                for change in changes
                if change.view == "closed"
                for rows in (change.before, change.after)
            )
            if data.draw(st.booleans(), label="reopen"):
                fed.reopen()
        for one in (view, closed):
            fed.store.drop_view(one.name)


def commit(store: Store, generation: int, events: list[Event]) -> ViewChange:
    (change,) = store.commit(tick_write(store, generation, write_of(events)))
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


def test_a_group_that_begins_when_another_ends_is_told_from_its_last_event(backend: str) -> None:
    ending = Event("a", 0, 1, 25, True, True, None, None, False)  # it could open a group as well
    ticks = [
        [Event("a", 0, 0, 10, True, False, None, None, False), ending],
        [Event("a", 1, 0, 25, True, False, None, None, False)],
        [Event("a", 0, 2, 26, False, True, None, None, False)],
    ]
    events: list[Event] = []
    with fed_store(backend, grouped_view(100), columns=FINALS) as fed:
        for staged in ticks:
            events += staged
            fed.tick(write_of(staged))
            fed.check(model(events, 100))
