"""How many events a tick takes, and when the next one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.loop import PACED_ROWS_MIN
from headrace.model.settings import EngineSettings

STREAM = "CREATE STREAM calls (model STRING NOT NULL, caller BIGINT NOT NULL);"
VIEW = "CREATE MATERIALIZED VIEW v AS SELECT model, count(*) AS n FROM calls GROUP BY model;"
EVENTS = 12_000


@pytest.mark.parametrize(
    "bound", [{"tick_rows_max": 3_000}, {"tick_bytes_max": 100_000}], ids=["rows", "bytes"]
)
def test_a_tick_takes_no_more_events_than_it_may(
    make_rig: Callable[..., Any], bound: dict[str, int]
) -> None:
    rig = make_rig(f"{STREAM}\n{VIEW}", engine=EngineSettings(**bound))
    rig.start()
    for start in range(0, EVENTS, 1_000):
        rig.append("calls", [{"model": "m", "caller": start}] * 1_000)
    taken = []
    while (result := rig.engine.step()) is not None:
        taken.append(result.events)
    largest = bound.get("tick_rows_max") or EVENTS // 2
    assert max(taken) <= largest
    assert len(taken) <= 2 * EVENTS // largest + 1
    assert sum(taken) == EVENTS
    assert rig.rows("v") == [{"model": "m", "n": EVENTS}]


FEW = [{"model": "m", "caller": 1}] * 10
MANY = FEW * (PACED_ROWS_MIN // 10)


@pytest.mark.parametrize(
    ("next_events", "pace_milliseconds"),
    [(FEW, 1_000), (MANY, 3_600_000)],
    ids=["too few wait for the time", "enough for a tick wait for nothing"],
)
def test_under_heavy_load_the_next_tick_waits_for_more_events_but_not_for_ever(
    make_rig: Callable[..., Any],
    beside: Callable[..., Any],
    until: Callable[..., None],
    next_events: list[Any],
    pace_milliseconds: int,
) -> None:
    settings = EngineSettings(tick_rows_max=PACED_ROWS_MIN, pace_milliseconds=pace_milliseconds)
    rig = make_rig(f"{STREAM}\n{VIEW}", engine=settings)
    engine = rig.start()
    rig.append("calls", MANY)
    with beside(engine.run):
        try:
            until(lambda: rig.store.last_tick() == 1)
            rig.append("calls", next_events)
            until(lambda: rig.store.last_tick() == 2)
        finally:
            engine.stop()
    started = sorted(rig.store.ledger(2).column("started_at").cast(pa.int64()).to_pylist())
    assert started[1] - started[0] >= 1_000_000 or next_events is MANY
    assert rig.rows("v") == [{"model": "m", "n": PACED_ROWS_MIN + len(next_events)}]
