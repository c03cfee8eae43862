"""Views with OVER (… RANGE …) through whole ticks, against one plain batch query in Spark."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.compile import plan_view
from headrace.log.contract import stored_schema
from headrace.model.settings import EngineSettings

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY = 5
AGGREGATES = (
    "count(*)",
    "count(amount)",
    "sum(amount)",
    "avg(amount)",
    "sum(quantity)",
    "avg(price)",
    "sum(price)",
    "min(amount)",
    "max(at)",
    "min(status)",
    "stddev(price)",
    "count_if(quantity > 2)",
    "sum(CASE WHEN status = 'paid' THEN amount END)",
    "last(status)",
    "first(quantity)",
)
BOUNDS = ("INTERVAL 3 SECONDS", "INTERVAL 10 SECONDS", "INTERVAL 0 SECONDS", "UNBOUNDED")
PARTITIONS = ("PARTITION BY sensor ", "PARTITION BY sensor, status ", "")
STREAM = f"""
CREATE STREAM readings (sensor STRING, at TIMESTAMP NOT NULL, status STRING, quantity INT,
  amount DECIMAL(18, 2), price DOUBLE)
WATERMARK at DELAY OF INTERVAL {DELAY} SECONDS LATE POLICY INTO 2 PARTITIONS;
"""


@st.composite
def view_sql(draw: st.DrawFn) -> str:
    by = draw(st.sampled_from(PARTITIONS))
    chosen = ["sensor", "at", "upper(status) AS status"]
    for number in range(draw(st.integers(1, 3))):
        aggregate = draw(st.sampled_from(AGGREGATES))
        bound = draw(st.sampled_from(BOUNDS))
        over = f"OVER ({by}ORDER BY at RANGE BETWEEN {bound} PRECEDING AND CURRENT ROW)"
        chosen.append(f"{aggregate} {over} AS value{number}")
    where = draw(st.sampled_from(["", " WHERE quantity IS NOT NULL"]))
    return f"SELECT {', '.join(chosen)} FROM readings{where}"


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "sensor": maybe(st.sampled_from(["a", "b"])),
            "at": st.integers(0, 60).map(lambda half: EPOCH + dt.timedelta(seconds=half / 2)),
            "status": maybe(st.sampled_from(["paid", "failed"])),
            "quantity": maybe(st.integers(-5, 5)),
            "amount": maybe(st.decimals("-999.99", "999.99", places=2)),
            "price": maybe(st.floats(-1e6, 1e6, allow_subnormal=False)),
        }
    ),
    max_size=40,
)


def run_through(rig: Any, events: list[dict[str, Any]], data: st.DataObject) -> None:
    """In pieces of ten by turns to both partitions, with ticks and losses in between."""
    rig.start()
    for start in range(0, len(events), 10):
        rig.append("readings", events[start : start + 10], partition=start // 10 % 2)
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
    """With their places in the log, and W: the watermark before each."""
    highest: dict[int, dt.datetime] = {}
    found = []
    for number, event in enumerate(events):
        partition = number // 10 % 2
        before = highest.get(partition)
        found.append(
            {
                "_received_at": 0,
                "_event_time": event["at"],
                "_partition": partition,
                "_offset": number // 20 * 10 + number % 10,
                "passed": None if before is None else before - dt.timedelta(seconds=DELAY),
                **event,
            }
        )
        highest[partition] = max(before or event["at"], event["at"])
    return found


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(views=st.lists(view_sql(), min_size=1, max_size=3), events=EVENTS, data=st.data())
def test_every_row_equals_a_batch_query(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    views: list[str],
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    plain = "CREATE MATERIALIZED VIEW plain AS SELECT sensor, count(*) AS n FROM readings GROUP BY"
    text = STREAM.replace("POLICY", "REVISE") + f"{plain} sensor;\n"
    for number, sql in enumerate(views):
        text += f"CREATE MATERIALIZED VIEW v{number} AS {sql};\n"
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    rig = make_rig(text, engine=EngineSettings(tick_rows_max=rows_max))
    run_through(rig, events, data)
    position = (
        pa.field("_event_time", pa.timestamp("us", "UTC")),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    )
    schema = pa.schema([*stored_schema(rig.project.stream("readings")), *position])
    table = pa.Table.from_pylist(placed(events), schema=schema)
    for number, sql in enumerate(views):
        plan = plan_view(rig.project, rig.project.view(f"v{number}"))
        spark.createDataFrame(table).createOrReplaceTempView("readings")
        expected = spark.sql(plan.sql).toArrow()
        found = rig.store.read_view(f"v{number}", {}, [], 100_000, None).table
        found = found.select(expected.schema.names)
        assert [f.type for f in found.schema] == [f.type for f in expected.schema], sql
        assert same(found.to_pylist(), expected.to_pylist()), (sql, found, expected)
    rig.stop()


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Doubles may differ in their last digits, and so cannot put rows in order exactly."""
    if len(found) != len(expected):
        return False
    rows = [sorted(some, key=order) for some in (found, expected)]
    return all(close(a[name], b[name]) for a, b in zip(rows[0], rows[1], strict=True) for name in b)


def order(row: dict[str, Any]) -> tuple[str, list[float]]:
    exact = repr([(k, v) for k, v in row.items() if not isinstance(v, float)])
    return exact, [round(v, 5) for v in row.values() if isinstance(v, float)]


def close(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-7)
    return bool(found == expected)


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    events=EVENTS,
    policy=st.sampled_from(["REVISE", "SIDE", "DROP", "REVISE WITHIN INTERVAL 3 SECONDS"]),
    data=st.data(),
)
def test_late_events_count_or_stay_out_by_the_log_alone(
    make_rig: Callable[..., Any],
    events: list[dict[str, Any]],
    policy: str,
    data: st.DataObject,
) -> None:
    over = "OVER (PARTITION BY sensor ORDER BY at RANGE BETWEEN INTERVAL 4 SECONDS PRECEDING AND"
    text = STREAM.replace("POLICY", policy) + (
        "CREATE MATERIALIZED VIEW v AS SELECT sensor, at, sum(quantity) "
        f"{over} CURRENT ROW) AS total, count(*) {over} CURRENT ROW) AS n FROM readings;"
    )
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    rig = make_rig(text, engine=EngineSettings(tick_rows_max=rows_max))
    rig.recorder.views = frozenset(["v"])
    run_through(rig, events, data)
    names = ("sensor", "at", "total", "n", "revision")
    found = rig.store.read_view("v", {}, [], 100_000, None).table.select(names)
    shown = Counter(tuple(row.values()) for row in found.to_pylist())
    assert shown == late_model(placed(events), policy)
    replayed: Counter[tuple[Any, ...]] = Counter()
    for change in rig.store.changes("v", 0, 10_000):
        replayed.subtract(tuple(row.values()) for row in change.before.select(names).to_pylist())
        replayed.update(tuple(row.values()) for row in change.after.select(names).to_pylist())
    assert {row: n for row, n in replayed.items() if n} == shown
    rig.stop()


def late_model(events: list[dict[str, Any]], policy: str) -> Counter[tuple[Any, ...]]:
    reach = dt.timedelta(seconds=4)
    horizon = {"SIDE": 0, "DROP": 0, "REVISE": None}.get(policy, 3)

    def is_late(event: dict[str, Any], row: dict[str, Any], grace: int = 0) -> bool:
        passed = event["passed"]
        return passed is not None and passed - dt.timedelta(seconds=grace) > row["at"]

    def is_taken(event: dict[str, Any], row: dict[str, Any]) -> bool:
        return horizon is None or not is_late(event, row, horizon)

    rows: Counter[tuple[Any, ...]] = Counter()
    for row in events:
        if not is_taken(row, row):
            continue
        frame = [
            e
            for e in events
            if e["sensor"] == row["sensor"]
            and row["at"] - reach <= e["at"] <= row["at"]
            and is_taken(e, row)
        ]
        values = [e["quantity"] for e in frame if e["quantity"] is not None]
        total = sum(values) if values else None
        revision = sum(is_late(e, row) for e in frame)
        rows[(row["sensor"], row["at"], total, len(frame), revision)] += 1
    return rows
