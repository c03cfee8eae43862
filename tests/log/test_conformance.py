"""What every backend of the log must do. A new backend is added in conftest.py (BACKENDS)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.log.contract import (
    NO_EVENT_TIME,
    NO_POSITION,
    Advance,
    DeadLetter,
    Group,
    PartitionBatch,
    ProducerRange,
    Receipt,
    stored_schema,
)
from headrace.model.errors import (
    KeyReusedError,
    LogError,
    LogLockedError,
    LogOffsetError,
    ProducerGapsError,
)
from headrace.model.settings import GatewaySettings


def receipt(key: str, *ranges: ProducerRange, digest: bytes = b"d", at: int = 0) -> Receipt:
    return Receipt(key.encode(), digest, f"answer to {key}".encode(), at, ranges)


def letter(position: int, stream: str = "transactions") -> DeadLetter:
    return DeadLetter(stream, position, f"reason {position}", b"\xff raw", 5)


def test_a_reader_before_any_writer_sees_an_empty_log(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    reader = backend.reader([stream])
    assert reader.ends("transactions") == (0, 0, 0)
    assert reader.starts("transactions") == (0, 0, 0)
    assert list(reader.read("transactions", 0, 0, 0)) == []
    assert list(reader.dead_letters(None, -1, 10)) == []
    writer = backend.writer([stream])
    writer.append(Group((shop.to(stream, 1, 0, 4),)))
    assert reader.ends("transactions") == (0, 4, 0)


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


def test_offsets_count_on_per_partition_without_holes(backend: Any, shop: Any) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=1)
    writer, reader = backend.writer([stream, other]), backend.reader([stream, other])
    first = writer.append(Group((shop.to(stream, 0, 0, 3), shop.to(other, 0, 50, 2))))
    second = writer.append(
        Group((shop.to(stream, 0, 3, 2), shop.to(stream, 2, 9, 1), shop.to(stream, 0, 5, 1)))
    )
    assert first.base_offsets == (0, 0)
    assert second.base_offsets == (3, 0, 5)
    assert reader.ends("transactions") == (6, 0, 1)
    assert reader.ends("refunds") == (2,)
    assert shop.ids(reader, "transactions", 0) == [0, 1, 2, 3, 4, 5]
    assert shop.ids(reader, "refunds", 0) == [50, 51]


def test_names_of_streams_match_in_any_case(backend: Any, shop: Any) -> None:
    stream = shop.stream("Orders", partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(Group((PartitionBatch("orders", 0, shop.batch(stream, 0, 2)),)))
    assert reader.ends("ORDERS") == (2,)


def test_an_empty_batch_takes_no_offset(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    appended = writer.append(Group((shop.to(stream, 0, 0, 0), shop.to(stream, 0, 0, 2))))
    assert appended.base_offsets == (0, 0)
    assert writer.append(Group()).base_offsets == ()
    assert reader.ends("transactions") == (2, 0, 0)


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
    edges = [0, 1, 4, 5, 6, 7, 3000, 6005, 6006, 6008, 6009]
    for start in edges:
        for end in (edge for edge in edges if edge >= start):
            pieces = list(reader.read("transactions", 0, start, end))
            reached = start
            for piece in pieces:
                assert piece.offsets.tolist() == list(
                    range(reached, reached + piece.batch.num_rows)
                )
                assert piece.maximum_before == max(times[:reached], default=NO_EVENT_TIME)
                assert piece.batch.schema == stored_schema(stream)
                reached += piece.batch.num_rows
            assert reached == end
            if pieces:
                read = pa.Table.from_batches([piece.batch for piece in pieces])
                assert read.equals(whole.slice(start, end - start))


def test_only_the_named_columns_in_the_named_order(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first in range(0, 30, 3):
        writer.append(Group((shop.to(stream, 0, first, 3),)))
    (piece,) = reader.read("transactions", 0, 1, 29, ["created_at", "id"])
    assert piece.batch.schema.names == ["created_at", "id"]
    assert piece.batch.column("id").to_pylist() == list(range(1, 29))
    assert piece.maximum_before == 0
    counted = list(reader.read("transactions", 0, 2, 17, []))
    assert sum(item.batch.num_rows for item in counted) == 15


def test_many_small_batches_are_read_as_few(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first in range(200):
        writer.append(Group((shop.to(stream, 0, first, 1),)))
    pieces = list(reader.read("transactions", 0, 0, 200))
    assert len(pieces) == 1
    assert shop.ids(reader, "transactions", 0) == list(range(200))


def test_ranges_outside_the_log_are_refused(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 0, 0, 4)
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
    whole = reader.size_bytes("transactions", 0, 0, 10_000)
    assert 300_000 < whole < 3_000_000
    for start, end in ((0, 5_000), (2_500, 7_500), (100, 300)):
        part = reader.size_bytes("transactions", 0, start, end)
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
    assert reader.ends("transactions") == (0, 0, 0)
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
    assert reader.ends("transactions") == (1, 0, 0)


def test_a_receipt_tells_where_its_stream_ended(backend: Any, shop: Any) -> None:
    stream, other = shop.stream(), shop.stream("refunds", partitions=2)
    writer = backend.writer([stream, other])

    def stored(key: str, of: str, *batches: PartitionBatch) -> tuple[int, ...]:
        asked = replace(receipt(key), stream=of)
        writer.append(Group(batches, (asked,)))
        assert writer.receipt(key.encode()).reached == writer.ends(of)
        return writer.ends(of)

    first = stored("a", "transactions", shop.to(stream, 0, 0, 3), shop.to(other, 1, 0, 9))
    assert first == (3, 0, 0)
    again = stored("b", "transactions", shop.to(stream, 2, 3, 4), shop.to(stream, 0, 7, 1))
    assert again == (4, 0, 4)
    assert stored("c", "refunds") == (0, 9)  # nothing of it was stored: what was there counts
    writer.close()
    writer = backend.writer([stream, other])
    writer.append(Group((shop.to(stream, 1, 8, 5),)))
    kept = [writer.receipt(key).reached for key in (b"a", b"b", b"c")]
    assert kept == [(3, 0, 0), (4, 0, 4), (0, 9)]
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
    settings = GatewaySettings(idempotency_keys_max=5)
    writer = backend.writer([stream], gateway=settings)
    for number in range(4):
        group = [receipt(f"{number}-{i}") for i in range(3)]
        writer.append(Group(receipts=tuple(group)))
    for _ in range(2):
        kept = [f"{n}-{i}" for n in range(4) for i in range(3) if writer.receipt(b"%d-%d" % (n, i))]
        assert kept == ["2-1", "2-2", "3-0", "3-1", "3-2"]
        writer.close()
        writer = backend.writer([stream], gateway=settings)


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
    assert backend.reader([stream]).ends("transactions") == (3, 0, 0)
    writer.append(group(1))
    writer.append(group(6))
    writer.append(group(5))


def test_the_least_recently_used_producer_is_forgotten(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    settings = GatewaySettings(producers_max=2)
    writer = backend.writer([stream], gateway=settings)

    def line(producer: str, first: int = 0) -> ProducerRange:
        return ProducerRange("transactions", producer, 0, first, 1)

    for number, (producer, first) in enumerate([("a", 0), ("b", 0), ("a", 1), ("c", 0)]):
        writer.append(Group(receipts=(receipt(str(number), line(producer, first)),)))
    for _ in range(2):
        assert [bool(writer.present(line(p))) for p in "abc"] == [True, False, True]
        writer.close()
        writer = backend.writer([stream], gateway=settings)


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
        assert writer.append(Group((PartitionBatch("transactions", 1, batch),))).base_offsets == (
            number,
        )
        writer.close()
    assert shop.ids(reader, "transactions", 1) == [0, 1, 2, 3, 4]
    (piece,) = reader.read("transactions", 1, 3, 5)
    assert piece.maximum_before == 100


def test_a_stream_can_be_added_while_readers_are_open(backend: Any, shop: Any) -> None:
    stream, added = shop.stream(), shop.stream("added", partitions=2)
    writer, reader = backend.writer([stream]), backend.reader([stream, added])
    writer.append(Group((shop.to(stream, 0, 0, 3),)))
    assert reader.ends("added") == (0, 0)
    writer.close()
    writer = backend.writer([stream, added])
    writer.append(Group((shop.to(added, 1, 0, 2),)))
    assert reader.ends("added") == (0, 2)
    assert reader.ends("transactions") == (3, 0, 0)
    assert shop.ids(reader, "added", 1) == [0, 1]


def test_received_time_stands_in_for_a_missing_event_time(backend: Any, shop: Any) -> None:
    stream = shop.stream(event_time=None, partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for first, received in ((0, 500), (1, 200), (2, 900)):
        batch = shop.batch(stream, first, 1, received=received)
        writer.append(Group((PartitionBatch("transactions", 0, batch),)))
    assert next(iter(reader.read("transactions", 0, 2, 3))).maximum_before == 500


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
        assert position > max(ends, default=NO_POSITION)
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
        end = reader.ends(name)[partition]
        for start, size in ((0, end), (1, end - 1), (end // 2, 3)):
            found = reader.read(name, partition, start, start + size, ["id"])
            assert [p for piece in found for p in piece.positions] == positions[start:][:size]
    for at, known in ends.items():
        assert (reader.cut_at("transactions", at), reader.cut_at("refunds", at)) == known
    assert reader.cut_at("transactions", NO_POSITION) == (0, 0, 0)
    assert reader.cut_at("refunds", max(ends) + 1_000) == reader.ends("refunds")
    assert writer.append(Group()).position == max(ends)
