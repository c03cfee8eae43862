"""Duplicates, found again from the log alone: in its order, key by key.

Whether an event is one depends on which earlier ones were accepted, so this is a rule to be
followed step by step. Only keys that occur more than once are looked at that way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import Deduplication
from headrace.proof.events import IS_EVENT, OFFSET, PARTITION, LogTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["find_duplicates", "repeated"]


def find_duplicates(
    spark: SparkSession, table: LogTable, rule: Deduplication
) -> dict[int, list[int]]:
    """The offsets of the duplicates among the table's events, by partition, ascending."""
    keys = [f"d{i}" for i in range(len(rule.columns))]
    named = [f"`{name}` AS {key}" for name, key in zip(rule.columns, keys, strict=True)]
    same = ", ".join([PARTITION, *keys])
    events = table.frame(spark, with_watermark=False).where(IS_EVENT)
    narrow = events.selectExpr(PARTITION, OFFSET, f"unix_micros({EVENT_TIME}) AS at", *named)
    several = narrow.selectExpr("*", f"count(*) OVER (PARTITION BY {same}) AS n").where("n > 1")
    found = (
        several.drop("n")
        .groupBy(PARTITION, *keys)
        .applyInArrow(_judge(rule.within_microseconds), f"{PARTITION} INT, {OFFSET} BIGINT")
        .toArrow()
    )
    duplicates: dict[int, list[int]] = {}
    for partition, offset in zip(*(column.to_pylist() for column in found.columns), strict=True):
        duplicates.setdefault(partition, []).append(offset)
    return {partition: sorted(offsets) for partition, offsets in duplicates.items()}


def _judge(within: int) -> Callable[[pa.Table], pa.Table]:
    def judge(events: pa.Table) -> pa.Table:
        ordered = events.sort_by(OFFSET)
        times = ordered.column("at").to_pylist()
        return ordered.filter(pa.array(repeated(times, within))).select([PARTITION, OFFSET])

    return judge


def repeated(times: list[int], within: int) -> list[bool]:
    """Which events of one key, given by their times in the log's order, repeat an accepted one."""
    accepted: list[int] = []
    found = []
    for time in times:
        place = bisect_left(accepted, time - within)
        is_repeated = place < len(accepted) and accepted[place] <= time + within
        if not is_repeated:
            insort(accepted, time)
        found.append(is_repeated)
    return found
