"""The proof of sliding windows against the rule followed by hand, event by event."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.compile import plan_view
from headrace.proof.events import LogTable
from headrace.proof.oracle import oracle
from headrace.proof.sliding import sliding_rows

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY, REACH, HORIZON = 1, 4, 3  # seconds
DEFINITIONS = """
CREATE STREAM readings (sensor STRING, value INT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND {late} INTO 1 PARTITIONS;
CREATE MATERIALIZED VIEW v AS
SELECT sensor, value, sum(value) OVER (PARTITION BY sensor ORDER BY at
  RANGE BETWEEN INTERVAL 4 SECONDS PRECEDING AND CURRENT ROW) AS total,
  count(*) OVER (PARTITION BY sensor ORDER BY at
  RANGE BETWEEN INTERVAL 2 SECONDS PRECEDING AND CURRENT ROW) AS n
FROM readings WHERE value <> 3;
"""


@pytest.mark.parametrize("late", ["REVISE", "DROP", "REVISE WITHIN INTERVAL 3 SECONDS"])
def test_frames_are_those_of_the_rule(
    make_rig: Callable[..., Any], spark: SparkSession, late: str
) -> None:
    rig = make_rig(DEFINITIONS.format(late=f"LATE {late}"))
    chance = random.Random(7)
    made = [
        (chance.choice("ab"), chance.randrange(6), i / 2 - chance.choice([0, 0, 1, 3, 6, 9]))
        for i in range(80)
    ]
    rows = [{"sensor": s, "value": v, "at": EPOCH + dt.timedelta(seconds=t)} for s, v, t in made]
    rig.append("readings", rows)
    plan = plan_view(rig.project, rig.project.view("v"))
    stream = rig.project.stream("readings")
    question = oracle(plan, stream)
    table = LogTable(rig.reader.address, stream, question.columns, {0: 0}, {0: 80})
    table.frame(spark, with_watermark=True).createOrReplaceTempView("readings")
    found = {
        row["_offset"]: (row["e0"], row["e1"], row["e2"], row["e3"], row["revision"])
        for row in sliding_rows(spark, plan, stream, question).toArrow().to_pylist()
    }
    assert found == _by_hand(made, late)


def _by_hand(made: list[tuple[str, int, float]], late: str) -> dict[int, tuple[Any, ...]]:
    highest, watermarks = None, []
    for _, _, time in made:
        watermarks.append(None if highest is None else highest - DELAY)
        highest = time if highest is None else max(highest, time)

    def is_late(f: int, time: float) -> bool:
        return watermarks[f] is not None and watermarks[f] > time

    def is_out(f: int, time: float) -> bool:
        if late == "REVISE" or watermarks[f] is None:
            return False
        return bool(watermarks[f] - (0 if late == "DROP" else HORIZON) > time)

    wanted = {}
    for r, (sensor, value, time) in enumerate(made):
        if value == 3 or is_out(r, time):
            continue
        frame = [
            f
            for f, (s, v, t) in enumerate(made)
            if s == sensor and v != 3 and time - REACH <= t <= time and not is_out(f, time)
        ]
        total = sum(made[f][1] for f in frame)
        count = sum(made[f][2] >= time - 2 for f in frame)
        revision = sum(is_late(f, time) for f in frame)
        wanted[r] = (sensor, value, total, count, revision)
    return wanted
