"""Ticks grow while few rows come out of them, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.engine import PACED_ROWS_MIN
from headrace.engine.prepared import GROW_ROWS_MIN
from headrace.model.settings import EngineSettings

STREAM = "CREATE STREAM calls (model STRING NOT NULL, caller BIGINT NOT NULL);"
FEW = "CREATE MATERIALIZED VIEW v AS SELECT model, count(*) AS n FROM calls GROUP BY model;"
MANY = "CREATE MATERIALIZED VIEW v AS SELECT caller, count(*) AS n FROM calls GROUP BY caller;"
EVENTS = 8 * GROW_ROWS_MIN
CALLERS = EVENTS // 4


@pytest.mark.parametrize(
    ("view", "growth", "sizes"),
    [(FEW, 4, [1, 2, 4, 1]), (FEW, 1, [1] * 8), (MANY, 4, [1] * 8)],
)
def test_a_tick_takes_more_events_while_few_rows_come_out(
    make_rig: Callable[..., Any], view: str, growth: int, sizes: list[int]
) -> None:
    settings = EngineSettings(tick_rows_max=GROW_ROWS_MIN, tick_growth_max=growth)
    rig = make_rig(f"{STREAM}\n{view}", engine=settings)
    rig.start()
    rig.append("calls", [{"model": "m", "caller": number % CALLERS} for number in range(EVENTS)])
    taken = []
    while (result := rig.engine.step()) is not None:
        taken.append(result.events)
    assert taken == [size * GROW_ROWS_MIN for size in sizes]
    assert sum(row["n"] for row in rig.rows("v")) == EVENTS


def test_a_tick_that_fails_is_done_again_at_its_usual_size(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(f"{STREAM}\n{FEW}", engine=EngineSettings(tick_rows_max=GROW_ROWS_MIN))
    rig.start()
    rig.append("calls", [{"model": "m", "caller": number % CALLERS} for number in range(EVENTS)])
    assert rig.engine.step().events == GROW_ROWS_MIN
    (plan,) = rig.engine._ticker._computer._plans.values()
    with monkeypatch.context() as broken:
        broken.setattr(plan, "_run", lambda *_: (_ for _ in ()).throw(MemoryError()))
        assert rig.engine.step() is None
    assert rig.engine.step().events == GROW_ROWS_MIN


def test_under_heavy_load_the_next_tick_waits_for_more_events_but_not_for_ever(
    make_rig: Callable[..., Any],
) -> None:
    settings = EngineSettings(
        tick_rows_max=PACED_ROWS_MIN, tick_growth_max=1, pace_milliseconds=4_000
    )
    rig = make_rig(f"{STREAM}\n{FEW}", engine=settings)
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
