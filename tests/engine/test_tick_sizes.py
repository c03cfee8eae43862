"""Ticks grow while few rows come out of them, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
    (plan,) = rig.engine._ticker._plans.values()
    with monkeypatch.context() as broken:
        broken.setattr(plan, "_run", lambda *_: (_ for _ in ()).throw(MemoryError()))
        assert rig.engine.step() is None
    assert rig.engine.step().events == GROW_ROWS_MIN
