"""Spark's word on the types of a query's columns, asked once and kept in a file for later starts.

An answer follows from the query, the columns of the stream it reads, and Spark with its settings,
wherever these were made; its key is made of all of them. The file has a checksum, and whatever is
wrong with it costs nothing but asking again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.definitions import Column, Stream
from headrace.model.types import DataType, parse_type, type_from_arrow
from headrace.spark.event_annotations import DECISION, lateness_column
from headrace.spark.leaf import POSITION_COLUMNS, source_type, unscaled_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Analysis"]

log = logging.getLogger("headrace.engine")

FILE_BYTES_MAX = 4 * 1024 * 1024


class Analysis:
    """For one thread. Streams are declared before a query over them is asked about."""

    def __init__(self, spark: SparkSession, file: Path) -> None:
        self._spark = spark
        self._file = file
        self._basis = _basis(spark)
        self._kept = _read(file)
        self._answers: dict[str, list[str]] = {}
        self._columns: dict[str, list[str]] = {}
        self._in_spark: set[str] = set()

    def declare(
        self, stream: Stream, views: Iterable[str] = (), looked_up: Sequence[Column] = ()
    ) -> None:
        """The stream's columns, its position columns, what its views look up and the annotations of
        these views are what a query over it may mention."""
        unscaled = [name for c in stream.columns if (name := unscaled_column(c)) is not None]
        annotations = [DECISION, *map(lateness_column, views)]
        names = [*(c.name for c in stream.columns), *unscaled, *POSITION_COLUMNS, *annotations]
        names += [column.name for column in looked_up]
        self._columns[stream.name] = [
            f"CAST(NULL AS {source_type(stream, name, looked_up)}) AS `{name}`" for name in names
        ]
        self._in_spark.discard(stream.name)

    def types(self, stream: Stream, sql: str) -> list[DataType]:
        """Of the columns that the query over the stream gives. Raises PySparkException when Spark
        does not accept it, TypeSyntaxError for a type that no column can have."""
        key = self._key(stream, sql)
        texts = self._answers.get(key) or self._kept.get(key)
        if texts is None:
            texts = [found.name for found in self._ask(stream, sql)]
        self._answers[key] = texts
        return [parse_type(text) for text in texts]

    def keep(self) -> None:
        """For the next start: the answers that this one needed."""
        if self._answers == self._kept:
            return
        temporary = self._file.with_suffix(".new")
        try:
            text = json.dumps(self._answers)
            temporary.write_text(f"{_checksum(text)}\n{text}\n", encoding="utf-8")
            temporary.replace(self._file)
        except OSError as error:
            log.info("the types of the views' columns were not kept: %s", error)

    def _key(self, stream: Stream, sql: str) -> str:
        return _checksum(json.dumps([self._basis, self._columns[stream.name], sql]))

    def _ask(self, stream: Stream, sql: str) -> list[DataType]:
        from pyspark.sql.pandas.types import to_arrow_schema

        if stream.name not in self._in_spark:
            empty = self._spark.range(0).selectExpr(*self._columns[stream.name])
            empty.createOrReplaceTempView(stream.name)
            self._in_spark.add(stream.name)
        schema = to_arrow_schema(self._spark.sql(sql).schema, timezone="UTC")
        return [type_from_arrow(field.type) for field in schema]


def _basis(spark: SparkSession) -> list[str]:
    settings = spark.sparkContext.getConf().toDebugString().splitlines()
    chosen = [line for line in settings if line.startswith("spark.sql.")]
    known = sorted(line for line in chosen if not line.startswith("spark.sql.warehouse.dir="))
    return [version("headrace"), spark.version, *known]


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path) -> dict[str, list[str]]:
    """What `keep` wrote; nothing where it is not exactly that."""
    try:
        if not file.is_file() or file.stat().st_size > FILE_BYTES_MAX:
            return {}
        checksum, text, *_ = file.read_text(encoding="utf-8").split("\n")
        if checksum != _checksum(text):
            return {}
        found: dict[str, list[str]] = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found
