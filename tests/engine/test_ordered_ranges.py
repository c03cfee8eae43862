"""Ticks of an ordered table take the events of all partitions in the one order of the log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_cases import EmbeddedBackend, HolesBackend, shop_stream, to_partition

from headrace.engine.ordered_ranges import ordered_ranges
from headrace.engine.views import LiveView, ViewGroup, choose_ranges, group_views, moved
from headrace.log.contract import Group, LogReader, Range
from headrace.model.plan import BoundView, TablePlan, ViewPlan
from headrace.store.contract import ViewStatus

PARTITIONS = 3
STREAM = shop_stream(partitions=PARTITIONS)
OTHER = shop_stream("others", partitions=1)

Place = tuple[int, int, int]


def bound(sequence: str | None) -> BoundView:
    table = TablePlan(("k2",), None, sequence, "k4", "k5", 1)
    plan = ViewPlan("t", STREAM.name, None, (), None, (), (), (), None, False, "f", "", table=table)
    return BoundView(plan, (), (), (), (), None)


@pytest.fixture(params=[EmbeddedBackend, HolesBackend])
def log(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Iterator[LogReader]:
    """Groups of one or several partitions, and between them some of another stream."""
    rng = random.Random(seed)
    backend: Any = request.param(tmp_path / "log")
    writer = backend.writer([STREAM, OTHER])
    for number in range(60):
        chosen = rng.sample(range(PARTITIONS), rng.randrange(1, PARTITIONS + 1))
        batches = [to_partition(STREAM, p, 100 * number, rng.randrange(1, 8)) for p in chosen]
        if rng.random() < 0.3:
            batches = [to_partition(OTHER, 0, number, 2)]
        writer.append(Group(tuple(batches)))
    writer.close()
    yield backend.reader([STREAM, OTHER])
    backend.close()


def events(log: LogReader, ranges: tuple[Range, ...]) -> list[Place]:
    found = []
    for r in ranges:
        for piece in log.read(STREAM.name, r.partition, r.start, r.end, []):
            offsets, positions = piece.offsets.tolist(), piece.positions.tolist()
            found += [(p, r.partition, o) for o, p in zip(offsets, positions, strict=True)]
    return sorted(found)


def whole(log: LogReader) -> list[Place]:
    ends = enumerate(log.ends(STREAM.name))
    return events(log, tuple(log.cut(STREAM.name, p, 0, end) for p, end in ends))


def test_however_little_a_tick_takes_it_is_next_in_the_order(log: LogReader, seed: int) -> None:
    rng = random.Random(seed)
    ends = log.ends(STREAM.name)
    view = LiveView("t", STREAM, bound("k3"), (0,) * PARTITIONS, ViewStatus("live"))
    taken: list[Place] = []
    while view.next_offsets != ends:
        rows_max = rng.choice([1, 2, 3, 10, 40])
        (group,) = group_views([view], {STREAM.name: ends}, rows_max)
        ranges = choose_ranges(group, log)
        found = events(log, ranges)
        assert len(found) == sum(r.rows for r in ranges)
        assert 0 < len(found) <= rows_max
        taken += found
        view.next_offsets = moved(view.next_offsets, ranges)
    assert taken == whole(log)


def test_it_goes_no_further_than_the_limits_and_keeps_the_order(log: LogReader) -> None:
    all_, starts = whole(log), (0,) * PARTITIONS
    for cut in (0, 1, len(all_) // 2, len(all_) - 1):
        position, partition, offset = all_[cut]
        limits = list(log.ends(STREAM.name))
        limits[partition] = offset
        found = events(log, ordered_ranges(log, STREAM.name, starts, limits, 10_000))
        assert found == all_[:cut], (position, partition, offset)


def test_where_others_left_the_order_it_goes_on_as_they_did(log: LogReader) -> None:
    _, partition, offset = whole(log)[0]
    limits = tuple(offset if p == partition else e for p, e in enumerate(log.ends(STREAM.name)))
    group = ViewGroup(STREAM, (), (0,) * PARTITIONS, limits, 10, True, is_ordered=True)
    assert not ordered_ranges(log, STREAM.name, group.next_offsets, limits, 10)
    assert sum(r.rows for r in choose_ranges(group, log)) == 10


def test_only_a_table_with_a_sequence_needs_the_order() -> None:
    def flags(*sequences: str | None) -> list[bool]:
        views = [
            LiveView(f"v{i}", STREAM, bound(s), (i,) * PARTITIONS, ViewStatus("live"))
            for i, s in enumerate(sequences)
        ]
        return [g.is_ordered for g in group_views(views, {STREAM.name: (9,) * PARTITIONS}, 10)]

    assert flags(None, None) == [False, False]
    assert flags(None, "k3") == [True, True]
    alone = LiveView("v", OTHER, bound("k3"), (0,), ViewStatus("live"))
    assert not alone.is_ordered
