"""Random events in random ticks, late and set aside and applied later, give the sessions that one
look at all events gives: of every view of the shape, whatever the others do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from kind_runner import KindRunner, Rows
from store_cases import bound_view

from headrace.kinds.calculator import Calculator
from headrace.kinds.contract import Changes
from headrace.kinds.inputs import partials_schema, values_schemas
from headrace.kinds.session import SessionKind
from headrace.model.plan import BoundView, SessionWindow

GAP = 3
ROUNDS_MAX = 2
SEEDS = 6


@dataclass(frozen=True)
class Event:
    view: int
    key: str | None
    time: int
    amount: int | None
    values: tuple[str | None, int | None]
    is_late: bool = False
    beyond: int = 0  # 1: set aside; -1: applied after that

    @property
    def pane(self) -> int:
        return self.time // GAP * GAP


def session_view(
    *, is_keyed: bool = True, having: str | None = None, closes: bool = False, values: bool = True
) -> BoundView:
    keys = {"k0": "STRING"} if is_keyed else {}
    distincts = {"d0": "STRING", "d1": "BIGINT"} if values else {}
    finals = [("key", "STRING", '"k0"')] if is_keyed else []
    finals += [
        ("since", "BIGINT", 'epoch_us("window_start")'),
        ("total", "BIGINT", '"p0"'),
        ("mean", "DOUBLE", 'CAST("p0" AS DOUBLE) / nullif("p1", 0)'),
        ("rows", "BIGINT", '"_rows"'),
        *((name, "BIGINT", f'"{name}"') for name in distincts),
    ]
    view = bound_view(
        "visits",
        keys=keys,
        window=SessionWindow(GAP),
        partials=(
            ("p0", "sum", "BIGINT", 'sum("p0")'),
            ("p1", "count", "BIGINT", 'sum("p1")'),
        ),
        distincts=distincts,
        finals=finals,
        having=having,
    )
    return replace(view, plan=replace(view.plan, emits_on_close=closes))


def calculator() -> Calculator:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone = 'UTC'")
    return Calculator(connection)


def runner_of(view: BoundView, views: Sequence[int] = (1,)) -> KindRunner:
    runner = KindRunner(SessionKind(view, calculator()), view)
    for number in views:
        runner.create(number)
    return runner


def staged(view: BoundView, events: Sequence[Event]) -> tuple[pa.Table, list[pa.Table]]:
    """As the engine brings them: a partial row per key, pane, lateness and what is set aside."""
    panes: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        key = (event.key,) if view.keys else ()
        late = (int(event.is_late or event.beyond > 0), event.beyond)
        panes[(event.view, *key, event.pane, *late)].append(event)
    partials = []
    for group, found in panes.items():
        amounts = [e.amount for e in found if e.amount is not None]
        times = [e.time for e in found]
        total = sum(amounts) if amounts else None
        partials.append((*group, len(found), min(times), max(times), total, len(amounts)))
    values = [
        _table(schema, [(*group, e.values[index]) for group, found in panes.items() for e in found])
        for index, schema in enumerate(values_schemas(view))
    ]
    return _table(partials_schema(view), partials), values


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def expected(view: BoundView, events: Sequence[Event], watermark: int | None) -> Rows:
    by_key: dict[tuple[Any, ...], list[Event]] = defaultdict(list)
    for event in events:
        by_key[(event.key,) if view.keys else ()].append(event)
    rows: Rows = Counter()
    for key, members in by_key.items():
        for session in sessions_of(members):
            amounts = [e.amount for e in session if e.amount is not None]
            total = sum(amounts) if amounts else None
            mean = total / len(amounts) if total is not None else None
            numbers = [
                len({e.values[index] for e in session if e.values[index] is not None})
                for index in range(len(view.distincts))
            ]
            final = watermark is not None and session[-1].time + GAP <= watermark
            late = sum(e.is_late for e in session)
            if view.having is not None and len(amounts) < 2:
                continue
            if final or not view.plan.emits_on_close:
                values = (session[0].time, total, mean, len(session), *numbers)
                rows[(*key, *values, late, final)] += 1
    return rows


def sessions_of(events: Sequence[Event]) -> list[list[Event]]:
    ordered = sorted(events, key=lambda event: event.time)
    found = [ordered[:1]]
    for before, event in pairwise(ordered):
        if event.time - before.time <= GAP:
            found[-1].append(event)
        else:
            found.append([event])
    return found


def made_up(rng: random.Random, view: int, from_: int) -> Event:
    return Event(
        view,
        rng.choice(["a", "b", None]),
        from_ + rng.randint(0, 30),
        rng.choice([None, rng.randint(-9, 9)]),
        (rng.choice(["x", "y", "z", None]), rng.choice([1, 2, None])),
        is_late=rng.random() < 0.2,
        beyond=int(rng.random() < 0.15),
    )


@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize("having", [None, '"p1" > 1'])
@pytest.mark.parametrize("closes", [False, True])
def test_ticks_equal_one_look_at_all_events(
    seed: int, is_keyed: bool, having: str | None, closes: bool
) -> None:
    view = session_view(is_keyed=is_keyed, having=having, closes=closes)
    for number in range(SEEDS):
        rng = random.Random(seed * SEEDS + number)
        runner = runner_of(view, (3, 7))
        applied: dict[int, list[Event]] = {3: [], 7: []}
        aside: list[Event] = []
        watermarks: dict[int, int | None] = {3: None, 7: None}
        for tick in range(rng.randint(1, 8)):
            events = [made_up(rng, v, 4 * tick) for v in (3, 7) for _ in range(rng.randint(0, 6))]
            if aside and rng.random() < 0.5:
                events.append(replace(aside.pop(), is_late=True, beyond=-1))
            for event in events:
                (aside if event.beyond > 0 else applied[event.view]).append(event)
            moved = {
                v: (watermarks[v] or 0) + rng.randint(1, 9) for v in (3, 7) if rng.random() < 0.6
            }
            watermarks.update(moved)
            partials, values = staged(view, events)
            runner.tick(partials, values, watermarks=moved)
            assert runner.rounds <= ROUNDS_MAX
            for v in (3, 7):
                assert runner.rows(v) == expected(view, applied[v], watermarks[v])


def tick(runner: KindRunner, view: BoundView, events: Sequence[Event], **how: Any) -> Changes:
    partials, values = staged(view, events)
    changes = runner.tick(partials, values, **how)
    assert changes is not None
    return changes


def event(time: int, value: str | None = "x", key: str = "a") -> Event:
    return Event(1, key, time, 1, (value, 1))


def told(changes: Changes) -> list[tuple[Any, ...]]:
    """By key: since and total before, and after."""
    found = []
    for index, key in enumerate(changes.key.to_pylist()):
        sides = []
        for table, shown in (
            (changes.before, changes.was_shown),
            (changes.after, changes.is_shown),
        ):
            row = table.slice(index, 1).to_pylist()[0]
            sides.append((row["f1"], row["f4"], row["f5"]) if shown[index].as_py() else None)
        found.append((key["k0"], *sides))
    return sorted(found, key=repr)


def test_sessions_that_an_event_joins_become_the_first_of_them() -> None:
    """Their values are counted anew, those of a session that only grows are not."""
    view = session_view()
    runner = runner_of(view)
    tick(runner, view, [event(0, "x"), event(4, "x"), event(8, "y")])
    changes = tick(runner, view, [event(2, "x")])
    assert told(changes) == [("a", (0, 1, 1), (0, 3, 1)), ("a", (4, 1, 1), None)]
    assert runner.rounds == 2
    assert told(tick(runner, view, [event(6, "z")])) == [
        ("a", (0, 3, 1), (0, 5, 3)),
        ("a", (8, 1, 1), None),
    ]
    values = [
        row["value"] for row in runner.tables.table(f"{runner.kind.shape}_values_0").to_pylist()
    ]
    assert sorted(values) == ["x", "x", "y", "z"], "once for the session in which it was seen"


def test_a_session_that_grows_backwards_is_another_row() -> None:
    view = session_view(values=False)
    view = replace(view, finals=view.finals[:1])
    runner = runner_of(view)
    tick(runner, view, [event(5)])
    changes = tick(runner, view, [event(3)])
    keys = [key["window_start"].microsecond for key in changes.key.to_pylist()]
    shown = zip(changes.was_shown.to_pylist(), changes.is_shown.to_pylist(), strict=True)
    assert sorted(zip(keys, shown, strict=True)) == [(3, (False, True)), (5, (True, False))]
    assert runner.rounds == 1, "without distinct values there is nothing to fetch twice"


def test_what_no_reader_sees_is_no_change() -> None:
    view = session_view(values=False)
    view = replace(view, finals=view.finals[:1])
    runner = runner_of(view)
    tick(runner, view, [event(5)])
    partials, _ = staged(view, [event(6)])
    assert runner.tick(partials) is None
    assert runner.tick(staged(view, [replace(event(20), beyond=1)])[0]) is None


@pytest.mark.parametrize("closes", [False, True])
def test_each_row_is_final_by_its_own_end(closes: bool) -> None:
    """An open session takes in one that was final and one that was not, then is passed itself."""
    view = session_view(closes=closes)
    runner = runner_of(view)

    def finals(events: Sequence[Event], watermark: int) -> list[list[tuple[int, bool]]]:
        partials, values = staged(view, events)
        changes = runner.tick(partials, values, watermarks={1: watermark})
        if changes is None:
            return []
        return [
            sorted(
                (row["f1"], row["final"])
                for row, is_shown in zip(table.to_pylist(), shown.to_pylist(), strict=True)
                if is_shown
            )
            for table, shown in (
                (changes.before, changes.was_shown),
                (changes.after, changes.is_shown),
            )
        ]

    open_ = [] if closes else [(4, False)]
    assert finals([event(0), event(4)], 3) == [[], [(0, True), *open_]]
    joined = [] if closes else [(0, False)]
    assert finals([event(2)], 5) == [[(0, True), *open_], joined]
    assert finals([event(-2)], 8) == [joined, [(-2, True)]]
    assert finals([], 9) == []
    assert finals([event(11)], 13) == ([] if closes else [[], [(11, False)]])
    assert finals([], 14) == ([[], [(11, True)]] if closes else [])


def test_sessions_of_keys_that_end_late_enough() -> None:
    for is_keyed in (True, False):
        view = session_view(is_keyed=is_keyed)
        runner = runner_of(view, (1, 2))
        tick(runner, view, [event(0), event(10), event(20, key="b"), replace(event(11), view=2)])
        kind = runner.kind
        assert isinstance(kind, SessionKind)
        steps = kind.sessions(1, pa.table({"k0": ["a"]} if is_keyed else {}), 13)
        with pytest.raises(StopIteration) as stopped:
            steps.send([runner.tables.fetch(fetch) for fetch in next(steps)])
        found = stopped.value.value
        starts = [row["window_start"].microsecond for row in found.to_pylist()]
        assert sorted(starts) == ([10] if is_keyed else [10, 20])
        keys = ["k0"] if is_keyed else []
        assert found.column_names == [*keys, "window_start", "window_end"]


def test_a_sum_that_overflows_is_an_error() -> None:
    view = session_view()
    view = replace(
        view,
        plan=replace(
            view.plan,
            partials=(
                replace(view.plan.partials[0], combine='sum("p0") * 4611686018427387904'),
                view.plan.partials[1],
            ),
        ),
    )
    runner = runner_of(view)
    with pytest.raises(duckdb.Error):
        tick(runner, view, [replace(event(0), amount=2)])
