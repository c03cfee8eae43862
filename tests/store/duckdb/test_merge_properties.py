"""Random events in random ticks give what one pass over all events gives.

The oracle is plain Python over the events; nothing of the store's merge is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from fed_store import fed_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from payment_cases import Event, events_of, summary, summed_view
from store_cases import HOPPING, SECOND, TUMBLING, view_write

from headrace.model.plan import BoundView, Window
from headrace.store.contract import ViewWrite
from headrace.store.duckdb import merge
from headrace.store.duckdb.schema import ViewSchema

ODD = Window(7 * SECOND, 3 * SECOND, -2 * SECOND, 1 * SECOND)
SLIDING = Window(6 * SECOND, 2 * SECOND, 0, 2 * SECOND)
WINDOWS = (None, TUMBLING, HOPPING, ODD, SLIDING)
EVENTS = events_of(st.integers(-20, 40), st.integers(0, 3), st.integers(0, 3))
TICKS = st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=8)


def pane_of(window: Window, event: Event) -> int:
    offset = event.time - window.origin_microseconds
    return event.time - offset % window.pane_microseconds


def starts_of(window: Window, event: Event) -> list[int]:
    """By trying every start, not by arithmetic."""
    time = event.time
    candidates = range(
        window.origin_microseconds - 100 * window.slide_microseconds,
        window.origin_microseconds + 100 * window.slide_microseconds,
        window.slide_microseconds,
    )
    return [s for s in candidates if s <= time < s + window.size_microseconds]


def expected(view: BoundView, events: Sequence[Event]) -> Counter[Any]:
    window = view.plan.window
    groups: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    revisions: Counter[Any] = Counter()
    if view.plan.is_global and window is None:
        groups[()] = []
    for event in events:
        key = () if view.plan.is_global else (event.key,)
        if window is None:
            groups[key].append(event)
            continue
        for place, start in enumerate(starts_of(window, event)):
            if place < min(event.beyond, event.late):
                continue
            group = (*key, start, start + window.size_microseconds)
            groups[group].append(event)
            revisions[group] += place < event.late
    rows: Counter[Any] = Counter()
    for group, members in groups.items():
        shown = (revisions[group], False) if window else ()
        values = summary(members)
        if view.having is None or values[1] > 1:
            rows[(*group, *values, *shown)] += 1
    return rows


def partials_of(view: BoundView, events: Sequence[Event]) -> ViewWrite:
    """As the engine would: one row per key, pane and lateness."""
    window = view.plan.window
    groups: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    values = []
    for event in events:
        key = () if view.plan.is_global else (event.key,)
        pane = (pane_of(window, event),) if window else ()
        late: tuple[int, ...] = ()
        if window:
            passed = min(event.late, len(starts_of(window, event)))
            late = (passed, min(event.beyond, passed))
        groups[(*key, *pane, *late)].append(event)
        values.append((*key, *pane, *late[1:], event.card))
    rows = [
        (*group, len(events), total, n, least)
        for group, events in groups.items()
        for _, n, least, _, total in [summary(events)]
    ]
    return view_write(view, rows or None, values={"cards": values})


@pytest.mark.parametrize("way", ["recent", "few recent", "scan", "index", "index colliding"])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    ticks=TICKS,
    window=st.sampled_from(WINDOWS),
    is_global=st.booleans(),
    having=st.sampled_from([None, '"n" > 1']),
    reopen_at=st.integers(0, 8),
)
def test_ticks_equal_one_batch(
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    ticks: list[list[Event]],
    window: Window | None,
    is_global: bool,
    having: str | None,
    reopen_at: int,
) -> None:
    recent_rows_max = {"recent": 4_096, "few recent": 6}.get(way, 0)
    monkeypatch.setattr(merge, "RECENT_ROWS_MAX", recent_rows_max)
    monkeypatch.setattr(merge, "INDEX_ROWS_MIN", 0 if "index" in way else 1_000_000)
    if way == "index colliding":
        monkeypatch.setattr(ViewSchema, "hash_sql", lambda self: "7::UBIGINT")
    if "index" in way:  # only views by key alone have one
        window, is_global = None, False
    is_global = is_global and window is None
    view = summed_view(window, is_keyed=not is_global, having=having, total="DECIMAL(20,2)")
    done: list[Event] = []
    with fed_store(backend, view) as fed:
        for number, events in enumerate(ticks):
            if number == reopen_at:
                fed.reopen()
            fed.tick(partials_of(view, events))
            if number == 0:
                fed.store.checkpoint()
            done += events
            fed.check(expected(view, done))
