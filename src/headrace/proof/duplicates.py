"""Duplicates, found again from the log alone: in its order, key by key.

Whether an event is one depends on which earlier ones were accepted, so this is a rule to be
followed step by step. Only keys that occur more than once are looked at that way.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import Deduplication
from headrace.proof.events import IS_EVENT, OFFSET, PARTITION, WATERMARK, LogTable

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
    events = table.frame(spark, with_watermark=True).where(IS_EVENT)
    at = f"unix_micros({EVENT_TIME}) AS at"
    narrow = events.selectExpr(PARTITION, OFFSET, at, WATERMARK, *named)
    several = narrow.selectExpr("*", f"count(*) OVER (PARTITION BY {same}) AS n").where("n > 1")
    found = (
        several.drop("n")
        .groupBy(PARTITION, *keys)
        .applyInArrow(
            _judge(rule.within_microseconds, table.stream.delay_microseconds),
            f"{PARTITION} INT, {OFFSET} BIGINT",
        )
        .toArrow()
    )
    duplicates: dict[int, list[int]] = {}
    for partition, offset in zip(*(column.to_pylist() for column in found.columns), strict=True):
        duplicates.setdefault(partition, []).append(offset)
    return {partition: sorted(offsets) for partition, offsets in duplicates.items()}


def _judge(within: int, delay: int) -> Callable[[pa.Table], pa.Table]:
    def judge(events: pa.Table) -> pa.Table:
        ordered = events.sort_by(OFFSET)
        times, watermarks = (ordered.column(name).to_pylist() for name in ("at", WATERMARK))
        found = repeated(times, watermarks, within, delay)
        return ordered.filter(pa.array(found)).select([PARTITION, OFFSET])

    return judge


def repeated(
    times: Sequence[int], watermarks: Sequence[int | None], within: int, delay: int
) -> list[bool]:
    """Which events of one key, in the log's order, repeat an accepted one that still counts: the
    highest event time up to and with that one is at most twice the interval behind the watermark
    before the event."""
    accepted: list[int] = []  # their times, ascending
    arrivals: deque[tuple[int, int]] = deque()  # the highest event time then, and their own
    found = []
    for time, watermark in zip(times, watermarks, strict=True):
        while watermark is not None and arrivals and arrivals[0][0] < watermark - 2 * within:
            accepted.remove(arrivals.popleft()[1])
        place = bisect_left(accepted, time - within)
        is_repeated = place < len(accepted) and accepted[place] <= time + within
        if not is_repeated:
            insort(accepted, time)
            arrivals.append((time if watermark is None else max(time, watermark + delay), time))
        found.append(is_repeated)
    return found
