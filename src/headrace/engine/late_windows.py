"""Which windows a late event missed, and how many of a tick's events were applied to none.

Windows are counted as the store expands a pane: by their end, the first first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.plan import (
    LATE,
    PANE,
    PANE_END,
    REJECTED_WINDOWS,
    ROWS,
    Sliding,
    ViewPlan,
    Window,
)
from headrace.spark.leaf import OFFSET, PARTITION

__all__ = ["JoinedWindows", "applied_rows", "count_rows", "missed_windows"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JoinedWindows:
    """Where others decide which window an event belongs to: the start and the end of the one that
    each late event would have been part of, by partition and offset."""

    by_place: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def of(self, events: pa.Table) -> tuple[Numbers, Numbers]:
        """The starts and the ends, for rows with PARTITION and OFFSET."""
        places = (events.column(name).to_pylist() for name in (PARTITION, OFFSET))
        found = [self.by_place[place] for place in zip(*places, strict=True)]
        pairs = np.array(found, dtype=np.int64).reshape(len(found), 2)
        return pairs[:, 0], pairs[:, 1]


def _numbers(table: pa.Table, name: str) -> Numbers:
    whole = table.column(name).combine_chunks().cast(pa.int64())
    return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)


def _windows_over(window: Window, panes: Numbers) -> tuple[Numbers, Numbers]:
    """The start of the last window over each pane, and how many there are."""
    slide = window.slide_microseconds
    last = panes - np.mod(panes - window.origin_microseconds, slide)
    return last, (last - panes + window.size_microseconds + slide - 1) // slide


def is_applied(plan: ViewPlan, partials: pa.Table) -> npt.NDArray[np.bool_]:
    """Which partial rows are applied to at least one window."""
    beyond = _numbers(partials, REJECTED_WINDOWS)
    if isinstance(plan.window, Sliding):
        return beyond < 2  # its own row, and those after it
    if not isinstance(plan.window, Window):
        return beyond < 1
    return beyond < _windows_over(plan.window, _numbers(partials, PANE))[1]


def applied_rows(plan: ViewPlan, partials: pa.Table) -> pa.Table:
    """Without the rows that are set aside from all their windows."""
    if plan.window is None or pc.max(partials.column(REJECTED_WINDOWS)).as_py() == 0:
        return partials
    return partials.filter(pa.array(is_applied(plan, partials)))


def count_rows(plan: ViewPlan, partials: pa.Table) -> tuple[int, int, int]:
    """Events applied, of those the late ones, and events set aside from all their windows."""
    rows = _numbers(partials, ROWS)
    if plan.window is None:
        return int(rows.sum()), 0, 0
    applied = is_applied(plan, partials)
    late = applied & (_numbers(partials, LATE) > 0)
    return int(rows[applied].sum()), int(rows[late].sum()), int(rows[~applied].sum())


def missed_windows(
    plan: ViewPlan, late: pa.Table, joined: JoinedWindows
) -> tuple[Numbers, Numbers, Numbers]:
    """For rows with PANE, REJECTED_WINDOWS and the like: each window that a row is set aside from,
    as the number of the row, the window's start and its end. An event of a sliding view misses its
    own row and some that come after it: it is kept once, with the window of its own."""
    beyond = _numbers(late, REJECTED_WINDOWS)
    if isinstance(plan.window, Sliding):
        beyond = np.minimum(beyond, 1)
    rows = np.repeat(np.arange(late.num_rows), beyond)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(beyond) - beyond, beyond)
    window = plan.window
    if isinstance(window, Window):
        last, count = _windows_over(window, _numbers(late, PANE))
        starts = last[rows] - (count[rows] - 1 - place) * window.slide_microseconds
        return rows, starts, starts + window.size_microseconds
    if PANE_END in late.column_names:
        return rows, _numbers(late, PANE)[rows], _numbers(late, PANE_END)[rows]
    if isinstance(window, Sliding):
        starts = _numbers(late, PANE)[rows]
        return rows, starts, starts + 1
    starts, ends = joined.of(late.take(pa.array(rows)))
    return rows, starts, ends
