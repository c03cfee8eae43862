"""What Spark said of a query's types is asked again only when the answer may be another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.engine.analysis import Analysis
from headrace.model.definitions import Column, Stream
from headrace.model.types import parse_type

SQL = "SELECT sum(amount) AS total, array_agg(struct(id)) AS ids FROM payments"
TYPES = ["DECIMAL(28,2)", "ARRAY<STRUCT<id: STRING>>"]


class NoSpark:
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
    assert answers(NoSpark(), file, payments()) == TYPES


def test_another_query_or_another_column_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    assert answers(spark, file, payments()) == TYPES
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(), file, payments(), "SELECT avg(amount) FROM payments")
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(), file, payments("BIGINT"))
    assert answers(spark, file, payments("BIGINT")) == ["BIGINT", TYPES[1]]
    with pytest.raises(AssertionError, match="Spark was asked"):
        answers(NoSpark(), file, payments())  # what the last start did not need is not kept


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b'{"k": 1}', b'{"k": ["NO SUCH"]}'])
def test_a_damaged_file_only_costs_asking(spark: SparkSession, tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "types.json"
    answers(spark, file, payments())
    (key,) = Analysis(NoSpark(), file)._kept  # type: ignore[arg-type]
    file.write_bytes(raw.replace(b"k", key.encode()))
    assert answers(spark, file, payments()) == TYPES
    assert answers(NoSpark(), file, payments()) == TYPES


def test_what_spark_refuses_is_asked_again(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "types.json"
    for _ in range(2):
        with pytest.raises(PySparkException, match="nothing_like_it"):
            answers(spark, file, payments(), "SELECT nothing_like_it(id) FROM payments")


def test_a_file_that_cannot_be_written_harms_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "types.json").mkdir()
    assert answers(spark, tmp_path / "types.json", payments()) == TYPES
