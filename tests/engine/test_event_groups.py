"""Views by event group through whole ticks: against one plain batch query in Spark, and with late
events against a walk over the log."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tampering import in_tables

from headrace.compile import plan_view
from headrace.kinds import state_table
from headrace.log.contract import stored_schema
from headrace.model.settings import EngineSettings

pytestmark = pytest.mark.usefixtures("both_ways")

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY, TIMEOUT = 5, 12
PARCELS = ("a", "b", "c")
STREAM = f"""
CREATE STREAM steps (parcel STRING NOT NULL, at TIMESTAMP NOT NULL, status STRING, weight INT)
WATERMARK at DELAY OF INTERVAL {DELAY} SECONDS LATE POLICY
PARTITION BY (parcel) INTO 2 PARTITIONS;
"""
GROUPED = f"GROUP BY event_group(status = 'up', status = 'down', '{TIMEOUT} seconds'), parcel"
VIEWS = (
    "SELECT parcel, window.start AS since, window.end AS up_to, count(*) AS steps, "
    f"sum(weight) AS total FROM steps {GROUPED}",
    "SELECT parcel, count(DISTINCT weight) AS weights, last(status) AS newest, "
    f"avg(weight) AS average FROM steps WHERE weight IS NULL OR weight <> 3 {GROUPED}",
    f"SELECT parcel, window.start AS since, max(at) AS newest FROM steps {GROUPED} "
    "HAVING count(*) > 1",
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "parcel": st.sampled_from(PARCELS),
            "at": st.integers(0, 80).map(lambda half: EPOCH + dt.timedelta(seconds=half / 2)),
            "status": st.sampled_from(["up", "down", "on", None]),
            "weight": st.one_of(st.none(), st.integers(0, 4)),
        }
    ),
    max_size=40,
)


def partition_of(event: dict[str, Any]) -> int:
    return PARCELS.index(event["parcel"]) % 2


def run_through(rig: Any, events: list[dict[str, Any]], data: st.DataObject) -> None:
    rig.start()
    for start in range(0, len(events), 10):
        parts: dict[int, list[dict[str, Any]]] = {}
        for event in events[start : start + 10]:
            parts.setdefault(partition_of(event), []).append(event)
        rig.append_parts("steps", parts)
        action = data.draw(st.sampled_from(["go on", "tick", "settle", "crash"]), label="action")
        if action == "tick":
            rig.engine.step()
        elif action == "settle":
            rig.settle()
        elif action == "crash":
            rig.lose_store()
            rig.start()
    rig.settle()


def placed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With their places in the log, and the watermark before each. They come by tens; a partition
    that gets its first later than the other begins where that one was."""
    highest: dict[int, dt.datetime] = {}
    offsets = [0, 0]
    found = []
    for number, event in enumerate(events):
        if number % 10 == 0:
            others = list(highest.values())
        partition = partition_of(event)
        before = highest.get(partition, min(others, default=None))
        found.append(
            {
                "_received_at": 0,
                "_event_time": event["at"],
                "_partition": partition,
                "_offset": offsets[partition],
                "passed": None if before is None else before - dt.timedelta(seconds=DELAY),
                **event,
            }
        )
        offsets[partition] += 1
        highest[partition] = max(before or event["at"], event["at"])
    return found


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS, data=st.data())
def test_every_group_equals_a_batch_query(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    text = STREAM.replace("POLICY", "REVISE")
    for number, sql in enumerate(VIEWS):
        text += f"CREATE MATERIALIZED VIEW v{number} AS {sql};\n"
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    rig = make_rig(text, engine=EngineSettings(tick_rows_max=rows_max))
    run_through(rig, events, data)
    position = (
        pa.field("_event_time", pa.timestamp("us", "UTC")),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    )
    schema = pa.schema([*stored_schema(rig.project.stream("steps")), *position])
    table = pa.Table.from_pylist(placed(events), schema=schema)
    for number, sql in enumerate(VIEWS):
        plan = plan_view(rig.project, rig.project.view(f"v{number}"))
        spark.createDataFrame(table).createOrReplaceTempView("steps")
        expected = spark.sql(plan.sql).toArrow()
        found = rig.store.read_view(f"v{number}", {}, [], 100_000, None).table
        found = found.select(expected.schema.names)
        assert [f.type for f in found.schema] == [f.type for f in expected.schema], sql
        rows = [Counter(map(repr, some.to_pylist())) for some in (found, expected)]
        assert rows[0] == rows[1], sql
    rig.stop()


@pytest.mark.parametrize("policy", ["REVISE", "SIDE", "DROP", "REVISE WITHIN INTERVAL 3 SECONDS"])
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS, data=st.data())
def test_late_events_are_judged_by_what_came_before_them(
    make_rig: Callable[..., Any],
    policy: str,
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    text = STREAM.replace("POLICY", policy) + f"CREATE MATERIALIZED VIEW v AS {VIEWS[0]};"
    text += f"CREATE MATERIALIZED VIEW w AS {VIEWS[0]} EMIT ON WINDOW CLOSE;"
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    rig = make_rig(text, engine=EngineSettings(tick_rows_max=rows_max))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_table, "EXPIRY_TICKS", 1)
        run_through(rig, events, data)
    rows, counted, missed = judged_model(placed(events), policy)
    names = ("parcel", "since", "up_to", "steps", "total", "revision")
    found = rig.store.read_view("v", {}, [], 100_000, None).table.select(names)
    assert Counter(tuple(row.values()) for row in found.to_pylist()) == rows
    totals = rig.store.catalog()["v"].totals
    assert (totals.applied, totals.late, totals.sided + totals.dropped) == counted
    assert replayed(rig, "v", names) == rows
    shown = rig.store.read_view("w", {}, [], 100_000, None).table
    assert all(shown.column("final").to_pylist())
    final = Counter(tuple(row.values()) for row in rig.rows("v") if row["final"])
    assert Counter(tuple(row.values()) for row in shown.to_pylist()) == final
    assert replayed(rig, "w", (*names, "final")) == final
    assert missed_windows(rig, policy) == missed
    check_kept(rig, placed(events), policy)
    rig.stop()


def replayed(rig: Any, view: str, names: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for change in rig.store.changes(view, 0, 10_000):
        found.subtract(tuple(row.values()) for row in change.before.select(names).to_pylist())
        assert min(found.values(), default=0) >= 0
        found.update(tuple(row.values()) for row in change.after.select(names).to_pylist())
    return Counter({row: n for row, n in found.items() if n})


def missed_windows(rig: Any, policy: str) -> Counter[tuple[Any, ...]]:
    """What is recorded of the windows that late events missed in view v."""
    if policy == "REVISE":
        return Counter()
    if policy == "DROP":
        found = in_tables(
            rig.store,
            "SELECT window_start, window_end, sum(events)::INT FROM {books}.dropped"
            " WHERE view = 'v' GROUP BY ALL",
        )
        return Counter({(start, end): count for start, end, count in found})
    found = in_tables(rig.store, "SELECT window_start, window_end FROM steps_late WHERE view = 'v'")
    return Counter(found)


def check_kept(rig: Any, events: list[dict[str, Any]], policy: str) -> None:
    """Where late events are dropped, no event stays that the watermark of its partition has left
    behind by more than the timeout; elsewhere all that were applied do."""
    if policy != "DROP":
        kept = in_tables(rig.store, "SELECT count(*) FROM {1} WHERE {mine}", "v")
        assert kept == [(rig.store.catalog()["v"].totals.applied,)]
        return
    for partition in (0, 1):
        times = [e["at"] for e in events if e["_partition"] == partition]
        if times:
            bound = max(times) - dt.timedelta(seconds=DELAY + TIMEOUT)
            old = in_tables(
                rig.store,
                f"SELECT count(*) FROM {{1}} WHERE {{mine}} AND _event_partition = {partition}"
                f" AND make_timestamptz(_pane) <= TIMESTAMPTZ '{bound.isoformat()}'",
                "v",
            )
            assert old == [(0,)]


def groups_of(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups, group = [], []
    for event in sorted(events, key=lambda e: (e["at"], e["_partition"], e["_offset"])):
        if group and event["at"] >= group[0]["at"] + dt.timedelta(seconds=TIMEOUT):
            groups.append(group)
            group = []
        if group or event["status"] == "up":
            group.append(event)
        if group and event["status"] == "down":
            groups.append(group)
            group = []
    return [*groups, group] if group else groups


def judged_model(
    events: list[dict[str, Any]], policy: str
) -> tuple[Counter[tuple[Any, ...]], tuple[int, int, int], Counter[tuple[Any, ...]]]:
    """The rows; how many events were applied, applied late, and not applied; and the groups that
    these would have been in. One that would have begun a group is told with its timeout."""
    missed: Counter[tuple[Any, ...]] = Counter()
    rows: Counter[tuple[Any, ...]] = Counter()
    applied_count = late_count = aside_count = 0
    for parcel in PARCELS:
        applied: list[dict[str, Any]] = []
        for event in (e for e in events if e["parcel"] == parcel):
            mine = [g for g in groups_of([*applied, event]) if event in g]
            is_late = bool(mine) and is_passed(mine[0], event["passed"])
            lowered = event["passed"] and event["passed"] - dt.timedelta(seconds=3)
            is_beyond = bool(mine) and is_passed(mine[0], lowered)
            is_kept = {"REVISE": True, "SIDE": not is_late, "DROP": not is_late}
            if is_kept.get(policy, not is_beyond):
                applied.append({**event, "is_late": is_late})
                late_count += is_late
            else:
                aside_count += 1
                own = mine[0][0] is event and event["status"] != "down"
                end = event["at"] + dt.timedelta(seconds=TIMEOUT) if own else end_of(mine[0])
                missed[(mine[0][0]["at"], end)] += 1
        applied_count += len(applied)
        for group in groups_of(applied):
            weights = [e["weight"] for e in group if e["weight"] is not None]
            total = sum(weights) if weights else None
            revision = sum(e["is_late"] for e in group)
            rows[(parcel, group[0]["at"], end_of(group), len(group), total, revision)] += 1
    return rows, (applied_count, late_count, aside_count), missed


def end_of(group: list[dict[str, Any]]) -> dt.datetime:
    if group[-1]["status"] == "down":
        return group[-1]["at"]
    return group[0]["at"] + dt.timedelta(seconds=TIMEOUT)


def is_passed(group: list[dict[str, Any]], watermark: dt.datetime | None) -> bool:
    if watermark is None:
        return False
    if group[-1]["status"] == "down":
        return watermark > group[-1]["at"]
    return watermark >= end_of(group)
