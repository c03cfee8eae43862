"""Random events in random ticks, out of order, tied and set aside, give the groups that one walk
over all of them gives; and what goes when nothing to come can change it is not missed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from group_cases import Event, grouped_view, groups_in, partials_of, passed_from
from group_cases import model as walked
from kind_runner import KindRunner, Rows

from headrace.kinds import state_table
from headrace.kinds.calculator import Calculator
from headrace.kinds.contract import Changes
from headrace.kinds.event_group import KEY
from headrace.kinds.event_groups import EventGroupKind
from headrace.kinds.inputs import partials_schema
from headrace.model.plan import BoundView
from headrace.model.tables import VIEW

SEEDS = 4
DELAY = 5


def runner_of(view: BoundView, views: Sequence[int] = (1,)) -> KindRunner:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    runner = KindRunner(EventGroupKind(view, Calculator(connection)), view)
    for number in views:
        runner.create(number)
    return runner


def staged(
    view: BoundView, events: Mapping[int, Sequence[Event]], aside: Sequence[Event] = ()
) -> pa.Table:
    """By view, and among them those that are set aside."""
    tables = []
    for number, found in events.items():
        if found:
            table = partials_of(list(found))
            beyond = pa.array([int(event in aside) for event in found], pa.int32())
            table = table.set_column(table.column_names.index("_beyond"), "_beyond", beyond)
            views = pa.array([number] * len(found), pa.int32())
            schema = partials_schema(view)
            tables.append(table.append_column(VIEW, views).select(schema.names).cast(schema))
    return pa.concat_tables(tables) if tables else partials_schema(view).empty_table()


def expected(events: Sequence[Event], timeout: int, watermark: int | None, closes: bool) -> Rows:
    rows: Rows = Counter()
    low = -(2**62) if watermark is None else watermark
    final = walked(list(events), timeout, low)
    for row, number in walked(list(events), timeout).items():
        if final[row] or not closes:
            rows[(*row, row[-1], bool(final[row]))] += number
    return rows


def made_up(rng: random.Random, offsets: list[int], keys: Sequence[str | None]) -> Event:
    key = rng.choice(keys)
    partition = rng.randrange(2)
    offsets[partition] += 1
    return Event(
        key,
        partition,
        offsets[partition],
        rng.randint(0, 40),
        rng.random() < 0.5,
        rng.random() < 0.5,
        rng.choice([None, rng.randint(-9, 9)]),
        rng.choice(["x", "y", None]),
        rng.random() < 0.3,
    )


@pytest.mark.parametrize("timeout", [1, 6, 100])
@pytest.mark.parametrize("closes", [False, True])
def test_groups_are_those_of_one_walk(seed: int, timeout: int, closes: bool) -> None:
    view = grouped_view(timeout)
    view = replace(view, plan=replace(view.plan, emits_on_close=closes))
    for number in range(SEEDS):
        rng = random.Random(seed * SEEDS + number)
        runner = runner_of(view, (3, 7))
        offsets = {3: [0, 0], 7: [0, 0]}
        applied: dict[int, list[Event]] = {3: [], 7: []}
        watermarks: dict[int, int | None] = {3: None, 7: None}
        for _ in range(rng.randint(1, 8)):
            events = {
                v: [made_up(rng, offsets[v], ["a", "b", None]) for _ in range(rng.randint(0, 8))]
                for v in applied
            }
            every = [event for found in events.values() for event in found]
            aside = [event for event in every if rng.random() < 0.2]
            for v, found in events.items():
                applied[v] += [event for event in found if event not in aside]
            moved = {
                v: (watermarks[v] or 0) + rng.randint(1, 15) for v in applied if rng.random() < 0.7
            }
            watermarks.update(moved)
            runner.tick(staged(view, events, aside), watermarks=moved)
            assert runner.rounds <= 1
            for v, found in applied.items():
                assert runner.rows(v) == expected(found, timeout, watermarks[v], closes)


@pytest.mark.parametrize("timeout", [1, 6, 20])
def test_what_has_expired_is_not_missed(
    seed: int, timeout: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each view's partition says a bound, and then events that would be in a group that has ended
    by then are no longer applied. A tick's own events may still come before it."""
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 2)
    view = grouped_view(timeout)
    went = 0
    for number in range(SEEDS):
        rng = random.Random(seed * SEEDS + number)
        runner = runner_of(view, (3, 7))
        stored = f"{runner.kind.shape}_events"
        offsets = {3: [0, 0], 7: [0, 0]}
        applied: dict[int, list[Event]] = {3: [], 7: []}
        bounds = {3: -1_000, 7: -1_000}
        for tick in range(rng.randint(4, 10)):
            events: dict[int, list[Event]] = {3: [], 7: []}
            for v, taken in applied.items():
                for _ in range(rng.randint(0, 6)):
                    event = made_up(rng, offsets[v], ["a", "b"])
                    shift = 6 * tick - rng.randint(0, 9)
                    # A key's events are in one partition.
                    event = replace(event, partition=int(event.key == "b"), time=event.time + shift)
                    event = replace(event, offset=len(taken))
                    mine = [g for g in groups_in([*taken, event], timeout) if event in g]
                    if mine and passed_from(mine[0], timeout) <= bounds[v]:
                        continue  # dropped
                    taken.append(event)
                    events[v].append(event)
            times = {v: max([e.time for e in found], default=0) for v, found in applied.items()}
            bounds = {v: max(bounds[v], times[v] - DELAY) for v in bounds}
            told = {(v, partition): bound for v, bound in bounds.items() for partition in (0, 1)}
            runner.tick(staged(view, events), bounds=told)
            for v, found in applied.items():
                assert runner.rows(v) == expected(found, timeout, None, False)
        # What is left is what may still matter, once every view has had its turn with no news.
        for _ in range(2):
            runner.tick(bounds=told)
        kept = sum(kept_by(found, timeout, bounds[v]) for v, found in applied.items())
        assert len(runner.tables.rows[stored]) == kept
        went += sum(map(len, applied.values())) - kept
    assert went > 10 * SEEDS


def kept_by(events: Sequence[Event], timeout: int, bound: int) -> int:
    groups = groups_in(list(events), timeout)
    open_ = [g for g in groups if passed_from(g, timeout) > bound]
    grouped = {event for group in groups for event in group}
    loose = [e for e in events if e not in grouped and e.time + timeout > bound]
    return sum(map(len, open_)) + len(loose)


def event(offset: int, time: int, opens: bool = False, closes: bool = False) -> Event:
    return Event("a", 0, offset, time, opens, closes, 1, None, False)


def tick(runner: KindRunner, view: BoundView, events: Sequence[Event], **how: Any) -> Changes:
    changes = runner.tick(staged(view, {1: events}), **how)
    assert changes is not None
    return changes


def test_partitions_without_a_bound_keep_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = grouped_view(5)
    runner = runner_of(view, (1, 2))
    other = replace(event(0, 0, opens=True), key="b", partition=1)
    runner.tick(staged(view, {1: [event(0, 0, opens=True), other], 2: [event(0, 0)]}))
    runner.tick(bounds={(1, 0): 4})
    events = runner.tables.rows[f"{runner.kind.shape}_events"]
    assert len(events) == 3, "the group ends at 5"
    runner.tick(bounds={(1, 0): 100})
    assert [(row[VIEW], row["key"]) for row in events.values()] == [(1, "b"), (2, "a")]


def test_a_group_goes_whole_with_the_events_of_the_very_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left of one would be taken for another."""
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = grouped_view(6)
    runner = runner_of(view)
    events = [event(0, 30, opens=True), event(1, 35, closes=True)]
    runner.tick(staged(view, {1: events}))
    within = event(2, 32, opens=True)
    tick(runner, view, [within], bounds={(1, 0): 55})
    assert not runner.tables.rows[f"{runner.kind.shape}_events"]
    before = event(3, 27)
    runner.tick(staged(view, {1: [before]}))
    assert runner.rows(1) == expected([*events, within, before], 6, None, False)


def test_views_take_turns_to_let_events_go() -> None:
    view = grouped_view(5)
    runner = runner_of(view, (1, 2))
    runner.tick(staged(view, {1: [event(0, 0)], 2: [event(0, 0)]}))
    events = runner.tables.rows[f"{runner.kind.shape}_events"]
    left = []
    for _ in range(state_table.EXPIRY_TICKS):
        runner.tick(bounds={(1, 0): 100, (2, 0): 100})
        left.append(len(events))
    assert left[-1] == 0
    assert 1 in left
    assert left.count(0) < state_table.EXPIRY_TICKS


def test_an_event_that_splits_a_group_takes_the_old_row_back() -> None:
    """And groups after it that have the same events as before stay where they are."""
    view = grouped_view(100)
    runner = runner_of(view)
    first = [event(0, 0, opens=True), event(1, 10, opens=True), event(2, 20, closes=True)]
    later = [event(3, 50, opens=True), event(4, 60, closes=True)]
    assert tick(runner, view, [*first, *later]).num_rows == 2
    changes = tick(runner, view, [event(5, 5, closes=True)])
    rows = zip(changes.before.to_pylist(), changes.was_shown.to_pylist(), strict=True)
    assert [(row["f1"], row["f2"]) for row, was in rows if was] == [(0, 20)]
    assert changes.is_shown.to_pylist() == [True, True]
    assert sorted(row["f1"] for row in changes.after.to_pylist()) == [0, 10]


def test_a_group_that_is_no_more_is_taken_back() -> None:
    view = grouped_view(10)
    runner = runner_of(view)
    tick(runner, view, [event(0, 12, opens=True)])
    changes = tick(runner, view, [event(1, 5, opens=True)])
    shown = zip(changes.was_shown.to_pylist(), changes.is_shown.to_pylist(), strict=True)
    starts = [key["window_start"].microsecond for key in changes.key.to_pylist()]
    assert sorted(zip(starts, shown, strict=True)) == [(5, (False, True)), (12, (True, False))]


def test_a_group_that_begins_when_another_ends_is_told_from_its_last_event() -> None:
    view = grouped_view(100)
    runner = runner_of(view)
    ending = event(1, 25, opens=True, closes=True)  # it could open a group as well
    ticks = [
        [event(0, 10, opens=True), ending],
        [replace(event(0, 25, opens=True), partition=1)],
        [event(2, 26, closes=True)],
    ]
    events: list[Event] = []
    for staged_ in ticks:
        events += staged_
        tick(runner, view, staged_)
        assert runner.rows(1) == expected(events, 100, None, False)


def near(runner: KindRunner, view: int, partials: pa.Table) -> pa.Table | None:
    kind = runner.kind
    assert isinstance(kind, EventGroupKind)
    steps = kind.near_events(view, partials)
    try:
        fetches = next(steps)
        steps.send([runner.tables.fetch(fetch) for fetch in fetches])
    except StopIteration as stop:
        found: pa.Table | None = stop.value
        return found
    raise AssertionError("one round")


def test_near_events_are_of_the_open_group_and_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = grouped_view(10)
    runner = runner_of(view, (1, 2))
    closed = [event(0, 0, opens=True), event(1, 4, closes=True)]
    open_ = [event(2, 12, opens=True), event(3, 14)]
    runner.tick(staged(view, {1: [*closed, *open_], 2: [event(0, 13)]}))
    fresh = [event(4, 15), replace(event(5, 1), key="b")]
    found = near(runner, 1, staged(view, {1: fresh}))
    assert found is not None
    rows = found.select([KEY, "key", "_pane", "_event_offset"]).to_pylist()
    by_key = {row["key"]: row[KEY] for row in rows}
    assert sorted(by_key.values()) == [1, 2]
    of_a = [(row["_pane"], row["_event_offset"]) for row in rows if row["key"] == "a"]
    assert of_a == [(12, 2), (14, 3), (15, 4)]
    aside = staged(view, {1: fresh}, aside=fresh)
    assert near(runner, 1, aside) is None
    # Without its events, a group is there by what opens and what closes it.
    runner.tick(bounds={(1, 0): 12})
    assert len(runner.tables.rows[f"{runner.kind.shape}_events"]) == 3
    found = near(runner, 1, staged(view, {1: [event(6, 2)]}))
    assert found is not None
    kinds = found.select(["_pane", "_event_offset", "_opens", "_closes"]).to_pylist()
    assert [tuple(row.values()) for row in kinds] == [
        (0, 0, True, False),
        (2, 6, False, False),
        (4, -1, False, True),
        (12, 2, True, False),
        (14, 3, False, False),
    ]
