"""Where in a store a key may be found: parts of its hash and its row's id, in memory.

An entry is one number: 40 bits of the hash above the lowest 24 bits of the id. Entries are kept in
sorted runs, each several times as long as the next: a tick adds a short one, and neighbours of
alike length are joined. The store's rows are the truth: this is made from them when a store opens,
and only narrows what is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ROWS_MAX", "DedupIndex", "packed"]

ID_BITS = 24
ROWS_MAX = 1 << ID_BITS  # ids further back are not in the index (8 bytes each, 128 MiB in all)
JOIN_FACTOR = 4  # a run is joined with the one before unless that is so many times as long
_IDS = np.uint64(ROWS_MAX - 1)

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def packed(hashes: Hashes, numbers: Numbers) -> Hashes:
    """Ascending; each a hash's upper 40 bits with a number's lower 24."""
    entries = (hashes & ~_IDS) | (numbers.astype(np.uint64) & _IDS)
    entries.sort()
    return entries


@dataclass(frozen=True)
class _Run:
    """Ids start ≤ id < end, at most ROWS_MAX of them: so the lower bits say which."""

    entries: Hashes
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.entries)

    def ids_of(self, entries: Hashes) -> Numbers:
        back = (np.uint64((self.end - 1) % ROWS_MAX) - (entries & _IDS)) & _IDS
        return self.end - 1 - back.astype(np.int64)


class DedupIndex:
    """Holds the ids from `floor` on; those before must be looked for in the table."""

    def __init__(self, floor: int = 0) -> None:
        self._runs: list[_Run] = []
        self._lowest = 0
        self.floor = floor

    def add(self, hashes: Hashes, first: int) -> None:
        """Rows with the ids first, first + 1, …, all higher than those before."""
        end = first + len(hashes)
        self.floor = max(self.floor, end - ROWS_MAX)
        hashes = hashes[max(0, self.floor - first) :]
        if not len(hashes):
            return
        start = end - len(hashes)
        run = _Run(packed(hashes, np.arange(start, end)), start, end)
        while self._runs and len(self._runs[-1]) < JOIN_FACTOR * len(run):
            run = self._joined(self._runs.pop(), run)
        self._runs = [*(older for older in self._runs if older.end > self._kept_from), run]

    def load(self, hashes: Hashes, ids: Numbers) -> None:
        """Rows with these ids, in any order, as the first of all."""
        if len(ids):
            self._runs = [_Run(packed(hashes, ids), int(ids.min()), int(ids.max()) + 1)]

    def forget(self, lowest: int) -> None:
        """The store no longer holds ids below; they go when their run is joined with another."""
        self._lowest = lowest

    @property
    def _kept_from(self) -> int:
        return max(self._lowest, self.floor)

    def find(self, entries: Hashes) -> tuple[Numbers, Numbers]:
        """Pairs of a number and an id that share 40 bits of their hashes; `entries` is `packed`."""
        numbers: list[Numbers] = [np.zeros(0, dtype=np.int64)]
        ids: list[Numbers] = [np.zeros(0, dtype=np.int64)]
        for run in self._runs:
            low = np.searchsorted(run.entries, entries & ~_IDS)
            low_entries = run.entries[np.minimum(low, len(run) - 1)]
            hits = np.flatnonzero(((low_entries ^ entries) <= _IDS) & (low < len(run)))
            if not len(hits):
                continue
            first = low[hits]
            count = np.searchsorted(run.entries, entries[hits] | _IDS, side="right") - first
            # first, first + 1, … for each hit, one after the other
            steps = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
            found = run.ids_of(run.entries[np.repeat(first, count) + steps])
            numbers.append(np.repeat((entries[hits] & _IDS).astype(np.int64), count))
            ids.append(found)
        return np.concatenate(numbers), np.concatenate(ids)

    def _joined(self, older: _Run, newer: _Run) -> _Run:
        kept, start = older.entries, max(older.start, self._kept_from)
        if older.start < start:
            kept = kept[older.ids_of(kept) >= start]
        entries = np.concatenate([kept, newer.entries])
        entries.sort(kind="stable")  # merges what is in order already
        return _Run(entries, min(start, newer.start), newer.end)
