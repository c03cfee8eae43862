"""Which events were late for windows that events themselves bound, found again from the log alone.

Which session or event group an event is in depends on the events of its key that were applied
before it, so this is gone through step by step in the log's order: for the keys alone that have an
event of which it may be doubted that it was in time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import LatePolicy, Stream
from headrace.proof.events import APPLIED_AT, DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import LATE, TAKEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Applied", "Question", "event_times", "judge_in_order", "judged_events"]

Event = TypeVar("Event")
_Event = TypeVar("_Event", contravariant=True)


class Applied(Protocol[_Event]):
    """The events of one key that were applied so far."""

    def passed_from(self, event: _Event) -> int | None:
        """From which watermark on the window is passed that the event would be in; None if it
        would be in none."""

    def apply(self, event: _Event) -> None: ...


@dataclass(frozen=True)
class Question(Generic[Event]):
    """What is to be judged: the events `where` a condition holds, by `keys`. A key is gone through
    that has a `doubtful` event. `columns` are what `members` needs beside times and places to make
    the events of a key."""

    where: str
    keys: Sequence[str]
    doubtful: str
    columns: Sequence[str]
    members: Callable[[pa.Table], Sequence[Event]]
    nothing_applied: Callable[[], Applied[Event]]


def judge_in_order(
    stream: Stream,
    applied: Applied[Event],
    events: Sequence[tuple[Event, int | None, str | None]],
    applied_later: Mapping[int, Sequence[int]] | None = None,
) -> list[tuple[bool, bool]]:
    """For the events of one key in the log's order, each with the watermark before it and the
    decision about it: whether it is late, and whether it is taken in. `applied_later` says which
    events that had been set aside were applied before an event came (see `_applied_before`)."""
    judged: list[tuple[bool, bool]] = []
    for place, (event, watermark, decision) in enumerate(events):
        for earlier in (applied_later or {}).get(place, ()):
            applied.apply(events[earlier][0])
        found = _judge(stream, applied.passed_from(event), watermark, decision)
        if found[1]:
            applied.apply(event)
        judged.append(found)
    for later in (place for places in (applied_later or {}).values() for place in places):
        judged[later] = (True, True)
    return judged


def _judge(
    stream: Stream, passed_from: int | None, watermark: int | None, decision: str | None
) -> tuple[bool, bool]:
    if passed_from is None or watermark is None or passed_from > watermark:
        return False, True
    if stream.late_policy is LatePolicy.REVISE:
        horizon = stream.late_horizon_microseconds
        return True, horizon is None or passed_from > watermark - horizon
    return True, stream.late_policy is LatePolicy.HALT and decision == "apply"


def judged_events(spark: SparkSession, stream: Stream, question: Question[Event]) -> DataFrame:
    """The stream's events with the columns LATE and TAKEN, which are NULL where they are not
    late."""
    names = [f"j{i}" for i in range(len(question.keys))]
    keys = [f"({text}) AS {name}" for name, text in zip(names, question.keys, strict=True)]
    by = ", ".join(names) or "1"
    some = f"max(coalesce({question.doubtful}, false)) OVER (PARTITION BY {by}) AS doubtful"
    events = spark.table(stream.name)
    narrow = events.where(question.where).selectExpr(
        *(PARTITION, OFFSET, EVENT_TIME, WATERMARK, DECISION, APPLIED_AT), *question.columns, *keys
    )
    doubtful = narrow.selectExpr("*", some).where("doubtful").drop("doubtful")
    judged = doubtful.groupBy(*names).applyInArrow(
        _judging(stream, question.members, question.nothing_applied),
        f"{PARTITION} INT, {OFFSET} BIGINT, {LATE} BOOLEAN, {TAKEN} BOOLEAN",
    )
    return events.join(judged, [PARTITION, OFFSET], "left")


def event_times(events: pa.Table) -> list[int]:
    times: list[int] = events.column(EVENT_TIME).cast(pa.int64()).to_pylist()
    return times


def _judging(
    stream: Stream,
    members: Callable[[pa.Table], Sequence[Event]],
    nothing_applied: Callable[[], Applied[Event]],
) -> Callable[[pa.Table], pa.Table]:
    def judge(events: pa.Table) -> pa.Table:
        ordered = events.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
        watermarks = ordered.column(WATERMARK).to_pylist()
        decisions = ordered.column(DECISION).to_pylist()
        steps = list(zip(members(ordered), watermarks, decisions, strict=True))
        found = judge_in_order(stream, nothing_applied(), steps, _applied_before(ordered))
        late, taken = (pa.array([pair[i] for pair in found], pa.bool_()) for i in (0, 1))
        places = ordered.select([PARTITION, OFFSET]).append_column(LATE, late)
        return places.append_column(TAKEN, taken).filter(late)

    return judge


def _applied_before(events: pa.Table) -> dict[int, list[int]]:
    """Of the events of one key in the log's order: the places of those that were applied after
    they had been set aside, by the place of the first event that came after that."""
    offsets, found = events.column(OFFSET).to_pylist(), events.column(APPLIED_AT).to_pylist()
    applied: dict[int, list[int]] = {}
    for place, come in enumerate(found):
        if come is not None:
            applied.setdefault(bisect_left(offsets, come), []).append(place)
    return applied
