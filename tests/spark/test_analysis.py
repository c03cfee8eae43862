"""What Spark said of a query's types is asked again only when the answer may be another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.model.definitions import Column, Stream
from headrace.model.types import parse_type
from headrace.spark.analysis import FILE_BYTES_MAX, Analysis

SQL = "SELECT sum(amount) AS total, array_agg(struct(id)) AS ids FROM payments"
TYPES = ["DECIMAL(28,2)", "ARRAY<STRUCT<id: STRING>>"]


class NoSpark:
    """Tells its settings, and must not be asked for more."""

    def __init__(self, spark: SparkSession, *settings: str) -> None:
        self.version = spark.version
        lines = "\n".join([spark.sparkContext.getConf().toDebugString(), *settings])
        conf = SimpleNamespace(toDebugString=lambda: lines)
        self.sparkContext = SimpleNamespace(getConf=lambda: conf)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark was asked for {name}")


def payments(amount: str = "DECIMAL(18, 2)") -> Stream:
    columns = (Column("id", parse_type("STRING")), Column("amount", parse_type(amount)))
    return Stream("payments", columns)


def answers(spark: Any, file: Path, stream: Stream, sql: str = SQL) -> list[str]:
    analysis = Analysis(spark, file)
    analysis.declare(stream)
    found = [found.name for found in analysis.types(stream, sql)]
    assert [again.name for again in analysis.types(stream, sql)] == found
    analysis.keep()
    return found


def test_a_later_start_does_not_ask_again(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    assert answers(spark, file, payments()) == TYPES
    assert answers(NoSpark(spark), file, payments()) == TYPES


def test_another_query_or_another_column_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    assert answers(spark, file, payments()) == TYPES
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(spark), file, payments(), "SELECT avg(amount) FROM payments")
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(spark), file, payments("BIGINT"))
    assert answers(spark, file, payments("BIGINT")) == ["BIGINT", TYPES[1]]
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(spark), file, payments())  # what the last start did not need is not kept


def test_other_settings_of_spark_are_asked(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    assert answers(spark, file, payments()) == TYPES
    lossless = "spark.sql.decimalOperations.allowPrecisionLoss=false"
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(spark, lossless), file, payments())
    assert answers(NoSpark(spark, "spark.app.name=other"), file, payments()) == TYPES


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-5],
        lambda raw: raw.replace(b"28", b"18"),
        lambda raw: raw.replace(b'"DECIMAL(28,2)", ', b""),
        lambda raw: raw.replace(b'["', b'[["').replace(b'"]', b'"]]'),
        lambda raw: b"[" * 100_000,
        lambda raw: b"\xff" + raw,
        lambda raw: raw + b" " * FILE_BYTES_MAX,
    ],
)
def test_a_damaged_file_only_costs_asking(
    spark: SparkSession, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "types.json"
    answers(spark, file, payments())
    raw = file.read_bytes()
    file.write_bytes(damage(raw))
    assert file.read_bytes() != raw
    assert answers(spark, file, payments()) == TYPES
    assert answers(NoSpark(spark), file, payments()) == TYPES


def test_a_pipe_in_its_place_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "types.json")
    assert answers(spark, tmp_path / "types.json", payments()) == TYPES


def test_what_spark_refuses_is_asked_again(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    for _ in range(2):
        with pytest.raises(PySparkException, match="nothing_like_it"):
            answers(spark, file, payments(), "SELECT nothing_like_it(id) FROM payments")


def test_a_file_that_cannot_be_written_harms_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "types.json").mkdir()
    assert answers(spark, tmp_path / "types.json", payments()) == TYPES
