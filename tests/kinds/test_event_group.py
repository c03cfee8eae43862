"""Event groups, found for many keys at once, are those that one walk over the events finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kinds.event_group import find_groups

EVENT = st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans(), st.booleans())


def walked(events: list[tuple[int, int, bool, bool]], timeout: int) -> list[tuple[int, int, bool]]:
    """(first event, place after the last, is closed) of each group."""
    groups: list[tuple[int, int, bool]] = []
    start, key = -1, None
    for place, (own_key, time, opens, closes) in enumerate(events):
        if start >= 0 and (own_key != key or time >= events[start][1] + timeout):
            groups.append((start, place, False))
            start = -1
        key = own_key
        if start < 0 and opens:
            start = place
        if start >= 0 and closes:
            groups.append((start, place + 1, True))
            start = -1
    if start >= 0:
        groups.append((start, len(events), False))
    return groups


@settings(max_examples=300, deadline=None)
@given(events=st.lists(EVENT, max_size=60), timeout=st.sampled_from([1, 4, 10, 100]))
def test_groups_are_those_of_one_walk(
    events: list[tuple[int, int, bool, bool]], timeout: int
) -> None:
    events = sorted(events, key=lambda event: event[:2])
    columns = list(zip(*events, strict=True)) or [(), (), (), ()]
    keys, times = (np.array(column, dtype=np.int64) for column in columns[:2])
    opens, closes = (np.array(column, dtype=np.bool_) for column in columns[2:])
    found = find_groups(keys, times, opens, closes, timeout)
    expected = walked(events, timeout)
    rows = zip(found.starts.tolist(), found.ends.tolist(), found.is_closed.tolist(), strict=True)
    assert list(rows) == expected
    numbers = found.numbers(len(events))
    for number, (start, end, _) in enumerate(expected):
        assert (numbers[start:end] == number).all()
    assert (numbers < 0).sum() == len(events) - sum(end - start for start, end, _ in expected)
