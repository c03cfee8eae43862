"""The same five views in PySpark Structured Streaming, tuned by an expert: all in one pass.

Nothing here knows Headrace, except that the same Java runs it. One stream reads the files; each
micro-batch is taken apart into one row per view it feeds, aggregated once without Spark's state,
collected once, and merged into DuckDB in one transaction together with the batch's number, so that
a batch done again after a failure changes nothing. Hopping windows are kept as panes until the
merge. Settings: adaptive execution off, no waiting for locality, as many shuffle partitions as
cores, checkpoint files without forked processes or checksums, a throughput collector, no UI, and
large micro-batches.

`python -m bench.spark_tuned PARQUET WARM_UP WORK CORES` says the seconds as one line of JSON: from
starting the query until the last batch is committed.
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

FILES_PER_BATCH = 10  # of 100,000 events each

SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.driver.extraJavaOptions": "-Xms512m -XX:+UseParallelGC",
}


def feeds(
    view: str, bucket: str = "NULL", first: str = "NULL", second: str = "NULL", where: str = "true"
) -> str:
    """The row that an event gives to a view, NULL where the view does not want it. `bucket`
    numbers the view's windows, or panes, of time."""
    row = (
        f"struct('{view}' AS view, CAST({bucket} AS BIGINT) AS bucket,"
        f" CAST({first} AS STRING) AS first, CAST({second} AS STRING) AS second)"
    )
    return row if where == "true" else f"if({where}, {row}, NULL)"


ONE_PASS = f"""
SELECT part.view, part.bucket, part.first, part.second,
       sum(amount) AS total, count(*) AS events, max(amount) AS largest
FROM (
  SELECT amount, explode(array(
    {feeds("income", "at DIV 3000000", where="status = 'paid'")},
    {feeds("income_by_user", "at DIV 3000000", "user_id", where="status = 'paid'")},
    {feeds("events_by_status", "at DIV 60000000", "status")},
    {feeds("totals", first="currency")},
    {feeds("spending", "at DIV 5000000", "user_id", "currency", where="status <> 'failed'")}
  )) AS part
  FROM (SELECT *, unix_micros(created_at) AS at FROM batch)
)
WHERE part IS NOT NULL
GROUP BY ALL
"""

TABLES = """
CREATE TABLE batches (number BIGINT PRIMARY KEY);
CREATE TABLE income_state (
  bucket BIGINT PRIMARY KEY, income DECIMAL(38, 2), payments BIGINT);
CREATE TABLE income_by_user_state (
  bucket BIGINT, user_id VARCHAR, income DECIMAL(38, 2), payments BIGINT,
  PRIMARY KEY (bucket, user_id));
CREATE TABLE events_by_status_state (
  bucket BIGINT, status VARCHAR, events BIGINT, PRIMARY KEY (bucket, status));
CREATE TABLE totals (currency VARCHAR PRIMARY KEY, total DECIMAL(38, 2), events BIGINT);
CREATE TABLE spending_state (
  bucket BIGINT, user_id VARCHAR, currency VARCHAR, spent DECIMAL(38, 2), payments BIGINT,
  largest DECIMAL(18, 2), PRIMARY KEY (bucket, user_id, currency));

CREATE MACRO moment(microseconds) AS make_timestamptz(microseconds);
-- Rounded half up to six places, in whole numbers: DuckDB would divide decimals as floats.
CREATE MACRO average(total, events) AS
  (((total * 100)::HUGEINT * 20000 + events) // (2 * events))::DECIMAL(30, 0)
  * 0.000001::DECIMAL(7, 6);
CREATE VIEW income AS SELECT moment(bucket * 3000000) AS window_start,
  moment((bucket + 1) * 3000000) AS window_end, income, payments,
  average(income, payments) AS average FROM income_state;
CREATE VIEW income_by_user AS SELECT moment(bucket * 3000000) AS window_start,
  moment((bucket + 1) * 3000000) AS window_end, user_id, income, payments,
  average(income, payments) AS average FROM income_by_user_state;
CREATE VIEW events_by_status AS SELECT moment(bucket * 60000000) AS window_start,
  moment((bucket + 1) * 60000000) AS window_end, status, events FROM events_by_status_state;
CREATE VIEW spending AS SELECT moment(bucket * 5000000) AS window_start,
  moment((bucket + 2) * 5000000) AS window_end, user_id, currency, spent, payments, largest
  FROM spending_state;
"""

MERGES = (
    """INSERT INTO income_state SELECT bucket, total, events FROM partials WHERE view = 'income'
    ON CONFLICT DO UPDATE SET income = income + excluded.income,
      payments = payments + excluded.payments""",
    """INSERT INTO income_by_user_state SELECT bucket, first, total, events FROM partials
    WHERE view = 'income_by_user'
    ON CONFLICT DO UPDATE SET income = income + excluded.income,
      payments = payments + excluded.payments""",
    """INSERT INTO events_by_status_state SELECT bucket, first, events FROM partials
    WHERE view = 'events_by_status'
    ON CONFLICT DO UPDATE SET events = events + excluded.events""",
    """INSERT INTO totals SELECT first, total, events FROM partials WHERE view = 'totals'
    ON CONFLICT DO UPDATE SET total = total + excluded.total, events = events + excluded.events""",
    # A pane lies in the window that begins with it and in the one before.
    """INSERT INTO spending_state
    SELECT bucket - step, first, second, sum(total), sum(events), max(largest)
    FROM partials, range(2) AS steps(step) WHERE view = 'spending' GROUP BY ALL
    ON CONFLICT DO UPDATE SET spent = spent + excluded.spent,
      payments = payments + excluded.payments, largest = greatest(largest, excluded.largest)""",
)


def merge_into(connection: duckdb.DuckDBPyConnection) -> Callable[[DataFrame, int], None]:
    def merge(batch: DataFrame, number: int) -> None:
        batch.createOrReplaceTempView("batch")
        partials = batch.sparkSession.sql(ONE_PASS).toArrow()
        connection.register("partials", partials)
        connection.execute("BEGIN")
        known = connection.execute("SELECT 1 FROM batches WHERE number = ?", [number]).fetchone()
        if known is None:
            connection.execute("INSERT INTO batches VALUES (?)", [number])
            for statement in MERGES:
                connection.execute(statement)
        connection.execute("COMMIT")
        connection.unregister("partials")

    return merge


def drain(spark: SparkSession, parquet: Path, work: Path) -> None:
    work.mkdir()
    with duckdb.connect(str(work / "views.duckdb")) as connection:
        connection.execute(TABLES)
        query = (
            spark.readStream.schema(SCHEMA_DDL)
            .option("maxFilesPerTrigger", FILES_PER_BATCH)
            .parquet(str(parquet))
            .writeStream.option("checkpointLocation", str(work / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(merge_into(connection))
            .start()
        )
        query.awaitTermination()


def main() -> None:
    parquet, warm_up, work = (Path(argument) for argument in sys.argv[1:4])
    cores = int(sys.argv[4])
    spark = start_session(work, cores, {**SETTINGS, "spark.sql.shuffle.partitions": str(cores)})
    drain(spark, warm_up, work / "warm-up")
    clock = Clock()
    drain(spark, parquet, work / "measured")
    clock.stop()
    spark.stop()


if __name__ == "__main__":
    main()
