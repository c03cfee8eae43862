"""The net of some ticks' changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.contract import ViewChange
from headrace.testing.changes import net_changes

pytestmark = pytest.mark.unit

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.float64()), ("final", pa.bool_())])


def _tick(before: Sequence[Any], after: Sequence[Any]) -> ViewChange:
    """Of (k, n, final)."""
    tables = [
        pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in rows], SCHEMA)
        for rows in (before, after)
    ]
    return ViewChange("v", 1, *tables)


def test_what_came_and_went_in_between_is_no_change() -> None:
    nan = float("nan")
    ticks = [
        _tick([], [("a", 1, False), ("b", 1, False), ("c", nan, False)]),
        _tick([("a", 1, True), ("b", 1, True)], [("a", 2, True)]),
        _tick([("c", nan, True), ("d", 5, False)], [("d", 6, False)]),
        _tick([("e", 7, False)], [("e", 8, False)]),
        _tick([("e", 8, False)], [("e", 7, False)]),
        _tick([("f", 1, False)], []),
    ]
    net = net_changes(ticks, ["k"], ["final"])
    assert net.added == [{"k": "a", "n": 2}]
    assert net.changed == [({"k": "d", "n": 5}, {"k": "d", "n": 6})]
    assert net.removed == [{"k": "f", "n": 1}]


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), min_size=1))
def test_they_lead_from_the_first_state_to_the_last(states: list[dict[str, int]]) -> None:
    ticks = []
    for old, new in pairwise(states):
        keys = [key for key in {*old, *new} if old.get(key) != new.get(key)]
        before = [(key, old[key], False) for key in keys if key in old]
        ticks.append(_tick(before, [(key, new[key], False) for key in keys if key in new]))
    net = net_changes(ticks, ["k"], ["final"])
    rows = dict(states[0])
    for row in net.removed:
        assert rows.pop(row["k"]) == row["n"]
    for before, after in net.changed:
        assert before["k"] == after["k"]
        assert rows[before["k"]] == before["n"]
        rows[after["k"]] = after["n"]
    for row in net.added:
        assert row["k"] not in rows
        rows[row["k"]] = row["n"]
    assert rows == states[-1]
