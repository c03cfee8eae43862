"""Which events were late for their session, found again from the log alone.

Which session an event joins depends on the events of its key that were applied before it, so this
is gone through step by step in the log's order: for the keys alone that have an event whose own
session, with no other event in it, had been passed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import LatePolicy, Stream
from headrace.proof.events import APPLIED_AT, DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import LATE, TAKEN, Oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SessionRule", "applied_before", "declare_judged", "judge_events"]


@dataclass(frozen=True)
class SessionRule:
    gap: int
    policy: LatePolicy
    horizon: int | None

    def takes(self, end: int, watermark: int, decision: str | None) -> bool:
        """Whether an event that is late for a session with this end is applied to it."""
        if self.policy is LatePolicy.REVISE:
            return self.horizon is None or end > watermark - self.horizon
        return self.policy is LatePolicy.HALT and decision == "apply"


def judge_events(
    rule: SessionRule,
    events: Sequence[tuple[int, int | None, str | None]],
    applied: Mapping[int, Sequence[int]] | None = None,
) -> list[tuple[bool, bool]]:
    """For the events of one key in the log's order, each with its time, the watermark before it
    and the decision about it: whether it is late, and whether it is taken in. Events at most a gap
    apart are one session, which ends a gap after its last. `applied` says which events that had
    been set aside were applied before an event came (see `applied_before`)."""
    sessions: list[tuple[int, int]] = []  # first and last event
    judged: list[tuple[bool, bool]] = []

    def joined(time: int) -> list[tuple[int, int]]:
        return [s for s in sessions if s[0] - rule.gap <= time <= s[1] + rule.gap]

    def apply(time: int) -> None:
        gone = joined(time)
        first, last = min([time, *(s[0] for s in gone)]), max([time, *(s[1] for s in gone)])
        sessions[:] = [*(s for s in sessions if s not in gone), (first, last)]

    for place, (time, watermark, decision) in enumerate(events):
        for earlier in (applied or {}).get(place, ()):
            apply(events[earlier][0])
        end = max([time, *(s[1] for s in joined(time))]) + rule.gap
        is_late = watermark is not None and end <= watermark
        is_taken = not is_late or rule.takes(end, watermark or 0, decision)
        if is_taken:
            apply(time)
        judged.append((is_late, is_taken))
    for later in (place for places in (applied or {}).values() for place in places):
        judged[later] = (True, True)
    return judged


def applied_before(events: pa.Table) -> dict[int, list[int]]:
    """Of the events of one key in the log's order: the places of those that were applied after
    they had been set aside, by the place of the first event that came after that."""
    offsets, found = events.column(OFFSET).to_pylist(), events.column(APPLIED_AT).to_pylist()
    applied: dict[int, list[int]] = {}
    for place, come in enumerate(found):
        if come is not None:
            applied.setdefault(bisect_left(offsets, come), []).append(place)
    return applied


def declare_judged(
    spark: SparkSession, stream: Stream, question: Oracle, gap_microseconds: int
) -> None:
    """Give the stream's events under their name the columns LATE and TAKEN, where they are late."""
    rule = SessionRule(gap_microseconds, stream.late_policy, stream.late_horizon_microseconds)
    keys = [f"({text}) AS j{i}" for i, text in enumerate(question.key_texts[:-1])]
    names = [f"j{i}" for i in range(len(keys))]
    alone = f"unix_micros({EVENT_TIME}) + {rule.gap}L <= {WATERMARK}"
    some = f"max(coalesce({alone}, false)) OVER (PARTITION BY {', '.join(names) or '1'})"
    events = spark.table(stream.name)
    narrow = events.where(question.where).selectExpr(
        *(PARTITION, OFFSET, EVENT_TIME, WATERMARK, DECISION, APPLIED_AT), *keys
    )
    doubtful = narrow.selectExpr("*", f"{some} AS doubtful").where("doubtful").drop("doubtful")
    judged = doubtful.groupBy(*names).applyInArrow(
        _judge(rule), f"{PARTITION} INT, {OFFSET} BIGINT, {LATE} BOOLEAN, {TAKEN} BOOLEAN"
    )
    both = events.join(judged, [PARTITION, OFFSET], "left")
    both.createOrReplaceTempView(stream.name)


def _judge(rule: SessionRule) -> Callable[[pa.Table], pa.Table]:
    def judge(events: pa.Table) -> pa.Table:
        ordered = events.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])
        times = ordered.column(EVENT_TIME).cast(pa.int64()).to_pylist()
        watermarks = ordered.column(WATERMARK).to_pylist()
        decisions = ordered.column(DECISION).to_pylist()
        steps = list(zip(times, watermarks, decisions, strict=True))
        found = judge_events(rule, steps, applied_before(ordered))
        places = ordered.select([PARTITION, OFFSET])
        late = places.append_column(LATE, pa.array([is_late for is_late, _ in found], pa.bool_()))
        taken = pa.array([is_taken for _, is_taken in found], pa.bool_())
        return late.append_column(TAKEN, taken).filter(late.column(LATE))

    return judge
