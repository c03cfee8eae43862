"""Bytes missing or wrong at the end of the files: cut if it was being written, refused if not."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.log.contract import Group, Receipt
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.log.embedded.journal import read_journal_file
from headrace.model.errors import LogCorruptError
from headrace.model.settings import GatewaySettings, LogSettings

SMALL = LogSettings(journal_bytes_max=16_384)


def written(directory: Path, shop: Any, groups: int) -> Any:
    """A log with some groups of two events in two partitions, and its stream."""
    stream = shop.stream(partitions=2)
    with closing(open_writer(directory, [stream], SMALL, GatewaySettings())) as writer:
        for n in range(groups):
            batches = (shop.to(stream, 0, n * 2, 2), shop.to(stream, 1, n * 2, 2))
            writer.append(Group(batches, (Receipt(b"%d" % n, b"", b"", n),)))
    return stream


def journal_file(directory: Path) -> Path:
    return directory / "journal" / f"{1:020d}.journal"


def entry_bounds(directory: Path, number: int) -> tuple[int, int]:
    """Where the entry of a group begins and ends in the journal."""
    found = read_journal_file(directory / "journal", 1)
    assert found is not None
    begin = 64
    for entry in found.entries[: number + 1]:
        frames = sum(frame.header.frame_bytes for frame in entry.frames)
        end = begin + 64 + -(-len(entry.notes) // 64) * 64 + frames
        begin, last = end, begin
    return last, begin


def check(directory: Path, shop: Any, stream: Any, groups: int) -> None:
    with closing(open_writer(directory, [stream], SMALL, GatewaySettings())) as writer:
        reader = open_reader(directory, [stream])
        assert shop.ids(reader, "transactions", 0) == list(range(groups * 2))
        assert shop.ids(reader, "transactions", 1) == list(range(groups * 2))
        assert [writer.receipt(b"%d" % n) is not None for n in range(groups + 1)] == [
            *[True] * groups,
            False,
        ]
        writer.append(Group((shop.to(stream, 0, groups * 2, 2),)))
        assert shop.ids(reader, "transactions", 0) == list(range(groups * 2 + 2))
    assert verify(directory).findings == ()


def unpublished(directory: Path) -> None:
    """As if the writer had died before it published: nobody was told of the last group."""
    (directory / "ends").unlink()


def test_the_last_entry_cut_at_every_byte(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 3)
    unpublished(tmp_path / "log")
    begin, end = entry_bounds(tmp_path / "log", 2)
    data = journal_file(tmp_path / "log").read_bytes()
    assert not any(data[end:])
    last = max(at for at in range(begin, end) if data[at])
    scratch = tmp_path / "scratch"
    journal_file(scratch).parent.mkdir(parents=True)
    for at in range(begin, end):
        journal_file(scratch).write_bytes(data[:at] + bytes(end + 640 - at))
        found = read_journal_file(scratch / "journal", 1)
        assert found is not None
        assert len(found.entries) == (3 if at > last else 2)
    for at in [*range(begin, end, 67), last, last + 1]:
        copy = tmp_path / f"cut-{at}"
        shutil.copytree(tmp_path / "log", copy)
        journal_file(copy).write_bytes(data[:at] + bytes(len(data) - at))
        check(copy, shop, stream, 3 if at > last else 2)
        shutil.rmtree(copy)


def test_the_last_entry_wrong_in_some_byte(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 3)
    unpublished(tmp_path / "log")
    begin, end = entry_bounds(tmp_path / "log", 2)
    data = bytearray(journal_file(tmp_path / "log").read_bytes())
    for at in [*range(begin, begin + 32, 3), *range(begin, end, 131)]:
        copy = tmp_path / f"wrong-{at}"
        shutil.copytree(tmp_path / "log", copy)
        data[at] ^= 0xFF
        journal_file(copy).write_bytes(data)
        data[at] ^= 0xFF
        with closing(open_writer(copy, [stream], SMALL, GatewaySettings())) as writer:
            stored = writer.receipt(b"2") is not None
        # Zeros between the parts of an entry carry nothing; every other byte is checked.
        check(copy, shop, stream, 3 if stored else 2)
        assert not stored or not data[at]
        shutil.rmtree(copy)


def test_an_acknowledged_group_that_is_gone_is_not_passed_over(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 3)
    begin, _ = entry_bounds(tmp_path / "log", 2)
    with journal_file(tmp_path / "log").open("r+b") as handle:
        handle.seek(begin)
        handle.write(bytes(64))
    with pytest.raises(LogCorruptError, match="acknowledged"):
        open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())


def test_damage_before_the_last_entry_is_refused(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 3)
    unpublished(tmp_path / "log")
    begin, end = entry_bounds(tmp_path / "log", 1)
    with journal_file(tmp_path / "log").open("r+b") as handle:
        handle.seek((begin + end) // 2)
        handle.write(b"damage!!")
    with pytest.raises(LogCorruptError, match="group 2 follows"):
        open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())


def test_segments_cut_at_every_byte_are_written_again(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 2)
    segment = Path("streams/transactions/0") / f"{0:020d}.segment"
    size = (tmp_path / "log" / segment).stat().st_size
    for at in [*range(0, size, 53), size - 1]:
        copy = tmp_path / f"cut-{at}"
        shutil.copytree(tmp_path / "log", copy)
        os.truncate(copy / segment, at)
        index = (copy / segment).with_suffix(".index")
        os.truncate(index, at % index.stat().st_size)
        check(copy, shop, stream, 2)
        shutil.rmtree(copy)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 2)
    with closing(open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())) as writer:
        writer.checkpoint()
    (file,) = (tmp_path / "log" / "checkpoints").glob("*.checkpoint")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(LogCorruptError, match="checkpoint"):
        open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())


def test_segments_lost_behind_a_checkpoint_are_refused(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 2)
    with closing(open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())) as writer:
        writer.checkpoint()
    segment = tmp_path / "log" / "streams/transactions/0" / f"{0:020d}.segment"
    os.truncate(segment, segment.stat().st_size - 1)
    with pytest.raises(LogCorruptError, match="before 4"):
        open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())
    segment.unlink()
    with pytest.raises(LogCorruptError, match="lost its segments"):
        open_writer(tmp_path / "log", [stream], SMALL, GatewaySettings())


def test_verify_finds_a_flipped_bit(tmp_path: Path, shop: Any) -> None:
    written(tmp_path / "log", shop, 3)
    assert verify(tmp_path / "log").findings == ()
    assert verify(tmp_path / "log").events == 12
    segment = tmp_path / "log" / "streams/transactions/1" / f"{0:020d}.segment"
    data = bytearray(segment.read_bytes())
    data[-200] ^= 1
    segment.write_bytes(data)
    (finding,) = verify(tmp_path / "log").findings
    assert finding.file == segment
    assert "offsets 4 to 6 fail their checksum" in finding.what


def test_an_entry_forged_in_an_event_does_not_pass_for_one(tmp_path: Path, shop: Any) -> None:
    """Bytes copied out of the journal into an event look like an entry of another group."""
    stream = written(tmp_path / "log", shop, 2)
    begin, end = entry_bounds(tmp_path / "log", 1)
    forged = bytearray(journal_file(tmp_path / "log").read_bytes()[begin:end])
    forged[16:24] = (9).to_bytes(8, "little")
    unpublished(tmp_path / "log")
    with journal_file(tmp_path / "log").open("r+b") as handle:
        handle.seek(end + 640)
        handle.write(forged)
    check(tmp_path / "log", shop, stream, 2)


def test_a_headless_segment_in_the_middle_is_written_again(tmp_path: Path, shop: Any) -> None:
    """A power cut may keep a later file and lose an earlier one."""
    stream, small = shop.stream(partitions=1), LogSettings(segment_bytes_max=4_096)
    with closing(open_writer(tmp_path / "log", [stream], small, GatewaySettings())) as writer:
        for n in range(20):
            writer.append(Group((shop.to(stream, 0, n * 20, 20),)))
    segments = sorted((tmp_path / "log" / "streams/transactions/0").glob("*.segment"))
    assert len(segments) > 3
    segments[1].write_bytes(bytes(segments[1].stat().st_size))
    open_writer(tmp_path / "log", [stream], small, GatewaySettings()).close()
    reader = open_reader(tmp_path / "log", [stream])
    assert shop.ids(reader, "transactions", 0) == list(range(400))
    assert verify(tmp_path / "log").findings == ()


def test_damaged_events_are_refused_by_the_reader(tmp_path: Path, shop: Any) -> None:
    stream = written(tmp_path / "log", shop, 1)
    segment = tmp_path / "log" / "streams/transactions/0" / f"{0:020d}.segment"
    data = bytearray(segment.read_bytes())
    message = data.rindex(b"\xff\xff\xff\xff", 0, -64)
    data[message : message + 256] = b"\x01" * 256
    segment.write_bytes(data)
    with pytest.raises(LogCorruptError, match="cannot be read"):
        list(open_reader(tmp_path / "log", [stream]).read("transactions", 0, 0, 2))
