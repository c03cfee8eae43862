"""The same five views in PySpark Structured Streaming, as users write it: one query per view.

Nothing here knows Headrace, except that the same Java runs it. Spark keeps the state of each
aggregation; each micro-batch's changed rows are upserted into DuckDB by `foreachBatch`. Settings
are Spark's own, but for the shuffle partitions, which anyone lowers on a machine with few cores.
`availableNow` without a limit of files takes everything in one micro-batch, which suits Spark best.
The watermark of a minute keeps state bounded, and is long enough for every late event of the
workload to be applied, as Headrace applies them.

`python -m bench.spark_by_hand PARQUET WARM_UP WORK CORES` says the seconds as one line of JSON:
from starting the queries until every one has taken in every event.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from bench.clock import Clock
from bench.spark_session import SCHEMA_DDL, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TABLES = """
CREATE TABLE income (
  window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, income DECIMAL(28, 2), payments BIGINT,
  average DECIMAL(22, 6), PRIMARY KEY (window_start));
CREATE TABLE income_by_user (
  window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, user_id VARCHAR, income DECIMAL(28, 2),
  payments BIGINT, average DECIMAL(22, 6), PRIMARY KEY (window_start, user_id));
CREATE TABLE events_by_status (
  window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, status VARCHAR, events BIGINT,
  PRIMARY KEY (window_start, status));
CREATE TABLE totals (
  currency VARCHAR, total DECIMAL(28, 2), events BIGINT, PRIMARY KEY (currency));
CREATE TABLE spending (
  window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, user_id VARCHAR, currency VARCHAR,
  spent DECIMAL(28, 2), payments BIGINT, largest DECIMAL(18, 2),
  PRIMARY KEY (window_start, user_id, currency));
"""


def views(events: DataFrame) -> dict[str, DataFrame]:
    from pyspark.sql import functions as f

    timed = events.withWatermark("created_at", "1 minute")
    paid = timed.where("status = 'paid'")
    income = (f.sum("amount").alias("income"), f.count("*").alias("payments"))
    average = f.avg("amount").alias("average")
    window = (f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end"))
    return {
        "income": paid.groupBy(f.window("created_at", "3 seconds"))
        .agg(*income, average)
        .select(*window, "income", "payments", "average"),
        "income_by_user": paid.groupBy(f.window("created_at", "3 seconds"), "user_id")
        .agg(*income, average)
        .select(*window, "user_id", "income", "payments", "average"),
        "events_by_status": timed.groupBy(f.window("created_at", "1 minute"), "status")
        .agg(f.count("*").alias("events"))
        .select(*window, "status", "events"),
        "totals": events.groupBy("currency").agg(
            f.sum("amount").alias("total"), f.count("*").alias("events")
        ),
        "spending": timed.where("status <> 'failed'")
        .groupBy(f.window("created_at", "10 seconds", "5 seconds"), "user_id", "currency")
        .agg(
            f.sum("amount").alias("spent"),
            f.count("*").alias("payments"),
            f.max("amount").alias("largest"),
        )
        .select(*window, "user_id", "currency", "spent", "payments", "largest"),
    }


def upsert_into(
    connection: duckdb.DuckDBPyConnection, table: str
) -> Callable[[DataFrame, int], None]:
    cursor = connection.cursor()

    def upsert(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow()
        cursor.register("rows", rows)
        cursor.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM rows")
        cursor.unregister("rows")

    return upsert


def start(
    name: str, frame: DataFrame, work: Path, connection: duckdb.DuckDBPyConnection
) -> StreamingQuery:
    return (
        frame.writeStream.outputMode("update")
        .queryName(name)
        .option("checkpointLocation", str(work / "checkpoints" / name))
        .trigger(availableNow=True)
        .foreachBatch(upsert_into(connection, name))
        .start()
    )


def drain(spark: SparkSession, parquet: Path, work: Path) -> None:
    work.mkdir()
    with duckdb.connect(str(work / "views.duckdb")) as connection:
        connection.execute(TABLES)
        frames = views(spark.readStream.schema(SCHEMA_DDL).parquet(str(parquet)))
        queries = [start(name, frame, work, connection) for name, frame in frames.items()]
        for query in queries:
            query.awaitTermination()


def main() -> None:
    parquet, warm_up, work = (Path(argument) for argument in sys.argv[1:4])
    cores = int(sys.argv[4])
    settings = {"spark.sql.shuffle.partitions": str(2 * cores)}
    spark = start_session(work, cores, settings)
    drain(spark, warm_up, work / "warm-up")
    clock = Clock()
    drain(spark, parquet, work / "measured")
    clock.stop()
    spark.stop()


if __name__ == "__main__":
    main()
