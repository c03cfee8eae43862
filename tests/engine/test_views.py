"""Which views move together and how far: pure functions, no Spark."""

from __future__ import annotations

import pytest
from holes import CountedLog
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.views import Isolation, LiveView, ViewGroup, choose_ranges, group_views
from headrace.log.contract import Range
from headrace.model.definitions import Column, Stream
from headrace.model.plan import BoundView, ViewPlan
from headrace.model.types import DataType
from headrace.spark.leaf import decode_ranges, encode_ranges
from headrace.spark.prepared_plan import split_ranges
from headrace.store.contract import ViewStatus

LOG = CountedLog()
STREAM = Stream("s", (Column("a", DataType("INT")),), partitions=2)
PLAN = ViewPlan("v", "s", None, (), None, (), (), (), None, True, "f", "")
BOUND = BoundView(PLAN, (), (), (), (), None)


def view(name: str, *offsets: int, state: str = "live") -> LiveView:
    return LiveView(name, STREAM, BOUND, offsets, ViewStatus(state))


def test_views_at_equal_offsets_share_a_group_that_may_go_to_the_ends() -> None:
    groups = group_views([view("a", 5, 5), view("b", 5, 5)], {"s": (9, 9)}, 100)
    assert [(g.limit, g.is_leading, len(g.views)) for g in groups] == [((9, 9), True, 2)]


def test_a_view_behind_goes_no_further_than_the_leading_one() -> None:
    groups = group_views([view("new", 0, 0), view("a", 5, 6)], {"s": (9, 9)}, 100)
    assert [(g.views[0].name, g.limit, g.is_leading) for g in groups] == [
        ("a", (9, 9), True),
        ("new", (5, 6), False),
    ]


@pytest.mark.parametrize("state", ["failed", "changed"])
def test_a_view_that_does_not_run_is_in_no_group(state: str) -> None:
    assert group_views([view("a", 0, 0, state=state)], {"s": (9, 9)}, 100) == []


def test_an_isolated_view_goes_alone_to_its_target_with_few_rows() -> None:
    alone = view("a", 2, 2)
    alone.isolation = Isolation(target=(4, 4), rows_max=1)
    groups = group_views([alone, view("b", 2, 2)], {"s": (9, 9)}, 100)
    assert [(g.views[0].name, g.limit, g.rows_max) for g in groups] == [
        ("b", (9, 9), 100),
        ("a", (4, 4), 1),
    ]


@given(
    starts=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    waiting=st.lists(st.integers(0, 50), min_size=5, max_size=5),
    rows_max=st.integers(1, 120),
)
def test_chosen_ranges_take_as_much_as_they_may_and_nothing_else(
    starts: list[int], waiting: list[int], rows_max: int
) -> None:
    begin = tuple(map(LOG.offset, starts))
    limit = tuple(LOG.offset(s + w) for s, w in zip(starts, waiting, strict=False))
    group = ViewGroup(STREAM, (), begin, limit, rows_max, True)
    ranges = choose_ranges(group, LOG)
    assert sum(r.rows for r in ranges) == min(rows_max, sum(waiting[: len(starts)]))
    for r in ranges:
        assert r.rows == LOG.rows_of("s", r.partition, r.start, r.end)
        assert r.start == begin[r.partition]
        assert r.start < r.end <= limit[r.partition]
    assert len({r.partition for r in ranges}) == len(ranges)


def test_no_partition_starves_behind_a_long_one() -> None:
    group = ViewGroup(STREAM, (), (0, 0), (LOG.offset(1_000_000), LOG.offset(10)), 100, True)
    assert {r.partition: r.rows for r in choose_ranges(group, LOG)} == {0: 90, 1: 10}


def test_a_view_alone_takes_one_partition_after_the_other() -> None:
    """Else an event that fails at the head of one keeps the others at one row per tick."""
    ends = (LOG.offset(1_000_000), LOG.offset(10))
    alone = view("a", LOG.offset(3), 0)
    alone.isolation = Isolation(target=ends, rows_max=100)
    (group,) = group_views([alone], {"s": ends}, 1_000)
    (found,) = choose_ranges(group, LOG)
    assert (found.partition, found.rows) == (0, 100)
    assert LOG.events(found) == [(0, n) for n in range(3, 103)]


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    parts=st.integers(1, 5),
)
def test_split_ranges_lose_nothing_and_share_evenly(rows: list[int], parts: int) -> None:
    ranges = [
        Range(number, LOG.offset(10), LOG.offset(10 + count), count)
        for number, count in enumerate(rows)
    ]
    lists = split_ranges(LOG, "s", ranges, parts)
    assert len(lists) <= parts
    assert all(r.rows == len(LOG.events(r)) for one in lists for r in one)
    events = [event for one in lists for r in one for event in LOG.events(r)]
    assert events == [event for r in ranges for event in LOG.events(r)]
    share = -(-sum(rows) // parts)
    assert all(sum(r.rows for r in one) <= share for one in lists)


def test_ranges_survive_the_local_property() -> None:
    tasks = [[Range(0, 1, 2, 1), Range(3, 4, 9, 5)], []]
    assert decode_ranges(encode_ranges(tasks, "a file")) == ("a file", tasks)
