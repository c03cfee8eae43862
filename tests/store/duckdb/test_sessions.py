"""Random events in random ticks give the sessions that one look at all events gives, and leave no
row of a session behind that became part of another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from fed_store import fed_store
from hypothesis import given, settings
from hypothesis import strategies as st
from payment_cases import Event, events_of, summary, summed_view
from store_cases import SECOND, rows_of, tick_write

from headrace.model.plan import BoundView, SessionWindow
from headrace.store.contract import Counts, Store, ViewWrite

GAP = 3 * SECOND
WINDOW = SessionWindow(GAP)
TICKS = st.lists(
    st.lists(
        events_of(st.integers(-15, 30), st.integers(0, 1), st.sampled_from([0, 0, 0, 0, 1, -1])),
        max_size=6,
    ),
    min_size=1,
    max_size=10,
)


def write_of(view: BoundView, events: Sequence[Event]) -> ViewWrite:
    """As the engine would: one row per key, pane, lateness and what is set aside."""
    panes: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        key = (event.key,) if view.keys else ()
        panes[(*key, event.time // GAP * GAP, event.late, event.beyond)].append(event)
    partials = [
        (*group, rows, min(e.time for e in found), max(e.time for e in found), total, n, least)
        for group, found in panes.items()
        for rows, n, least, _, total in [summary(found)]
    ]
    values = [(*group, event.card) for group, found in panes.items() for event in found]
    keys = [(column.name, column.type.arrow) for column in view.keys]
    pane = [("_pane", pa.int64()), ("_late", pa.int32()), ("_beyond", pa.int32())]
    bounds = [("_rows", pa.int64()), ("_first", pa.int64()), ("_last", pa.int64())]
    numbers = [(name, pa.int64()) for name in ("total", "n", "least")]
    return ViewWrite(
        view.name,
        _table(partials, [*keys, *pane, *bounds, *numbers]) if partials else None,
        {"cards": _table(values, [*keys, *pane, ("value", pa.string())])},
        {},
        Counts(read=len(events), applied=len(events)),
        None,
    )


def _table(rows: Sequence[tuple[Any, ...]], columns: list[tuple[str, pa.DataType]]) -> pa.Table:
    schema = pa.schema(columns)
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def sessions_of(events: Sequence[Event]) -> list[list[Event]]:
    ordered = sorted(events, key=lambda event: event.time)
    found = [ordered[:1]] if ordered else []
    for before, event in pairwise(ordered):
        if event.time - before.time <= GAP:
            found[-1].append(event)
        else:
            found.append([event])
    return found


def expected(view: BoundView, events: Sequence[Event], watermark: int = 0) -> Counter[Any]:
    """Of a view that emits on close those sessions that the watermark has passed."""
    by_key: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        if event.beyond <= 0:
            by_key[(event.key,) if view.keys else ()].append(event)
    rows: Counter[Any] = Counter()
    for key, members in by_key.items():
        for session in sessions_of(members):
            values = summary(session)
            bounds = session[0].time, session[-1].time + GAP
            revision = sum(event.late for event in session)
            closes = view.plan.emits_on_close
            if (view.having is None or values[1] > 1) and (not closes or bounds[1] <= watermark):
                rows[(*key, *bounds, *values, revision, closes)] += 1
    return rows


def pages(store: Store, rows: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    cursor = None
    while True:
        page = store.read_view("random", {}, [], rows, cursor)
        found.update(tuple(row.values()) for row in page.table.to_pylist())
        cursor = page.next_cursor
        if cursor is None:
            return found


@settings(max_examples=15, deadline=None)
@given(
    ticks=TICKS,
    is_keyed=st.booleans(),
    having=st.sampled_from([None, '"n" > 1']),
    reopen_at=st.integers(0, 10),
    closing_seconds=st.none() | st.integers(0, 6),
)
def test_ticks_equal_one_look_at_all_events(
    backend: str,
    ticks: list[list[Event]],
    is_keyed: bool,
    having: str | None,
    reopen_at: int,
    closing_seconds: int | None,
) -> None:
    """`closing_seconds`: the view emits on close, and each tick moves the watermark so far."""
    view = summed_view(WINDOW, is_keyed=is_keyed, having=having)
    if closing_seconds is not None:
        view = replace(view, plan=replace(view.plan, emits_on_close=True))
    done: list[Event] = []
    with fed_store(backend, view) as fed:
        for number, events in enumerate(ticks):
            if number == reopen_at:
                fed.reopen()
            write, watermark = write_of(view, events), 0
            if closing_seconds is not None:
                watermark = (number + 1) * closing_seconds * SECOND
                write = replace(write, watermark_microseconds=watermark)
            fed.tick(write)
            done += events
            wanted = expected(view, done, watermark)
            fed.check(wanted)
        assert pages(fed.store, 2) == wanted
        if any(ticks[reopen_at:]) or reopen_at >= len(ticks):  # else it is an estimate
            assert fed.store.metrics()["view_rows"]["random"] == wanted.total()


def test_sessions_that_an_event_joins_become_one_row(store: Store) -> None:
    view = summed_view(WINDOW)
    store.create_view(view, {})
    generation = store.claim()
    apart = [Event("a", 0, 1, "x"), Event("a", 4, 2, "x"), Event("a", 8, 3, "y")]
    store.commit(tick_write(store, generation, write_of(view, apart)))
    joining = [Event("a", 2, 4, "x", late=1)]
    (change,) = store.commit(tick_write(store, generation, write_of(view, joining)))
    ends = [(row["window_start"], row["window_end"]) for row in change.before.to_pylist()]
    assert sorted(ends) == [(0, 3 * SECOND), (4 * SECOND, 7 * SECOND)]
    assert [tuple(row.values()) for row in change.after.to_pylist()] == [
        ("a", 0, 7 * SECOND, 3, 3, 1, 1, 7, 1, False)
    ]


@pytest.mark.parametrize("emits_on_close", [False, True])
def test_each_row_is_final_by_its_own_end(store: Store, emits_on_close: bool) -> None:
    """An open session takes in one that was final and one that was not, then is passed itself."""
    view = summed_view(WINDOW)
    view = replace(view, plan=replace(view.plan, emits_on_close=emits_on_close))
    store.create_view(view, {})
    generation = store.claim()

    def tick(events: Sequence[Event], second: int) -> list[list[tuple[int, int, bool]]]:
        write = replace(write_of(view, events), watermark_microseconds=second * SECOND)
        changes = store.commit(tick_write(store, generation, write))
        return [
            sorted(
                (row["window_start"] // SECOND, row["window_end"] // SECOND, row["final"])
                for row in rows.to_pylist()
            )
            for change in changes
            for rows in (change.before, change.after)
        ]

    first, second = (0, 3, True), (4, 7, False)
    shown = [first] if emits_on_close else [first, second]
    assert tick([Event("a", 0, 1, "x"), Event("a", 4, 2, "x")], 3) == [[], shown]
    joined = [] if emits_on_close else [(0, 7, False)]
    assert tick([Event("a", 2, 4, "x")], 5) == [shown, joined]
    late = tick([Event("a", -2, 4, "x", late=1), Event("b", 9, 1, "y")], 8)
    other = [] if emits_on_close else [(9, 12, False)]
    assert late == [joined, [(-2, 7, True), *other]]
    assert tick([Event("a", 5, 4, "x", late=1)], 8) == [[(-2, 7, True)], [(-2, 8, True)]]


@pytest.mark.parametrize(("second", "sessions"), [(3, 1), (4, 2)])
def test_events_exactly_a_gap_apart_are_together(store: Store, second: int, sessions: int) -> None:
    view = summed_view(WINDOW)
    store.create_view(view, {})
    generation = store.claim()
    for event in (Event("a", 0, 1, None), Event("a", second, 1, None)):
        store.commit(tick_write(store, generation, write_of(view, [event])))
    assert len(rows_of(store, "SELECT * FROM random")) == sessions


def test_a_tick_of_events_set_aside_changes_nothing(store: Store) -> None:
    view = summed_view(WINDOW)
    store.create_view(view, {})
    aside = [Event("a", 0, 1, "x", late=1, beyond=1)]
    assert not store.commit(tick_write(store, store.claim(), write_of(view, aside)))
    assert rows_of(store, "SELECT * FROM random") == []
