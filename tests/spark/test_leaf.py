"""What the source gives beside the stream's own columns, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.log.contract import NO_EVENT_TIME, Group, PartitionBatch, Range, stored_schema
from headrace.log.embedded.backend import EmbeddedAddress, open_writer
from headrace.model.definitions import Clocks, Column, Stream
from headrace.model.settings import GatewaySettings, LogSettings
from headrace.model.types import parse_type
from headrace.spark.leaf import (
    CLOCK_OFFSET,
    EVENT_TIME,
    OFFSET,
    POSITION,
    POSITION_COLUMNS,
    QUALITY,
    WATERMARK,
    Source,
)

COLUMNS = (
    Column("n", parse_type("INT"), nullable=False),
    Column("at", parse_type("TIMESTAMP"), nullable=False),
    Column("sent_at", parse_type("TIMESTAMP")),
)
STREAM = Stream("readings", COLUMNS, event_time="at", delay_microseconds=10)
ROWS = [
    {"n": 1, "at": 100, "sent_at": 4, "_event_time": 500, "_skew": 400, "_quality": 1},
    {"n": 2, "at": 200, "sent_at": None, "_event_time": 200, "_skew": None, "_quality": 0},
    {"n": 3, "at": 300, "sent_at": 1, "_event_time": 900, "_skew": -7, "_quality": 2},
]


def read(directory: Path, stream: Stream) -> list[dict[str, Any]]:
    schema = stored_schema(stream)
    rows = [{**row, "_received_at": 900} for row in ROWS]
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    writer = open_writer(directory, [stream], LogSettings(), GatewaySettings())
    writer.append(Group((PartitionBatch(stream.name, 0, batch),)))
    writer.close()
    source = Source(EmbeddedAddress(directory), stream, ("n", *POSITION_COLUMNS))
    (found,) = source.read(Range(0, 0, len(rows), len(rows)))
    assert [str(source.type_of(name)) for name in (CLOCK_OFFSET, QUALITY)] == ["BIGINT", "STRING"]
    numbers = found.column(EVENT_TIME).cast(pa.int64())
    shown = found.set_column(found.schema.get_field_index(EVENT_TIME), EVENT_TIME, numbers)
    return shown.select(["n", EVENT_TIME, CLOCK_OFFSET, QUALITY, WATERMARK]).to_pylist()


def test_clocks_are_what_watermarks_go_by(tmp_path: Path) -> None:
    found = read(tmp_path / "log", replace(STREAM, clocks=Clocks("sent_at")))
    assert [tuple(row.values()) for row in found] == [
        (1, 500, 400, "corrected", NO_EVENT_TIME),
        (2, 200, None, "exact", 490),
        (3, 900, -7, "received", 490),
    ]


@pytest.mark.parametrize(("event_time", "quality"), [("at", "exact"), (None, "received")])
def test_without_clocks(tmp_path: Path, event_time: str | None, quality: str) -> None:
    found = read(tmp_path / "log", replace(STREAM, event_time=event_time))
    times = [100, 200, 300] if event_time else [900] * 3
    assert [tuple(row.values())[:4] for row in found] == [
        (n + 1, time, None, quality) for n, time in enumerate(times)
    ]


def test_rows_of_one_group_commit_have_one_position(tmp_path: Path) -> None:
    schema = stored_schema(STREAM)
    writer = open_writer(tmp_path / "log", [STREAM], LogSettings(), GatewaySettings())
    positions = []
    for count in (2, 1, 3):
        rows = [{"n": n, "at": n, "sent_at": None, "_received_at": n} for n in range(count)]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        appended = writer.append(Group((PartitionBatch(STREAM.name, 0, batch),)))
        positions += [appended.position] * count
    writer.close()
    source = Source(EmbeddedAddress(tmp_path / "log"), STREAM, (POSITION, OFFSET))
    found = pa.Table.from_batches(source.read(Range(0, 0, 6, 6)))
    assert found.column(POSITION).to_pylist() == positions
    assert len(set(positions)) == 3
    within = pa.Table.from_batches(source.read(Range(0, 1, 4, 3)))
    assert within.column(POSITION).to_pylist() == positions[1:4]
