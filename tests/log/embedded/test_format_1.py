"""A log of format 1 opens: its events are read, it is appended to, archived from and recovered.

`data/log_format_1.tar.xz` was written by the version before positions: streams `payments` (two
partitions, three events of each in every one of 24 groups, archived from at group 15) and `visits`
(one event in every third group), with heartbeats, dead letters, four checkpoints and a journal
behind them.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.log.contract import (
    NO_POSITION,
    Group,
    LogReader,
    PartitionBatch,
    Receipt,
    stored_schema,
)
from headrace.log.embedded.backend import open_reader, open_writer, verify
from headrace.log.embedded.frames import HEADER_BYTES, parse_frame_header
from headrace.log.embedded.retention_floor import read_retention_floor, write_retention_floor
from headrace.log.embedded.segments import parse_head
from headrace.model.definitions import Column, Retention, RetentionAction, Stream
from headrace.model.errors import LogCorruptError
from headrace.model.settings import GatewaySettings, LogSettings
from headrace.model.types import parse_type

DATA = Path(__file__).parent / "data" / "log_format_1.tar.xz"
SMALL = LogSettings(segment_bytes_max=4_096, journal_bytes_max=8_192)
ID = Column("id", parse_type("BIGINT"), nullable=False)
PAYMENTS = Stream(
    "payments",
    (
        ID,
        Column("amount", parse_type("DECIMAL(18, 2)")),
        Column("at", parse_type("TIMESTAMP"), nullable=False),
    ),
    event_time="at",
    partitions=2,
    retention=Retention(age_microseconds=1_000_000, action=RetentionAction.ARCHIVE),
)
VISITS = Stream("visits", (ID,), event_time=None, partitions=1)
GROUPS = 24


@pytest.fixture
def old(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    with tarfile.open(DATA) as archive:
        archive.extractall(directory, filter="data")
    return directory


def payments(group: int) -> Group:
    received = group * 1_000_000
    batches = []
    for partition in (0, 1):
        ids = [i for i in range(group * 6, group * 6 + 6) if i % 2 == partition]
        values = {
            "id": ids,
            "amount": [Decimal(i).scaleb(-2) for i in ids],
            "at": [i * 1_000 for i in ids],
            "_received_at": [received] * len(ids),
        }
        schema = stored_schema(PAYMENTS)
        arrays = [pa.array(values[field.name], field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        batches.append(PartitionBatch("payments", partition, batch))
    return Group(tuple(batches), (Receipt(b"new %d" % group, b"d", b"a", received),))


def rows(reader: LogReader, partition: int) -> list[tuple[int, int, int]]:
    """Offset, position and id of all that can still be read."""
    start, end = reader.oldest("payments")[partition], reader.ends("payments")[partition]
    return [
        row
        for found in reader.read_history("payments", partition, start, end, ["id"])
        for row in zip(
            found.offsets.tolist(),
            found.positions.tolist(),
            found.batch.column("id").to_pylist(),
            strict=True,
        )
    ]


def expected(partition: int, groups: int, archived: int) -> list[tuple[int, int, int]]:
    """What was archived before positions were kept has none; a group's number is the position."""
    return [
        (
            group * 3 + row,
            NO_POSITION if group * 3 + row < archived else group,
            group * 6 + 2 * row + partition,
        )
        for group in range(groups)
        for row in range(3)
    ]


def check(directory: Path, groups: int) -> None:
    reader = open_reader(directory, [PAYMENTS, VISITS])
    assert rows(reader, 0) == expected(0, groups, archived=42)
    assert rows(reader, 1) == expected(1, groups, archived=36)
    (visits,) = reader.read("visits", 0, 0, reader.ends("visits")[0])
    assert visits.positions.tolist() == visits.batch.column("id").to_pylist()
    assert [x.raw for x in reader.dead_letters(None, -1, 9)] == [b"raw 3", b"raw 20"]
    assert reader.cut_at("payments", 17) == (54, 54)
    assert reader.cut_at("visits", 17) == (6,)
    advances = reader.advances("payments", 1, 54, 72)
    assert [(a.position, a.producer) for a in advances] == [(19, "till")]
    assert verify(directory).findings == ()


def test_its_events_are_read_before_a_writer_opens_it(old: Path) -> None:
    files = {file: file.read_bytes() for file in old.rglob("*") if file.is_file()}
    check(old, GROUPS)
    assert {file: file.read_bytes() for file in old.rglob("*") if file.is_file()} == files


def test_it_is_appended_to_and_its_files_stay_as_they_are(old: Path) -> None:
    reader = open_reader(old, [PAYMENTS, VISITS])  # open all the while
    before = rows(reader, 1)
    segments = {file: file.read_bytes() for file in old.rglob("streams/**/*") if file.is_file()}
    for round_ in range(3):
        with closing(open_writer(old, [PAYMENTS, VISITS], SMALL, GatewaySettings())) as writer:
            receipt = writer.receipt(b"key 23")
            assert receipt is not None
            assert receipt.answer == b"answer 23"
            assert writer.append(payments(GROUPS + round_)).position == GROUPS + round_
        check(old, GROUPS + round_ + 1)
    assert rows(reader, 1)[: len(before)] == before
    assert len(rows(reader, 1)) == len(before) + 9
    for file, content in segments.items():
        assert file.read_bytes() == content
    formats = [
        parse_head(file.read_bytes(), file).format
        for file in sorted((old / "streams/payments/0").glob("*.segment"))
    ]
    assert formats == [1, 1, 2]
    assert json.loads((old / "layout.json").read_text())["format"] == 2


def test_it_is_archived_from(old: Path) -> None:
    with closing(open_writer(old, [PAYMENTS, VISITS], SMALL, GatewaySettings())) as writer:
        writer.append(payments(GROUPS))
        assert read_retention_floor(old) == {"payments": (48, 48), "visits": (0,)}
        assert not any(writer.retain(10**12).values())  # each segment has events behind that floor
        write_retention_floor(old, {"payments": (75, 75), "visits": (0,)})
        assert writer.retain(10**12)["payments"] > 0
        reader = open_reader(old, [PAYMENTS, VISITS])
        assert reader.starts("payments") == (75, 75)
        assert reader.oldest("payments") == (0, 0)
        for partition, archived in ((0, 42), (1, 36)):
            assert rows(reader, partition) == expected(partition, GROUPS + 1, archived)


@pytest.mark.parametrize("torn", ["a frame", "the index", "both"])
def test_it_is_recovered_after_a_crash(old: Path, torn: str) -> None:
    """The last group is in the journal, and in the segments in part."""
    (old / "ends").unlink()
    for partition in (0, 1):
        segment = max((old / f"streams/payments/{partition}").glob("*.segment"))
        if torn != "the index":
            os.truncate(segment, segment.stat().st_size - 100)
        if torn != "a frame":
            index = segment.with_suffix(".index")
            os.truncate(index, index.stat().st_size - 13)
    with closing(open_writer(old, [PAYMENTS, VISITS], SMALL, GatewaySettings())) as writer:
        check(old, GROUPS)
        writer.append(payments(GROUPS))
    check(old, GROUPS + 1)


def test_a_crash_while_it_is_being_opened(old: Path, tmp_path: Path) -> None:
    """Opening begins new segments; whatever is there of them when it dies, it can be done again."""
    with closing(open_writer(old, [PAYMENTS, VISITS], SMALL, GatewaySettings())):
        pass
    fresh = max((old / "streams/payments/0").glob("*.segment"))
    assert parse_head(fresh.read_bytes(), fresh).format == 2
    whole = {file: file.read_bytes() for file in (fresh, fresh.with_suffix(".index"))}
    for file, content in whole.items():
        for length in range(0, len(content), 5):
            copy = tmp_path / f"{file.suffix}-{length}"
            with tarfile.open(DATA) as archive:
                archive.extractall(copy, filter="data")
            for known, was in whole.items():
                there = copy / known.relative_to(old)
                there.write_bytes(was[:length] if known is file else was)
            with closing(open_writer(copy, [PAYMENTS, VISITS], SMALL, GatewaySettings())) as writer:
                writer.append(payments(GROUPS))
            check(copy, GROUPS + 1)
            shutil.rmtree(copy)


def test_a_kind_of_frame_from_a_later_version_is_refused(old: Path) -> None:
    file = max((old / "streams/visits/0").glob("*.segment"))
    data = bytearray(file.read_bytes())
    place = parse_head(data, file).frames_position
    header = parse_frame_header(data, place)
    assert header is not None
    data[place : place + HEADER_BYTES] = header._replace(kind=7).pack()
    file.write_bytes(data)
    assert ["has the kind 7" in found.what for found in verify(old).findings][:1] == [True]
    reader = open_reader(old, [PAYMENTS, VISITS])
    with pytest.raises(LogCorruptError, match="has the kind 7"):
        list(reader.read("visits", 0, 0, 8))
