"""Views by session under disorder: Spark's own session_window is the oracle of what they hold, and
a model that takes one event after the other of what was late."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.engine.judging import KeySessions
from headrace.model.settings import EngineSettings

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GAP, DELAY, HORIZON = 3, 2, 6
POLICIES = ("REVISE", "DROP", "SIDE", f"REVISE WITHIN INTERVAL {HORIZON} SECONDS")
SQL = """
CREATE STREAM visits (user_id STRING, at TIMESTAMP NOT NULL, page STRING, amount INT)
WATERMARK at DELAY OF INTERVAL {delay} SECONDS
LATE {policy}
PARTITION BY (user_id) INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW sessions AS
SELECT user_id, session_window.start AS window_start, session_window.end AS window_end,
       count(*) AS visits, sum(amount) AS amount, count(DISTINCT page) AS pages
FROM visits WHERE amount IS NOT NULL
GROUP BY session_window(at, '{gap} seconds'), user_id;
"""
ORACLE = """
SELECT user_id, session_window.start AS window_start, session_window.end AS window_end,
       count(*) AS visits, sum(amount) AS amount, count(DISTINCT page) AS pages
FROM visits_given WHERE amount IS NOT NULL
GROUP BY session_window(at, '{gap} seconds'), user_id
"""
SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("page", pa.string()),
        ("amount", pa.int32()),
    ]
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "user_id": st.sampled_from(["a", "b", "c", None]),
            "at": st.integers(0, 30),
            "page": st.sampled_from(["x", "y", None]),
            "amount": st.sampled_from([None, 1, 2, 3]),
        }
    ),
    min_size=8,
    max_size=24,
)


def partition_of(event: dict[str, Any]) -> int:
    return int(event["user_id"] in ("b", "c"))


def timed(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "at": EPOCH + dt.timedelta(seconds=event["at"])}


def modelled(events: Sequence[dict[str, Any]], policy: str) -> Counter[Any]:
    """(user, start, end, visits, amount, pages, revision) by plain steps: each event in its place,
    against the sessions of its user as they are then."""
    highest: dict[int, int] = {}
    applied: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        watermark = highest.get(partition_of(event), -1_000) - DELAY
        highest[partition_of(event)] = max(highest.get(partition_of(event), -1_000), event["at"])
        if event["amount"] is None:
            continue
        mine = applied.setdefault(event["user_id"], [])
        found = next(s for s in split([*mine, event]) if event in s)
        end = found[-1]["at"] + GAP
        late = end <= watermark
        if late and (
            policy in ("DROP", "SIDE") or ("WITHIN" in policy and end <= watermark - HORIZON)
        ):
            continue
        mine.append({**event, "late": late})
    rows: Counter[Any] = Counter()
    for user, mine in applied.items():
        for session in split(mine):
            pages = len({e["page"] for e in session} - {None})
            amount = sum(e["amount"] for e in session)
            late = sum(e["late"] for e in session)
            start, end = session[0]["at"], session[-1]["at"] + GAP
            rows[(user, start, end, len(session), amount, pages, late)] += 1
    return rows


def split(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    sessions: list[list[dict[str, Any]]] = []
    for event in sorted(events, key=lambda e: e["at"]):
        if sessions and event["at"] - sessions[-1][-1]["at"] <= GAP:
            sessions[-1].append(event)
        else:
            sessions.append([event])
    return sessions


def seconds(moment: dt.datetime) -> int:
    return round((moment - EPOCH).total_seconds())


def row_of(row: dict[str, Any]) -> tuple[Any, ...]:
    bounds = seconds(row["window_start"]), seconds(row["window_end"])
    return (row["user_id"], *bounds, row["visits"], row["amount"], row["pages"])


def revised(store: Any) -> Counter[Any]:
    """With the revision, which only the state holds."""
    number = store._views.stored["sessions"].number
    state = f"SELECT user_id, epoch_us(window_start), revision FROM _headrace.state_{number}"
    found = store._connection.cursor().execute(state).fetchall()
    start = round(EPOCH.timestamp())
    known = {(user, at // 1_000_000 - start): revision for user, at, revision in found}
    rows = store.read_view("sessions", {}, [], 100_000, None).table.to_pylist()
    return Counter((*row_of(r), known[r["user_id"], seconds(r["window_start"])]) for r in rows)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS, policy=st.sampled_from(POLICIES), data=st.data())
def test_sessions_equal_the_oracle(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    events: list[dict[str, Any]],
    policy: str,
    data: st.DataObject,
) -> None:
    rows_max = data.draw(st.sampled_from([6, 1_000]), label="rows per tick")
    rig = make_rig(
        SQL.format(policy=policy, delay=DELAY, gap=GAP),
        engine=EngineSettings(tick_rows_max=rows_max),
    )
    rig.start()
    for start in range(0, len(events), 10):
        for partition in (0, 1):
            mine = [timed(e) for e in events[start : start + 10] if partition_of(e) == partition]
            if mine:
                rig.append("visits", mine, partition=partition)
        action = data.draw(st.sampled_from(["go on", "tick", "settle", "crash"]), label="action")
        if action == "tick":
            rig.engine.step()
        elif action == "settle":
            rig.settle()
        elif action == "crash":
            rig.lose_store()
            rig.start()
    rig.settle()
    assert revised(rig.store) == modelled(events, policy)
    if policy == "REVISE":
        table = pa.Table.from_pylist([timed(event) for event in events], SCHEMA)
        spark.createDataFrame(table).createOrReplaceTempView("visits_given")
        wanted = Counter(map(row_of, spark.sql(ORACLE.format(gap=GAP)).toArrow().to_pylist()))
        assert Counter(map(row_of, rig.rows("sessions"))) == wanted
    rig.stop()


def test_an_event_is_judged_with_those_before_it_in_its_tick(make_rig: Callable[..., Any]) -> None:
    """The event at 8 s is behind the watermark, but reaches a session that is not."""
    rig = make_rig(SQL.format(policy="DROP", delay=DELAY, gap=GAP))
    rig.start()
    times = [0, 13, 11, 8, 1]  # the last is late: its session ended at 3 s
    visits = [{"user_id": "a", "at": at, "page": "x", "amount": 1} for at in times]
    rig.append("visits", [timed(visit) for visit in visits])
    rig.settle()
    assert sorted(map(row_of, rig.rows("sessions"))) == [
        ("a", 0, 3, 1, 1, 1),
        ("a", 8, 16, 3, 3, 1),
    ]
    totals = rig.store.catalog()["sessions"].totals
    assert (totals.applied, totals.dropped) == (4, 1)


@pytest.mark.parametrize(
    ("times", "spans"),
    [
        ([5], [(5, 5)]),
        ([5, 8], [(5, 8)]),
        ([5, 9], [(5, 5), (9, 9)]),
        ([5, 11, 8], [(5, 11)]),
        ([0, 19, 10, 13, 16, 3], [(0, 3), (10, 19)]),
        ([4, 4, 2], [(2, 4)]),
    ],
)
def test_sessions_of_a_key(times: list[int], spans: list[tuple[int, int]]) -> None:
    sessions = KeySessions(GAP)
    for time in times:
        sessions.apply(time)
    assert sessions.spans == spans
