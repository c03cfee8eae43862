"""Random events in random ticks, late and set aside and applied later, give in every row what
plain Python finds over all events; and hidden rows go when no frame reaches them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from kind_runner import KindRunner, Rows
from store_cases import bound_view

from headrace.kinds import state_table
from headrace.kinds.calculator import Calculator
from headrace.kinds.inputs import partials_schema
from headrace.kinds.sliding import SlidingKind
from headrace.model.plan import BoundColumn, BoundView, Sliding, SlidingColumn
from headrace.model.tables import VIEW
from headrace.model.types import DataType

SEEDS = 3


@dataclass(frozen=True)
class Event:
    key: str | None
    partition: int
    offset: int
    time: int
    value: int | None
    passed: int
    aside: int | None = None  # rows before it do not take the event

    def is_taken_by(self, row: Event) -> bool:
        return self.aside is None or self.aside <= row.time


def sliding_view(
    wide: int | None, narrow: int | None, *, is_keyed: bool = True, closes: bool = False
) -> BoundView:
    columns = (
        SlidingColumn("s0", "p0", wide, 'CAST(sum("p0") OVER _frame AS BIGINT)'),
        SlidingColumn("s1", "p1", narrow, 'CAST(sum("p1") OVER _frame AS BIGINT)'),
        SlidingColumn("s2", "p2", wide, 'min("p2") OVER _frame'),
    )
    view = bound_view(
        "moving",
        keys={"k0": "STRING", "k1": "INT", "k2": "BIGINT"},
        partials=(
            ("p0", "sum", "BIGINT", "unused"),
            ("p1", "count", "BIGINT", "unused"),
            ("p2", "min", "BIGINT", "unused"),
        ),
        finals=(
            ("key", "STRING", '"k0"'),
            ("part", "INT", '"k1"'),
            ("place", "BIGINT", '"k2"'),
            ("total", "BIGINT", '"s0"'),
            ("n", "BIGINT", '"s1"'),
            ("least", "BIGINT", '"s2"'),
            ("mean", "DOUBLE", 'CAST("s0" AS DOUBLE) / nullif("s1", 0)'),
        ),
    )
    window = Sliding(("k0",) if is_keyed else (), columns)
    plan = replace(view.plan, window=window, emits_on_close=closes)
    bound = tuple(BoundColumn(column.name, DataType("BIGINT")) for column in columns)
    return replace(view, plan=plan, slidings=bound)


def runner_of(view: BoundView, views: Sequence[int] = (1,)) -> KindRunner:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    runner = KindRunner(SlidingKind(view, Calculator(connection)), view)
    for number in views:
        runner.create(number)
    return runner


def staged(view: BoundView, events: Sequence[tuple[int, Event, int]]) -> pa.Table:
    """Of each event its view and REJECTED_WINDOWS."""
    rows = [
        {
            VIEW: number,
            "k0": e.key,
            "k1": e.partition,
            "k2": e.offset,
            "_pane": e.time,
            "_late": 0,
            "_beyond": beyond,
            "_passed": e.passed,
            "_aside": e.aside if e.aside is not None else e.passed,
            "_rows": 1,
            "p0": e.value,
            "p1": int(e.value is not None),
            "p2": e.value,
        }
        for number, e, beyond in events
    ]
    return pa.Table.from_pylist(rows, partials_schema(view))


def expected(view: BoundView, events: Sequence[Event], watermark: int | None) -> Rows:
    """One row for each event that is not set aside for its own."""
    window = view.plan.window
    assert isinstance(window, Sliding)
    reaches = {column.name: column.range_microseconds for column in window.columns}
    found: Rows = Counter()
    for row in events:
        final = watermark is not None and row.time < watermark
        if not row.is_taken_by(row) or (view.plan.emits_on_close and not final):
            continue
        same = [e for e in events if not window.keys or e.key == row.key]

        def frame(reach: int | None, row: Event = row, same: list[Event] = same) -> list[Event]:
            first = -(2**62) if reach is None else row.time - reach
            return [e for e in same if first <= e.time <= row.time and e.is_taken_by(row)]

        wide = [e.value for e in frame(reaches["s0"]) if e.value is not None]
        total, least = (sum(wide), min(wide)) if wide else (None, None)
        count = sum(e.value is not None for e in frame(reaches["s1"]))
        mean = total / count if total is not None and count else None
        late = sum(e.passed > row.time for e in frame(window.range_microseconds))
        values = (total, count, least, mean)
        found[(row.key, row.partition, row.offset, *values, late, final)] += 1
    return found


class Source:
    """Makes up the events of one view and judges them, as the engine would."""

    def __init__(self, rng: random.Random, reach: int | None, horizon: int | None) -> None:
        self._rng, self._reach, self._horizon = rng, reach, horizon
        self._highest, self._offsets = [-1_000, -1_000], [0, 0]
        self.events: dict[tuple[int, int], Event] = {}

    def tick(self, from_: int) -> list[tuple[Event, int]]:
        rng, found = self._rng, []
        for _ in range(rng.randint(0, 7)):
            partition = rng.randrange(2)
            time = from_ + rng.randint(0, 40)
            passed = self._highest[partition] - 4
            self._highest[partition] = max(self._highest[partition], time)
            self._offsets[partition] += 1
            key, value = rng.choice(["a", "b", None]), rng.choice([None, rng.randint(-9, 9)])
            event = Event(key, partition, self._offsets[partition], time, value, passed)
            beyond, aside = 0, passed - (self._horizon or 0)
            if self._horizon is not None and aside > time:
                event = replace(event, aside=aside)
                beyond = 1 if self._reach is None or aside <= time + self._reach else 2
            found.append((event, beyond))
        # Some that were set aside are applied after all.
        waiting = [event for event in self.events.values() if event.aside is not None]
        if waiting and rng.random() < 0.5:
            found.append((replace(rng.choice(waiting), aside=None), -2))
        self.events |= {(event.partition, event.offset): event for event, _ in found}
        return found


@pytest.mark.parametrize("wide", [0, 3, 12, None])
@pytest.mark.parametrize("narrow", [3, 12, None])
@pytest.mark.parametrize("horizon", [None, 0, 5])
def test_every_row_takes_what_is_in_its_frame(
    seed: int, wide: int | None, narrow: int | None, horizon: int | None
) -> None:
    for number in range(SEEDS):
        rng = random.Random(seed * SEEDS + number)
        closes = rng.random() < 0.3
        view = sliding_view(wide, narrow, is_keyed=rng.random() < 0.7, closes=closes)
        window = view.plan.window
        assert isinstance(window, Sliding)
        runner = runner_of(view, (3, 7))
        sources = {v: Source(rng, window.range_microseconds, horizon) for v in (3, 7)}
        watermarks: dict[int, int | None] = {3: None, 7: None}
        for tick in range(rng.randint(1, 6)):
            events = [
                (v, *event) for v, source in sources.items() for event in source.tick(5 * tick)
            ]
            moved = {v: (watermarks[v] or 0) + rng.randint(1, 15) for v in (3, 7)}
            watermarks.update(moved)
            runner.tick(staged(view, events), watermarks=moved)
            assert runner.rounds <= 1
            for v, source in sources.items():
                assert runner.rows(v) == expected(view, [*source.events.values()], watermarks[v])


def test_rows_out_of_reach_are_neither_written_nor_told() -> None:
    view = sliding_view(3, 3)
    runner = runner_of(view)
    for number, time in enumerate((0, 10, 20)):
        changes = runner.tick(staged(view, [(1, Event("a", 0, number, time, number, -1), 0)]))
        assert changes is not None
        assert changes.was_shown.to_pylist() == [False]


@pytest.mark.parametrize(("second", "rows"), [(7, 2), (6, 1)])
def test_a_row_takes_events_exactly_its_range_before_it(second: int, rows: int) -> None:
    view = sliding_view(3, 3)
    runner = runner_of(view)
    events = [Event("a", 0, 0, 10, 1, -1), Event("a", 0, 1, second, 1, -1)]
    for one in events:
        changes = runner.tick(staged(view, [(1, one, 0)]))
    assert changes is not None
    assert changes.num_rows == rows
    assert runner.rows(1) == expected(view, events, None)


def test_an_event_too_late_for_every_row_changes_nothing() -> None:
    view = sliding_view(3, 3)
    runner = runner_of(view)
    assert runner.tick(staged(view, [(1, Event("a", 0, 0, 5, 1, 20, aside=20), 2)])) is None
    assert runner.rounds == 0


def test_hidden_rows_go_when_no_frame_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of views that all partitions of which say a bound, and without a trace in any row."""
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = sliding_view(5, 3)
    runner = runner_of(view, (1, 2))
    hidden = Event("a", 0, 0, 10, 1, 12, 12)  # late for its own row, not for those from 12 on
    events = [hidden]

    def tick(event: Event, everywhere: dict[int, int]) -> int:
        if event not in events:
            events.append(event)
        beyond = int(event.aside is not None)
        runner.tick(staged(view, [(v, event, beyond) for v in (1, 2)]), everywhere=everywhere)
        assert runner.rows(1) == runner.rows(2) == expected(view, events, None)
        rows = runner.tables.rows[runner.kind.shape].values()
        return sum(row[VIEW] == 1 for row in rows)

    assert tick(hidden, {}) == 1
    assert tick(Event("a", 0, 1, 14, 1, 0), {1: 15}) == 2
    assert tick(Event("a", 0, 2, 15, 1, 0), {1: 15}) == 3, "the row at 15 had it in its frame"
    assert tick(Event("a", 0, 3, 30, 1, 0), {1: 16}) == 3
    assert len(runner.tables.rows[runner.kind.shape]) == 7, "the other view said nothing"
    runner.tick(everywhere={1: 1_000, 2: 1_000})
    assert len(runner.tables.rows[runner.kind.shape]) == 6, "rows that are seen stay"


def test_what_is_hidden_and_rewritten_goes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hidden row that a tick applies after all is not among those that the tick lets go."""
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = sliding_view(5, 3)
    runner = runner_of(view)
    hidden = Event("a", 0, 0, 10, 1, 12, 12)
    runner.tick(staged(view, [(1, hidden, 1)]))
    runner.tick(staged(view, [(1, replace(hidden, aside=None), -2)]), everywhere={1: 100})
    assert runner.rows(1) == expected(view, [replace(hidden, aside=None)], None)


def test_a_frame_that_overflows_is_an_error() -> None:
    view = sliding_view(5, 3)
    runner = runner_of(view)
    events: list[Any] = [(1, Event("a", 0, n, 10, 2**62, 0), 0) for n in range(3)]
    with pytest.raises(duckdb.Error):
        runner.tick(staged(view, events))
