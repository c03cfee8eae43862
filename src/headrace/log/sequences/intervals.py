"""Sets of numbers of many lines at once, as sorted intervals; all of it in whole arrays.

`INTERVAL` rows are ordered by line and first number; intervals of a line neither overlap nor
adjoin. `noticed` is when the gap before the interval was noticed; that of a line's lowest interval
has no meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INTERVAL", "Intervals", "Numbers", "merged", "of_lines", "placed", "replaced", "runs"]

INTERVAL = np.dtype([("line", "<i4"), ("first", "<i8"), ("end", "<i8"), ("noticed", "<i8")])
Intervals = npt.NDArray[Any]  # of INTERVAL
Numbers = npt.NDArray[np.int64]


def of_lines(intervals: Intervals, lines: Numbers) -> Numbers:
    """Places of the intervals of `lines`, which ascend."""
    low = np.searchsorted(intervals["line"], lines, side="left")
    counts = np.searchsorted(intervals["line"], lines, side="right") - low
    skipped = np.repeat(low - (np.cumsum(counts) - counts), counts)
    return skipped + np.arange(len(skipped))


def runs(lines: Numbers, numbers: Numbers, noticed: int) -> Intervals:
    """Distinct numbers, ordered by line and number, as intervals."""
    starts = np.ones(len(lines), dtype=np.bool_)
    starts[1:] = (lines[1:] != lines[:-1]) | (numbers[1:] != numbers[:-1] + 1)
    first = np.flatnonzero(starts)
    found = np.empty(len(first), dtype=INTERVAL)
    found["line"], found["first"] = lines[first], numbers[first]
    found["end"] = numbers[np.append(first[1:], len(lines)) - 1] + 1 if len(first) else 0
    found["noticed"] = noticed
    return found


def placed(intervals: Intervals, lines: Numbers, numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Which of the numbers, ordered by line and number, lie in an interval of their line."""
    count = len(intervals)
    if not count:
        return np.zeros(len(lines), dtype=np.bool_)
    is_row = np.repeat([False, True], [count, len(lines)])
    values = np.concatenate([intervals["first"], numbers])
    order = np.lexsort((is_row, values, np.concatenate([intervals["line"], lines])))
    before = np.maximum.accumulate(np.where(order < count, order, -1))[order >= count]
    known = np.maximum(before, 0)
    is_same = intervals["line"][known] == lines
    found: npt.NDArray[np.bool_] = (before >= 0) & is_same & (numbers < intervals["end"][known])
    return found


def merged(known: Intervals, fresh: Intervals, noticed: int) -> Intervals:
    """The union of two sets that share no number. A gap that is filled in part was noticed when the
    whole was; one that opens now is noticed now."""
    known = known.copy()
    if len(known):
        is_lowest = np.ones(len(known), dtype=np.bool_)
        is_lowest[1:] = known["line"][1:] != known["line"][:-1]
        known["noticed"][is_lowest] = noticed
    both = np.concatenate([known, fresh])
    order = np.lexsort((both["first"], both["line"]))
    both = both[order]
    both["noticed"] = _noticed(both, order < len(known))
    starts = np.ones(len(both), dtype=np.bool_)
    starts[1:] = (both["line"][1:] != both["line"][:-1]) | (both["first"][1:] != both["end"][:-1])
    first = np.flatnonzero(starts)
    found = both[first]
    if len(first):
        found["end"] = both["end"][np.append(first[1:], len(both)) - 1]
    return found


def _noticed(both: Intervals, is_known: npt.NDArray[np.bool_]) -> Numbers:
    """A fresh interval lies in the gap before the next known one of its line."""
    places = np.arange(len(both))
    following = np.where(is_known, places, len(both))
    following = np.minimum.accumulate(following[::-1])[::-1]
    next_known = np.minimum(following, len(both) - 1)
    in_gap = (following < len(both)) & (both["line"][next_known] == both["line"])
    noticed: Numbers = np.where(in_gap, both["noticed"][next_known], both["noticed"])
    return noticed


def replaced(intervals: Intervals, places: Numbers, by: Intervals) -> Intervals:
    """Without those at `places`, which are all of their lines, and with `by`."""
    if not len(places) and not len(by):
        return intervals
    kept = np.delete(intervals, places)
    return np.insert(kept, np.searchsorted(kept["line"], by["line"]), by)
