"""Random events in random ticks, late and set aside and applied later, give in every row what
plain Python finds over all events; and the changes replayed give the view."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from fed_store import fed_store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_backends import counted
from store_cases import bound_view, rows_of, tick_write

from headrace.kinds import state_table
from headrace.model.plan import BoundColumn, BoundView, Sliding, SlidingColumn
from headrace.model.types import DataType
from headrace.store.contract import Counts, Store, ViewWrite

FINALS = ("key", "part", "place", "total", "n", "least", "taken")


@dataclass(frozen=True)
class Event:
    key: str | None
    partition: int
    offset: int
    time: int
    value: int | None
    passed: int
    aside: int | None  # rows before it do not take the event

    def is_taken_by(self, row: Event) -> bool:
        return self.aside is None or self.aside <= row.time


def sliding_view(wide: int | None, narrow: int | None, is_keyed: bool) -> BoundView:
    columns = (
        SlidingColumn("s_total", "total", wide, 'sum("total") OVER _frame'),
        SlidingColumn("s_n", "n", narrow, 'sum("n") OVER _frame'),
        SlidingColumn("s_least", "least", wide, 'min("least") OVER _frame'),
    )
    window = Sliding(("key",) if is_keyed else (), columns)
    view = bound_view(
        "moving",
        keys={"key": "STRING", "_partition": "INT", "_offset": "BIGINT"},
        partials=(
            ("total", "sum", "BIGINT", "unused"),
            ("n", "count", "BIGINT", "unused"),
            ("least", "min", "BIGINT", "unused"),
        ),
        finals=(
            ("key", "STRING", '"key"'),
            ("part", "INT", '"_partition"'),
            ("place", "BIGINT", '"_offset"'),
            ("total", "BIGINT", '"s_total"'),
            ("n", "BIGINT", '"s_n"'),
            ("least", "BIGINT", '"s_least"'),
            ("taken", "BIGINT", '"revision"'),
        ),
    )
    bound = tuple(BoundColumn(c.name, DataType("BIGINT")) for c in columns)
    cast = tuple(replace(c, combine=f"CAST({c.combine} AS BIGINT)") for c in columns)
    plan = replace(view.plan, window=replace(window, columns=cast))
    return replace(view, plan=plan, slidings=bound)


def partials_of(view: BoundView, events: list[tuple[Event, int]]) -> pa.Table:
    rows = [
        {
            "key": e.key,
            "_partition": e.partition,
            "_offset": e.offset,
            "_pane": e.time,
            "_late": 0,
            "_beyond": beyond,
            "_passed": e.passed,
            "_aside": e.aside if e.aside is not None else e.passed,
            "_rows": 1,
            "total": e.value,
            "n": int(e.value is not None),
            "least": e.value,
        }
        for e, beyond in events
    ]
    return pa.Table.from_pylist(rows)


def model(view: BoundView, events: list[Event]) -> Counter[tuple[Any, ...]]:
    """One row for each event that is not set aside for its own."""
    window = view.plan.window
    assert isinstance(window, Sliding)
    reaches = {c.name: c.range_microseconds for c in window.columns}
    found: Counter[tuple[Any, ...]] = Counter()
    for row in events:
        if not row.is_taken_by(row):
            continue
        same = [e for e in events if not window.keys or e.key == row.key]

        def frame(reach: int | None, row: Event = row, same: list[Event] = same) -> list[Event]:
            return [
                e
                for e in same
                if e.time <= row.time
                and (reach is None or e.time >= row.time - reach)
                and e.is_taken_by(row)
            ]

        wide = [e.value for e in frame(reaches["s_total"]) if e.value is not None]
        count = sum(e.value is not None for e in frame(reaches["s_n"]))
        taken = sum(e.passed > row.time for e in frame(window.range_microseconds))
        values = (sum(wide) if wide else None, count, min(wide, default=None), taken)
        found[(row.key, row.partition, row.offset, *values)] += 1
    return found


def write_of(table: pa.Table) -> ViewWrite:
    read = table.num_rows
    return ViewWrite("moving", table, {}, {}, Counts(read=read, applied=read), None)


def shown(store: Store) -> Counter[tuple[Any, ...]]:
    return Counter(rows_of(store, f"SELECT {', '.join(FINALS)} FROM moving"))


RAW = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.integers(0, 1),
    st.integers(0, 40),
    st.none() | st.integers(-9, 9),
)
REACH = st.sampled_from([0, 3, 12, None])


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ticks=st.lists(st.lists(RAW, max_size=8), min_size=1, max_size=8),
    wide=REACH,
    narrow=REACH,
    is_keyed=st.booleans(),
    horizon=st.sampled_from([None, 0, 5]),
    data=st.data(),
)
def test_every_row_takes_what_is_in_its_frame(
    backend: str,
    ticks: list[list[tuple[Any, ...]]],
    wide: int | None,
    narrow: int | None,
    is_keyed: bool,
    horizon: int | None,
    data: st.DataObject,
) -> None:
    view = sliding_view(wide, narrow, is_keyed)
    reach = view.plan.window.range_microseconds
    highest, offsets = [-1000, -1000], [0, 0]
    events: dict[tuple[int, int], Event] = {}
    with fed_store(backend, view, columns=FINALS) as fed:
        for raw in ticks:
            staged: list[tuple[Event, int]] = []
            for key, partition, time, value in raw:
                passed, offset = highest[partition] - 4, offsets[partition]
                offsets[partition] += 1
                highest[partition] = max(highest[partition], time)
                aside = None if horizon is None else passed - horizon
                beyond = 0
                if aside is not None and aside > time:
                    beyond = 2 if reach is not None and aside > time + reach else 1
                event = Event(key, partition, offset, time, value, passed, aside)
                if beyond == 0:
                    event = replace(event, aside=None)
                events[(partition, offset)] = event
                staged.append((event, beyond))
            # Some that were set aside are applied after all.
            new = {(e.partition, e.offset) for e, _ in staged}
            waiting = [e for e in events.values() if e.aside is not None]
            waiting = [e for e in waiting if (e.partition, e.offset) not in new]
            if waiting and data.draw(st.booleans(), label="apply"):
                again = data.draw(st.sampled_from(waiting), label="event")
                events[(again.partition, again.offset)] = replace(again, aside=None)
                staged.append((again, -2))
            if not staged:
                continue
            fed.tick(write_of(partials_of(view, staged)))
            fed.check(model(view, list(events.values())))
            if data.draw(st.booleans(), label="reopen"):
                fed.reopen()


def test_a_tick_that_touches_no_row_changes_none(store: Store) -> None:
    """Rows outside the range of an event keep their place in the table, too."""
    view = sliding_view(3, 3, is_keyed=True)
    store.create_view(view, {})
    generation = store.claim()
    for number, time in enumerate((0, 10, 20)):
        event = Event("a", 0, number, time, number, -1, None)
        table = partials_of(view, [(event, 0)])
        (change,) = store.commit(tick_write(store, generation, write_of(table)))
        assert change.before.num_rows == 0
        assert change.after.num_rows == 1


def test_rows_that_nobody_sees_go_when_no_frame_reaches_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_table, "EXPIRY_TICKS", 1)
    view = sliding_view(5, 3, True)
    store.create_view(view, {})
    generation = store.claim()
    hidden = Event("a", 0, 0, 10, 1, 12, 12)  # late for its own row, not for those from 12 on

    def tick(event: Event, settled: dict[int, int]) -> int:
        beyond = int(event.aside is not None)
        write = replace(write_of(partials_of(view, [(event, beyond)])), state_expiry=settled)
        store.commit(tick_write(store, generation, write))
        return counted(store, "moving", 0)

    seen = [Event("a", 0, offset, time, 1, 0, None) for offset, time in ((1, 14), (2, 15), (3, 30))]
    assert tick(hidden, {}) == 1
    assert tick(seen[0], {0: 15}) == 2
    assert shown(store) == model(view, [hidden, seen[0]])
    assert tick(seen[1], {0: 15}) == 3, "the row at 15 had it in its frame"
    assert shown(store) == model(view, [hidden, *seen[:2]])
    assert tick(seen[2], {0: 16}) == 3
    assert shown(store) == model(view, [hidden, *seen])
