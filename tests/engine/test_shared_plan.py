"""Small ticks: one Spark job for all streams, in one plan that outlives views that leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.engine import shared_plan
from headrace.spark.prepared_plan import PreparedPlan

# Columns of one name and several types; every way in which a view can be computed.
TWO = """
CREATE STREAM first (k STRING, v BIGINT, x DOUBLE, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE SIDE
PARTITION BY (k) INTO 2 PARTITIONS;
CREATE STREAM second (v STRING, k INT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE REVISE;
CREATE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS s, count(*) AS n FROM first GROUP BY k;
CREATE MATERIALIZED VIEW sorted AS SELECT min(k) AS low, last(k) AS latest FROM first;
CREATE MATERIALIZED VIEW kinds AS SELECT count(DISTINCT v) AS n FROM first WHERE v > 1;
CREATE MATERIALIZED VIEW floats AS SELECT x, count(*) AS n FROM first GROUP BY x;
CREATE MATERIALIZED VIEW visits AS SELECT k, session_window.start AS s, count(*) AS n
FROM first GROUP BY k, session_window(at, '3 seconds');
CREATE MATERIALIZED VIEW running AS SELECT k, v, sum(v) OVER (
  PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL 5 SECONDS PRECEDING AND CURRENT ROW) AS s
FROM first;
CREATE MATERIALIZED VIEW named AS SELECT to_json(struct(k, x AS y)) AS j, count(*) AS n
FROM first WHERE (k, v) IN (('a', 9L)) GROUP BY to_json(struct(k, x AS y));
CREATE MATERIALIZED VIEW events AS SELECT v, k + 1 AS next FROM second;
CREATE MATERIALIZED VIEW texts AS SELECT upper(v) AS u, sum(k) AS s FROM second GROUP BY upper(v);
"""
RISKY = "CREATE MATERIALIZED VIEW risky AS SELECT sum(10 DIV k) AS s FROM second;\n"


def first(key: str, value: int, second: int, x: float = 0.0) -> dict[str, Any]:
    return {"k": key, "v": value, "x": x, "at": second * 1_000_000}


def second(text: str, number: int, at: int = 0) -> dict[str, Any]:
    return {"v": text, "k": number, "at": at * 1_000_000}


def jobs(spark: SparkSession) -> int:
    """The number of the newest job."""
    return max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)


def plan_of(rig: Any) -> Any:
    return rig.engine._ticker._computer._shared._plan


def test_a_tick_of_all_streams_is_one_job(
    make_rig: Callable[..., Any], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(TWO)
    rig.start()
    monkeypatch.delattr(PreparedPlan, "run")
    rig.append("first", [first("a", 2, 10, x=0.0), first("a", 2, 11, x=-0.0), first("b", 1, 30)])
    rig.append("second", [second("x", 1), second("X", 2)])
    before = jobs(spark)
    assert rig.engine.step().tick == 1
    assert jobs(spark) == before + 1
    # Late for the session of its key: others decide that, and it is set aside.
    rig.append("first", [first("b", 5, 31), first("a", 9, 12), first("b", 7, 33)])
    rig.append("second", [second("y", 3)])
    before = jobs(spark)
    assert rig.engine.step().tick == 2
    assert jobs(spark) == before + 1
    assert rig.rows("sums") == [{"k": "a", "s": 13, "n": 3}, {"k": "b", "s": 13, "n": 3}]
    assert rig.rows("sorted") == [{"low": "a", "latest": "b"}]
    assert rig.rows("kinds") == [{"n": 4}]
    assert rig.rows("floats") == [{"x": 0.0, "n": 6}]
    assert [str(row["x"]) for row in rig.rows("floats")] == ["0.0"]
    assert [(row["k"], row["n"]) for row in rig.rows("visits")] == [("a", 2), ("b", 3)]
    assert sorted((row["v"], row["s"]) for row in rig.rows("running")) == [
        *((1, 1), (2, 2), (2, 4), (5, 6), (7, 13))
    ]
    assert rig.rows("named") == [{"j": '{"k":"a","y":0.0}', "n": 1}]
    assert rig.rows("texts") == [{"u": "X", "s": 3}, {"u": "Y", "s": 3}]
    events = sorted((row["v"], row["next"]) for row in rig.rows("events"))
    assert events == [("X", 3), ("x", 2), ("y", 4)]
    late = rig.store.query("SELECT view, v FROM first_late ORDER BY view").batches
    assert [row for batch in late for row in batch.to_pylist()] == [
        {"view": "running", "v": 9},
        {"view": "visits", "v": 9},
    ]


def test_a_view_that_fails_leaves_the_tick_and_not_the_plan(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(TWO + RISKY)
    rig.start()
    plan = plan_of(rig)
    rig.append("first", [first("a", 2, 10)])
    rig.append("second", [second("x", 1), second("x", 0), second("x", 5)])
    assert rig.engine.step().tick == 1
    assert rig.rows("sums") == [{"k": "a", "s": 2, "n": 1}]
    assert rig.rows("texts") == [{"u": "X", "s": 6}]
    rig.settle()
    assert rig.rows("risky") == [{"s": 12}]
    (letter,) = rig.store.dead_letters(None, 10)
    assert (letter.view, letter.offset) == ("risky", 1)
    assert plan_of(rig) is plan


def test_a_view_that_begins_gets_a_new_plan_beside_the_old_one(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    until: Callable[..., None],
) -> None:
    rig = make_rig(TWO + RISKY.replace("10 DIV k", "k"))
    rig.start()
    rig.append("second", [second("x", 2)])
    rig.settle()
    rig.stop()
    rig.redefine(TWO + RISKY)
    rig.start()  # the changed view is refused
    plan = plan_of(rig)
    rig.control.rebuild("risky")
    rig.engine.rebuild_what_was_asked()
    rig.append("second", [second("x", 5)])
    rig.settle()
    assert rig.rows("risky") == [{"s": 7}]
    assert rig.rows("texts") == [{"u": "X", "s": 7}]

    def has_new_plan() -> bool:
        rig.engine.step()
        return plan_of(rig) is not plan

    until(has_new_plan)
    rig.append("second", [second("x", 10)])
    rig.append("first", [first("a", 2, 10)])
    before = jobs(spark)
    rig.engine.step()
    assert jobs(spark) == before + 1
    assert rig.rows("risky") == [{"s": 8}]


def test_beyond_its_bound_a_tick_is_grouped(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(TWO)
    rig.start()
    most = shared_plan.STREAM_ROWS_MAX
    monkeypatch.setattr(plan_of(rig), "run", None)
    rig.append("second", [second("x", 1)] * (most + 1))
    assert rig.engine.step().events == most + 1
    assert rig.rows("texts") == [{"u": "X", "s": most + 1}]
    assert rig.rows("events") == [{"v": "x", "next": 2}] * (most + 1)
