"""The engine against what users count on: exact, apart, resumable, refused where it must be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from headrace.engine.views import LiveView
from headrace.log.embedded.retention_floor import read_retention_floor
from headrace.model.errors import FencedError, QueryError
from headrace.model.settings import EngineSettings, LogSettings
from headrace.spark.prepared_plan import PreparedPlan

UTC = dt.UTC
EPOCH = dt.datetime(2026, 1, 1, tzinfo=UTC)


def event(
    seconds: float, amount: str = "10.00", status: str = "paid", **more: Any
) -> dict[str, Any]:
    return {
        "id": "x",
        "user_id": "u",
        "amount": Decimal(amount),
        "status": status,
        "quantity": 1,
        "price": 1.0,
        "created_at": EPOCH + dt.timedelta(seconds=seconds),
        **more,
    }


def view_of(rig: Any, name: str) -> LiveView:
    view: LiveView = rig.engine._views[name]
    return view


def test_events_become_rows_and_late_ones_revise_them(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    rig.start()
    rig.append("transactions", [event(0), event(1), event(2, status="failed")])
    rig.settle()
    assert rig.rows("income") == [
        {
            "window_start": EPOCH,
            "window_end": EPOCH + dt.timedelta(seconds=3),
            "income": Decimal("20.00"),
            "payments": 2,
            "average": Decimal("10.000000"),
            "revision": 0,
            "final": False,
        }
    ]
    rig.append("transactions", [event(60)])
    rig.append("transactions", [event(1, amount="5.00")])  # 60 s behind: late
    rig.settle()
    row = next(row for row in rig.rows("income") if row["window_start"] == EPOCH)
    assert (row["income"], row["revision"], row["final"]) == (Decimal("25.00"), 1, True)
    view = view_of(rig, "income")
    assert (view.totals.read, view.totals.applied, view.totals.filtered) == (5, 4, 1)
    assert view.totals.late == 1
    assert view.watermark_microseconds == int((EPOCH.timestamp() + 55) * 1_000_000)


def test_a_restart_goes_on_where_the_ledger_says(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    rig.start()
    rig.append("transactions", [event(0)])
    rig.settle()
    rig.stop()
    rig.append("transactions", [event(1)])
    rig.start()
    rig.settle()
    assert rig.rows("income")[0]["payments"] == 2
    assert view_of(rig, "income").totals.read == 2


def test_an_older_engine_is_fenced(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    engine = rig.start()
    rig.append("transactions", [event(0)])
    rig.store.claim()
    with pytest.raises(FencedError):
        engine.step()
    assert rig.rows("income") == []


RISKY = """
CREATE MATERIALIZED VIEW risky AS
SELECT user_id, sum(100 DIV quantity) AS shares FROM transactions GROUP BY user_id;
"""


def test_an_event_one_view_cannot_take_becomes_its_dead_letter_alone(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(shop + RISKY)
    rig.start()
    good = [event(second) for second in range(40)]
    rig.append("transactions", [*good[:17], event(50, quantity=0), *good[17:]])
    rig.append("transactions", [event(51, quantity=0)], partition=1)
    rig.settle()
    assert rig.store.last_tick() < 20  # halves and doubles: not one event after the other
    assert sum(row["payments"] for row in rig.rows("income")) == 42
    assert rig.rows("risky") == [{"user_id": "u", "shares": 4000}]
    letters = rig.store.dead_letters("risky", 10)
    assert sorted((x.partition, x.offset) for x in letters) == [(0, 17), (1, 0)]
    assert all("DIVIDE_BY_ZERO" in x.reason for x in letters)
    assert '"quantity": 0' in letters[0].raw
    totals = view_of(rig, "risky").totals
    assert (totals.read, totals.applied, totals.dead) == (42, 40, 2)
    # and it is back in the shared plan
    assert view_of(rig, "risky").isolation is None
    rig.append("transactions", [event(60)])
    assert rig.engine.step().tick == rig.store.last_tick()
    assert rig.rows("risky") == [{"user_id": "u", "shares": 4100}]


def test_a_sum_that_overflows_in_the_store_is_a_dead_letter_too(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(
        shop
        + "CREATE MATERIALIZED VIEW big AS SELECT user_id, sum(CAST(price AS BIGINT)) AS total "
        "FROM transactions GROUP BY user_id;"
    )
    rig.start()
    rig.append("transactions", [event(0, price=9e18)])
    rig.settle()
    rig.append("transactions", [event(1, price=9e18), event(2, price=5.0)])
    rig.settle()
    assert rig.rows("big") == [{"user_id": "u", "total": 9_000_000_000_000_000_005}]
    assert [x.offset for x in rig.store.dead_letters("big", 10)] == [1]
    assert sum(row["payments"] for row in rig.rows("income")) == 3


def test_a_view_that_keeps_failing_stops_alone_and_says_so(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(shop + RISKY, engine=EngineSettings(dead_letters_in_a_row_max=5))
    rig.start()
    rig.append("transactions", [event(second, quantity=0) for second in range(20)])
    rig.settle()
    status = rig.control.status().views
    assert status["risky"].state == "failed"
    assert rig.control.standstill("risky").state == "failed"
    assert "DIVIDE_BY_ZERO" in status["risky"].detail
    assert status["income"].state == "live"
    assert sum(row["payments"] for row in rig.rows("income")) == 20
    rig.stop()
    rig.start()  # still failed after a restart, and still alone
    rig.append("transactions", [event(30)])
    rig.settle()
    assert rig.control.status().views["risky"].state == "failed"
    assert sum(row["payments"] for row in rig.rows("income")) == 21


ADDED = """
CREATE MATERIALIZED VIEW by_status AS
SELECT status, count(*) AS events FROM transactions GROUP BY status;
"""


def test_a_view_added_later_is_filled_from_the_log_and_joins_the_others(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(engine=EngineSettings(tick_rows_max=7))
    rig.start()
    rig.append("transactions", [event(second) for second in range(30)])
    rig.settle()
    rig.stop()
    rig.redefine(shop + ADDED)
    rig.start()
    assert rig.control.status().views["by_status"].state == "catching_up"
    rig.append("transactions", [event(40, status="failed")])
    rig.settle()
    assert rig.control.status().views["by_status"].state == "live"
    assert sorted(tuple(row.values()) for row in rig.rows("by_status")) == [
        ("failed", 1),
        ("paid", 30),
    ]


def test_a_changed_definition_is_refused_until_it_is_rebuilt(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(shop + ADDED)
    rig.start()
    rig.append("transactions", [event(0), event(1, status="failed")])
    rig.settle()
    rig.stop()
    rig.redefine(shop.replace("'paid'", "'failed'") + ADDED)
    rig.start()
    status = rig.control.status().views["income"]
    assert status.state == "changed"
    assert "rebuild" in status.detail
    rig.append("transactions", [event(2, status="failed")])
    rig.settle()
    with pytest.raises(QueryError, match="cannot be read"):
        rig.rows("income")
    assert {row["status"]: row["events"] for row in rig.rows("by_status")} == {
        "paid": 1,
        "failed": 2,
    }
    rig.control.rebuild("income")
    rig.engine.rebuild_what_was_asked()
    rig.settle()
    assert rig.rows("income")[0]["payments"] == 2
    assert rig.control.status().views["income"].state == "live"
    assert rig.recorder.expired == []  # what differs has been told as changes


def test_a_view_spark_does_not_accept_is_failed_and_the_others_run(
    make_rig: Callable[..., Any], shop: str
) -> None:
    rig = make_rig(
        shop + "CREATE MATERIALIZED VIEW odd AS SELECT status, "
        "count(*) AS n FROM transactions WHERE amount = created_at GROUP BY status;"
    )
    rig.start()
    rig.append("transactions", [event(0)])
    rig.settle()
    status = rig.control.status().views
    assert status["odd"].state == "failed"
    assert "DATATYPE_MISMATCH" in status["odd"].detail
    assert rig.rows("income")[0]["payments"] == 1


def test_the_hold_follows_the_slowest_view(make_rig: Callable[..., Any]) -> None:
    rig = make_rig()
    rig.start()
    rig.append("transactions", [event(second) for second in range(5)])
    rig.settle()
    rig.engine.close()
    assert read_retention_floor(rig.settings.log_directory) == {"transactions": (5, 0)}


def test_what_where_keeps_out_is_not_evaluated(make_rig: Callable[..., Any], shop: str) -> None:
    rig = make_rig(
        shop
        + """
CREATE MATERIALIZED VIEW shares AS
SELECT 100 DIV quantity AS share, count(*) AS n, sum(10 DIV quantity) AS tenths
FROM transactions WHERE quantity <> 0 GROUP BY 100 DIV quantity;
"""
    )
    rig.start()
    rig.append("transactions", [event(n, quantity=n % 3) for n in range(30)])
    rig.settle()
    assert sorted(tuple(row.values()) for row in rig.rows("shares")) == [
        (50, 10, 50),
        (100, 10, 100),
    ]
    assert rig.store.dead_letters(None, 10) == []


@pytest.mark.parametrize(
    ("shuffle_rows_min", "unused"),
    [(0, "_run_afresh"), (3_001, "_run_afresh"), (3_000, "_run_lanes")],
)
def test_ticks_with_a_shuffle_give_the_same(
    make_rig: Callable[..., Any],
    shop: str,
    monkeypatch: pytest.MonkeyPatch,
    shuffle_rows_min: int,
    unused: str,
) -> None:
    monkeypatch.setattr("headrace.engine.shared_plan.ROWS_TIMES_VIEWS_MAX", 0)
    rig = make_rig(shop + ADDED, engine=EngineSettings(shuffle_rows_min=shuffle_rows_min))
    rig.start()
    monkeypatch.delattr(PreparedPlan, unused)
    rig.append("transactions", [event(second % 50) for second in range(2_000)])
    rig.append("transactions", [event(second % 9) for second in range(1_000)], partition=1)
    rig.settle()
    assert sum(row["payments"] for row in rig.rows("income")) == 3_000
    assert rig.rows("by_status") == [{"status": "paid", "events": 3_000}]
    assert rig.store.last_tick() == 1


def test_ticks_do_not_remember_each_other(make_rig: Callable[..., Any], shop: str) -> None:
    """A plan with an exchange or a subquery inside would show the first tick's data again."""
    rig = make_rig(shop + ADDED)
    rig.start()
    for second in range(6):
        rig.append("transactions", [event(second)] * (second + 1))
        rig.settle()
    assert rig.rows("by_status") == [{"status": "paid", "events": 21}]


def test_a_rebuild_goes_back_into_the_archive(make_rig: Callable[..., Any], shop: str) -> None:
    text = shop.replace("INTO 2 PARTITIONS", "INTO 2 PARTITIONS RETAIN 1 HOUR THEN ARCHIVE")
    rig = make_rig(text, log=LogSettings(segment_bytes_max=4_096))
    rig.start()
    for second in range(30):
        rig.append("transactions", [event(second)] * 20)
    rig.settle()
    rig.engine.close()  # writes the retention floor
    rig.writer.retain(dt.datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
    (begins, _) = rig.reader.starts("transactions")
    assert begins > 0
    before = rig.rows("income")
    rig.stop()
    rig.start()
    rig.control.rebuild("income")
    rig.engine.rebuild_what_was_asked()
    rig.settle()
    assert rig.rows("income") == before
    assert view_of(rig, "income").status.detail == ""
