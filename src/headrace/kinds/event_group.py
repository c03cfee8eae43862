"""Which events form a group (see model/plan.py, EventGroup), for many keys at once.

Where a group that began at an event would end follows from that event alone: at the first closing
event of its key from there on, or before the first one a timeout later. So every event that could
open a group has one successor, the first that could open the next, and the groups are the chains of
successors from the first such event of each key. Chains are followed for all keys together, by
doubling the length of the step: as many rounds as the logarithm of the longest chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KEY", "Groups", "find_groups"]

KEY = "_key"  # BIGINT: stands for the keys of an event among those that are looked at together

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Groups:
    """Each group's first event, the place after its last one, and whether that one closed it."""

    starts: Numbers
    ends: Numbers
    is_closed: Flags

    def numbers(self, events: int) -> Numbers:
        """The number of each event's group; -1 for none."""
        found = np.full(events, -1, dtype=np.int64)
        sizes = self.ends - self.starts
        places = np.repeat(self.starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        found[places] = np.repeat(np.arange(len(sizes)), sizes)
        return found


def find_groups(keys: Numbers, times: Numbers, opens: Flags, closes: Flags, timeout: int) -> Groups:
    """The events are in the order of key, time and place in the log."""
    opening = np.flatnonzero(opens)
    if len(opening) == 0:
        none: Any = np.zeros(0, dtype=np.int64)
        return Groups(none, none, none.astype(np.bool_))
    ends, is_closed = _ends(keys, times, closes, timeout, opening)
    chained = _chained(keys[opening], np.searchsorted(opening, ends))
    return Groups(opening[chained], ends[chained], is_closed[chained])


def _ends(
    keys: Numbers, times: Numbers, closes: Flags, timeout: int, opening: Numbers
) -> tuple[Numbers, Flags]:
    """Where a group that began at each opening event would end."""
    key_ends = np.searchsorted(keys, keys[opening], side="right")
    limits = times[opening] + timeout
    # Key and time as one number that sorts as both do, whatever the times are.
    moments = np.unique(np.concatenate((times, limits)))
    places = keys * len(moments) + np.searchsorted(moments, times)
    wanted = keys[opening] * len(moments) + np.searchsorted(moments, limits)
    ends = np.minimum(np.searchsorted(places, wanted), key_ends)
    closing = np.append(np.flatnonzero(closes), len(keys))
    first = closing[np.searchsorted(closing, opening)]
    is_closed = first < ends
    return np.where(is_closed, first + 1, ends), is_closed


def _chained(keys: Numbers, following: Numbers) -> Flags:
    """Which opening events begin a group: the first of each key, and what follows on those.
    `following` gives each one's successor, perhaps of the next key, which begins anew."""
    count = len(keys)
    is_chained = np.append(np.True_, keys[1:] != keys[:-1])
    same = (following < count) & (keys[np.minimum(following, count - 1)] == keys)
    step = np.append(np.where(same, following, count), count)  # the last one leads to itself
    is_chained = np.append(is_chained, False)
    while (step[:-1] < count).any():
        is_chained[step[is_chained]] = True
        step = step[step]
    return is_chained[:-1]
