"""Random events, views, tick boundaries and crashes against one plain batch query in Spark."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.compile import plan_view
from headrace.log.contract import stored_schema
from headrace.model.settings import EngineSettings

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

POSITION = (
    pa.field("_event_time", pa.timestamp("us", "UTC")),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
)
AGGREGATES = (
    "count(*)",
    "count(amount)",
    "sum(amount)",
    "avg(amount)",
    "sum(quantity)",
    "avg(quantity)",
    "sum(price)",
    "avg(price)",
    "min(amount)",
    "max(created_at)",
    "min(status)",
    "max(user_id)",
    "min(price)",
    "count(DISTINCT user_id)",
    "count(DISTINCT quantity)",
    "stddev(price)",
    "var_pop(quantity)",
    "count_if(quantity > 2)",
    "sum(amount) FILTER (WHERE status = 'paid')",
    "sum(amount * quantity)",
    "coalesce(sum(quantity), 0) + count(*)",
    "round(avg(amount), 2)",
    "max_by(quantity, price)",
)
KEYS = (
    "user_id",
    "status",
    "quantity",
    "upper(user_id)",
    "amount",
    "window(created_at, '3 seconds')",
    "window(created_at, '10 seconds', '5 seconds')",
    "window(created_at, '7 seconds', '3 seconds', '1 second')",
)
WHERES = (None, "status = 'paid'", "amount > 20", "quantity IS NOT NULL AND price < 5")
HAVINGS = (None, "count(*) > 1", "sum(amount) >= 50")


@st.composite
def view_sql(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    if sum(key.startswith("window") for key in keys) > 1:
        keys = keys[:1]
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=4, unique=True))
    where = draw(st.sampled_from(WHERES))
    having = draw(st.sampled_from(HAVINGS)) if keys else None
    chosen: list[str] = []
    for number, key in enumerate(keys):
        if key.startswith("window"):
            chosen += ["window.start AS window_start", "window.end AS window_end"]
        else:
            chosen.append(f"{key} AS key{number}")
    chosen += [f"{aggregate} AS value{number}" for number, aggregate in enumerate(aggregates)]
    parts = [f"SELECT {', '.join(chosen)} FROM transactions"]
    if where:
        parts.append(f"WHERE {where}")
    if keys:
        parts.append(f"GROUP BY {', '.join(keys)}")
    if having:
        parts.append(f"HAVING {having}")
    return " ".join(parts)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


# max_by takes any of several rows with the highest price, in Spark too: prices are distinct.
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.just("x"),
            "user_id": maybe(st.sampled_from(["a", "b", "ä", ""])),
            "amount": maybe(st.decimals("-999.99", "999.99", places=2)),
            "status": maybe(st.sampled_from(["paid", "failed"])),
            "quantity": maybe(st.integers(-5, 5)),
            "price": st.floats(-1e6, 1e6, allow_subnormal=False),
            "created_at": st.integers(0, 40_000).map(
                lambda ms: EPOCH + dt.timedelta(milliseconds=ms)
            ),
        }
    ),
    max_size=40,
    unique_by=lambda e: e["price"],
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    views=st.lists(view_sql(), min_size=1, max_size=4, unique=True),
    events=EVENTS,
    data=st.data(),
)
def test_every_view_equals_a_batch_query(
    make_rig: Callable[..., Any],
    spark: SparkSession,
    shop: str,
    patch_prepared: Callable[..., None],
    views: list[str],
    events: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    stream_sql = shop[: shop.index("CREATE MATERIALIZED")]
    text = stream_sql + "".join(
        f"CREATE MATERIALIZED VIEW v{number} AS {sql};\n" for number, sql in enumerate(views)
    )
    rows_max = data.draw(st.sampled_from([3, 7, 1_000]), label="rows per tick")
    # With a share of 0 every plan condenses in its first run and goes without it ever after.
    share = data.draw(st.sampled_from([0, 1]), label="condensed share")
    patch_prepared(CONDENSED_SHARE_MAX=share, CONDENSE_ROWS_MIN=1)
    rig = make_rig(text, engine=EngineSettings(tick_rows_max=rows_max))
    rig.start()
    for start in range(0, len(events), 10):
        rig.append("transactions", events[start : start + 10], partition=start // 10 % 2)
        action = data.draw(st.sampled_from(["go on", "tick", "settle", "crash"]), label="action")
        if action == "tick":
            rig.engine.step()
        elif action == "settle":
            rig.settle()
        elif action == "crash":
            rig.lose_store()
            rig.start()
    rig.settle()
    stream = rig.project.stream("transactions")
    table = pa.Table.from_pylist(
        [
            {
                "_received_at": 0,
                "_event_time": event["created_at"],
                "_partition": number // 10 % 2,
                "_offset": number // 20 * 10 + number % 10,
                **event,
            }
            for number, event in enumerate(events)
        ],
        schema=pa.schema([*stored_schema(stream), *POSITION]),
    )
    for number, sql in enumerate(views):
        plan = plan_view(rig.project, rig.project.view(f"v{number}"))
        spark.createDataFrame(table).createOrReplaceTempView("transactions")
        expected = spark.sql(plan.sql).toArrow()
        found = rig.store.read_view(f"v{number}", {}, [], 100_000, None).table
        if "window(" in sql:
            assert found.schema.names[-2:] == ["revision", "final"]
            found = found.drop_columns(["revision", "final"])
        assert found.schema.names == expected.schema.names, sql
        assert [f.type for f in found.schema] == [f.type for f in expected.schema], sql
        assert _same(found.to_pylist(), expected.to_pylist()), (
            sql,
            found.to_pylist(),
            expected.to_pylist(),
        )
    rig.stop()


def _same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    if len(found) != len(expected):
        return False
    remaining = sorted(expected, key=_order)
    return all(
        _close(a[name], b[name])
        for a, b in zip(sorted(found, key=_order), remaining, strict=True)
        for name in b
    )


def _order(row: dict[str, Any]) -> str:
    """Exact columns only: doubles may differ in their last digits."""
    return repr([(k, v) for k, v in row.items() if not isinstance(v, float)])


def _close(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return (math.isnan(found) and math.isnan(expected)) or math.isclose(
            found, expected, rel_tol=1e-9, abs_tol=1e-8
        )
    if isinstance(expected, Decimal):
        return isinstance(found, Decimal) and found == expected
    return bool(found == expected)
