"""Definitions that come, change, go and come back; views defined alike; values no store holds."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.model.errors import QueryError, RequestError

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
STREAM = """
CREATE STREAM t (k STRING, v BIGINT, b BINARY, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE
INTO 2 PARTITIONS
RETAIN 1 HOURS;
"""
A = "CREATE MATERIALIZED VIEW a AS SELECT k, count(*) AS n FROM t GROUP BY k;\n"
B = "CREATE MATERIALIZED VIEW b AS SELECT k, sum(v) AS s FROM t GROUP BY k;\n"
TWIN = "CREATE MATERIALIZED VIEW twin AS SELECT k, count(*) AS n FROM t GROUP BY k;\n"
FAILING = "CREATE MATERIALIZED VIEW f AS SELECT k, sum(1 / v) AS s FROM t GROUP BY k;\n"
TEXTS = (
    "CREATE MATERIALIZED VIEW texts AS "
    "SELECT CAST(b AS STRING) AS u, count(*) AS n FROM t GROUP BY 1;\n"
)


def event(key: str = "x", value: int = 1, octets: bytes = b"", seconds: int = 0) -> dict[str, Any]:
    return {"k": key, "v": value, "b": octets, "at": EPOCH + dt.timedelta(seconds=seconds)}


def take(rig: Any, events: list[dict[str, Any]]) -> None:
    rig.append("t", events)
    rig.settle()


def restart(rig: Any, sql: str) -> None:
    rig.stop()
    rig.redefine(sql)
    rig.start()


def test_views_defined_alike_are_right_when_another_one_fails(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM + A + TWIN + FAILING)
    rig.start()
    take(rig, [event(), event(value=0), event("y")])
    assert sorted(map(str, rig.rows("a"))) == sorted(map(str, rig.rows("twin")))
    assert {row["k"]: row["n"] for row in rig.rows("twin")} == {"x": 2, "y": 1}
    assert {row["k"]: row["s"] for row in rig.rows("f")} == {"x": 1.0, "y": 1.0}
    assert len(rig.store.dead_letters("f", 10)) == 1


def test_bytes_that_are_no_text_are_the_dead_letter_of_their_event(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(STREAM + A + TEXTS)
    rig.start()
    take(rig, [event(octets=b"fine")])
    take(rig, [event(octets=b"good"), event(octets=b"\xff\xfe"), event(octets=b"good")])
    rig.store.checkpoint()
    rig.lose_store()
    rig.start()
    assert {row["u"]: row["n"] for row in rig.rows("texts")} == {"fine": 1, "good": 2}
    assert rig.rows("a") == [{"k": "x", "n": 4}]
    (letter,) = rig.store.dead_letters("texts", 10)
    assert letter.offset == 2
    assert "UTF8" in letter.reason


def test_a_view_no_longer_defined_is_closed_and_goes_on_when_it_comes_back(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(STREAM + A + B)
    rig.start()
    take(rig, [event()])
    restart(rig, STREAM + A)
    take(rig, [event()])
    with pytest.raises(QueryError, match="no longer defined"):
        rig.rows("b")
    with pytest.raises(QueryError):
        rig.store.query("SELECT * FROM b")
    assert rig.rows("a") == [{"k": "x", "n": 2}]
    restart(rig, STREAM + A + B)
    rig.settle()
    assert rig.rows("b") == [{"k": "x", "s": 2}]
    assert len(list(rig.store.query("SELECT * FROM b").batches)) == 1


def test_a_view_that_the_log_has_passed_is_refused_and_the_others_run(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(STREAM + A + B)
    rig.start()
    take(rig, [event()])
    restart(rig, STREAM + A)
    for _ in range(3):
        take(rig, [event()])
    rig.engine._advance_retention_floor()
    rig.writer.retain(time.time_ns() // 1_000 + 36_000_000_000)
    assert rig.reader.starts("t")[0] > 1
    restart(rig, STREAM + A + B)
    take(rig, [event()])
    status = rig.control.status().views["b"]
    assert status.state == "failed"
    assert "headrace rebuild b" in status.detail
    assert rig.rows("a") == [{"k": "x", "n": 5}]
    with pytest.raises(RequestError, match=r"partition 0 begins at offset [1-9].* the view at 0"):
        rig.control.rebuild("b")
    rig.control.rebuild("b", from_oldest=True)
    rig.engine.rebuild_what_was_asked()
    rig.settle()
    assert rig.control.status().views["b"].state == "live"


def test_a_refused_definition_is_forgotten_when_the_old_one_is_back(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(STREAM + A + B)
    rig.start()
    take(rig, [event()])
    restart(rig, STREAM + A + B.replace("FROM t", "FROM t WHERE v = at"))
    assert rig.control.status().views["b"].state == "failed"
    restart(rig, STREAM + A + B)
    take(rig, [event()])
    assert rig.control.status().views["b"].state == "live"
    assert rig.rows("b") == [{"k": "x", "s": 2}]


def test_what_was_complete_stays_complete(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM + A)
    rig.start()
    take(rig, [event(seconds=60)])
    complete = rig.control.watermark("a")
    rig.append("t", [event(seconds=10)], partition=1)  # the first of its partition: late
    rig.settle()
    assert rig.control.watermark("a") == complete
    rig.append("t", [event(seconds=90)], partition=1)
    take(rig, [event(seconds=90)])
    assert rig.control.watermark("a") == complete + 30_000_000
