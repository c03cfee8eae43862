"""Random events in random ticks, out of order and tied, give the groups that one walk over all of
them gives; and the changes replayed give the view."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import bound_view, rows_of, tick_write

from headrace.model.plan import BoundView, EventGroup
from headrace.model.settings import StoreSettings
from headrace.store.contract import Counts, Store, ViewChange, ViewWrite
from headrace.store.duck import open_store

FINALS = ("key", "since", "up_to", "events", "total", "n", "cards", "taken")


@dataclass(frozen=True)
class Event:
    key: str | None
    partition: int
    offset: int
    time: int
    opens: bool
    closes: bool
    value: int | None
    card: str | None
    is_late: bool


def grouped_view(timeout: int) -> BoundView:
    view = bound_view(
        "groups",
        keys={"key": "STRING"},
        partials=(
            ("total", "sum", "BIGINT", 'sum("total")'),
            ("n", "count", "BIGINT", 'sum("n")'),
        ),
        distincts={"cards": "STRING"},
        finals=(
            ("key", "STRING", '"key"'),
            ("since", "BIGINT", 'epoch_us("window_start")'),
            ("up_to", "BIGINT", 'epoch_us("window_end")'),
            ("events", "BIGINT", '"_rows"'),
            ("total", "BIGINT", '"total"'),
            ("n", "BIGINT", '"n"'),
            ("cards", "BIGINT", '"cards"'),
            ("taken", "BIGINT", '"revision"'),
        ),
    )
    return replace(view, plan=replace(view.plan, window=EventGroup("o", "c", timeout)))


def partials_of(events: list[Event]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "key": e.key,
                "_pane": e.time,
                "_passed": 0,
                "_late": int(e.is_late),
                "_beyond": 0,
                "_event_partition": e.partition,
                "_event_offset": e.offset,
                "_opens": e.opens,
                "_closes": e.closes,
                "_rows": 1,
                "total": e.value,
                "n": int(e.value is not None),
                "cards": e.card,
            }
            for e in events
        ]
    )


def model(events: list[Event], timeout: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for key in {e.key for e in events}:
        mine = [e for e in events if e.key == key]
        group: list[Event] = []
        for event in sorted(mine, key=lambda e: (e.time, e.partition, e.offset)):
            if group and event.time >= group[0].time + timeout:
                found[_row(group, timeout)] += 1
                group = []
            if group or event.opens:
                group.append(event)
            if group and event.closes:
                found[_row(group, timeout)] += 1
                group = []
        if group:
            found[_row(group, timeout)] += 1
    return found


def _row(group: list[Event], timeout: int) -> tuple[Any, ...]:
    values = [e.value for e in group if e.value is not None]
    end = group[-1].time if group[-1].closes else group[0].time + timeout
    return (
        group[0].key,
        group[0].time,
        end,
        len(group),
        sum(values) if values else None,
        len(values),
        len({e.card for e in group if e.card is not None}),
        sum(e.is_late for e in group),
    )


def shown(store: Store) -> Counter[tuple[Any, ...]]:
    return Counter(rows_of(store, f"SELECT {', '.join(FINALS)} FROM groups"))


def replayed(kept: Counter[tuple[Any, ...]], changes: list[ViewChange]) -> None:
    for change in changes:
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
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ticks=st.lists(st.lists(RAW, min_size=1, max_size=8), min_size=1, max_size=8),
    timeout=st.sampled_from([1, 6, 100]),
    data=st.data(),
)
def test_groups_are_those_of_one_walk(
    ticks: list[list[tuple[Any, ...]]], timeout: int, data: st.DataObject
) -> None:
    view = grouped_view(timeout)
    offsets = [0, 0]
    events: list[Event] = []
    kept: Counter[tuple[Any, ...]] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "store.duckdb"
        store = open_store(file, StoreSettings())
        store.create_view(view, {})
        generation = store.claim()
        for raw in ticks:
            staged = []
            for key, partition, *rest in raw:
                staged.append(Event(key, partition, offsets[partition], *rest))
                offsets[partition] += 1
            events += staged
            counts = Counts(read=len(staged), applied=len(staged))
            write = ViewWrite("groups", partials_of(staged), {}, {}, counts, None)
            replayed(kept, list(store.commit(tick_write(store, generation, write))))
            assert kept == model(events, timeout)
            assert kept == shown(store)
            if data.draw(st.booleans(), label="reopen"):
                store.close()
                store = open_store(file, StoreSettings())
                store.open_view(view)
                generation = store.claim()
        store.drop_view("groups")
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
