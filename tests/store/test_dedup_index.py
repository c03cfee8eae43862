"""The index of keys against a plain dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import dedup_index as seen_index
from headrace.store.dedup_index import DedupIndex, packed

SHIFT = 1 << 24  # what lies below in a hash is not in the index
HASHES = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(ticks=st.lists(HASHES, min_size=1, max_size=12), forget=st.integers(0, 40))
def test_the_index_finds_every_id_with_the_same_hash(ticks: list[list[int]], forget: int) -> None:
    index = DedupIndex()
    stored: list[int] = []
    for number, hashes in enumerate(ticks):
        if number == len(ticks) // 2:
            index.forget(min(forget, len(stored)))
        index.add(np.array(hashes, dtype=np.uint64) * np.uint64(SHIFT), len(stored))
        stored += hashes
    asked = np.arange(11, dtype=np.uint64) * np.uint64(SHIFT)
    numbers, ids = index.find(packed(asked, np.arange(11)))
    found = set(zip(numbers.tolist(), ids.tolist(), strict=True))
    assert len(found) == len(ids)
    everything = {(hash_, id_) for id_, hash_ in enumerate(stored)}
    assert found <= everything
    assert {(h, i) for h, i in everything if i >= forget} <= found


def test_ids_too_far_back_are_left_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_index, "ROWS_MAX", 16)
    monkeypatch.setattr(seen_index, "_IDS", np.uint64(15))
    index = DedupIndex()
    for first in range(0, 60, 5):
        index.add(np.full(5, 16, dtype=np.uint64), first)
    assert index.floor == 60 - 16
    _, ids = index.find(packed(np.array([16], dtype=np.uint64), np.arange(1)))
    assert {i for i in ids.tolist() if i >= index.floor} == set(range(44, 60))
