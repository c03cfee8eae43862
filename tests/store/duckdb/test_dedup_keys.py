"""The index of keys against a plain dictionary, and the record of duplicates against a list."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store.duckdb import dedup_index as seen_index
from headrace.store.duckdb import duplicate_record as duplicates
from headrace.store.duckdb.dedup_index import SeenIndex, packed
from headrace.store.duckdb.duplicate_record import DuplicateRecord

SHIFT = 1 << 24  # what lies below in a hash is not in the index
HASHES = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(ticks=st.lists(HASHES, min_size=1, max_size=12), forget=st.integers(0, 40))
def test_the_index_finds_every_id_with_the_same_hash(ticks: list[list[int]], forget: int) -> None:
    index = SeenIndex()
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
    index = SeenIndex()
    for first in range(0, 60, 5):
        index.add(np.full(5, 16, dtype=np.uint64), first)
    assert index.floor == 60 - 16
    _, ids = index.find(packed(np.array([16], dtype=np.uint64), np.arange(1)))
    assert {i for i in ids.tolist() if i >= index.floor} == set(range(44, 60))


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.sets(st.integers(0, 30), max_size=5), max_size=12),
    bounds=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_the_record_gives_back_what_was_found(
    parts: list[set[int]], bounds: tuple[int, int]
) -> None:
    with duckdb.connect() as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "SHORT_ROWS_MAX", 3)
        patch.setattr(duplicates, "SHORT_BYTES", 40)
        connection.execute("CREATE SCHEMA _headrace")
        record, other = DuplicateRecord(connection, 1), DuplicateRecord(connection, 2)
        expected = []
        for number, part in enumerate(parts):
            offsets = [number * 31 + offset for offset in sorted(part)]
            expected += offsets
            record.add({0: np.array(offsets, dtype=np.int64), 3: np.array([number])})
            other.add({0: np.array([number])})
        start, end = sorted(bounds)
        wanted = [offset for offset in expected if start <= offset < end]
        assert record.read(0, start, end).tolist() == wanted
        record.forget({0: start})
        assert record.read(0, start, end).tolist() == wanted
        assert record.read(3, 0, 400).tolist() == list(range(len(parts)))
        assert other.read(0, 0, 400).tolist() == list(range(len(parts)))
        record.clear()
        assert not len(record.read(0, 0, 400))


def test_a_record_over_a_wide_range_is_exact() -> None:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA _headrace")
        record = DuplicateRecord(connection, 1)
        offsets = [5, 2**32 + 4, 2**32 + 5, 2**40]
        record.add({0: np.array(offsets)})
        assert record.read(0, 0, 2**50).tolist() == offsets
