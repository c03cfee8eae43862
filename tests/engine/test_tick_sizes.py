"""How many events a tick takes, and when the next one begins."""

from __future__ import annotations

import threading
import time
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


def test_under_heavy_load_the_next_tick_waits_for_more_events_but_not_for_ever(
    make_rig: Callable[..., Any],
) -> None:
    settings = EngineSettings(tick_rows_max=PACED_ROWS_MIN, pace_milliseconds=4_000)
    rig = make_rig(f"{STREAM}\n{VIEW}", engine=settings)
    engine = rig.start()
    few = [{"model": "m", "caller": 1}] * 10
    many = few * (PACED_ROWS_MIN // 10)
    running = threading.Thread(target=engine.run)
    rig.append("calls", many)
    running.start()

    def wait_for(tick: int) -> None:
        deadline = time.monotonic() + 60
        while rig.store.last_tick() < tick:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    try:
        wait_for(1)
        rig.append("calls", few)  # too few: they wait for the time
        wait_for(2)
        rig.append("calls", many)
        wait_for(3)
        rig.append("calls", many)  # enough for a tick: they wait for nothing
        wait_for(4)
    finally:
        engine.stop()
        running.join()
    started = sorted(rig.store.ledger(4).column("started_at").cast(pa.int64()).to_pylist())
    assert started[1] - started[0] >= 4_000_000
    assert started[3] - started[2] < 4_000_000
    assert rig.rows("v") == [{"model": "m", "n": 3 * PACED_ROWS_MIN + 10}]
