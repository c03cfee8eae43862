"""Advances, for every backend: the watermark moves on without events, and any replay sees it."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.contract import NO_EVENT_TIME, Advance, Group, PartitionBatch
from headrace.log.embedded.backend import verify
from headrace.log.embedded.retention_floor import write_retention_floor
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import LogError, LogOffsetError
from headrace.model.settings import LogSettings
from headrace.spark.leaf import OFFSET, WATERMARK, Source

SMALL = LogSettings(segment_bytes_max=4_096, journal_bytes_max=32_768)


def advance(partition: int, maximum: int, reason: str = "idle", producer: str = "") -> Advance:
    return Advance("transactions", partition, maximum, reason, producer)


def timed(shop: Any, stream: Any, first: int, times: list[int]) -> Group:
    batch = shop.batch(stream, first, len(times), times=times)
    return Group((PartitionBatch("transactions", 0, batch),))


def test_an_advance_takes_no_offset_and_stands_before_the_next_event(
    backend: Any, shop: Any
) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    assert reader.maxima("transactions") == (NO_EVENT_TIME,) * 3
    writer.append(timed(shop, stream, 0, [100, 50]))
    writer.append(Group(advances=(advance(0, 500, "heartbeat", "p-1"), advance(2, 170))))
    assert shop.rows(reader, "transactions") == (2, 0, 0)
    assert reader.maxima("transactions") == (500, NO_EVENT_TIME, 170)
    places = shop.places(reader, "transactions", 0)
    ended = places[-1]
    assert [reader.maximum("transactions", 0, o) for o in places] == [NO_EVENT_TIME, 100, 500]
    writer.append(timed(shop, stream, 2, [60, 600]))
    places = shop.places(reader, "transactions", 0)
    maxima = [reader.maximum("transactions", 0, offset) for offset in places]
    assert maxima == [NO_EVENT_TIME, 100, 500, 500, 600]
    end = places[-1]
    (piece,) = reader.read("transactions", 0, 0, end)
    assert (piece.maximum_before, piece.maxima) == (NO_EVENT_TIME, ((2, 500),))
    (piece,) = reader.read("transactions", 0, places[1], end)
    assert (piece.maximum_before, piece.maxima) == (100, ((1, 500),))
    (piece,) = reader.read("transactions", 0, places[2], end)
    assert (piece.maximum_before, piece.maxima) == (500, ())
    assert shop.ids(reader, "transactions", 0) == [0, 1, 2, 3]
    assert list(reader.advances("transactions", 0, 0, end)) == [
        replace(advance(0, 500, "heartbeat", "p-1"), offset=ended, position=1)
    ]
    assert list(reader.advances("transactions", 0, places[3], end)) == []


def test_a_partition_that_begins_later_begins_where_the_least_advanced_one_is(
    backend: Any, shop: Any
) -> None:
    """Before the group: what else comes in it is not known to be before."""
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])

    def to(partition: int, first: int, times: list[int]) -> PartitionBatch:
        batch = shop.batch(stream, first, len(times), times=times)
        return PartitionBatch("transactions", partition, batch)

    writer.append(Group((to(0, 0, [100, 50]), to(2, 2, [70]))))  # all at once: nobody is ahead
    assert reader.maximum("transactions", 2, 0) == NO_EVENT_TIME
    writer.append(Group((to(2, 3, [300]), to(1, 4, [10, 90]), to(1, 6, [60]))))
    places = shop.places(reader, "transactions", 1)
    assert [reader.maximum("transactions", 1, offset) for offset in places] == [70, 70, 90, 90]
    (piece,) = reader.read("transactions", 1, 0, places[-1])
    assert (piece.maximum_before, piece.maxima) == (70, ())
    expected = replace(advance(1, 70, "first"), offset=0, position=1)
    assert list(reader.advances("transactions", 1, 0, places[-1])) == [expected]
    writer.append(Group((to(1, 7, [20]),)))
    end = reader.ends("transactions")[1]
    assert list(reader.advances("transactions", 1, 0, end)) == [expected], "only once"
    writer.close()
    writer = backend.writer([stream])
    assert [reader.maximum("transactions", 1, offset) for offset in places] == [70, 70, 90, 90]
    assert reader.maxima("transactions") == (100, 90, 300)


def test_a_first_heartbeat_that_is_behind_takes_nothing_back(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(timed(shop, stream, 0, [100]))
    behind = (advance(1, 30, "heartbeat"), advance(2, 130, "heartbeat"))
    writer.append(Group(advances=behind))
    assert reader.maxima("transactions") == (100, 100, 130)


def test_an_advance_that_raises_nothing_is_not_stored(backend: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    events = timed(shop, stream, 0, [100])
    writer.append(replace(events, advances=(advance(0, 100), advance(0, 40))))
    assert list(reader.advances("transactions", 0, 0, 1)) == []
    writer.append(Group(advances=(advance(0, 300), advance(0, 400), advance(0, 200))))
    writer.append(Group(advances=(advance(0, 400),)))
    assert [item.maximum_microseconds for item in reader.advances("transactions", 0, 0, 1)] == [400]


def test_advances_outside_the_stream_store_nothing(backend: Any, shop: Any) -> None:
    stream = shop.stream()
    writer, reader = backend.writer([stream]), backend.reader([stream])
    for wrong in (advance(3, 5), Advance("unknown", 0, 5, "idle")):
        with pytest.raises(LogError):
            writer.append(Group((shop.to(stream, 0, 0, 3),), advances=(wrong,)))
    assert shop.rows(reader, "transactions") == (0, 0, 0)
    with pytest.raises(LogOffsetError):
        reader.maximum("transactions", 0, 1)
    with pytest.raises(LogOffsetError):
        reader.maximum("transactions", 3, 0)


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_advances_and_received_times_survive_reopening(
    backend: Any, shop: Any, with_checkpoint: bool
) -> None:
    stream = shop.stream(partitions=2)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    assert writer.received("transactions") == (NO_EVENT_TIME, NO_EVENT_TIME)
    batch = shop.batch(stream, 0, 2, received=77, times=[5, 6])
    writer.append(Group((PartitionBatch("transactions", 0, batch),)))
    writer.append(Group(advances=(advance(0, 900), advance(1, 800))))
    for further in (901, 902):
        if with_checkpoint:
            writer.checkpoint()
        writer.close()
        writer = backend.writer([stream])
        assert reader.maxima("transactions") == (further - 1, 800)
        assert writer.received("transactions") == (77, NO_EVENT_TIME)
        writer.append(Group(advances=(advance(0, further),)))
    before = reader.ends("transactions")[0]
    writer.append(timed(shop, stream, 2, [7]))
    assert reader.maximum("transactions", 0, before) == 902


def test_retention_keeps_maximum_and_received_time(embedded: Any, shop: Any) -> None:
    """Also advances do not make old events young."""
    stream = shop.stream(partitions=1, retention=Retention(age_microseconds=1_000_000))
    writer, reader = embedded.writer([stream]), embedded.reader([stream])
    writer.append(timed(shop, stream, 0, [5, 6]))
    writer.append(Group(advances=(advance(0, 900),)))
    write_retention_floor(embedded.directory, {"transactions": (2,)})
    assert writer.retain(10_000_000)["transactions"] > 0
    assert reader.starts("transactions") == (2,)
    writer.close()
    writer = embedded.writer([stream])
    assert reader.maxima("transactions") == (900,)
    assert writer.received("transactions") == (1_000,)
    writer.append(timed(shop, stream, 2, [7]))
    (piece,) = reader.read("transactions", 0, 2, 3)
    assert piece.maximum_before == 900


def test_an_advance_behind_what_a_reader_has_seen_is_not_lost(backend: Any, shop: Any) -> None:
    """Events before it and after it come as one batch, though their index was read in two goes."""
    stream = shop.stream(partitions=1)
    writer, reader = backend.writer([stream]), backend.reader([stream])
    writer.append(timed(shop, stream, 0, [10, 20]))
    assert shop.ids(reader, "transactions", 0) == [0, 1]
    writer.append(Group(advances=(advance(0, 500),)))
    writer.append(timed(shop, stream, 2, [30]))
    _, second, _, end = shop.places(reader, "transactions", 0)
    (piece,) = reader.read("transactions", 0, second, end)
    assert (piece.maximum_before, piece.maxima) == (10, ((1, 500),))


def test_advances_alone_do_not_fill_the_disk(embedded: Any, shop: Any) -> None:
    """Also with a size limit the stream takes events again, and an open reader sees them."""
    stream = shop.stream(partitions=1, retention=Retention(bytes_max=100_000))
    writer, reader = embedded.writer([stream]), embedded.reader([stream])
    write_retention_floor(embedded.directory, {"transactions": (0,)})
    for number in range(1, 1_001):
        writer.append(Group(advances=(advance(0, number),)))
        if number % 50 == 0:
            writer.retain(0)
    files = list((embedded.directory / "streams").rglob("*.segment"))
    assert sum(file.stat().st_size for file in files) < 20_000
    assert shop.ids(reader, "transactions", 0) == []
    writer.append(timed(shop, stream, 0, [5, 6]))
    for number in range(2_000, 2_100):
        writer.append(Group(advances=(advance(0, number),)))
    writer.retain(0)
    for _ in range(2):
        assert shop.ids(reader, "transactions", 0) == [0, 1]
        assert reader.maximum("transactions", 0, 0) == 1_000
        assert reader.maxima("transactions") == (2_099,)
        assert verify(embedded.directory).findings == ()
        writer.close()
        writer = embedded.writer([stream])


STEP = st.one_of(
    st.lists(st.integers(0, 1_000), min_size=1, max_size=30),
    st.lists(st.integers(0, 1_000), min_size=1, max_size=4),
    st.integers(0, 1_200),
    st.integers(0, 1_200),
    st.sampled_from(["reopen", "checkpoint", "retain"]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, max_size=40), st.data())
def test_a_replay_sees_the_same_watermarks_whatever_the_boundaries(
    shop: Any, steps: list[Any], data: st.DataObject
) -> None:
    parent = Path(tempfile.mkdtemp())
    backend = shop.backend(parent / "log")
    stream = shop.stream(
        partitions=1,
        retention=Retention(age_microseconds=1, action=RetentionAction.ARCHIVE),
    )
    stream = replace(stream, delay_microseconds=30)
    try:
        writer, reader = backend.writer([stream], log=SMALL), backend.reader([stream])
        before: list[int] = []
        maximum = NO_EVENT_TIME
        for step in steps:
            if step == "reopen":
                writer.close()
                writer = backend.writer([stream], log=SMALL)
            elif step == "checkpoint":
                writer.checkpoint()
            elif step == "retain":
                write_retention_floor(backend.directory, {"transactions": (len(before),)})
                writer.retain(10_000)
            elif isinstance(step, int):
                writer.append(Group(advances=(advance(0, step),)))
                maximum = max(maximum, step)
            else:
                writer.append(timed(shop, stream, len(before), step))
                for time in step:
                    before.append(maximum)
                    maximum = max(maximum, time)
            assert reader.maxima("transactions") == (maximum,)
        expected = [*before, maximum]
        source = Source(reader.address, stream, (OFFSET, WATERMARK))
        cuts = data.draw(st.sets(st.integers(0, len(before)), max_size=5))
        edges = sorted({0, len(before), *cuts})
        found = [
            pair
            for start, end in itertools.pairwise(edges)
            for batch in source.read(reader.cut("transactions", 0, start, end))
            for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
        assert found == [(i, max(m, NO_EVENT_TIME + 30) - 30) for i, m in enumerate(before)]
        for offset in edges:
            assert reader.maximum("transactions", 0, offset) == expected[offset]
        assert verify(backend.directory).findings == ()
    finally:
        backend.close()
        shutil.rmtree(parent)
