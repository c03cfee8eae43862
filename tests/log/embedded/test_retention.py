"""Retention by age and size, the floor, the archive, and what happens at the limit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.log.contract import NO_EVENT_TIME, DeadLetter, Group, PartitionBatch
from headrace.log.embedded.retention_floor import read_retention_floor, write_retention_floor
from headrace.model.definitions import Retention, RetentionAction
from headrace.model.errors import LogCorruptError, LogFullError, LogOffsetError
from headrace.model.settings import GatewaySettings, LogSettings

SMALL = LogSettings(segment_bytes_max=8_192, journal_bytes_max=1 << 20)


def fill(writer: Any, shop: Any, stream: Any, groups: int, rows: int = 50, first: int = 0) -> None:
    """Groups of events, group n received at n seconds."""
    for n in range(first, first + groups):
        batch = shop.batch(stream, n * rows, rows, received=n * 1_000_000)
        writer.append(Group((PartitionBatch(stream.name, 0, batch),)))


def aged(shop: Any, action: RetentionAction = RetentionAction.DELETE) -> Any:
    return shop.stream(
        partitions=1, retention=Retention(age_microseconds=10_000_000, action=action)
    )


def test_the_hold_is_what_was_written(tmp_path: Path) -> None:
    assert read_retention_floor(tmp_path) is None
    write_retention_floor(tmp_path, {"a": (1, 2)})
    write_retention_floor(tmp_path, {"a": (3, 4), "b": ()})
    assert read_retention_floor(tmp_path) == {"a": (3, 4), "b": ()}
    assert [file.name for file in tmp_path.iterdir()] == ["hold.json"]


def test_nothing_goes_before_the_engine_spoke(embedded: Any, shop: Any) -> None:
    stream = aged(shop)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 40)
    assert writer.retain(10**12) == {"transactions": 0}
    assert reader.starts("transactions") == (0,)


def test_age_removes_closed_segments_up_to_the_floor(embedded: Any, shop: Any) -> None:
    stream = aged(shop)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 40)
    write_retention_floor(embedded.directory, {"transactions": (1_000,)})
    assert writer.retain(30_000_000)["transactions"] > 0
    (start,) = reader.starts("transactions")
    assert 0 < start <= 1_000
    assert shop.ids(reader, "transactions", 0) == list(range(start, 2_000))
    with pytest.raises(LogOffsetError):
        reader.read("transactions", 0, start - 1, start)
    write_retention_floor(embedded.directory, {"transactions": (2_000,)})
    writer.retain(30_000_000)
    (start,) = reader.starts("transactions")
    assert 750 < start <= 1_000  # received 20 seconds or later stays
    writer.close()
    writer = embedded.writer([stream], log=SMALL)
    assert reader.starts("transactions") == (start,)
    fill(writer, shop, stream, 1, first=40)
    assert shop.ids(reader, "transactions", 0) == list(range(start, 2_050))


def test_a_quiet_partition_is_emptied_and_goes_on(embedded: Any, shop: Any) -> None:
    stream = aged(shop)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 3)
    write_retention_floor(embedded.directory, {"transactions": (150,)})
    writer.retain(10**12)
    assert reader.starts("transactions") == reader.ends("transactions") == (150,)
    assert writer.retain(10**12) == {"transactions": 0}
    writer.close()
    writer = embedded.writer([stream], log=SMALL)
    assert reader.ends("transactions") == (150,)
    fill(writer, shop, stream, 1, first=3)
    (piece,) = reader.read("transactions", 0, 150, 200)
    assert piece.maximum_before == 149_000  # also when the events it comes from are gone


def test_a_stream_no_view_reads_is_not_held(embedded: Any, shop: Any) -> None:
    stream = aged(shop)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 10)
    write_retention_floor(embedded.directory, {"other": (0,)})
    writer.retain(10**12)
    assert reader.starts("transactions") == (500,)


def test_at_the_size_limit_the_hold_decides(embedded: Any, shop: Any) -> None:
    limited = shop.stream(partitions=2, retention=Retention(bytes_max=600_000))
    free = shop.stream("free", partitions=1)
    writer, reader = embedded.writer([limited, free]), embedded.reader([limited, free])
    write_retention_floor(embedded.directory, {"transactions": (0, 0)})
    groups = (
        Group((shop.to(limited, n % 2, n * 100, 100), shop.to(free, 0, n, 1))) for n in range(1_000)
    )
    with pytest.raises(LogFullError, match="600000 bytes"):
        append_all(writer, groups)
    stored = reader.ends("free")[0] * 100
    assert 4_000 < stored < 50_000
    assert sum(reader.ends("transactions")) == stored  # nothing of the refused group
    for n in range(20):
        batch = shop.batch(limited, 0, 1_000)
        with pytest.raises(LogFullError):
            writer.append(Group((PartitionBatch("transactions", n % 2, batch),)))
    writer.append(Group((shop.to(free, 0, 0, 1),)))
    writer.check_room("free")

    write_retention_floor(embedded.directory, {"transactions": reader.ends("transactions")})
    for n in range(120):
        append_when_free(writer, Group((shop.to(limited, n % 2, 0, 100),)))
        write_retention_floor(embedded.directory, {"transactions": reader.ends("transactions")})
    assert sum(reader.starts("transactions")) > 0
    held = sum(
        file.stat().st_size
        for file in (embedded.directory / "streams/transactions").rglob("*.segment")
    )
    assert held <= 600_000


def append_all(writer: Any, groups: Iterable[Group]) -> None:
    for group in groups:
        writer.check_room("transactions")
        writer.append(group)


def append_when_free(writer: Any, group: Group) -> None:
    """A refusal stands for a tenth of a second, so ask again until the limit of the test."""
    for _ in range(100_000):
        try:
            writer.append(group)
            return
        except LogFullError:
            continue
    raise AssertionError("the log stays full although the floor moved on")


def test_check_room_says_it_before_queueing(embedded: Any, shop: Any) -> None:
    stream = shop.stream(partitions=1, retention=Retention(bytes_max=100_000))
    writer = embedded.writer([stream])
    write_retention_floor(embedded.directory, {"transactions": (0,)})
    writer.check_room("Transactions")
    with pytest.raises(LogFullError):
        append_all(writer, [Group((shop.to(stream, 0, 0, 10),))] * 1_000)
    with pytest.raises(LogFullError):
        append_all(writer, [Group((shop.to(stream, 0, 0, 1),))] * 1_000)
    files = (embedded.directory / "streams").rglob("*.segment")
    assert 50_000 < sum(file.stat().st_size for file in files) <= 100_000


def test_archived_events_are_all_there(embedded: Any, shop: Any) -> None:
    stream = aged(shop, RetentionAction.ARCHIVE)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 40)
    write_retention_floor(embedded.directory, {"transactions": (2_000,)})
    writer.retain(30_000_000)
    (start,) = reader.starts("transactions")
    assert start > 0
    pieces = list(reader.read_archive("transactions", 0, 7, start))
    ids = [i for piece in pieces for i in piece.batch.column("id").to_pylist()]
    assert ids == list(range(7, start))
    for piece in pieces:
        expected = (piece.first_offset - 1) * 1_000 if piece.first_offset else NO_EVENT_TIME
        assert piece.maximum_before == expected
        assert piece.batch.equals(shop_rows(shop, stream, piece))
    with pytest.raises(LogOffsetError):
        reader.read_archive("transactions", 0, 0, start + 1)
    folder = embedded.directory / "archive" / "transactions" / "partition=0"
    assert sum(pq.read_metadata(file).num_rows for file in folder.iterdir()) == start


def shop_rows(shop: Any, stream: Any, piece: Any) -> pa.RecordBatch:
    batches = [shop.batch(stream, n * 50, 50, received=n * 1_000_000) for n in range(40)]
    whole = pa.Table.from_batches(batches).slice(piece.first_offset, piece.batch.num_rows)
    return whole.combine_chunks().to_batches()[0]


def test_archiving_again_after_a_crash_changes_nothing(embedded: Any, shop: Any) -> None:
    stream = aged(shop, RetentionAction.ARCHIVE)
    writer, reader = embedded.writer([stream], log=SMALL), embedded.reader([stream])
    fill(writer, shop, stream, 40)
    write_retention_floor(embedded.directory, {"transactions": (2_000,)})
    segments = embedded.directory / "streams/transactions/0"
    before = {file: file.read_bytes() for file in segments.iterdir()}
    writer.retain(30_000_000)
    (start,) = reader.starts("transactions")
    archived = sorted((embedded.directory / "archive").rglob("*.parquet"))
    writer.close()
    for file, data in before.items():  # as if the process had ended before removing them
        if not file.exists():
            file.write_bytes(data)
    (embedded.directory / "archive" / "transactions" / "partition=0" / ".x.new").touch()
    writer = embedded.writer([stream], log=SMALL)
    assert reader.starts("transactions") == (start,)
    writer.retain(30_000_000)
    assert sorted((embedded.directory / "archive").rglob("[0-9]*.parquet")) == archived
    assert shop.ids(reader, "transactions", 0) == list(range(start, 2_000))


def test_a_damaged_segment_is_not_archived(embedded: Any, shop: Any) -> None:
    stream = aged(shop, RetentionAction.ARCHIVE)
    writer = embedded.writer([stream], log=SMALL)
    fill(writer, shop, stream, 40)
    write_retention_floor(embedded.directory, {"transactions": (2_000,)})
    segment = embedded.directory / "streams/transactions/0" / f"{0:020d}.segment"
    data = bytearray(segment.read_bytes())
    data[-300] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogCorruptError):
        writer.retain(30_000_000)
    assert segment.exists()


def test_dead_letters_are_bounded_and_the_dropped_are_counted(embedded: Any, shop: Any) -> None:
    stream = shop.stream()
    settings = GatewaySettings(dead_letters_max=80)
    writer, reader = embedded.writer([stream], gateway=settings), embedded.reader([stream])
    writer.append(Group(dead=tuple(DeadLetter("x", i, "", b"", 0) for i in range(30))))
    writer.resolve_dead_letters(range(5))
    for n in range(100):
        writer.append(Group(dead=(DeadLetter("x", n, "", b"", 0),)))
    for _ in range(2):
        numbers = [letter.number for letter in reader.dead_letters(None, -1, 1_000)]
        assert 60 <= len(numbers) <= 80
        assert numbers == list(range(numbers[0], 130))
        assert reader.dead_letters_dropped == numbers[0] - 5
        assert writer.dead_letters_dropped == numbers[0] - 5
        writer.close()
        writer = embedded.writer([stream], gateway=settings)
    writer.append(Group(dead=tuple(DeadLetter("x", i, "", b"", 0) for i in range(300))))
    assert reader.dead_letters(None, -1, 1_000)[-1].number == 429
    writer.append(Group(dead=(DeadLetter("x", 0, "", b"", 0),)))
    assert len(reader.dead_letters(None, -1, 1_000)) <= 80


def test_dead_letters_are_bounded_by_bytes(embedded: Any, shop: Any) -> None:
    stream = shop.stream()
    settings = GatewaySettings(dead_letters_bytes_max=100_000)
    writer, reader = embedded.writer([stream], gateway=settings), embedded.reader([stream])
    for n in range(200):
        writer.append(Group(dead=(DeadLetter("x", n, "", bytes(2_000), 0),)))
    assert 30 <= len(reader.dead_letters(None, -1, 1_000)) <= 50
    assert reader.dead_letters_dropped > 100
