"""Number lines: gaps, late fills, duplicates and resets, against the plain way to count them.

That they survive a crash at any call is shown in test_crashes.py, by the same model.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.contract import (
    GAPS_MAX,
    LINES_MAX,
    Advance,
    Gap,
    Group,
    PartitionBatch,
    ProducerRange,
    Receipt,
    accept_note,
    heard_note,
    repeat_note,
)
from headrace.log.sequences.producers import Producers
from headrace.model.completeness import WatermarkOrigin
from headrace.model.errors import ProducerGapsError

STEP = st.tuples(
    st.sampled_from("pq"), st.integers(0, 3), st.integers(0, 50), st.integers(0, 12), st.booleans()
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_any_order_of_numbers_is_counted_as_the_plain_way_counts(
    steps: list[tuple[str, int, int, int, bool]], shop: Any
) -> None:
    """Some steps are followed by a checkpoint from which everything is loaded anew."""
    naive, producers = shop.naive_lines(), Producers(100, 1_000)
    kept: list[Any] = []
    for at, (producer, epoch, first, count, is_loaded) in enumerate(steps, 1):
        item = ProducerRange("s", producer, epoch, first, count, first * 3)
        naive.add(item, at)
        producers.add([item], at)
        if is_loaded:
            kept.append(producers.take_changed(everything=at % 5 == 0))
            kept = kept[-1:] if at % 5 == 0 else kept
            producers = Producers(100, 1_000)
            for lines, writers in kept:
                producers.load(lines, writers)
        assert producers.reports("S", "", 10) == naive.reports()
        assert producers.completeness("s") == naive.total()


DECISION = st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 12), st.booleans())


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(DECISION, max_size=40))
def test_what_is_accepted_is_missed_no_more_until_it_comes(
    steps: list[tuple[bool, int, int, bool]],
) -> None:
    producers, kept = Producers(100, 1_000), list[Any]()
    seen, accepted = set[int](), set[int]()
    for is_decision, first, count, is_loaded in steps:
        numbers = set(range(first, first + count))
        missing = set(range(min(seen, default=0), max(seen, default=0))) - seen
        if is_decision:
            producers.add(accept_note(1, "S", "p", -1, first, count).ranges, 1)
            accepted |= numbers & missing
        else:
            producers.add([ProducerRange("s", "p", 0, first, count)], 1)
            seen, accepted = seen | numbers, accepted - numbers
        if is_loaded:
            kept.append(producers.take_changed(False))
            producers = Producers(100, 1_000)
            for lines, writers in kept:
                producers.load(lines, writers)
        missing = set(range(min(seen, default=0), max(seen, default=0))) - seen - accepted
        assert producers.completeness("s").missing == len(missing)
        for line in [line for report in producers.reports("s", "", 1) for line in report.lines]:
            gaps = [number for gap in line.gaps for number in range(gap.first, gap.last + 1)]
            assert gaps == sorted(missing)
            assert (line.missing, line.accepted) == (len(missing), len(accepted))


def test_overtaking_requests_leave_no_gap(embedded: Any, shop: Any, seed: int) -> None:
    writer = embedded.writer([shop.stream()])
    requests = [(n * 10, b"%d" % n) for n in range(30)]
    random.Random(seed).shuffle(requests)
    for at, (first, key) in enumerate(requests, 1):
        line = ProducerRange("transactions", "p", 0, first, 10)
        writer.append(Group(receipts=(Receipt(key, b"", b"", at, (line,)),)))
    (report,) = writer.producers("transactions", "", 10)
    assert report.lines[0].gaps == ()
    assert (report.lines[0].present, report.lines[0].missing) == (300, 0)
    assert report.lines[0].late_fills > 100


def test_a_repeat_and_a_sign_of_life_outlive_the_writer(embedded: Any, shop: Any) -> None:
    stream = shop.stream()
    line = ProducerRange("transactions", "p", 0, 0, 4)
    beyond = ProducerRange("transactions", "p", 0, 6, 1)
    for at in (1, 5):
        writer = embedded.writer([stream])
        if at == 1:
            writer.append(Group(receipts=(Receipt(b"a", b"", b"", at, (line,)),)))
            writer.append(Group(receipts=(Receipt(b"b", b"", b"", at + 1, (beyond,)),)))
        writer.append(Group(receipts=(repeat_note(at + 2, line),)))
        writer.append(Group(receipts=(heard_note(at + 3, "transactions", "idle"),)))
        writer.checkpoint()
        writer.heard("transactions", "idle", at + 4)
        writer.close()
    writer = embedded.writer([stream])
    assert writer.receipt(b"") is None
    idle, numbered = writer.producers("transactions", "", 10)
    assert (idle.producer, idle.lines, idle.heard_at_microseconds) == ("idle", (), 8)
    (found,) = numbered.lines
    assert found.gaps == (Gap(4, 5, 2),)
    assert (found.duplicates, found.missing, numbered.heard_at_microseconds) == (8, 2, 7)


def test_who_brought_a_partition_furthest_outlives_the_writer(embedded: Any, shop: Any) -> None:
    stream = shop.stream()

    def send(partition: int, first: int, producer: str) -> None:
        batch = PartitionBatch("transactions", partition, shop.batch(stream, first, 2), producer)
        writer.append(Group((batch,)))

    def holders() -> list[WatermarkOrigin]:
        return sorted(writer.watermark_origins("Transactions"), key=lambda holder: holder.partition)

    writer = embedded.writer([stream])
    send(0, 5, "a")
    send(0, 3, "b")  # behind
    send(1, 5, "b")
    send(1, 7, "b")
    writer.append(Group(advances=(Advance("transactions", 2, 50_000, "heartbeat", "c"),)))
    expected = [
        WatermarkOrigin(0, 6_000, "a"),
        WatermarkOrigin(1, 8_000, "b"),
        WatermarkOrigin(2, 50_000, "c"),
    ]
    for is_checkpointed in (False, True, False):
        assert holders() == expected
        if is_checkpointed:
            writer.checkpoint()
        writer.close()
        writer = embedded.writer([stream])
    writer.append(Group(advances=(Advance("transactions", 2, 60_000, "idle"),)))
    send(0, 9, "")
    send(1, 9, "b")
    writer.close()
    writer = embedded.writer([stream])
    assert holders() == [WatermarkOrigin(1, 10_000, "b")]


def test_reports_are_paged_and_bounded() -> None:
    producers = Producers(1_000, 1_000)
    for n in range(5):
        producers.heard("s", f"p{n}", 1)
        producers.heard("other", f"p{n}", 1)
    for epoch in range(LINES_MAX + 1):
        producers.add([ProducerRange("s", "p1", epoch, 0, 1)], 2)
    for first in range(0, 2 * GAPS_MAX + 4, 2):
        producers.add([ProducerRange("s", "p2", 0, first, 1)], 2)
    assert [r.producer for r in producers.reports("s", "", 3)] == ["p0", "p1", "p2"]
    assert [r.producer for r in producers.reports("s", "p2", 3)] == ["p3", "p4"]
    _, many_lines, many_gaps = producers.reports("s", "", 3)
    assert (len(many_lines.lines), many_lines.lines_truncated) == (LINES_MAX, True)
    assert many_lines.lines[0].epoch == LINES_MAX
    assert many_lines.resets == LINES_MAX
    (line,) = many_gaps.lines
    assert (len(line.gaps), line.gaps_truncated) == (GAPS_MAX, True)
    assert line.missing == GAPS_MAX + 1


def test_who_is_quiet_is_told_per_stream() -> None:
    producers = Producers(10, 10)
    for at, (stream, producer) in enumerate([("a", "x"), ("b", "x"), ("a", "y"), ("a", "z")], 1):
        producers.heard(stream, producer, at)
    producers.heard("A", "x", 5)
    assert producers.quiet_since({"a": 4, "B": 3}) == {"a": [("y", 3)], "B": [("x", 2)]}
    assert producers.quiet_since({"b": 100}) == {"b": [("x", 2)]}
    assert producers.quiet_since({}) == {}


def test_who_is_forgotten_is_no_longer_missing_anything() -> None:
    producers = Producers(2, 10)
    for producer in "abc":
        producers.add([ProducerRange("s", producer, 0, n, 1) for n in (0, 5)], 1)
    assert [r.producer for r in producers.reports("s", "", 10)] == ["b", "c"]
    assert producers.completeness("s").missing == 8
    assert producers.completeness("s").producers == 2


def test_what_is_said_without_numbers_opens_no_gap() -> None:
    producers = Producers(producers_max=10, intervals_max=3)
    for first in (10, 20, 30):
        producers.add([ProducerRange("events", "a", 0, first, 1)], 1)
    with pytest.raises(ProducerGapsError):
        producers.check([ProducerRange("events", "a", 0, 40, 1)])
    heard = ProducerRange("events", "a", 0, 0, 0)
    accepted = ProducerRange("events", "a", 0, 15, 1, mark="accepted")
    retired = ProducerRange("events", "a", 0, 0, 0, mark="retired")
    producers.check([heard, accepted, retired])
