"""What operators read about late events: set aside, dropped and decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from store_cases import SECOND, tick_write, view_write, windowed_sales

from headrace.compile import parse_sql
from headrace.store.contract import INCIDENT, Counts, Store, StoredDecision, ViewStatus
from headrace.store.late_counts import DroppedCount, LateCounts, SetAsideCount, late_column

STREAM = parse_sql(
    "CREATE STREAM events (user STRING, at TIMESTAMP NOT NULL)"
    " WATERMARK at DELAY OF INTERVAL 1 SECOND LATE SIDE;",
    "events.sql",
).streams[0]


def _sided(rows: Sequence[tuple[int, int, int, int | None]]) -> pa.Table:
    """Rows are (partition, offset, window start in seconds, tick that applied it)."""
    moment = pa.timestamp("us", tz="UTC")
    starts = [start * SECOND for _, _, start, _ in rows]
    return pa.table(
        {
            "window_start": pa.array(starts, moment),
            "window_end": pa.array([start + 3 * SECOND for start in starts], moment),
            "watermark": pa.array([99 * SECOND] * len(rows), moment),
            "_partition": pa.array([row[0] for row in rows], pa.int32()),
            "_offset": pa.array([row[1] for row in rows], pa.int64()),
            "_applied_in_tick": pa.array([row[3] for row in rows], pa.int64()),
            "user": pa.array(["ann"] * len(rows), pa.string()),
        }
    )


def test_events_are_counted_not_windows(store: Store) -> None:
    """One event that misses two windows is one event, and aside until both have it."""
    store.declare_stream(STREAM)
    generation = store.claim()
    for name in ("sales", "totals"):
        store.create_view(windowed_sales(name), {0: 0})
    rows = [(0, 1, 0, None), (0, 1, 3, 7), (0, 2, 0, 7), (0, 2, 3, 7), (1, 1, 0, None)]
    write = replace(
        view_write(windowed_sales("sales"), [], counts=Counts(read=3, sided=3)),
        late_side_output=_sided(rows),
    )
    store.commit(tick_write(store, generation, write))
    assert store.late("events", 10) == LateCounts((SetAsideCount("sales", 2, 1),), (), (), False)
    assert store.late("other", 10) == LateCounts((), (), (), False)


def test_columns_named_like_those_of_late_events_stay_apart(store: Store) -> None:
    ddl = "CREATE STREAM events (view STRING, event_view INT, event_event_View INT, event_at INT)"
    stream = parse_sql(ddl, "events.sql").streams[0]
    names = [late_column(column.name) for column in stream.columns]
    assert names == ["event_view", "event_event_view", "event_event_event_View", "event_at"]
    store.declare_stream(stream)
    generation = store.claim()
    store.create_view(windowed_sales("sales"), {0: 0})
    sided = _sided([(0, 1, 0, None)]).drop_columns(["user"])
    for name, value in zip(names, ("garden", 1, 2, 3), strict=True):
        sided = sided.append_column(name, pa.array([value]))
    write = view_write(windowed_sales("sales"), [], counts=Counts(read=1, sided=1))
    store.commit(tick_write(store, generation, replace(write, late_side_output=sided)))
    columns = ", ".join(names)
    found = store.query(f"SELECT view, {columns} FROM events_late")
    rows = [row for batch in found.batches for row in batch.to_pylist()]
    assert [list(row.values()) for row in rows] == [["sales", "garden", 1, 2, 3]]


def test_dropped_ones_are_summed_by_window_and_the_newest_come_first(store: Store) -> None:
    store.declare_stream(STREAM)
    generation = store.claim()
    view = windowed_sales("sales")
    store.create_view(view, {0: 0})
    for windows in [((0, 3, 2), (3, 6, 1)), ((0, 3, 5), (6, 9, 1))]:
        dropped = tuple((a * SECOND, b * SECOND, n) for a, b, n in windows)
        count = sum(n for _, _, n in windows)
        write = view_write(view, [], counts=Counts(read=count, dropped=count))
        store.commit(tick_write(store, generation, replace(write, dropped=dropped)))
    newest = [
        DroppedCount("sales", 6 * SECOND, 9 * SECOND, 1),
        DroppedCount("sales", 3 * SECOND, 6 * SECOND, 1),
        DroppedCount("sales", 0, 3 * SECOND, 7),
    ]
    assert list(store.late("events", 3).dropped) == newest
    assert not store.late("events", 3).is_cut
    cut = store.late("events", 2)
    assert (list(cut.dropped), cut.is_cut) == (newest[:2], True)


def test_one_event_may_have_missed_thousands_of_windows(store: Store) -> None:
    """A day's windows that begin every few seconds must not hold a tick up."""
    store.declare_stream(STREAM)
    generation = store.claim()
    view = windowed_sales("sales")
    store.create_view(view, {0: 0})
    write = view_write(view, [], counts=Counts(read=1, dropped=1))
    took = []
    for windows in (2_000, 20_000):
        dropped = tuple((n * SECOND, (n + 3) * SECOND, 1) for n in range(windows))
        each = []
        for _ in range(3):  # the least of them is without other work of the process
            begun = time.thread_time()
            store.commit(tick_write(store, generation, replace(write, dropped=dropped)))
            each.append(time.thread_time() - begun)
        took.append(min(each))
    assert took[1] < 40 * took[0]  # looking at each other it would be 100
    newest = DroppedCount("sales", 19_999 * SECOND, 20_002 * SECOND, 3)
    assert store.late("events", 1).dropped == (newest,)


def test_decisions_are_the_newest_first(store: Store) -> None:
    for offset, decision in enumerate(("apply", "side", "drop")):
        store.decide(StoredDecision("events", 0, offset, decision))
        store.decide(StoredDecision("other", 0, offset, "drop"))
    late = store.late("events", 2)
    found = [(taken.offset, taken.decision) for taken in late.decisions]
    assert found == [(2, "drop"), (1, "side")]
    assert late.is_cut
    assert late.decisions[0].decided_at_microseconds >= late.decisions[1].decided_at_microseconds


@pytest.mark.parametrize(
    ("status", "is_incident"),
    [
        (ViewStatus("failed", f"{INCIDENT}2 read, 1 applied"), True),
        (ViewStatus("failed", "division by zero"), False),
        (ViewStatus("live", f"{INCIDENT}of the past"), False),
    ],
)
def test_an_incident_is_a_failure_that_says_so(status: ViewStatus, is_incident: bool) -> None:
    assert status.is_incident is is_incident
