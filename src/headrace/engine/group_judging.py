"""Which events behind the watermark are late for a view by event group.

An event is late when the group that it falls in was passed: closed before the watermark, or timed
out. That group is found among the events of its key that came before it in the log and were
applied, itself included. So the events of a key are judged one after the other, all keys at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.marks import Marks, judged_column
from headrace.engine.windows import Decision, Judged
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import CLOSES, LATE, OPENS, PANE, PASSED, POSITION, EventGroup, ViewPlan
from headrace.store.event_groups import KEY, Groups, find_groups

__all__ = ["judge_groups"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Decided = Mapping[tuple[int, int], Decision]  # by partition and offset


class _Events:
    """The events of a tick's keys, those of earlier ticks among them, by key, time and place."""

    def __init__(self, near: pa.Table, timeout: int) -> None:
        self.keys, self.times, self.offsets, self.watermarks = (
            near.column(name).to_numpy() for name in (KEY, PANE, POSITION[1], PASSED)
        )
        self.opens, self.closes = (
            near.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES)
        )
        self.is_open_question = near.column(LATE).is_null().to_numpy()
        self.timeout = timeout
        self.is_applied = np.ones(near.num_rows, dtype=np.bool_)

    def questions(self) -> list[Numbers]:
        """The places of the events that are to be judged: the first of each key, then the second
        of each, and so on."""
        places = np.flatnonzero(self.is_open_question)
        ordered = places[np.lexsort((self.offsets[places], self.keys[places]))]
        keys = self.keys[ordered]
        first = np.searchsorted(keys, keys)
        turn = np.arange(len(ordered)) - first
        return [ordered[turn == number] for number in range(int(turn.max(initial=-1)) + 1)]

    def judge(self, places: Numbers, horizon: int | None) -> Numbers:
        """One event of each of some keys, as if nothing had come after it."""
        limits = np.full(int(self.keys.max()) + 1, np.iinfo(np.int64).min)
        limits[self.keys[places]] = self.offsets[places]
        known = np.flatnonzero(self.is_applied & (self.offsets <= limits[self.keys]))
        groups = find_groups(
            self.keys[known], self.times[known], self.opens[known], self.closes[known], self.timeout
        )
        mine = groups.numbers(len(known))[np.searchsorted(known, places)]
        ends = np.append(self._ends(groups, known), np.iinfo(np.int64).max)[mine]
        watermarks = self.watermarks[places]
        judged: Numbers = (ends <= watermarks).astype(np.int64) * Judged.LATE
        if horizon is not None:
            lowered = np.maximum(watermarks, np.iinfo(np.int64).min + horizon) - horizon
            judged[ends <= lowered] = Judged.BEYOND
        return judged

    def _ends(self, groups: Groups, known: Numbers) -> Numbers:
        """From which watermark on each group is passed."""
        closing = self.times[known[groups.ends - 1]] + 1
        limit = self.times[known[groups.starts]] + self.timeout
        ends: Numbers = np.where(groups.is_closed, closing, limit)
        return ends


def judge_groups(plan: ViewPlan, stream: Stream, near: pa.Table, decided: Decided) -> Marks:
    """Marks for the events of `near` (see Store.near_events) whose LATE is NULL."""
    assert isinstance(plan.window, EventGroup)
    events = _Events(near, plan.window.timeout_microseconds)
    partitions = near.column(POSITION[0]).to_numpy()
    judged = np.zeros(near.num_rows, dtype=np.int8)
    for places in events.questions():
        found = events.judge(places, stream.late_horizon_microseconds)
        judged[places] = found
        events.is_applied[places] = _applied(stream, found, partitions, events, places, decided)
    marks = {}
    for partition in np.unique(partitions[events.is_open_question]):
        mine = np.flatnonzero(events.is_open_question & (partitions == partition))
        mine = mine[np.argsort(events.offsets[mine])]
        marks[int(partition)] = (events.offsets[mine], judged[mine])
    return Marks({}, {judged_column(plan.view): marks})


def _applied(
    stream: Stream,
    found: Numbers,
    partitions: Numbers,
    events: _Events,
    places: Numbers,
    decided: Decided,
) -> Flags:
    if stream.late_policy is LatePolicy.REVISE:
        return np.not_equal(found, Judged.BEYOND)
    in_time = np.equal(found, Judged.IN_TIME)
    if stream.late_policy is not LatePolicy.HALT:
        return in_time
    applied = [
        decided.get((int(partitions[place]), int(events.offsets[place]))) is Decision.APPLY
        for place in places
    ]
    return np.logical_or(in_time, applied)
