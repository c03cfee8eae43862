"""Views by session under disorder: Spark's own session_window is the oracle of what they hold, and
a model that takes one event after the other of what was late."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.engine.lateness import KeySessions
from headrace.model.settings import EngineSettings

pytestmark = pytest.mark.usefixtures("both_ways")

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GAP, DELAY, HORIZON = 3, 2, 6
APART = 1_000  # seconds from one example to the next
POLICIES = {
    "revised": "REVISE",
    "dropped": "DROP",
    "sided": "SIDE",
    "within": f"REVISE WITHIN INTERVAL {HORIZON} SECONDS",
}
QUERY = f"""
SELECT user_id, session_window.start AS window_start, session_window.end AS window_end,
       count(*) AS visits, sum(amount) AS amount, count(DISTINCT page) AS pages
FROM {{stream}} WHERE amount IS NOT NULL
GROUP BY session_window(at, '{GAP} seconds'), user_id
"""
SQL = """
CREATE STREAM {name}_visits (user_id STRING, at TIMESTAMP NOT NULL, page STRING, amount INT)
WATERMARK at DELAY OF INTERVAL {delay} SECONDS
LATE {policy}
PARTITION BY (user_id) INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW {name} AS {query};
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

Event = dict[str, Any]


def sql_of(*names: str) -> str:
    return "".join(
        SQL.format(
            name=name,
            delay=DELAY,
            policy=POLICIES[name],
            query=QUERY.format(stream=f"{name}_visits"),
        )
        for name in names
    )


def partition_of(event: Event) -> int:
    return int(event["user_id"] in ("b", "c"))


def timed(event: Event) -> Event:
    return {**event, "at": EPOCH + dt.timedelta(seconds=event["at"])}


def split(events: Sequence[Event]) -> list[list[Event]]:
    sessions: list[list[Event]] = []
    for event in sorted(events, key=lambda e: e["at"]):
        if sessions and event["at"] - sessions[-1][-1]["at"] <= GAP:
            sessions[-1].append(event)
        else:
            sessions.append([event])
    return sessions


@dataclass
class Model:
    """Plain steps: each event in its place, against the sessions of its user as they are then."""

    policy: str
    highest: dict[int, int] = field(default_factory=dict)
    applied: dict[Any, list[Event]] = field(default_factory=dict)
    aside: list[tuple[int, int, int]] = field(default_factory=list)  # time, session missed
    filtered: int = 0

    def take_group(self, events: Sequence[Event]) -> None:
        """A partition that gets its first later than the other begins where that one was."""
        begun = min(self.highest.values(), default=-APART)
        for event in events:
            self.highest.setdefault(partition_of(event), begun)
            self.take(event)

    def take(self, event: Event) -> None:
        partition = partition_of(event)
        high = self.highest[partition]
        watermark = high - DELAY
        self.highest[partition] = max(high, event["at"])
        if event["amount"] is None:
            self.filtered += 1
            return
        mine = self.applied.setdefault(event["user_id"], [])
        session = next(s for s in split([*mine, event]) if event in s)
        end = session[-1]["at"] + GAP
        horizon = {"REVISE": None, "DROP": 0, "SIDE": 0}.get(self.policy, HORIZON)
        if horizon is not None and end <= watermark - horizon:
            self.aside.append((event["at"], session[0]["at"], end))
        else:
            mine.append({**event, "late": end <= watermark})

    def rows(self, start: int = 0) -> Counter[Any]:
        """Of the sessions that begin then or later."""
        watermark = min(self.highest.values(), default=0) - DELAY
        rows: Counter[Any] = Counter()
        for user, mine in self.applied.items():
            for found in split([event for event in mine if event["at"] >= start]):
                end = found[-1]["at"] + GAP
                amount, late = (sum(e[name] for e in found) for name in ("amount", "late"))
                pages = len({e["page"] for e in found} - {None})
                bounds = found[0]["at"], end
                row = (user, *bounds, len(found), amount, pages, late, end <= watermark)
                rows[row] += 1
        return rows


def seconds(moment: dt.datetime) -> int:
    return round((moment - EPOCH).total_seconds())


def row_of(row: Event) -> tuple[Any, ...]:
    bounds = seconds(row["window_start"]), seconds(row["window_end"])
    rest = [row[name] for name in ("visits", "amount", "pages", "revision", "final") if name in row]
    return (row["user_id"], *bounds, *rest)


def shown(rig: Any, view: str, start: int = 0) -> Counter[Any]:
    rows = map(row_of, rig.rows(view))
    return Counter(row for row in rows if row[1] >= start)


def check_counts(rig: Any, name: str, model: Model) -> None:
    totals = rig.store.catalog()[name].totals
    applied = [event for mine in model.applied.values() for event in mine]
    assert totals.is_conserved
    assert (totals.applied, totals.filtered) == (len(applied), model.filtered)
    assert totals.late == sum(event["late"] for event in applied)
    assert totals.dropped == (len(model.aside) if name == "dropped" else 0)
    assert totals.sided == (len(model.aside) if name in ("sided", "within") else 0)
    if name in ("sided", "within"):
        result = rig.store.query(f'SELECT "at", window_start, window_end FROM {name}_visits_late')
        rows = pa.Table.from_batches(result.batches, result.schema).to_pylist()
        assert sorted(tuple(map(seconds, row.values())) for row in rows) == sorted(model.aside)
    if name == "dropped":
        counted = {
            (d.window_start_microseconds, d.window_end_microseconds): d.events
            for d in rig.store.late("dropped_visits", 1_000).dropped
        }
        epoch = int(EPOCH.timestamp())
        missed = Counter((start, end) for _, start, end in model.aside)
        assert counted == {
            ((epoch + start) * 1_000_000, (epoch + end) * 1_000_000): n
            for (start, end), n in missed.items()
        }


def test_sessions_equal_the_model_and_spark(
    make_rig: Callable[..., Any], spark: SparkSession
) -> None:
    """Examples follow each other in event time, far apart, through the same engine: its plans are
    made once. In the end everything is computed again, in larger ticks."""
    rig = make_rig(sql_of(*POLICIES), EngineSettings(cores=1, tick_rows_max=9))
    rig.start()
    models = {name: Model(policy) for name, policy in POLICIES.items()}
    logged: list[Event] = []

    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(events=EVENTS, step_after=st.integers(4, 16))
    def example(events: list[Event], step_after: int) -> None:
        start = (max((e["at"] for e in logged), default=0) // APART + 1) * APART
        events = [{**event, "at": start + event["at"]} for event in events]
        for part in (events[:step_after], events[step_after:]):
            for name, model in models.items():
                model.take_group(part)
                parts: dict[int, list[Any]] = {}
                for event in part:
                    parts.setdefault(partition_of(event), []).append(timed(event))
                rig.append_parts(f"{name}_visits", parts)
            logged.extend(part)
            rig.engine.step()
        rig.settle()
        for name, model in models.items():
            assert shown(rig, name, start) == model.rows(start), name

    example()
    rig.lose_store()
    rig.settings = replace(rig.settings, engine=EngineSettings(cores=1))
    rig.start()
    for name in POLICIES:
        rig.control.rebuild(name)
    rig.engine.rebuild_what_was_asked()
    rig.settle()
    for name, model in models.items():
        assert shown(rig, name) == model.rows(), name
        check_counts(rig, name, model)
    assert all(models[name].aside for name in ("dropped", "sided", "within"))
    assert any(row[-2] for row in models["revised"].rows())
    table = pa.Table.from_pylist(list(map(timed, logged)), SCHEMA)
    spark.createDataFrame(table).createOrReplaceTempView("visits_given")
    found = spark.sql(QUERY.format(stream="visits_given")).toArrow().to_pylist()
    assert Counter(map(row_of, found)) == Counter(row[:-2] for row in shown(rig, "revised"))
    rig.stop()


def test_an_event_is_judged_with_those_before_it_in_its_tick(make_rig: Callable[..., Any]) -> None:
    """The event at 8 s is behind the watermark, but reaches a session that is not."""
    rig = make_rig(sql_of("dropped"), EngineSettings(cores=1))
    rig.start()
    times = [0, 13, 11, 8, 1]  # the last is late: its session ended at 3 s
    visits = [{"user_id": "a", "at": at, "page": "x", "amount": 1} for at in times]
    rig.append("dropped_visits", [timed(visit) for visit in visits])
    rig.settle()
    assert sorted(map(row_of, rig.rows("dropped"))) == [
        ("a", 0, 3, 1, 1, 1, 0, True),
        ("a", 8, 16, 3, 3, 1, 0, False),
    ]
    totals = rig.store.catalog()["dropped"].totals
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
