"""Questions about single events of a tick, asked of Spark beside the tick's own plan.

Each is planned once for a view and asked of any ranges after that, as the tick's plan is: the
ranges and annotations travel in the job, and there is no exchange that would remember an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import LogAddress, Range
from headrace.model.definitions import Column, Stream
from headrace.spark.aggregations import Grouping, needed_columns
from headrace.spark.event_annotations import DECISION
from headrace.spark.leaf import (
    EVENT_TIME,
    OFFSET,
    PARTITION,
    RANGES_PROPERTY,
    WATERMARK,
    Source,
    encode_ranges,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TIME", "EventQuery"]

TIME = "_time"  # the event's time in microseconds
FRAMES_MAX = 128
_PLACE = (PARTITION, OFFSET, WATERMARK, DECISION)


class EventQuery:
    """Used by the tick's thread alone."""

    def __init__(self, spark: SparkSession, log: LogAddress) -> None:
        self._spark = spark
        self._log = log
        self._frames: dict[tuple[str, ...], DataFrame] = {}

    def ask(
        self,
        stream: Stream,
        grouping: Grouping,
        where: str,
        columns: Sequence[tuple[str, str]],
        ranges: Sequence[Range],
        annotations_file: str,
        looked_up: Sequence[Column] = (),
    ) -> pa.Table:
        """Of the grouping's events that are so: place, time, watermark and decision, and these
        columns, each a name and its expression; ordered by place. `looked_up` are columns that the
        expressions may mention beside the stream's own."""
        key = (stream.name, grouping.view, grouping.where or "", where, *map(str, columns))
        frame = self._frames.pop(key, None)
        if frame is None:
            if len(self._frames) >= FRAMES_MAX:
                self._frames.pop(next(iter(self._frames)))
            frame = self._frame(stream, grouping, where, columns, looked_up)
        self._frames[key] = frame
        encoded = encode_ranges([ranges], annotations_file)
        self._spark.sparkContext.setLocalProperty(RANGES_PROPERTY, encoded)
        return frame.toArrow().sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])

    def _frame(
        self,
        stream: Stream,
        grouping: Grouping,
        where: str,
        columns: Sequence[tuple[str, str]],
        looked_up: Sequence[Column],
    ) -> DataFrame:
        names = dict.fromkeys((*needed_columns(stream, [grouping]), *_PLACE, EVENT_TIME))
        found = tuple(column for column in looked_up if column.name in names)
        source = Source(self._log, stream, tuple(names), found)
        leaf = self._spark.range(0, 1, 1, 1).mapInArrow(source.reader_function(), source.ddl())
        return leaf.where(f"({grouping.where or 'true'}) AND ({where})").selectExpr(
            *(f"`{name}`" for name in _PLACE),
            f"unix_micros(`{EVENT_TIME}`) AS {TIME}",
            *(f"{sql} AS `{name}`" for name, sql in columns),
        )
