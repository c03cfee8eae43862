"""Arrow to text and back: every value survives, in every format."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.answers import (
    ARROW,
    CSV,
    JSON,
    NDJSON,
    Answer,
    AnswerFreshness,
    choose,
    encode,
)
from headrace.model.errors import QueryError, RequestError

FRESHNESS = AnswerFreshness(
    3,
    1_000_000,
    None,
    5,
    2,
    ("sensör-7",),
    "nothing final yet; 2 events missing; sensör-7 silent for 4 min",
)
LINE_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\r\n")
MOMENTS = st.datetimes(timezones=st.just(UTC))

# (Arrow type, values, text of a value as the contract has it)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Any]] = {
    "flag": (pa.bool_(), st.booleans(), lambda v: v),
    "small": (pa.int8(), st.integers(-128, 127), lambda v: v),
    "big": (pa.int64(), st.integers(-(2**63), 2**63 - 1), lambda v: v),
    "double": (pa.float64(), st.floats(allow_nan=True), lambda v: _float(v)),
    "single": (pa.float32(), st.floats(width=32), lambda v: _float(v)),
    "text": (pa.string(), st.text(st.characters(codec="utf-8")), lambda v: v),
    "raw": (pa.binary(), st.binary(), lambda v: base64.b64encode(v).decode()),
    "day": (pa.date32(), st.dates(), lambda v: v.isoformat()),
    "at": (
        pa.timestamp("us", "UTC"),
        MOMENTS,
        lambda v: v.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z",
    ),
    "money": (
        pa.decimal128(38, 10),
        st.decimals("-1e27", "1e27", places=10),
        lambda v: format(v, "f"),
    ),
}


def _float(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    rows = draw(st.integers(0, 5))
    columns = {
        name: pa.array(
            draw(st.lists(st.one_of(st.none(), COLUMNS[name][1]), min_size=rows, max_size=rows)),
            COLUMNS[name][0],
        )
        for name in names
    }
    return pa.table(columns)


def _expected(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {name: None if v is None else COLUMNS[name][2](v) for name, v in row.items()}
        for row in table.to_pylist()
    ]


def _encode(table: pa.Table, media_type: str, cursor: str | None = None) -> bytes:
    answer = Answer(table.schema, table.to_batches(), FRESHNESS, cursor)
    return encode(answer, media_type)[1]


def _same(given: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return given == expected and math.copysign(1, given) == math.copysign(1, expected)
    return type(given) is type(expected) and given == expected


def _assert_same(given: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [list(row) for row in given] == [list(row) for row in expected]
    for given_row, row in zip(given, expected, strict=True):
        for name, value in row.items():
            got = given_row[name]
            if name == "single" and isinstance(value, float):
                got = pa.scalar(got, pa.float32()).as_py()
            assert _same(got, value), (name, got, value)


@settings(max_examples=80, deadline=None)
@given(tables())
def test_json_and_ndjson_hold_every_value_exactly(table: pa.Table) -> None:
    expected = _expected(table)
    document = json.loads(_encode(table, JSON, "next"))
    _assert_same(document["rows"], expected)
    assert document["next_cursor"] == "next"
    assert document["freshness"] == {
        "tick": 3,
        "committed_at": "1970-01-01T00:00:01.000000Z",
        "complete_up_to": None,
        "pending_events": 5,
        "missing_events": 2,
        "silent_producers": ["sensör-7"],
        "text": "nothing final yet; 2 events missing; sensör-7 silent for 4 min",
    }
    lines = _encode(table, NDJSON).decode().split("\n")
    assert lines.pop() == ""
    _assert_same([json.loads(line) for line in lines], expected)


def _csv_fields(line: str) -> list[str | None]:
    """An own reader of RFC 4180, which keeps apart what csv.reader does not: "" and nothing."""
    fields: list[str | None] = []
    position = 0
    while True:
        if line[position : position + 1] == '"':
            end = position + 1
            while line[end] != '"' or line[end : end + 2] == '""':
                end += 2 if line[end] == '"' else 1
            fields.append(line[position + 1 : end].replace('""', '"'))
            position = end + 1
        else:
            end = line.find(",", position)
            end = len(line) if end < 0 else end
            fields.append(line[position:end] or None)
            position = end
        if position >= len(line):
            return fields
        assert line[position] == ","
        position += 1
        if position == len(line):
            return [*fields, None]


@settings(max_examples=80, deadline=None)
@given(tables())
def test_csv_holds_every_value_and_keeps_null_apart_from_empty(table: pa.Table) -> None:
    body = _encode(table, CSV).decode()
    read = list(csv.reader(io.StringIO(body, newline="")))
    assert read[0] == table.column_names
    for row, fields in zip(_expected(table), read[1:], strict=True):
        for (name, value), field in zip(row.items(), fields or [""], strict=True):
            if value is None:
                assert field == ""
            elif isinstance(value, bool):
                assert field == ("true" if value else "false")
            elif isinstance(value, float):
                got = float(field)
                assert (pa.scalar(got, pa.float32()).as_py() if name == "single" else got) == value
            else:
                assert field == str(value)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(LINE_CHARACTERS))))
def test_csv_reads_back_to_the_same_texts_and_nulls(texts: list[str | None]) -> None:
    table = pa.table({"n": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})
    lines = _encode(table, CSV).decode().split("\r\n")
    assert lines.pop() == ""
    assert [_csv_fields(line)[1] for line in lines[1:]] == texts


@settings(max_examples=50, deadline=None)
@given(tables())
def test_arrow_is_the_very_table(table: pa.Table) -> None:
    read = pa.ipc.open_stream(_encode(table, ARROW)).read_all()
    assert read.schema == table.schema
    assert repr(read.to_pylist()) == repr(table.to_pylist())


def test_nested_and_rare_values_in_json() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    table = pa.table(
        {
            "list": pa.array([[Decimal("1.50"), None]], pa.list_(pa.decimal128(10, 2))),
            "struct": pa.array(
                [{"at": moment, "raw": b"x", "bad": float("nan")}],
                pa.struct(
                    [
                        ("at", pa.timestamp("us", "UTC")),
                        ("raw", pa.binary()),
                        ("bad", pa.float64()),
                    ]
                ),
            ),
            "map": pa.array([[(date(2026, 1, 1), 1)]], pa.map_(pa.date32(), pa.int64())),
            "choice": pa.array(["a"]).dictionary_encode(),
            "nothing": pa.nulls(1),
            "nanoseconds": pa.array([1_000_000_001], pa.timestamp("ns")),
            "seconds": pa.array([1], pa.timestamp("s")),
            "elapsed": pa.array([timedelta(seconds=1)], pa.duration("us")),
        }
    )
    (row,) = json.loads(_encode(table, JSON))["rows"]
    assert row == {
        "list": ["1.50", None],
        "struct": {"at": "2026-01-01T00:00:00.000000Z", "raw": "eA==", "bad": "NaN"},
        "map": [{"key": "2026-01-01", "value": 1}],
        "choice": "a",
        "nothing": None,
        "nanoseconds": "1970-01-01T00:00:01.000000001Z",
        "seconds": "1970-01-01T00:00:01.000000Z",
        "elapsed": "PT1S",
    }
    fields = next(csv.reader(_encode(table, CSV).decode().split("\r\n")[1:]))
    assert fields[:2] == ['["1.50",null]', json.dumps(row["struct"], separators=(",", ":"))]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((0, 0, 3 * 10**9), "PT3S"),
        ((0, 0, 0), "PT0S"),
        ((14, 3, 14_706_789_000_000), "P1Y2M3DT4H5M6.789S"),
        ((0, 0, -5_400 * 10**9), "PT-1H-30M"),
        ((1, -2, 1), "P1M-2DT0.000000001S"),
        ((-12, 0, 0), "P-1Y"),
        ((0, 0, -500_000_000), "PT-0.5S"),
        ((0, 40, 0), "P40D"),
    ],
)
def test_intervals_are_iso_8601_durations(value: tuple[int, int, int], text: str) -> None:
    kind = pa.month_day_nano_interval()
    intervals = [pa.MonthDayNano(value), None]
    table = pa.table(
        {"one": pa.array(intervals, kind), "all": pa.array([intervals, None], pa.list_(kind))}
    )
    rows = json.loads(_encode(table, JSON))["rows"]
    assert rows == [{"one": text, "all": [text, None]}, {"one": None, "all": None}]
    assert _encode(table.select(["one"]), CSV).decode() == f"one\r\n{text}\r\n\r\n"


def test_large_answers_are_written_in_pieces() -> None:
    table = pa.table({"n": pa.array(range(20_000))})
    rows = json.loads(_encode(table, JSON))["rows"]
    assert [row["n"] for row in rows] == list(range(20_000))
    assert _encode(table, NDJSON).count(b"\n") == 20_000
    assert _encode(table, CSV).count(b"\r\n") == 20_001


def test_column_names_are_escaped() -> None:
    table = pa.table({'a"b,c': pa.array([1])})
    assert json.loads(_encode(table, JSON))["rows"] == [{'a"b,c': 1}]
    assert _encode(table, CSV) == b'"a""b,c"\r\n1\r\n'


def test_two_columns_of_one_name_are_no_json() -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    for media_type in (JSON, NDJSON):
        with pytest.raises(QueryError, match="'a'"):
            _encode(table, media_type)
    assert _encode(table, CSV) == b"a,a\r\n1,2\r\n"


@given(st.text(max_size=40))
def test_any_accept_is_a_format_or_406(accept: str) -> None:
    try:
        chosen: str | int = choose(accept)
    except RequestError as error:
        chosen = error.status
    assert chosen in (JSON, NDJSON, CSV, ARROW, 406)
