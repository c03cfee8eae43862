"""Which events were late for their event group, found again from the log alone.

As with sessions, a group depends on what was applied of its key before: keys with an event that
came after the watermark had passed its own time are gone through in the log's order, and the group
of each event is found by the rule of the definition, over all that is applied by then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import EventGroup, ViewPlan
from headrace.proof.events import APPLIED_AT, DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import LATE, TAKEN
from headrace.proof.sessions import applied_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["UNTAKEN", "GroupEvent", "declare_grouped", "group_of", "judge_grouped"]

UNTAKEN = "_untaken"  # the table with the events that were not taken in

_OPENS, _CLOSES = "_opens_group", "_closes_group"


@dataclass(frozen=True, order=True)
class GroupEvent:
    """In the order of groups: by time, partition and offset."""

    time: int
    partition: int
    offset: int
    opens: bool
    closes: bool


def group_of(
    events: Sequence[GroupEvent], wanted: GroupEvent, timeout: int
) -> tuple[int, bool] | None:
    """When the group ends that holds the event, and whether one closed it; None if it is in none.
    `events` are in order."""
    start: int | None = None
    is_ours = False
    for event in events:
        if start is not None and event.time >= start + timeout:
            if is_ours:
                return start + timeout, False
            start = None
        if start is None and event.opens:
            start = event.time
        if start is None:
            continue
        is_ours = is_ours or event == wanted
        if event.closes:
            if is_ours:
                return event.time, True
            start = None
    return (start + timeout, False) if is_ours and start is not None else None


def judge_grouped(
    stream: Stream,
    timeout: int,
    events: Sequence[tuple[GroupEvent, int | None, str | None]],
    applied_later: Mapping[int, Sequence[int]] | None = None,
) -> list[tuple[bool, bool]]:
    """For the events of one key in the log's order, with the watermark before each and the
    decision about it: whether it is late, and whether it is taken in. `applied_later` is as for
    sessions."""
    applied: list[GroupEvent] = []
    judged: list[tuple[bool, bool]] = []
    for place, (event, watermark, decision) in enumerate(events):
        for earlier in (applied_later or {}).get(place, ()):
            insort(applied, events[earlier][0])
        insort(applied, event)
        found = group_of(applied, event, timeout)
        is_late = found is not None and _is_passed(*found, watermark)
        is_taken = not is_late or _is_taken(stream, *(found or (0, False)), watermark, decision)
        if not is_taken:
            applied.remove(event)
        judged.append((is_late, is_taken))
    for later in (place for places in (applied_later or {}).values() for place in places):
        judged[later] = (True, True)
    return judged


def _is_passed(end: int, is_closed: bool, watermark: int | None) -> bool:
    """A group that an event closed takes further events of that very moment."""
    if watermark is None:
        return False
    return watermark > end if is_closed else watermark >= end


def _is_taken(
    stream: Stream, end: int, is_closed: bool, watermark: int | None, decision: str | None
) -> bool:
    if stream.late_policy is LatePolicy.REVISE:
        horizon = stream.late_horizon_microseconds
        lowered = None if horizon is None or watermark is None else watermark - horizon
        return not _is_passed(end, is_closed, lowered)
    return stream.late_policy is LatePolicy.HALT and decision == "apply"


def declare_grouped(spark: SparkSession, plan: ViewPlan, stream: Stream) -> None:
    """Give the stream's events under their name the column LATE, and leave out those that were not
    taken in: these are in UNTAKEN."""
    window = plan.window
    assert isinstance(window, EventGroup)
    names = [f"j{i}" for i in range(len(plan.keys))]
    keys = [f"({key.sql}) AS j{i}" for i, key in enumerate(plan.keys)]
    behind = f"coalesce({WATERMARK} > unix_micros({EVENT_TIME}), false)"
    some = f"max({behind}) OVER (PARTITION BY {', '.join(names) or '1'}) AS doubtful"
    events = spark.table(stream.name)
    narrow = events.where(plan.where or "true").selectExpr(
        *(PARTITION, OFFSET, EVENT_TIME, WATERMARK, DECISION, APPLIED_AT),
        f"coalesce({window.open}, false) AS {_OPENS}",
        f"coalesce({window.close}, false) AS {_CLOSES}",
        *keys,
    )
    doubtful = narrow.selectExpr("*", some).where("doubtful").drop("doubtful")
    judged = doubtful.groupBy(*names).applyInArrow(
        _judge(stream, window.timeout_microseconds),
        f"{PARTITION} INT, {OFFSET} BIGINT, {LATE} BOOLEAN, {TAKEN} BOOLEAN",
    )
    both = events.join(judged, [PARTITION, OFFSET], "left")
    both.where(f"NOT {TAKEN}").createOrReplaceTempView(UNTAKEN)
    both.where(f"coalesce({TAKEN}, true)").createOrReplaceTempView(stream.name)


def _judge(stream: Stream, timeout: int) -> Callable[[pa.Table], pa.Table]:
    def judge(events: pa.Table) -> pa.Table:
        ordered = events.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
        times = ordered.column(EVENT_TIME).cast(pa.int64()).to_pylist()
        columns = (PARTITION, OFFSET, _OPENS, _CLOSES)
        members = map(GroupEvent, times, *(ordered.column(name).to_pylist() for name in columns))
        watermarks = ordered.column(WATERMARK).to_pylist()
        decisions = ordered.column(DECISION).to_pylist()
        steps = list(zip(members, watermarks, decisions, strict=True))
        found = judge_grouped(stream, timeout, steps, applied_before(ordered))
        late, taken = (pa.array([pair[i] for pair in found], pa.bool_()) for i in (0, 1))
        places = ordered.select([PARTITION, OFFSET]).append_column(LATE, late)
        return places.append_column(TAKEN, taken).filter(late)

    return judge
