"""The rule of event groups, followed by the proof in the order of the log."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.compile import plan_view
from headrace.model.definitions import LatePolicy, Stream
from headrace.proof.events import LogTable
from headrace.proof.groups import EventGroups, GroupEvent, declare_grouped, group_of
from headrace.proof.lateness import judge_in_order
from headrace.proof.oracle import oracle

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = 1_000_000
DEFINITIONS = """
CREATE STREAM steps (parcel STRING, status STRING, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE {late} INTO 1 PARTITIONS;
CREATE MATERIALIZED VIEW v AS
SELECT window.start AS s, window.end AS e, parcel, count(*) AS n FROM steps
WHERE status <> 'noise'
GROUP BY event_group(status = 'open', status = 'close', '10 seconds'), parcel;
"""


def event(time: int, kind: str = "", offset: int = 0) -> GroupEvent:
    return GroupEvent(time, 0, offset, kind == "open", kind == "close")


@pytest.mark.unit
def test_groups_begin_and_end_as_the_definition_says() -> None:
    events = [
        event(0),
        event(1, "open"),
        event(2, "open"),
        event(3, "close"),
        event(4),
        event(5, "open"),
        event(15),
        event(16, "open"),
    ]
    found = [group_of(events, one, 10) for one in events]
    assert found == [None, (3, True), (3, True), (3, True), None, (15, False), None, (26, False)]


@pytest.mark.unit
@pytest.mark.parametrize(("policy", "taken"), [(LatePolicy.REVISE, True), (LatePolicy.DROP, False)])
def test_lateness_is_judged_with_what_was_applied(policy: LatePolicy, taken: bool) -> None:
    stream = Stream("s", (), late_policy=policy)
    steps = [
        (event(1, "open", 0), None, None),
        (event(9, "close", 1), 5, None),
        (event(4, "", 2), 9, None),  # closed at 9, and 9 is not after it
        (event(3, "close", 3), 10, None),  # closes it earlier: passed
        (event(8, "", 4), 10, None),  # in the group only if the last one was not taken
        (event(2, "", 5), None, "nobody"),
    ]
    found = judge_in_order(stream, EventGroups(100), steps)
    assert found[:4] == [(False, True), (False, True), (False, True), (True, taken)]
    assert found[4] == ((False, True) if taken else (True, False))
    assert found[5] == (False, True)


@pytest.mark.parametrize("late", ["REVISE", "DROP"])
def test_the_query_gives_the_groups_of_what_was_taken(
    make_rig: Callable[..., Any], spark: SparkSession, late: str
) -> None:
    rig = make_rig(DEFINITIONS.format(late=late))
    chance = random.Random(5)
    kinds = ["open", "close", "move", "move", "move", "noise"]
    made = [
        (chance.choice("ab"), chance.choice(kinds), i - chance.choice([0, 0, 0, 2, 8, 20]))
        for i in range(90)
    ]
    rig.append(
        "steps",
        [{"parcel": p, "status": k, "at": EPOCH + dt.timedelta(seconds=t)} for p, k, t in made],
    )
    plan, stream = plan_view(rig.project, rig.project.view("v")), rig.project.stream("steps")
    question = oracle(plan, stream)
    table = LogTable(rig.reader.address, stream, question.columns, {0: 0}, {0: 90})
    table.frame(spark, with_watermark=True).createOrReplaceTempView("steps")
    declare_grouped(spark, plan, stream)
    rows = spark.sql(question.sql).toArrow().to_pylist()
    found = sorted(
        (r["e2"], _second(r["e0"]), _second(r["e1"]), r["e3"], r["revision"]) for r in rows
    )
    assert found == sorted(_by_hand(stream, made))
    for row in rows:  # closed at a moment, which is final after it; or timed out
        is_closed = row["e1"] - row["e0"] < dt.timedelta(seconds=10)
        assert row["window_end"] - row["e1"] == dt.timedelta(microseconds=int(is_closed))
    assert sum(row[-1] for row in found) > 0 or late == "DROP"


def _second(time: dt.datetime) -> int:
    return int((time - EPOCH).total_seconds())


def _by_hand(stream: Stream, made: list[tuple[str, str, int]]) -> list[tuple[Any, ...]]:
    keyed: dict[str, list[tuple[GroupEvent, int | None, None]]] = {"a": [], "b": []}
    highest: int | None = None
    for offset, (parcel, kind, time) in enumerate(made):
        watermark = None if highest is None else (highest - 1) * SECOND
        if kind != "noise":
            one = GroupEvent(time * SECOND, 0, offset, kind == "open", kind == "close")
            keyed[parcel].append((one, watermark, None))
        highest = time if highest is None else max(highest, time)
    rows = []
    for parcel, steps in keyed.items():
        judged = judge_in_order(stream, EventGroups(10 * SECOND), steps)
        taken = {s[0]: late for s, (late, is_taken) in zip(steps, judged, strict=True) if is_taken}
        groups: list[list[GroupEvent]] = []
        is_open = False
        for one in sorted(taken):
            is_open = is_open and one.time < groups[-1][0].time + 10 * SECOND
            if not is_open and one.opens:
                groups.append([])
                is_open = True
            if is_open:
                groups[-1].append(one)
                is_open = not one.closes
        for group in groups:
            start = group[0].time // SECOND
            end = group[-1].time // SECOND if group[-1].closes else start + 10
            rows.append((parcel, start, end, len(group), sum(taken[one] for one in group)))
    return rows
