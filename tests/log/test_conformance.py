"""What every backend of the log must do. A new backend is added in tests/support/log_cases.py
(BACKENDS). One that is there has holes between its offsets: what holds without them alone fails.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.log.contract import (
    NO_EVENT_TIME,
    NO_POSITION,
    Advance,
    DeadLetter,
    Group,
    PartitionBatch,
    ProducerRange,
    Range,
    Receipt,
    stored_schema,
)
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import (
    KeyReusedError,
    LogError,
    LogLockedError,
    LogOffsetError,
    ProducerGapsError,
)
from headrace.model.settings import GatewaySettings, LogSettings


def receipt(key: str, *ranges: ProducerRange, digest: bytes = b"d", at: int = 0) -> Receipt:
    return Receipt(key.encode(), digest, f"answer to {key}".encode(), at, ranges)


def letter(position: int, stream: str = "transactions") -> DeadLetter:
    return DeadLetter(stream, position, f"reason {position}", b"\xff raw", 5)


def test_a_reader_before_any_writer_sees_an_empty_log(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    reader = backend.reader([stream])
    assert shop.rows(reader, "transactions") == (0, 0, 0)
    assert reader.starts("transactions") == reader.ends("transactions") == (0, 0, 0)
    assert list(reader.read("transactions", 0, 0, 0)) == []
    assert list(reader.dead_letters(None, -1, 10)) == []
    writer = backend.writer([stream])
    writer.append(Group((shop.to(stream, 1, 0, 4),)))
    assert shop.rows(reader, "transactions") == (0, 4, 0)


def test_the_version_moves_whenever_something_can_be_seen(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    reader = backend.reader([stream])
    seen = [reader.version()]
    writer = backend.writer([stream])
    for group in (
        Group((shop.to(stream, 1, 0, 4),)),
        Group((), advances=(Advance("transactions", 1, 9_000_000_000_000_000, "idle"),)),
        Group((shop.to(stream, 0, 4, 1),)),
    ):
        writer.append(group)
        seen.append(reader.version())
        assert reader.version() == seen[-1]
    writer.close()
    more = shop.stream("refunds", partitions=2_000)  # so many that the file of ends is replaced
    backend.writer([stream, more]).append(Group((shop.to(more, 7, 5, 1),)))
    seen.append(reader.version())
    assert len(set(seen)) == len(seen)


def test_offsets_ascend_and_a_group_has_its_own(backend: Any, shop: Any) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=1)
    writer, reader = backend.writer([stream, other]), backend.reader([stream, other])
    stored: dict[tuple[str, int], list[int]] = {}
    for group in (
        Group((shop.to(stream, 0, 0, 3), shop.to(other, 0, 50, 2))),
        Group((shop.to(stream, 0, 3, 2), shop.to(stream, 2, 9, 1), shop.to(stream, 0, 5, 1))),
        Group((shop.to(stream, 0, 6, 0), shop.to(other, 0, 52, 1))),
    ):
        done = writer.append(group)
        assert done.rows == tuple(item.batch.num_rows for item in group.batches)
        for item, start, end in zip(group.batches, done.base_offsets, done.ends, strict=True):
            first, count = item.batch.column("id"), item.batch.num_rows
            place = stored.setdefault((item.stream, item.partition), [])
            assert start >= (place[-1] if place else 0)
            assert end <= reader.ends(item.stream)[item.partition]
            assert reader.rows_of(item.stream, item.partition, start, end) == count
            found = list(reader.read(item.stream, item.partition, start, end, ["id"]))
            assert [i for piece in found for i in piece.batch.column("id")] == list(first)
            place += [int(o) for piece in found for o in piece.offsets] + [end]
            assert place == sorted(place)
    assert shop.rows(reader, "transactions") == (6, 0, 1)
    assert shop.rows(reader, "refunds") == (3,)
    assert shop.ids(reader, "transactions", 0) == [0, 1, 2, 3, 4, 5]
    assert shop.ids(reader, "refunds", 0) == [50, 51, 52]
    for partition, ids in enumerate(([0, 1, 2, 3, 4, 5], [], [9])):
        places = shop.places(reader, "transactions", partition)
        assert len(places) == len(ids) + 1
        assert all(low < high for low, high in itertools.pairwise(places))


def test_names_of_streams_match_in_any_case(backend: Any, shop: Any) -> None:
    stream = shop.stream("Orders", partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(Group((PartitionBatch("orders", 0, shop.batch(stream, 0, 2)),)))
    assert shop.rows(reader, "ORDERS") == (2,)


def test_an_empty_batch_takes_no_offset(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    done = writer.append(Group((shop.to(stream, 0, 0, 0), shop.to(stream, 0, 0, 2))))
    assert (done.base_offsets, done.rows) == ((0, 0), (0, 2))
    assert done.ends == (0, reader.ends("transactions")[0])
    assert writer.append(Group()).base_offsets == ()
    assert shop.rows(reader, "transactions") == (2, 0, 0)


def test_every_range_reads_exactly_its_events(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    times: list[int] = []
    for first, count in ((0, 5), (5, 1), (6, 6000), (6006, 3)):
        stamps = [(i * 7919) % 10_007 for i in range(first, first + count)]
        times += stamps
        batch = shop.batch(stream, first, count, times=stamps)
        writer.append(Group((PartitionBatch("transactions", 0, batch),)))
    whole = pa.Table.from_batches([shop.batch(stream, 0, 6009, times=times)])
    places = shop.places(reader, "transactions", 0)
    edges = [0, 1, 4, 5, 6, 7, 3000, 6005, 6006, 6008, 6009]
    for first in edges:
        for last in (edge for edge in edges if edge >= first):
            start, end = places[first], places[last]
            pieces = list(reader.read("transactions", 0, start, end))
            reached = first
            for piece in pieces:
                rows = piece.batch.num_rows
                assert piece.offsets.tolist() == places[reached : reached + rows]
                assert piece.first_offset == places[reached]
                assert piece.maximum_before == max(times[:reached], default=NO_EVENT_TIME)
                assert piece.batch.schema == stored_schema(stream)
                reached += rows
            assert reached == last
            assert reader.rows_of("transactions", 0, start, end) == last - first
            assert reader.cut("transactions", 0, start, end) == Range(0, start, end, last - first)
            if pieces:
                read = pa.Table.from_batches([piece.batch for piece in pieces])
                assert read.equals(whole.slice(first, last - first))


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=4), st.data())
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_range_is_cut_into_ranges_that_follow_each_other(
    cut_log: Any, sizes: list[int], data: st.DataObject
) -> None:
    """Whatever maximum is given, the parts have that many events, the last one what remains, and
    together they are the whole: where it ends, the last part ends."""
    reader, places = cut_log

    def offsets(start: int, end: int) -> list[int]:
        found = reader.read("transactions", 0, start, end, [])
        return [int(offset) for piece in found for offset in piece.offsets]

    low, high = sorted(data.draw(st.tuples(*[st.sampled_from(places)] * 2)))
    wanted = [
        event for piece in reader.read("transactions", 0, low, high) for event in piece.offsets
    ]
    start, found = low, []
    for rows_max in itertools.cycle([size + 1 for size in sizes]):
        if start == high:
            break
        part = reader.cut("transactions", 0, start, high, rows_max)
        assert part.start == start < part.end <= high
        assert part.rows == min(rows_max, len(wanted) - len(found))
        assert part.rows == reader.rows_of("transactions", 0, part.start, part.end)
        found += [
            o
            for piece in reader.read("transactions", 0, part.start, part.end)
            for o in piece.offsets
        ]
        start = part.end
    assert found == wanted
    assert reader.rows_of("transactions", 0, low, high) == len(wanted)
    assert reader.cut("transactions", 0, high, low) == Range(0, high, high, 0)
    assert reader.cut("transactions", 0, low, high, 0).rows == 0


@pytest.fixture
def cut_log(backend: Any, shop: Any) -> tuple[Any, list[int]]:
    """A reader of a log with several segments, and the offsets in it."""
    stream = shop.stream(partitions=1)
    writer = backend.writer([stream], log=LogSettings(segment_bytes_max=16_384))
    reader = backend.reader([stream])
    for first in range(0, 3_000, 100):
        writer.append(Group((shop.to(stream, 0, first, 1 + first % 99),)))
        writer.append(Group(advances=(Advance("transactions", 0, first * 10_000, "idle"),)))
    return reader, shop.places(reader, "transactions", 0)


def test_only_the_named_columns_in_the_named_order(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first in range(0, 30, 3):
        writer.append(Group((shop.to(stream, 0, first, 3),)))
    places = shop.places(reader, "transactions", 0)
    (piece,) = reader.read("transactions", 0, places[1], places[29], ["created_at", "id"])
    assert piece.batch.schema.names == ["created_at", "id"]
    assert piece.batch.column("id").to_pylist() == list(range(1, 29))
    assert piece.maximum_before == 0
    counted = list(reader.read("transactions", 0, places[2], places[17], []))
    assert sum(item.batch.num_rows for item in counted) == 15


def test_many_small_batches_are_read_as_few(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first in range(200):
        writer.append(Group((shop.to(stream, 0, first, 1),)))
    pieces = list(reader.read("transactions", 0, 0, reader.ends("transactions")[0]))
    assert len(pieces) == 1
    assert shop.ids(reader, "transactions", 0) == list(range(200))


def test_ranges_outside_the_log_are_refused(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 0, 0, reader.ends("transactions")[0] + 1)
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 0, -1, 2)
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 3, 0, 0)
    with pytest.raises(LogError, match="no stream"):
        reader.ends("unknown")


def test_size_is_about_the_bytes_of_the_range(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first in range(0, 10_000, 1_000):
        writer.append(Group((shop.to(stream, 0, first, 1_000),)))
    places = shop.places(reader, "transactions", 0)
    whole = reader.size_bytes("transactions", 0, 0, places[-1])
    assert 300_000 < whole < 3_000_000
    for start, end in ((0, 5_000), (2_500, 7_500), (100, 300)):
        part = reader.size_bytes("transactions", 0, places[start], places[end])
        assert part == pytest.approx(whole * (end - start) / 10_000, rel=0.2)
    assert reader.size_bytes("transactions", 0, 7, 7) == 0


@pytest.mark.parametrize("fault", ["stream", "partition", "schema", "null"])
def test_a_group_with_a_wrong_batch_stores_nothing(backend: Any, shop: Any, fault: str) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    batch = shop.batch(stream, 0, 2)
    schema = stored_schema(stream)
    nulls = pa.RecordBatch.from_arrays(
        [pa.nulls(2, schema.field(0).type), *batch.columns[1:]], schema=schema
    )
    wrong = {
        "stream": PartitionBatch("unknown", 0, batch),
        "partition": PartitionBatch("transactions", 3, batch),
        "schema": PartitionBatch("transactions", 0, batch.select(["id"])),
        "null": PartitionBatch("transactions", 0, nulls),
    }[fault]
    with pytest.raises(LogError):
        writer.append(Group((shop.to(stream, 0, 0, 3), wrong), (receipt("k"),), (letter(0),)))
    assert shop.rows(reader, "transactions") == (0, 0, 0)
    assert writer.receipt(b"k") is None
    assert list(reader.dead_letters(None, -1, 10)) == []
    assert writer.append(Group((shop.to(stream, 0, 0, 3),))).base_offsets == (0,)


def test_receipts_survive_reopening(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    wanted = receipt("k", ProducerRange("transactions", "p", 0, 10, 5), at=77)
    writer = backend.writer([stream])
    writer.append(Group((shop.to(stream, 0, 0, 3),), (wanted,)))
    writer.append(Group(receipts=(receipt("without events"),)))
    writer.close()
    writer = backend.writer([stream])
    assert writer.receipt(b"k") == wanted
    assert writer.receipt(b"without events") == receipt("without events")
    assert writer.receipt(b"other") is None
    assert list(writer.present(ProducerRange("transactions", "p", 0, 0, 100))) == [(10, 15)]


def test_a_key_cannot_be_stored_twice(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(Group((shop.to(stream, 0, 0, 1),), (receipt("k"),)))
    with pytest.raises(KeyReusedError):
        writer.append(Group((shop.to(stream, 0, 1, 1),), (receipt("k", digest=b"other"),)))
    with pytest.raises(LogError, match="stored already"):
        writer.append(Group((shop.to(stream, 0, 1, 1),), (receipt("k"),)))
    with pytest.raises(LogError, match="stored already"):
        writer.append(Group((shop.to(stream, 0, 1, 1),), (receipt("new"), receipt("new"))))
    assert shop.rows(reader, "transactions") == (1, 0, 0)


def test_a_receipt_tells_where_its_stream_ended(backend: Any, shop: Any) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=2)
    writer = backend.writer([stream, other])

    def stored(key: str, of: str, *batches: PartitionBatch) -> tuple[int, ...]:
        asked = replace(receipt(key), stream=of)
        writer.append(Group(batches, (asked,)))
        assert writer.receipt(key.encode()).reached == writer.ends(of)
        return writer.ends(of)

    first = stored("a", "transactions", shop.to(stream, 0, 0, 3), shop.to(other, 1, 0, 9))
    assert first[0] > 0 == first[1] == first[2]
    again = stored("b", "transactions", shop.to(stream, 2, 3, 4), shop.to(stream, 0, 7, 1))
    assert again[0] > first[0]
    assert again[2] > 0 == again[1]
    refunds = stored("c", "refunds")  # nothing of it was stored: what was there counts
    assert refunds == writer.ends("refunds")
    writer.close()
    writer = backend.writer([stream, other])
    writer.append(Group((shop.to(stream, 1, 8, 5),)))
    kept = [writer.receipt(key).reached for key in (b"a", b"b", b"c")]
    assert kept == [first, again, refunds]
    assert writer.ends("transactions") == backend.reader([stream]).ends("transactions")


def test_a_log_keeps_its_identity(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    reader = backend.reader([stream])
    assert reader.identity() == ""
    writer = backend.writer([stream])
    identity = writer.identity()
    assert identity
    assert reader.identity() == identity
    writer.close()
    more = backend.writer([stream, shop.stream("refunds")])
    assert more.identity() == reader.identity() == identity


def test_receipts_are_bounded_by_number(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    gateway = GatewaySettings(idempotency_keys_max=5)
    writer = backend.writer([stream], gateway=gateway)
    for number in range(4):
        group = [receipt(f"{number}-{i}") for i in range(3)]
        writer.append(Group(receipts=tuple(group)))
    for _ in range(2):
        kept = [f"{n}-{i}" for n in range(4) for i in range(3) if writer.receipt(b"%d-%d" % (n, i))]
        assert kept == ["2-1", "2-2", "3-0", "3-1", "3-2"]
        writer.close()
        writer = backend.writer([stream], gateway=gateway)


def test_receipts_are_bounded_by_age(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer = backend.writer([stream], gateway=GatewaySettings(idempotency_seconds_max=10))
    writer.append(Group(receipts=(receipt("old", at=0),)))
    writer.append(Group(receipts=(receipt("young", at=10_000_000),)))
    assert writer.receipt(b"old") is not None
    writer.append(Group(receipts=(receipt("new", at=10_000_001),)))
    assert writer.receipt(b"old") is None
    assert writer.receipt(b"young") is not None


def test_sequence_numbers_are_a_set_so_overtaking_loses_nothing(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer = backend.writer([stream])

    def line(first: int, count: int, epoch: int = 0) -> ProducerRange:
        return ProducerRange("transactions", "p", epoch, first, count)

    writer.append(Group(receipts=(receipt("b", line(10, 10)),)))
    assert list(writer.present(line(0, 10))) == []
    writer.append(Group(receipts=(receipt("c", line(30, 5)),)))
    assert list(writer.present(line(0, 100))) == [(10, 20), (30, 35)]
    assert list(writer.present(line(15, 17))) == [(15, 20), (30, 32)]
    writer.append(Group(receipts=(receipt("a", line(0, 10)),)))
    assert list(writer.present(line(0, 100))) == [(0, 20), (30, 35)]
    assert list(writer.present(line(0, 100, epoch=1))) == []
    assert list(writer.present(ProducerRange("other", "p", 0, 0, 100))) == []


def test_too_many_gaps_are_refused_whole(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer = backend.writer([stream], gateway=GatewaySettings(producer_intervals_max=3))

    def group(first: int) -> Group:
        item = ProducerRange("transactions", "p", 0, first, 1)
        return Group((shop.to(stream, 0, first, 1),), (receipt(str(first), item),))

    for first in (0, 2, 4):
        writer.append(group(first))
    with pytest.raises(ProducerGapsError):
        writer.append(group(6))
    assert shop.rows(backend.reader([stream]), "transactions") == (3, 0, 0)
    writer.append(group(1))
    writer.append(group(6))
    writer.append(group(5))


def test_the_least_recently_used_producer_is_forgotten(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    gateway = GatewaySettings(producers_max=2)
    writer = backend.writer([stream], gateway=gateway)

    def line(producer: str, first: int = 0) -> ProducerRange:
        return ProducerRange("transactions", producer, 0, first, 1)

    for number, (producer, first) in enumerate([("a", 0), ("b", 0), ("a", 1), ("c", 0)]):
        writer.append(Group(receipts=(receipt(str(number), line(producer, first)),)))
    for _ in range(2):
        assert [bool(writer.present(line(p))) for p in "abc"] == [True, False, True]
        writer.close()
        writer = backend.writer([stream], gateway=gateway)


def test_dead_letters_are_numbered_kept_and_resolved(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    first = writer.append(Group(dead=(letter(0), letter(1, "refunds"))))
    second = writer.append(Group((shop.to(stream, 0, 0, 1),), dead=(letter(2),)))
    assert first.dead_numbers == (0, 1)
    assert second.dead_numbers == (2,)
    letters = list(reader.dead_letters(None, -1, 10))
    assert [(x.number, x.position, x.stream) for x in letters] == [
        (0, 0, "transactions"),
        (1, 1, "refunds"),
        (2, 2, "transactions"),
    ]
    assert letters[0].raw == b"\xff raw"
    assert letters[0].reason == "reason 0"
    writer.resolve_dead_letters([0, 0])
    writer.resolve_dead_letters([0])
    with pytest.raises(LogOffsetError):
        writer.resolve_dead_letters([1, 3])
    for _ in range(2):
        assert [x.number for x in reader.dead_letters(None, -1, 10)] == [1, 2]
        assert [x.number for x in reader.dead_letters("transactions", -1, 10)] == [2]
        assert [x.number for x in reader.dead_letters(None, 1, 10)] == [2]
        assert [x.number for x in reader.dead_letters(None, -1, 1)] == [1]
        assert list(reader.dead_letters(None, -1, 0)) == []
        writer.close()
        writer = backend.writer([stream])
    assert writer.append(Group(dead=(letter(9),))).dead_numbers == (3,)


def test_only_one_writer(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer = backend.writer([stream])
    with pytest.raises(LogLockedError):
        backend.writer([stream])
    writer.close()
    writer.close()
    with pytest.raises(LogError):
        writer.append(Group((shop.to(stream, 0, 0, 1),)))
    backend.writer([stream])


def test_a_reopened_log_goes_on_where_it_was(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    reader = backend.reader([stream])
    for number in range(5):
        writer = backend.writer([stream])
        stamp = 100 if number == 1 else 10
        batch = shop.batch(stream, number, 1, times=[stamp])
        ended = reader.ends("transactions")[1]
        done = writer.append(Group((PartitionBatch("transactions", 1, batch),)))
        assert done.base_offsets[0] >= ended
        writer.close()
    assert shop.ids(reader, "transactions", 1) == [0, 1, 2, 3, 4]
    places = shop.places(reader, "transactions", 1)
    (piece,) = reader.read("transactions", 1, places[3], places[5])
    assert piece.maximum_before == 100


def test_a_stream_can_be_added_while_readers_are_open(backend: Any, shop: Any) -> None:
    stream, added = shop.stream(), shop.stream("added", partitions=2)
    writer, reader = backend.writer([stream]), backend.reader([stream, added])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    assert shop.rows(reader, "added") == (0, 0)
    writer.close()
    writer = backend.writer([stream, added])
    writer.append(Group((shop.to(added, 1, 0, 2),)))
    assert shop.rows(reader, "added") == (0, 2)
    assert shop.rows(reader, "transactions") == (3, 0, 0)
    assert shop.ids(reader, "added", 1) == [0, 1]


def test_received_time_stands_in_for_a_missing_event_time(backend: Any, shop: Any) -> None:
    stream = shop.stream(event_time=None, partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first, received in ((0, 500), (1, 200), (2, 900)):
        batch = shop.batch(stream, first, 1, received=received)
        writer.append(Group((PartitionBatch("transactions", 0, batch),)))
    _, _, last, end = shop.places(reader, "transactions", 0)
    assert next(iter(reader.read("transactions", 0, last, end))).maximum_before == 500


def test_what_is_stored_together_has_one_position_and_what_comes_later_a_higher_one(
    backend: Any, shop: Any
) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=1)
    writer, reader = backend.writer([stream, other]), backend.reader([stream, other])
    assert reader.position() == NO_POSITION
    stored: dict[tuple[str, int], list[int]] = {}
    ends: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def append(*batches: PartitionBatch, **more: Any) -> int:
        position = int(writer.append(Group(batches, **more)).position)
        assert position == reader.position()
        last = max(ends, default=NO_POSITION)
        assert position > last
        if ends:  # of what the reader has seen before, some now stands before what is new
            both = reader.cut_at("transactions", last), reader.cut_at("refunds", last)
            assert both == ends[last]
        for item in batches:
            of_partition = stored.setdefault((item.stream, item.partition), [])
            of_partition += [position] * item.batch.num_rows
        ends[position] = (reader.ends("transactions"), reader.ends("refunds"))
        return position

    append(shop.to(stream, 0, 0, 3), shop.to(other, 0, 50, 2), shop.to(stream, 0, 3, 1))
    append(dead=(letter(0),))
    position = append(advances=(Advance("transactions", 2, 9_000_000, "idle"),))
    assert {a.position for a in reader.advances("transactions", 2, 0, 0)} == {position}
    for number in range(30):
        append(shop.to(stream, number % 3, number, number + 1), shop.to(other, 0, 0, number % 2))
    writer.close()
    writer = backend.writer([stream, other])
    assert reader.position() == max(ends)
    append(shop.to(stream, 1, 9, 5_000), shop.to(other, 0, 0, 1))
    for (name, partition), positions in stored.items():
        places, count = shop.places(reader, name, partition), len(positions)
        for first, last in ((0, count), (1, count), (count // 2, count // 2 + 3)):
            found = reader.read(name, partition, places[first], places[min(last, count)], ["id"])
            assert [p for piece in found for p in piece.positions] == positions[first:last]
    for at, known in ends.items():
        assert (reader.cut_at("transactions", at), reader.cut_at("refunds", at)) == known
    assert reader.cut_at("transactions", NO_POSITION) == (0, 0, 0)
    assert reader.cut_at("refunds", max(ends) + 1_000) == reader.ends("refunds")
    assert writer.append(Group()).position == max(ends)


def test_an_address_opens_the_log_wherever_it_is_sent(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    address = backend.reader([stream]).address
    sent = pickle.loads(pickle.dumps(address))
    assert (sent, hash(sent)) == (address, hash(address))
    assert len(pickle.dumps(address)) < 1_000
    reader = sent.open([stream])  # before any writer
    writer = backend.writer([stream])
    writer.append(Group((shop.to(stream, 2, 0, 4),)))
    assert shop.ids(reader, "transactions", 2) == [0, 1, 2, 3]
    assert reader.address == address
    assert reader.identity() == writer.identity()


def test_retention_takes_nothing_at_or_behind_the_floor(backend: Any, shop: Any) -> None:
    aged = shop.stream(partitions=2, retention=Retention(age_microseconds=1))
    free = shop.stream("free", partitions=1, retention=Retention(age_microseconds=1))
    settings = LogSettings(segment_bytes_max=4_096)
    writer, reader = backend.writer([aged, free], log=settings), backend.reader([aged, free])
    for n in range(40):
        writer.append(Group((shop.to(aged, n % 2, n * 20, 20), shop.to(free, 0, n * 20, 20))))
    assert set(writer.retain(10**12).values()) == {0}, "nothing was said yet"
    places = shop.places(reader, "transactions", 0)
    kept = places[170]
    reader.set_retention_floor({"transactions": (kept, 0)})
    assert writer.retain(10**12)["free"] > 0
    assert shop.rows(reader, "free") == (0,), "no view reads it"
    start, untouched = reader.starts("transactions")
    assert 0 < start <= kept
    assert untouched == 0
    left = shop.places(reader, "transactions", 0)
    assert left == places[places.index(left[0]) :]
    assert len(shop.ids(reader, "transactions", 1)) == 400
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 0, 0, kept)
    reader.set_retention_floor({"transactions": reader.ends("transactions")})
    writer.retain(10**12)
    assert shop.rows(reader, "transactions") == (0, 0)
    writer.append(Group((shop.to(aged, 0, 7, 2),)))
    assert shop.ids(reader, "transactions", 0) == [7, 8]


def test_archived_events_are_read_counted_and_cut_like_the_others(backend: Any, shop: Any) -> None:
    archived = Retention(age_microseconds=1, action=RetentionAction.ARCHIVE)
    stream = shop.stream(partitions=1, retention=archived)
    writer = backend.writer([stream], log=LogSettings(segment_bytes_max=4_096))
    reader = backend.reader([stream])
    for n in range(30):
        writer.append(Group((shop.to(stream, 0, n * 10, 10),)))
    places = shop.places(reader, "transactions", 0)
    positions = [n // 10 for n in range(300)]
    known = [p for piece in reader.read("transactions", 0, 0, places[-1]) for p in piece.positions]
    assert [known.index(p) // 10 for p in known] == positions
    reader.set_retention_floor({"transactions": (places[155],)})
    writer.retain(10**12)
    assert 0 == reader.oldest("transactions")[0] < reader.starts("transactions")[0] <= places[155]
    for first, last in ((0, 300), (3, 157), (140, 141), (290, 300), (0, 0)):
        start, end = places[first], places[last]
        pieces = list(reader.read_history("transactions", 0, start, end, ["id"]))
        assert [i for piece in pieces for i in piece.batch.column("id").to_pylist()] == list(
            range(first, last)
        )
        assert [o for piece in pieces for o in piece.offsets] == places[first:last]
        assert [p for piece in pieces for p in piece.positions] == known[first:last]
        assert reader.rows_of("transactions", 0, start, end) == last - first
        half = reader.cut("transactions", 0, start, end, max(1, (last - first) // 2))
        assert half.rows == min(last - first, max(1, (last - first) // 2))
        assert half.rows == reader.rows_of("transactions", 0, half.start, half.end)


def test_a_changelog_keeps_what_is_needed_and_everything_behind(backend: Any, shop: Any) -> None:
    """Twice: the second time what was compacted before is compacted again."""
    stream = shop.stream(partitions=2, retention=Retention(action=RetentionAction.COMPACT))
    settings = LogSettings(segment_bytes_max=4_096)
    writer, reader = backend.writer([stream], log=settings), backend.reader([stream])
    for n in range(30):
        times = [(n % 7) * 10_000 + i for i in range(10)]
        batch = shop.batch(stream, n * 10, 10, times=times)
        writer.append(Group((PartitionBatch("transactions", 1, batch),)))
    places = shop.places(reader, "transactions", 1)
    whole = [
        (place, position, maximum, i)
        for piece in reader.read_history("transactions", 1, 0, places[-1])
        for place, position, maximum, i in zip(
            piece.offsets,
            piece.positions,
            piece.maxima_before(piece.batch.column("created_at").cast("int64").to_numpy()),
            piece.batch.column("id").to_pylist(),
            strict=True,
        )
    ]
    assert reader.compacted("transactions") == ((0, 0), (0, 0))
    for upto, needed in ((100, range(3, 100, 9)), (250, [*range(3, 60, 9), 180, 249])):
        offsets = np.array([places[n] for n in needed])
        reader.set_needed("transactions", 1, places[upto], offsets)
        reader.set_retention_floor({"transactions": (0, places[upto] - 1)})
        assert writer.retain(0) == {"transactions": 0}, "a view has not read so far"
        reader.set_retention_floor({"transactions": (0, places[-1])})
        assert writer.retain(0)["transactions"] > 0
        assert writer.retain(0) == {"transactions": 0}, "nothing new was said"
        (never, (reached, rows)) = reader.compacted("transactions")
        assert never == (0, 0)
        assert (rows, places[upto - 1] < reached <= places[upto]) == (len(needed), True)
        assert reader.oldest("transactions") == (0, 0)
        left = [*needed, *range(upto, 300)]
        found = []
        for piece in reader.read_history("transactions", 1, 0, places[-1]):
            times = piece.batch.column("created_at").cast("int64").to_numpy()
            maxima, ids = piece.maxima_before(times), piece.batch.column("id").to_pylist()
            found += list(zip(piece.offsets, piece.positions, maxima, ids, strict=True))
        assert found == [whole[n] for n in left]
        for first, last in ((0, 300), (3, 157), (4, 5), (99, 260), (upto, 300), (0, 0)):
            start, end = places[first], places[last]
            within = [n for n in left if first <= n < last]
            pieces = reader.read_history("transactions", 1, start, end, ["id"])
            ids = [i for piece in pieces for i in piece.batch.column("id").to_pylist()]
            assert ids == [whole[n][3] for n in within]
            assert reader.rows_of("transactions", 1, start, end) == len(within)
            for rows_max in (1, max(1, len(within) // 2), len(within) + 1):
                half = reader.cut("transactions", 1, start, end, rows_max)
                assert half.rows == min(rows_max, len(within))
                assert half.rows == reader.rows_of("transactions", 1, half.start, half.end)
                assert half.end == end or half.rows == rows_max
            following = [n for n in left if n >= first]
            assert reader.maximum("transactions", 1, start) == whole[following[0]][2]
        for n in left:
            (_, cut) = reader.cut_at("transactions", whole[n][1])
            assert [m for m in left if places[m] < cut] == [m for m in left if m // 10 <= n // 10]
        assert reader.cut_at("transactions", whole[260][1]) == (0, whole[269][0] + 1)
        writer.close()
        writer = backend.writer([stream], log=settings)
    writer.append(Group((PartitionBatch("transactions", 1, shop.batch(stream, 300, 5)),)))
    assert reader.rows_of("transactions", 1, 0, reader.ends("transactions")[1]) == len(left) + 5
