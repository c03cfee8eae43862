"""A view computed twice: by Spark alone, and tick by tick as Headrace does it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.compile import bind_view, parse_sql, plan_view
from headrace.compile.duckdb.combine import store_type
from headrace.model.definitions import Stream
from headrace.model.errors import DefinitionError, DefinitionErrors
from headrace.model.plan import FRAME, ROWS, BoundView, Partial, Sliding, ViewPlan, Window
from headrace.model.types import DataType, type_from_arrow

_FOR_A_HANDFUL_OF_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def spark_alone(spark: SparkSession) -> Iterator[SparkSession]:
    """The run's session, set to interpret: compiling costs more than a handful of rows."""
    before = {name: spark.conf.get(name) for name in _FOR_A_HANDFUL_OF_ROWS}
    for name, value in _FOR_A_HANDFUL_OF_ROWS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@dataclass
class Compared:
    """Rows of the whole query by Spark and by partial, combine and final; same order of keys."""

    names: tuple[str, ...]
    expected: list[dict[str, Any]]
    given: list[dict[str, Any]]
    expected_types: dict[str, DataType]
    given_types: dict[str, str]

    def check(self) -> None:
        """Equal types, equal number of rows, equal values."""
        assert self.given_types == {name: str(t) for name, t in self.expected_types.items()}
        assert len(self.given) == len(self.expected)
        for given, expected in zip(self.given, self.expected, strict=True):
            for name in self.names:
                assert _same(given[name], expected[name]), (
                    f"{name}: {given[name]!r}, Spark has {expected[name]!r}"
                )


@dataclass
class Meaning:
    spark: SparkSession
    ddl: str
    _number: int = field(default=0)

    def compare(
        self, select: str, ticks: Sequence[Sequence[Mapping[str, Any]]], ddl: str | None = None
    ) -> Compared:
        """Both ways over the same events; `ticks` are the events of each tick."""
        ddl = ddl or self.ddl
        project = parse_sql(f"{ddl};\nCREATE MATERIALIZED VIEW v AS {select}", "meaning.sql")
        plan = plan_view(project, project.views[0])
        stream = project.streams[0]
        self.spark.createDataFrame(_events(stream, ticks)).createOrReplaceTempView(stream.name)
        oracle = self.spark.sql(plan.sql).toArrow()
        types = {f.name: type_from_arrow(f.type) for f in oracle.schema}
        found = self.spark.sql(_partial_sql(plan)).toArrow()
        values = [self.spark.sql(sql).toArrow() for sql in _distinct_sqls(plan)]
        bound = _bind(plan, stream, found, values, types)
        partials = [
            found.filter(pc.equal(found["_tick"], tick)).drop_columns(["_tick"])
            for tick in range(len(ticks))
        ]
        given = _store(bound, partials, values)
        return Compared(
            names=tuple(types),
            expected=_ordered(oracle.to_pylist()),
            given=_ordered(given.to_pylist()),
            expected_types=types,
            given_types={f.name: str(type_from_arrow(f.type)) for f in given.schema},
        )

    def oracle(
        self, select: str, rows: Sequence[Mapping[str, Any]], ddl: str
    ) -> list[tuple[Any, ...]]:
        """What the view's plain Spark SQL gives over these events."""
        project = parse_sql(f"{ddl};\nCREATE MATERIALIZED VIEW v AS {select}", "meaning.sql")
        stream = project.streams[0]
        self.spark.createDataFrame(_events(stream, [rows])).createOrReplaceTempView(stream.name)
        found = self.spark.sql(plan_view(project, project.views[0]).sql).toArrow()
        return [tuple(row.values()) for row in found.to_pylist()]

    def refusal(self, select: str) -> str | None:
        """Why the store could not give this view as Spark does; None if it can."""
        try:
            project = parse_sql(f"{self.ddl};\nCREATE MATERIALIZED VIEW v AS {select}", "m.sql")
            plan, stream = plan_view(project, project.views[0]), project.streams[0]
            self.spark.createDataFrame(_events(stream, [[]])).createOrReplaceTempView(stream.name)
            outputs, found, *values = (
                to_arrow_schema(self.spark.sql(sql).schema, timezone="UTC").empty_table()
                for sql in (plan.sql, _partial_sql(plan), *_distinct_sqls(plan))
            )
            types = {f.name: type_from_arrow(f.type) for f in outputs.schema}
            _bind(plan, stream, found, values, types)
        except (DefinitionError, DefinitionErrors) as error:
            return str(error)
        return None


def _events(stream: Stream, ticks: Sequence[Sequence[Mapping[str, Any]]]) -> pa.Table:
    rows = [row for tick in ticks for row in tick]
    columns = {
        c.name: pa.array([row.get(c.name) for row in rows], c.type.arrow) for c in stream.columns
    }
    times = columns[stream.event_time or ""]
    columns |= {
        "_partition": pa.array([0] * len(rows), pa.int32()),
        "_offset": pa.array(range(len(rows)), pa.int64()),
        "_tick": pa.array([i for i, tick in enumerate(ticks) for _ in tick], pa.int32()),
        "_event_time": times,
        "_received_at": times,
    }
    return pa.table(columns)


def _aggregate_sql(partial: Partial) -> str:
    if partial.function == "m2":
        return f"var_pop({partial.input}) * count({partial.input})"
    return f"{partial.function}({', '.join((partial.input, *partial.order))})"


def _keys_sql(plan: ViewPlan) -> list[str]:
    keys = [f"{key.sql} AS `{key.name}`" for key in plan.keys]
    if isinstance(plan.window, Sliding):
        at = "unix_micros(_event_time)"
        keys.append(f"timestamp_micros({at}) AS window_start")
        keys.append(f"timestamp_micros({at} + 1L) AS window_end")
    elif plan.window is not None:
        assert isinstance(plan.window, Window)
        assert plan.window.size_microseconds == plan.window.slide_microseconds
        size, origin = plan.window.size_microseconds, plan.window.origin_microseconds
        micros = "unix_micros(_event_time)"
        start = f"{micros} - pmod({micros} - {origin}L, {size}L)"
        keys.append(f"timestamp_micros({start}) AS window_start")
        keys.append(f"timestamp_micros({start} + {size}L) AS window_end")
    return keys


def _query(plan: ViewPlan, chosen: list[str], keys: list[str], where: str | None) -> str:
    sql = f"SELECT {', '.join([*keys, *chosen])} FROM `{plan.stream}`"
    if where:
        sql += f" WHERE {where}"
    if keys:
        sql += f" GROUP BY {', '.join(key.rsplit(' AS ', 1)[0] for key in keys)}"
    return sql


def _partial_sql(plan: ViewPlan) -> str:
    partials = [f"{_aggregate_sql(p)} AS `{p.name}`" for p in plan.partials]
    keys = ["_tick AS _tick", *_keys_sql(plan)]
    return _query(plan, [f"count(1) AS `{ROWS}`", *partials], keys, plan.where)


def _distinct_sqls(plan: ViewPlan) -> list[str]:
    return [
        _query(plan, [], [*_keys_sql(plan), f"{distinct.input} AS value"], plan.where)
        for distinct in plan.distincts
    ]


def _bind(
    plan: ViewPlan,
    stream: Stream,
    found: pa.Table,
    values: list[pa.Table],
    outputs: dict[str, DataType],
) -> BoundView:
    types = {f.name: type_from_arrow(f.type) for f in found.schema}
    return bind_view(
        plan,
        stream,
        keys={key.name: types[key.name] for key in plan.keys},
        partials={partial.name: types[partial.name] for partial in plan.partials},
        distincts={
            distinct.name: type_from_arrow(table.schema.field("value").type)
            for distinct, table in zip(plan.distincts, values, strict=True)
        },
        outputs=outputs,
    )


def _store(bound: BoundView, ticks: list[pa.Table], values: list[pa.Table]) -> pa.Table:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    plan = bound.plan
    keys = [f'"{key.name}"' for key in bound.keys]
    if plan.window is not None:
        keys += ["window_start", "window_end"]
    columns = [f'"{c.name}" {store_type(c.type)}' for c in bound.keys]
    columns += ["window_start TIMESTAMPTZ", "window_end TIMESTAMPTZ"] if plan.window else []
    columns += [f'"{ROWS}" BIGINT', *(f'"{c.name}" {store_type(c.type)}' for c in bound.partials)]
    connection.execute(f"CREATE TABLE state ({', '.join(columns)})")
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    chosen = [*keys, f'CAST(sum("{ROWS}") AS BIGINT)', *(p.combine for p in plan.partials)]
    for table in ticks:
        connection.register("tick", table)
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE merged AS "
            f"SELECT {', '.join(chosen)} FROM (FROM state UNION ALL FROM tick){group}"
        )
        connection.execute("DELETE FROM state; INSERT INTO state FROM merged")
    source = "state"
    for index, distinct in enumerate(bound.distincts):
        connection.register(f"values{index}", values[index])
        matches = " AND ".join(f"v.{key} IS NOT DISTINCT FROM state.{key}" for key in keys)
        counted = f"(SELECT count(DISTINCT value) FROM values{index} v WHERE {matches or 'TRUE'})"
        connection.execute(f'ALTER TABLE state ADD COLUMN "{distinct.name}" BIGINT')
        connection.execute(f'UPDATE state SET "{distinct.name}" = {counted}')
    if isinstance(plan.window, Sliding):
        source = f"(SELECT *, {_sliding_sql(plan.window)} FROM state)"
    finals = ", ".join(f'{sql} AS "{column.name}"' for column, sql in bound.finals)
    having = f" WHERE {bound.having}" if bound.having else ""
    return connection.sql(f"SELECT {finals} FROM {source}{having}").to_arrow_table()


def _sliding_sql(window: Sliding) -> str:
    """Each column over its own range, as the contract has it."""
    by = ", ".join(f'"{key}"' for key in window.keys)
    chosen = []
    for column in window.columns:
        back = column.range_microseconds
        reach = "UNBOUNDED" if back is None else f"INTERVAL {back} MICROSECONDS"
        frame = f"({f'PARTITION BY {by} ' if by else ''}ORDER BY window_start " + (
            f"RANGE BETWEEN {reach} PRECEDING AND CURRENT ROW)"
        )
        chosen.append(f'{column.combine.replace(FRAME, frame)} AS "{column.name}"')
    return ", ".join(chosen)


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(list(row.values())[:4]))


NUMBERS = """CREATE STREAM events (
  k STRING, b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE,
  m DECIMAL(18, 2) NOT NULL, n DECIMAL(10, 4), w DECIMAL(38, 6), x STRING, y DATE,
  at TIMESTAMP NOT NULL
) WATERMARK at LATE REVISE"""


@pytest.fixture(scope="module")
def meaning(spark_alone: SparkSession) -> Meaning:
    return Meaning(spark_alone, NUMBERS)


def _same(given: Any, expected: Any) -> bool:
    """Decimals, texts and integers to the last digit; doubles to 1e-9, as sums of them depend on
    the order of adding in Spark too."""
    if isinstance(expected, float) and isinstance(given, float):
        if math.isnan(expected):
            return math.isnan(given)
        return math.isclose(given, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(given == expected) and type(given) is type(expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "headrace.toml").write_text('name = "shop"\n')
    return tmp_path
