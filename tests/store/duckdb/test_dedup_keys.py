"""The record of duplicates against a list."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store.duckdb import duplicate_record as duplicates
from headrace.store.duckdb.duplicate_record import DuplicateRecord


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
