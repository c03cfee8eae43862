"""Which events behind the watermark are late for a view by event group.

An event is late when the group that it falls in was passed: closed before the watermark, or timed
out. That group is found among the events of its key that came before it in the log and were
applied, itself included. So the events of such keys are gone through in the order of the log. Only
those that open or close matter for where groups are, and one of them changes the groups from its
own on, up to the next that begins where one did before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.engine.late_windows import JoinedWindows
from headrace.kinds.event_group import KEY
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import CLOSES, LATE, OPENS, PANE, PASSED, POSITION, EventGroup, ViewPlan
from headrace.spark.event_annotations import EventAnnotations, annotations_of, lateness_column
from headrace.spark.windows import Decision, Lateness

__all__ = ["GroupSpan", "KeyGroups", "resolve_groups"]

Place = tuple[int, int]  # time and offset: all events of a key are in one partition
Decided = Mapping[tuple[int, int], Decision]  # by partition and offset


class GroupSpan(NamedTuple):
    """`after` is the first place that is no longer in it."""

    start: int
    end: int
    is_closed: bool
    after: Place

    @property
    def passed_from(self) -> int:
        """The watermark from which on it is passed."""
        return self.end + 1 if self.is_closed else self.end


@dataclass
class KeyGroups:
    """The groups of one key as they are at one place in the log, ascending."""

    timeout: int
    opening: list[Place] = field(default_factory=list)
    closing: list[Place] = field(default_factory=list)
    starts: list[Place] = field(default_factory=list)
    spans: list[GroupSpan] = field(default_factory=list)

    def joined(self, place: Place, *, opens: bool, closes: bool) -> GroupSpan | None:
        """The group that an event would be part of."""
        number = self._holding(place)
        if number is not None:
            span = self.spans[number]
            return _closed(span.start, place) if closes else span
        if not opens:
            return None
        return _closed(place[0], place) if closes else self._begun(place)

    def holds(self, place: Place) -> bool:
        """Whether one of the groups reaches over the place."""
        return self._holding(place) is not None

    def apply(self, place: Place, *, opens: bool, closes: bool) -> None:
        number = self._holding(place)
        if opens:
            insort(self.opening, place)
        if closes:
            insort(self.closing, place)
        if number is not None and closes:
            self._follow(number, self.starts[number])
        elif number is None and opens:
            self._follow(bisect_left(self.starts, place), place)

    def _holding(self, place: Place) -> int | None:
        number = bisect_right(self.starts, place) - 1
        return number if number >= 0 and place < self.spans[number].after else None

    def _begun(self, place: Place) -> GroupSpan:
        """The group that begins there."""
        limit = place[0] + self.timeout
        number = bisect_left(self.closing, place)
        if number < len(self.closing) and self.closing[number][0] < limit:
            return _closed(place[0], self.closing[number])
        return GroupSpan(place[0], limit, False, (limit, -2))

    def _follow(self, number: int, start: Place) -> None:
        """The groups from this one on, up to where they are as they were."""
        starts, spans = [start], [self._begun(start)]
        while True:
            following = bisect_left(self.opening, spans[-1].after)
            if following == len(self.opening):
                same = len(self.starts)
                break
            begins = self.opening[following]
            same = bisect_left(self.starts, begins)
            if same < len(self.starts) and self.starts[same] == begins:
                break
            starts.append(begins)
            spans.append(self._begun(begins))
        self.starts[number:same] = starts
        self.spans[number:same] = spans


def _closed(start: int, place: Place) -> GroupSpan:
    return GroupSpan(start, place[0], True, (place[0], place[1] + 1))


class _Event(NamedTuple):
    key: int
    partition: int
    offset: int
    time: int
    watermark: int
    opens: bool
    closes: bool
    is_asked: bool


def resolve_groups(
    plan: ViewPlan, stream: Stream, near: pa.Table, decided: Decided
) -> tuple[EventAnnotations, JoinedWindows]:
    """For the events of `near` (see Store.near_events) whose LATE is NULL."""
    window = plan.window
    assert isinstance(window, EventGroup)
    known: dict[int, KeyGroups] = {}
    places: dict[int, list[tuple[int, Lateness]]] = {}
    windows: dict[tuple[int, int], tuple[int, int]] = {}
    for event in _in_log_order(near):
        groups = known.get(event.key)
        if groups is None:
            groups = known[event.key] = KeyGroups(window.timeout_microseconds)
        place, opens, closes = (event.time, event.offset), event.opens, event.closes
        lateness = Lateness.IN_TIME
        if event.is_asked:
            span = groups.joined(place, opens=opens, closes=closes)
            lateness = _lateness_of(span, event.watermark, stream)
            places.setdefault(event.partition, []).append((event.offset, lateness))
            if span is not None and lateness is not Lateness.IN_TIME:
                # What would have closed a group of its own may be forgotten, see
                # store/duckdb/state_expiry.py.
                is_known = closes or groups.holds(place)
                end = span.end if is_known else event.time + groups.timeout
                windows[(event.partition, event.offset)] = (span.start, end)
        if (opens or closes) and _is_applied(event, lateness, stream, decided):
            groups.apply(place, opens=opens, closes=closes)
    return annotations_of(lateness_column(plan.view), places), JoinedWindows(windows)


def _in_log_order(near: pa.Table) -> Iterator[_Event]:
    """Those of keys that are asked about, as far as they matter: key by key."""
    keys, offsets = near.column(KEY).to_numpy(), near.column(POSITION[1]).to_numpy()
    opens, closes = (near.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES))
    is_asked = near.column(LATE).is_null().to_numpy()
    matters = np.isin(keys, keys[is_asked]) & (is_asked | opens | closes)
    chosen = np.flatnonzero(matters)
    chosen = chosen[np.lexsort((offsets[chosen], keys[chosen]))]
    partitions, times, watermarks = (
        near.column(name).to_numpy()[chosen].tolist() for name in (POSITION[0], PANE, PASSED)
    )
    rest = (opens[chosen].tolist(), closes[chosen].tolist(), is_asked[chosen].tolist())
    own = (keys[chosen].tolist(), partitions, offsets[chosen].tolist(), times, watermarks)
    return map(_Event._make, zip(*own, *rest, strict=True))


def _lateness_of(span: GroupSpan | None, watermark: int, stream: Stream) -> Lateness:
    """What is in no group is not late for one."""
    if span is None or span.passed_from > watermark:
        return Lateness.IN_TIME
    horizon = stream.late_horizon_microseconds
    is_beyond = horizon is not None and span.passed_from <= watermark - horizon
    return Lateness.BEYOND_HORIZON if is_beyond else Lateness.LATE


def _is_applied(event: _Event, lateness: Lateness, stream: Stream, decided: Decided) -> bool:
    if lateness is Lateness.IN_TIME:
        return True
    if stream.late_policy is LatePolicy.REVISE:
        return lateness is Lateness.LATE
    if stream.late_policy is not LatePolicy.HALT:
        return False
    return decided.get((event.partition, event.offset)) is Decision.APPLY
