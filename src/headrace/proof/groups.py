"""Which events were late for their event group: the group of each event is found by the rule of the
definition, over all that is applied by then."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import Stream
from headrace.model.plan import EventGroup, ViewPlan
from headrace.proof.events import OFFSET, PARTITION, WATERMARK
from headrace.proof.lateness import Question, event_times, judged_events
from headrace.proof.oracle import TAKEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["UNTAKEN", "EventGroups", "GroupEvent", "declare_grouped", "group_of"]

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


class EventGroups:
    """The groups of one key, of the events that were applied."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._events: list[GroupEvent] = []

    def passed_from(self, event: GroupEvent) -> int | None:
        """A group that an event closed takes further events of that very moment."""
        self.apply(event)
        found = group_of(self._events, event, self._timeout)
        self._events.remove(event)
        return None if found is None else found[0] + int(found[1])

    def apply(self, event: GroupEvent) -> None:
        insort(self._events, event)


def declare_grouped(spark: SparkSession, plan: ViewPlan, stream: Stream) -> None:
    """Give the stream's events under their name the column LATE, and leave out those that were not
    taken in: these are in UNTAKEN. A key is doubtful with an event behind the watermark."""
    window = plan.window
    assert isinstance(window, EventGroup)
    judged = judged_events(
        spark,
        stream,
        Question(
            where=plan.where or "true",
            keys=[key.sql for key in plan.keys],
            doubtful=f"{WATERMARK} > unix_micros({EVENT_TIME})",
            columns=(
                f"coalesce({window.open}, false) AS {_OPENS}",
                f"coalesce({window.close}, false) AS {_CLOSES}",
            ),
            members=_members,
            nothing_applied=partial(EventGroups, window.timeout_microseconds),
        ),
    )
    judged.where(f"NOT {TAKEN}").createOrReplaceTempView(UNTAKEN)
    judged.where(f"coalesce({TAKEN}, true)").createOrReplaceTempView(stream.name)


def _members(events: pa.Table) -> list[GroupEvent]:
    columns = (events.column(name).to_pylist() for name in (PARTITION, OFFSET, _OPENS, _CLOSES))
    return list(map(GroupEvent, event_times(events), *columns))
