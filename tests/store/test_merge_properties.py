"""Random events in random ticks give what one pass over all events gives.

The oracle is plain Python over the events; nothing of the store's merge is used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from fed_store import fed_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import HOPPING, SECOND, TUMBLING, bound_view, view_write

from headrace.model.plan import BoundView, Window
from headrace.store import merge
from headrace.store.contract import ViewWrite
from headrace.store.schema import ViewSchema

ODD = Window(7 * SECOND, 3 * SECOND, -2 * SECOND, 1 * SECOND)
SLIDING = Window(6 * SECOND, 2 * SECOND, 0, 2 * SECOND)
WINDOWS = (None, TUMBLING, HOPPING, ODD, SLIDING)


@dataclass(frozen=True)
class Event:
    key: str | None
    second: int
    amount: int | None
    card: str | None
    late: int
    beyond: int


EVENTS = st.builds(
    Event,
    key=st.sampled_from(["a", "b", None]),
    second=st.integers(-20, 40),
    amount=st.none() | st.integers(-9, 9),
    card=st.sampled_from(["x", "y", "z", None]),
    late=st.integers(0, 3),
    beyond=st.integers(0, 3),
)
TICKS = st.lists(st.lists(EVENTS, max_size=8), min_size=1, max_size=8)


def view_of(window: Window | None, *, is_global: bool, having: str | None) -> BoundView:
    keys = {} if is_global else {"key": "STRING"}
    bounds = ("window_start", "window_end") if window else ()
    columns = [(name, "STRING", f'"{name}"') for name in keys]
    columns += [(name, "BIGINT", f'epoch_us("{name}")') for name in bounds]
    columns += [(name, "BIGINT", f'"{name}"') for name in ("_rows", "n", "least", "cards")]
    columns.append(("total", "DECIMAL(20,2)", '"total"'))
    return bound_view(
        "random",
        keys=keys,
        window=window,
        partials=(
            ("total", "sum", "DECIMAL(20,2)", 'sum("total")'),
            ("n", "count", "BIGINT", 'sum("n")'),
            ("least", "min", "BIGINT", 'min("least")'),
        ),
        distincts={"cards": "STRING"},
        finals=columns,
        having=having,
        is_global=is_global,
    )


def pane_of(window: Window, event: Event) -> int:
    offset = event.second * SECOND - window.origin_microseconds
    return event.second * SECOND - offset % window.pane_microseconds


def starts_of(window: Window, event: Event) -> list[int]:
    """By trying every start, not by arithmetic."""
    time = event.second * SECOND
    candidates = range(
        window.origin_microseconds - 100 * window.slide_microseconds,
        window.origin_microseconds + 100 * window.slide_microseconds,
        window.slide_microseconds,
    )
    return [s for s in candidates if s <= time < s + window.size_microseconds]


def summary(events: Sequence[Event]) -> tuple[int, int, int | None, int, Decimal | None]:
    amounts = [event.amount for event in events if event.amount is not None]
    cards = {event.card for event in events if event.card is not None}
    total = Decimal(sum(amounts)).quantize(Decimal("0.01")) if amounts else None
    return len(events), len(amounts), min(amounts, default=None), len(cards), total


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
    view = view_of(window, is_global=is_global, having=having)
    done: list[Event] = []
    with fed_store(view) as fed:
        for number, events in enumerate(ticks):
            if number == reopen_at:
                fed.reopen()
            fed.tick(partials_of(view, events))
            if number == 0:
                fed.store.checkpoint()
            done += events
            fed.check(expected(view, done))
