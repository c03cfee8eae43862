"""Condensing changes neither rows nor which expressions are evaluated; it stops when it is vain."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VIEWS = """
CREATE MATERIALIZED VIEW shares AS
SELECT 100 DIV quantity AS share, count(*) AS n, sum(10 DIV quantity) AS tenths
FROM transactions WHERE quantity <> 0 GROUP BY 100 DIV quantity;
CREATE MATERIALIZED VIEW by_user AS
SELECT user_id, sum(amount) AS total, min(quantity) AS least, max(price) AS most
FROM transactions GROUP BY user_id;
"""


def event(number: int, quantity: int, user: str) -> dict[str, Any]:
    return {
        "id": "x",
        "user_id": user,
        "amount": Decimal("1.50"),
        "status": "paid",
        "quantity": quantity,
        "price": float(number),
        "created_at": EPOCH,
    }


@pytest.mark.parametrize(("share_max", "condensing_stops"), [(1.0, False), (0.0, True)])
def test_rows_are_the_same_and_what_where_keeps_out_is_not_evaluated(
    make_rig: Callable[..., Any],
    shop: str,
    patch_prepared: Callable[..., None],
    share_max: float,
    condensing_stops: bool,
) -> None:
    patch_prepared(CONDENSED_SHARE_MAX=share_max, CONDENSE_ROWS_MIN=1)
    rig = make_rig(shop + VIEWS)
    rig.start()
    for start in (0, 30, 60):
        events = [event(n, n % 3, f"u{n % 2}") for n in range(start, start + 30)]
        rig.append("transactions", events)
        rig.settle()
    assert sorted(tuple(row.values()) for row in rig.rows("shares")) == [
        (50, 30, 150),
        (100, 30, 300),
    ]
    assert sorted(tuple(row.values()) for row in rig.rows("by_user")) == [
        ("u0", Decimal("67.50"), 0, 88.0),
        ("u1", Decimal("67.50"), 0, 89.0),
    ]
    assert rig.store.dead_letters(None, 10) == []
    (plan,) = rig.engine._ticker._computer._plans.values()
    assert (plan._runs_direct > 0) == condensing_stops


def test_small_ticks_never_wait_for_another_plan(make_rig: Callable[..., Any]) -> None:
    """Planning anew takes a second, which nobody who waits for a small tick should lose."""
    rig = make_rig(
        "CREATE STREAM calls (caller BIGINT NOT NULL, model BIGINT NOT NULL);"
        "CREATE MATERIALIZED VIEW a AS SELECT caller, count(*) AS n FROM calls GROUP BY caller;"
        "CREATE MATERIALIZED VIEW b AS SELECT model, count(*) AS n FROM calls GROUP BY model;"
    )
    rig.start()
    for _ in range(3):
        rig.append("calls", [{"caller": number, "model": -number} for number in range(5_000)])
        rig.settle()
    (plan,) = rig.engine._ticker._computer._plans.values()
    assert plan._condensing is not None
    assert not plan._direct._frames
    assert {row["n"] for row in rig.rows("a")} == {3}
