"""Random events, views of every kind, tick boundaries and crashes against one plain batch query in
Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matching_rows import assert_same_rows
from pyspark.sql import SparkSession

from headrace.compile import plan_view
from headrace.log.contract import stored_schema
from headrace.model.settings import EngineSettings

pytestmark = pytest.mark.usefixtures("both_ways")

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
USERS = ("a", "b", "ä", "", None)
STREAM = """
CREATE STREAM transactions (
  id STRING, user_id STRING, amount DECIMAL(18, 2), status STRING, quantity INT,
  price DOUBLE, created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (user_id) INTO 2 PARTITIONS;
"""
POSITION = (
    pa.field("_event_time", pa.timestamp("us", "UTC")),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
)
FRAMED = (
    "count(*)",
    "count(amount)",
    "sum(amount)",
    "avg(amount)",
    "sum(quantity)",
    "sum(price)",
    "avg(price)",
    "min(amount)",
    "max(created_at)",
    "min(status)",
    "stddev(price)",
    "count_if(quantity > 2)",
    "sum(CASE WHEN status = 'paid' THEN amount END)",
    "last(status)",
    "first(quantity)",
)
AGGREGATES = (
    *FRAMED,
    "avg(quantity)",
    "max(user_id)",
    "min(price)",
    "count(DISTINCT user_id)",
    "count(DISTINCT quantity)",
    "count(DISTINCT quantity) FILTER (WHERE status = 'paid')",
    "count(DISTINCT quantity) FILTER (WHERE price > 0)",
    "var_pop(quantity)",
    "sum(amount) FILTER (WHERE status = 'paid')",
    "sum(amount * quantity)",
    "coalesce(sum(quantity), 0) + count(*)",
    "round(avg(amount), 2)",
    "max_by(quantity, price)",
)
KEYS = ("user_id", "status", "quantity", "upper(user_id)", "amount")
WINDOWS = (
    None,
    "window(created_at, '3 seconds')",
    "window(created_at, '10 seconds', '5 seconds')",
    "window(created_at, '7 seconds', '3 seconds', '1 second')",
    "calendar_window(created_at, 'day', 'Europe/Berlin')",
)
WINDOWS_OF_A_USER = (
    "session_window(created_at, '3 seconds')",
    "event_group(status = 'open', status = 'paid', '6 seconds')",
    "event_group(quantity > 0, price < 0, '20 seconds')",
)
WHERES = (None, "status = 'paid'", "amount > 20", "quantity IS NOT NULL AND price < 5")
HAVINGS = (None, "count(*) > 1", "sum(amount) >= 50")
BOUNDS = ("INTERVAL 3 SECONDS", "INTERVAL 10 SECONDS", "INTERVAL 0 SECONDS", "UNBOUNDED")
PARTITIONS = ("PARTITION BY user_id ", "PARTITION BY user_id, status ", "")


@st.composite
def grouped_sql(draw: st.DrawFn) -> str:
    window = draw(st.sampled_from(WINDOWS + WINDOWS_OF_A_USER))
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2 if window is None else 1, unique=True))
    if window in WINDOWS_OF_A_USER and "user_id" not in keys:
        keys = [*keys, "user_id"]
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=4, unique=True))
    where = draw(st.sampled_from(WHERES))
    grouped = keys if window is None else [window, *keys]
    having = draw(st.sampled_from(HAVINGS)) if grouped else None
    chosen = [] if window is None else ["window.start AS since", "window.end AS up_to"]
    chosen += [f"{key} AS key{number}" for number, key in enumerate(keys)]
    chosen += [f"{aggregate} AS value{number}" for number, aggregate in enumerate(aggregates)]
    parts = [f"SELECT {', '.join(chosen)} FROM transactions"]
    if where:
        parts.append(f"WHERE {where}")
    if grouped:
        parts.append(f"GROUP BY {', '.join(grouped)}")
    if having:
        parts.append(f"HAVING {having}")
    return " ".join(parts)


@st.composite
def sliding_sql(draw: st.DrawFn) -> str:
    by = draw(st.sampled_from(PARTITIONS))
    chosen = ["user_id", "created_at", "upper(status) AS status"]
    for number in range(draw(st.integers(1, 3))):
        aggregate, bound = draw(st.sampled_from(FRAMED)), draw(st.sampled_from(BOUNDS))
        over = f"OVER ({by}ORDER BY created_at RANGE BETWEEN {bound} PRECEDING AND CURRENT ROW)"
        chosen.append(f"{aggregate} {over} AS value{number}")
    where = draw(st.sampled_from(["", " WHERE quantity IS NOT NULL"]))
    return f"SELECT {', '.join(chosen)} FROM transactions{where}"


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


# max_by takes any of several rows with the highest price, in Spark too: prices are distinct.
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.just("x"),
            "user_id": st.sampled_from(USERS),
            "amount": maybe(st.decimals("-999.99", "999.99", places=2)),
            "status": maybe(st.sampled_from(["open", "paid", "failed"])),
            "quantity": maybe(st.integers(-5, 5)),
            "price": st.floats(-1e6, 1e6, allow_subnormal=False),
            "created_at": st.integers(0, 80).map(lambda h: EPOCH + dt.timedelta(seconds=h / 2)),
        }
    ),
    max_size=40,
    unique_by=lambda e: e["price"],
)


def placed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With their places in the log."""
    ends, found = [0, 0], []
    for event in events:
        partition = USERS.index(event["user_id"]) % 2
        place = {"_partition": partition, "_offset": ends[partition]}
        ends[partition] += 1
        found.append({**event, **place, "_received_at": 0, "_event_time": event["created_at"]})
    return found


def run_through(rig: Any, events: list[dict[str, Any]], data: st.DataObject) -> None:
    """In pieces of ten, with ticks and losses in between."""
    rig.start()
    for start in range(0, len(events), 10):
        parts: dict[int, list[dict[str, Any]]] = {}
        for event in events[start : start + 10]:
            parts.setdefault(event["_partition"], []).append(event)
        rig.append_parts("transactions", parts)
        action = data.draw(st.sampled_from(["go on", "tick", "settle", "crash"]), label="action")
        if action == "tick":
            rig.engine.step()
        elif action == "settle":
            rig.settle()
        elif action == "crash":
            rig.lose_store()
            rig.start()
    rig.settle()


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    views=st.lists(grouped_sql() | sliding_sql(), min_size=2, max_size=6, unique=True),
    events=EVENTS,
    data=st.data(),
)
def test_every_view_equals_a_batch_query(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    views: list[str],
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    text = STREAM + "".join(
        f"CREATE MATERIALIZED VIEW v{number} AS {sql};\n" for number, sql in enumerate(views)
    )
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    shuffle = data.draw(st.sampled_from([0, 5]), label="shuffled from")
    engine = EngineSettings(tick_rows_max=rows_max, shuffle_rows_min=shuffle)
    rig = make_rig(text, engine=engine)
    events = placed(events)
    run_through(rig, events, data)
    schema = pa.schema([*stored_schema(rig.project.stream("transactions")), *POSITION])
    table = pa.Table.from_pylist(events, schema=schema)
    spark.createDataFrame(table).createOrReplaceTempView("transactions")
    for number, sql in enumerate(views):
        plan = plan_view(rig.project, rig.project.view(f"v{number}"))
        expected = spark.sql(plan.sql).toArrow()
        found = rig.store.read_view(f"v{number}", {}, [], 100_000, None).table
        if plan.window is not None:
            assert found.schema.names[-2:] == ["revision", "final"]
            found = found.drop_columns(["revision", "final"])
        assert found.schema.names == expected.schema.names, sql
        assert [f.type for f in found.schema] == [f.type for f in expected.schema], sql
        assert_same_rows(found.to_pylist(), expected.to_pylist(), sql)
    rig.stop()
