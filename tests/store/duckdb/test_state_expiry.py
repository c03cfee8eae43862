"""What a view keeps beside its rows goes when nothing to come can change them, and no row, and no
verdict on a late event, is another for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fed_store import fed_store
from group_cases import (
    FINALS,
    Event,
    grouped_view,
    groups_in,
    model,
    partials_of,
    passed_from,
    write_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from store_backends import counted
from store_cases import SECOND, rows_of, tick_write, view_write, windowed_sales

from headrace.engine.event_group_lateness import KeyGroups, resolve_groups
from headrace.engine.late_windows import JoinedWindows
from headrace.kinds import state_table
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import BoundView
from headrace.spark.event_annotations import lateness_column
from headrace.store.contract import Counts, Store

DROPPING = Stream("events", (), late_policy=LatePolicy.DROP)
DELAY = 5
RAW = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 60), st.booleans(), st.booleans())


@pytest.fixture(autouse=True)
def every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)


class Log:
    """Events in one partition, each with the watermark before it."""

    def __init__(self) -> None:
        self.offset, self.highest = 0, -1_000

    def add(self, raw: list[tuple[Any, ...]]) -> list[tuple[Event, int]]:
        found = []
        for key, time, opens, closes in raw:
            event = Event(key, 0, self.offset, time, opens, closes, 1, None, False)
            found.append((event, self.watermark))
            self.offset += 1
            self.highest = max(self.highest, time)
        return found

    @property
    def watermark(self) -> int:
        return self.highest - DELAY


def resolve(
    store: Store, view: BoundView, staged: list[tuple[Event, int]]
) -> tuple[list[Event], JoinedWindows]:
    """The events that are applied, as the engine finds them, and the groups the others missed."""
    table = partials_of([event for event, _ in staged])
    late = pa.array([None if e.time < mark else 0 for e, mark in staged], pa.int32())
    marks = pa.array([mark for _, mark in staged], pa.int64())
    for name, values in (("_late", late), ("_passed", marks)):
        table = table.set_column(table.column_names.index(name), name, values)
    near = store.near_events("groups", table)
    assert near is not None
    found, joined = resolve_groups(view.plan, DROPPING, near, {})
    offsets, judged = found.columns[lateness_column("groups")].get(0, (np.array([]), np.array([])))
    verdicts = dict(zip(offsets.tolist(), judged.tolist(), strict=True))
    return [event for event, _ in staged if not verdicts.get(event.offset)], joined


@settings(max_examples=12, deadline=None)
@given(
    ticks=st.lists(st.lists(RAW, min_size=1, max_size=8), min_size=1, max_size=8),
    timeout=st.sampled_from([1, 6, 20]),
)
def test_groups_and_verdicts_are_those_with_all_events(
    backend: str, ticks: list[list[tuple[Any, ...]]], timeout: int
) -> None:
    view, log = grouped_view(timeout), Log()
    applied: list[Event] = []
    missed: dict[tuple[int, int], tuple[int, int]] = {}
    with fed_store(backend, view, columns=FINALS) as fed:
        for number, raw in enumerate(ticks):
            shift = number * 8  # so that event time goes on
            staged = log.add([(key, time + shift, *kind) for key, time, *kind in raw])
            taken, joined = resolve(fed.store, view, staged)
            for event, mark in staged:
                mine = [g for g in groups_in([*applied, event], timeout) if event in g]
                if mine and passed_from(mine[0], timeout) <= mark:
                    own = mine[0][0] is event and not event.closes
                    end = mine[0][-1].time if mine[0][-1].closes else mine[0][0].time + timeout
                    end = event.time + timeout if own else end
                    missed[(0, event.offset)] = (mine[0][0].time, end)
                else:
                    applied.append(event)
            assert taken == [event for event in applied if event in taken]
            assert {event.offset for event in applied} >= {event.offset for event in taken}
            assert len([e for e in applied if e.offset >= staged[0][0].offset]) == len(taken)
            assert joined.by_place == {
                place: missed[place] for place in missed if place[1] >= staged[0][0].offset
            }
            fed.tick(replace(write_of(taken, log.watermark), state_expiry={0: log.watermark}))
            fed.check(model(applied, timeout))
            assert counted(fed.store, "groups", 1) == kept_by(applied, timeout, log.watermark)


def kept_by(events: list[Event], timeout: int, settled: int) -> int:
    groups = groups_in(events, timeout)
    open_ = [g for g in groups if passed_from(g, timeout) > settled]
    grouped = {event for group in groups for event in group}
    loose = [e for e in events if e not in grouped and e.time + timeout > settled]
    return sum(map(len, open_)) + len(loose)


@settings(max_examples=200, deadline=None)
@given(
    raw=st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=30),
    timeout=st.sampled_from([1, 6, 100]),
)
def test_groups_of_a_key_are_those_of_a_walk(
    raw: list[tuple[int, bool, bool]], timeout: int
) -> None:
    known = KeyGroups(timeout)
    events: list[Event] = []
    for offset, (time, opens, closes) in enumerate(raw):
        event = Event("a", 0, offset, time, opens, closes, None, None, False)
        events.append(event)
        mine = [group for group in groups_in(events, timeout) if event in group]
        joined = known.joined((time, offset), opens=opens, closes=closes)
        assert (joined and joined.passed_from) == (passed_from(mine[0], timeout) if mine else None)
        known.apply((time, offset), opens=opens, closes=closes)
        spans = [(span.start, span.passed_from) for span in known.spans]
        assert spans == [(g[0].time, passed_from(g, timeout)) for g in groups_in(events, timeout)]


def test_values_go_with_their_windows_when_all_partitions_have_passed_them(store: Store) -> None:
    view = windowed_sales(distincts={"cards": "STRING"})
    store.create_view(view, {})
    generation = store.claim()

    def tick(second: int, settled: dict[int, int]) -> None:
        write = view_write(
            view,
            [("a", second * SECOND, 0, 0, 1, 1, 1, 1)],
            values={"cards": [("a", second * SECOND, "x")]},
            offsets={0: second + 1, 1: 0},
            counts=Counts(read=1, applied=1),
        )
        store.commit(tick_write(store, generation, replace(write, state_expiry=settled)))

    tick(0, {0: 100 * SECOND})
    assert counted(store, "sales", 1) == 1, "the other partition may still bring some"
    tick(3, {0: 100 * SECOND, 1: 3 * SECOND - 1})
    assert counted(store, "sales", 1) == 2
    tick(6, {0: 100 * SECOND, 1: 3 * SECOND})
    assert counted(store, "sales", 1) == 2, "of the second window and the third"
    assert rows_of(store, "SELECT count(*) FROM sales") == [(3,)]
