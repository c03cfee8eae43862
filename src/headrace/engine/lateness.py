"""Whether events are late, where other events decide which window they belong to.

An event that ends after the watermark by itself is not late. For the others the session or group
matters that they join: with what was applied of their key before them in the log. For event groups
see event_group_lateness.py. For sessions all events of these keys, and the sessions the store holds
of them, are gone through in the order of the log. Such events are rare, and so are their keys: this
is Python by event, for them alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.event_group_lateness import resolve_groups
from headrace.engine.late_windows import JoinedWindows
from headrace.log.contract import Range
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import LATE, REJECTED_WINDOWS, BoundView, EventGroup, SessionWindow
from headrace.spark.aggregations import groupings_of
from headrace.spark.event_annotations import (
    DECISION,
    EventAnnotations,
    annotations_of,
    lateness_column,
)
from headrace.spark.event_query import TIME, EventQuery
from headrace.spark.event_tables import EventTables
from headrace.spark.leaf import OFFSET, PARTITION, WATERMARK
from headrace.spark.windows import Decision, Lateness
from headrace.store.contract import Store

__all__ = ["KeySessions", "LatenessResolver"]

# Types whose values are equal just where Arrow finds them so.
_SEARCHABLE = frozenset(
    ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "DATE", "TIMESTAMP"]
)

Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Event:
    key: Key
    partition: int
    offset: int
    time: int
    watermark: int
    decision: int | None


@dataclass
class KeySessions:
    """The sessions of one key as they are at one place in the log: ascending, more than the gap
    apart, each by its first and its last event."""

    gap: int
    spans: list[tuple[int, int]] = field(default_factory=list)

    def joined(self, time: int) -> tuple[int, int]:
        """The first and the last event of the session that an event would be part of."""
        first, last = time, time
        for start, end in self._reached(time):
            first, last = min(first, start), max(last, end)
        return first, last

    def apply(self, time: int) -> None:
        whole, gone = self.joined(time), self._reached(time)
        for span in gone:
            self.spans.remove(span)
        insort(self.spans, whole)

    def _reached(self, time: int) -> list[tuple[int, int]]:
        """At most two: one that ends not before, one that begins not after the gap."""
        place = bisect_left(self.spans, (time + 1,))
        near = self.spans[max(0, place - 1) : place + 1]
        return [span for span in near if span[0] - self.gap <= time <= span[1] + self.gap]


class LatenessResolver:
    """For the events of a tick, one view after the other; used by the tick's thread."""

    def __init__(self, event_query: EventQuery, store: Store) -> None:
        self._event_query = event_query
        self._store = store

    def resolve(
        self,
        view: BoundView,
        stream: Stream,
        ranges: Sequence[Range],
        partials: pa.Table,
        annotations_file: str,
        known: EventTables | None,
    ) -> tuple[EventAnnotations, JoinedWindows]:
        """The column `lateness_column(view)` for exactly the events that `partials`, a first run's,
        leave without LATE, and the windows of those that are late. `annotations_file` is that
        run's, and `known` its events where they are known one by one."""
        if isinstance(view.plan.window, EventGroup):
            return self._resolve_groups(view, stream, partials)
        if known is not None:
            events = known.events(view.name, [column.name for column in view.keys])
        else:
            events = self._asked(view, stream, ranges, annotations_file)
        return self._resolve_sessions(view, stream, partials, events)

    def _resolve_groups(
        self, view: BoundView, stream: Stream, partials: pa.Table
    ) -> tuple[EventAnnotations, JoinedWindows]:
        place = partials.column_names.index(REJECTED_WINDOWS)
        zeros = pa.array(np.zeros(partials.num_rows, dtype=np.int32))
        near = self._store.near_events(
            view.name, partials.set_column(place, REJECTED_WINDOWS, zeros)
        )
        assert near is not None, "the events that are to be judged are among them"
        decided = {
            (d.partition, d.offset): Decision[d.decision.upper()]
            for d in self._store.decisions(stream.name)
        }
        return resolve_groups(view.plan, stream, near, decided)

    def _resolve_sessions(
        self,
        view: BoundView,
        stream: Stream,
        partials: pa.Table,
        events: pa.Table,
    ) -> tuple[EventAnnotations, JoinedWindows]:
        window = view.plan.window
        assert isinstance(window, SessionWindow)
        gap = window.gap_microseconds
        keys = partials.filter(partials.column(LATE).is_null())
        keys = keys.select([column.name for column in view.keys])
        events = _of_keys(events, view, keys)
        times = events.column(TIME)
        known = self._sessions(view, keys, pc.min(times).as_py() or 0, gap)
        places: dict[int, list[tuple[int, Lateness]]] = {}
        windows: dict[tuple[int, int], tuple[int, int]] = {}
        candidates = set(_keys(keys, view)) if view.keys else {()}
        for event in _in_log_order(events, view):
            if event.key not in candidates:
                continue
            sessions = known.setdefault(event.key, KeySessions(gap))
            lateness = _lateness_of(event, sessions, stream)
            if lateness is not None:
                places.setdefault(event.partition, []).append((event.offset, lateness))
            if lateness:
                first, last = sessions.joined(event.time)
                windows[(event.partition, event.offset)] = (first, last + gap)
            if _is_applied(event, lateness or Lateness.IN_TIME, stream):
                sessions.apply(event.time)
        return annotations_of(lateness_column(view.name), places), JoinedWindows(windows)

    def _sessions(
        self, view: BoundView, keys: pa.Table, first: int, gap: int
    ) -> dict[Key, KeySessions]:
        found = self._store.sessions(view.name, keys, first)
        known: dict[Key, KeySessions] = {}
        starts = found.column("window_start").cast(pa.int64()).to_pylist()
        ends = found.column("window_end").cast(pa.int64()).to_pylist()
        for key, start, end in zip(_keys(found, view), starts, ends, strict=True):
            insort(known.setdefault(key, KeySessions(gap)).spans, (start, end - gap))
        return known

    def _asked(
        self, view: BoundView, stream: Stream, ranges: Sequence[Range], annotations_file: str
    ) -> pa.Table:
        """Of all events that the view takes: keys, place, time, watermark and decision."""
        main = groupings_of(view.plan, stream)[0]
        own = [(key.name, key.sql) for key in view.plan.keys]
        looked_up = [column for join in view.plan.joins for column in join.columns]
        return self._event_query.ask(stream, main, "true", own, ranges, annotations_file, looked_up)


def _of_keys(events: pa.Table, view: BoundView, keys: pa.Table) -> pa.Table:
    """All that have one of these keys, and perhaps some more."""
    for column in view.keys:
        if column.type.name in _SEARCHABLE:
            wanted = keys.column(column.name).combine_chunks()
            events = events.filter(pc.is_in(events.column(column.name), value_set=wanted))
    return events


def _in_log_order(events: pa.Table, view: BoundView) -> Iterator[_Event]:
    """Events of one key are all in one partition, whose offsets are their order."""
    place = [events.column(name).to_pylist() for name in (PARTITION, OFFSET, TIME, WATERMARK)]
    decisions = events.column(DECISION).to_pylist()
    return map(_Event, _keys(events, view), *place, decisions)


def _lateness_of(event: _Event, sessions: KeySessions, stream: Stream) -> Lateness | None:
    """None for an event that is not late by itself."""
    if event.time + sessions.gap > event.watermark:
        return None
    end = sessions.joined(event.time)[1] + sessions.gap
    if end > event.watermark:
        return Lateness.IN_TIME
    horizon = stream.late_horizon_microseconds
    is_beyond = horizon is not None and end <= event.watermark - horizon
    return Lateness.BEYOND_HORIZON if is_beyond else Lateness.LATE


def _is_applied(event: _Event, lateness: Lateness, stream: Stream) -> bool:
    """What is set aside does not reach out for those after it."""
    if lateness is Lateness.IN_TIME:
        return True
    if stream.late_policy is LatePolicy.REVISE:
        return lateness is Lateness.LATE
    return stream.late_policy is LatePolicy.HALT and event.decision == Decision.APPLY


def _keys(rows: pa.Table, view: BoundView) -> list[Key]:
    """Keys as something that can be looked up; NaN is equal to itself, as in Spark and the
    store."""
    if not view.keys:
        return [()] * rows.num_rows
    columns = [rows.column(column.name).to_pylist() for column in view.keys]
    return [tuple(map(_comparable, key)) for key in zip(*columns, strict=True)]


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return repr(value) if isinstance(value, (dict, list)) else value
