"""The fast path accepts nothing that the slow path would not, and gives equal values."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.formats import json_batch as decode_json
from headrace.formats.json_batch import LINES_CUT_MIN, JsonDecoder
from headrace.formats.json_record import RecordError
from headrace.model.definitions import Column, Stream
from headrace.model.types import parse_type

TYPES = {
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "whole": "INT",
    "big": "BIGINT",
    "single": "FLOAT",
    "number": "DOUBLE",
    "price": "DECIMAL(10, 3)",
    "huge": "DECIMAL(38, 6)",
    "name": "STRING",
    "octets": "BINARY",
    "day": "DATE",
    "moment": "TIMESTAMP",
    "numbers": "ARRAY<INT>",
    "days": "ARRAY<DATE>",
    "place": "STRUCT<city: STRING, since: DATE, price: DECIMAL(4, 1), at: ARRAY<TIMESTAMP>>",
}
STREAM = Stream("s", tuple(Column(name, parse_type(text)) for name, text in TYPES.items()))
LINE_BYTES_MAX = 4_096
DECODER = JsonDecoder(STREAM, line_bytes_max=LINE_BYTES_MAX, nesting_max=8)

NUMBERS = (  # noqa: SIM905
    "0 -0 1 -1 127 128 -128 -129 32767 32768 2147483647 2147483648 9223372036854775807 "
    "9223372036854775808 -9223372036854775808 1.0 1.5 0.001 0.0005 1.230 9999999.999 99999999.9 "
    "9999999999 1e2 1E+2 1e-3 10e-4 12e-3 1.5e1 1e15 1e16 1e38 3.4028236e38 1e39 1e308 1e309 "
    "1e-400 0.1 123456789012345678901234567890 01 +1 1. .5 1e -"
).split()
TEXTS = [
    "", "x", "true", "1", "+1", "1.", ".5", "001", "1e2", "1.230", "1.2345", " 1", "1_0", "NaN",
    "Infinity", "-Infinity", "Inf", "é", "😀", "\u0000", "aGk=", "aGk", "a*k=", "aGk=\n", "AA==",
    "2026-01-01", "2026-1-1", "2026-02-29", "0000-01-01", "0001-01-01", "9999-12-31",
    "2026-01-01T00", "2026-01-01T00:00", "2026-01-01T00:00:00", "2026-01-01 00:00:00",
    "2026-01-01T00:00:00Z", "2026-01-01t00:00:00z", "2026-01-01T00:00:00.1Z",
    "2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.1234567Z", "2026-01-01T00:00:00.Z",
    "2026-01-01T00:00:00+02:00", "2026-01-01T00:00:00-0530", "2026-01-01T00:00:00+14",
    "2026-01-01T00:00:00+24:00", "2026-01-01T23:59:60Z", "2026-01-01T24:00:00Z",
    "0000-12-31T23:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-10:00", "1960-01-01T00:00:00.5Z", "20260101T000000Z", "2026-01-01Z",
    "1767225600",
]  # fmt: skip
RAW = [
    "null", "true", "false", "NaN", "Infinity", "-Infinity", "Inf", "-Inf", "nan", "[]", "{}",
    "[1]", "[null]", "[1,\"x\"]", "[1,]", '{"city":"x"}', '{"city":null,"zip":1}',
    '{"city":"x","city":"y"}', '{"zip":1,"zip":2}', '{"since":"2026-01-01","price":9.5}',
    '{"price":9.55}', '{"price":12345}', '{"at":["2026-01-01T00:00:00Z",null]}',
    '{"at":["0000-01-01T00:00:00Z"]}', '["2026-01-01",null]', '["2026-13-01"]',
    '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0041"', '"\\x"', '"a\tb"', "[[[[[[[[[1]]]]]]]]]",
    '"' + "x" * LINE_BYTES_MAX + '"',
]  # fmt: skip

numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
)
timestamps = st.builds(
    lambda moment, digits, zone: moment.isoformat() + digits + zone,
    st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    st.sampled_from(["", ".1", ".25", ".999999", ".123456789"]),
    st.sampled_from(["", "Z", "+01:00", "-23:59", "+0530", "-08"]),
)
texts = st.one_of(
    st.sampled_from(TEXTS), st.text(max_size=8), timestamps, numbers, st.dates().map(str)
)
values = st.one_of(
    numbers, texts.map(lambda text: json.dumps(text)), texts.map(lambda t: f'"{t}"'),
    st.sampled_from(RAW),
)  # fmt: skip
names = st.sampled_from([*TYPES, "unknown", "Name", "\\u006eame"])
spaces = st.sampled_from(["", "", "", " ", "\t", "\r"])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(names, values), max_size=4))
    space = draw(spaces)
    inside = f",{space}".join(f'"{name}"{space}:{space}{value}' for name, value in members)
    tail = draw(st.sampled_from(["", "", "", "", "", " ", "{}", "x", ","]))
    head = draw(st.sampled_from(["", "", "", "", " ", "\ufeff", "["]))
    raw = (head + space + "{" + inside + "}" + tail).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 30)) == 0:
        raw = raw.replace(b"x", b"\xff")
    return raw.replace(b"\n", b" ")


def slow(raw: bytes) -> pa.RecordBatch | None:
    try:
        row = DECODER.records.decode(raw)
    except RecordError:
        return None
    return pa.RecordBatch.from_arrays(
        [
            pa.array([value], type=c.type.arrow)
            for value, c in zip(row, STREAM.columns, strict=True)
        ],
        schema=pa.schema([pa.field(c.name, c.type.arrow) for c in STREAM.columns]),
    )


def same(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    """Equal in every bit that counts: -0.0 is not 0.0, NaN is NaN."""
    return repr(left.to_pylist()) == repr(right.to_pylist()) and left.schema == right.schema


@given(records())
@example(b'{"huge":"7.211655568046902e-224"}')
@settings(max_examples=500, deadline=None)
def test_what_the_fast_path_accepts_the_slow_path_accepts_with_equal_values(raw: bytes) -> None:
    fast = DECODER.decode_lines(raw, 1)
    if fast is not None:
        by_the_book = slow(raw)
        assert by_the_book is not None, raw
        assert same(fast, by_the_book), raw


@pytest.mark.parametrize("column", TYPES)
def test_every_known_literal_in_every_column(column: str) -> None:
    literals = [*NUMBERS, *RAW, *(json.dumps(text) for text in TEXTS)]
    literals += [json.dumps(text, ensure_ascii=False) for text in TEXTS]
    accepted = 0
    for literal in literals:
        raw = f'{{"{column}":{literal}}}'.encode()
        by_the_book = slow(raw)
        fast = DECODER.decode_lines(raw, 1)
        accepted += by_the_book is not None
        if fast is not None:
            assert by_the_book is not None, raw
            assert same(fast, by_the_book), raw
    assert accepted > 1  # null is accepted in every column, and so is something else


@given(st.lists(records(), max_size=60))
@settings(max_examples=60, deadline=None)
def test_neighbours_change_nothing(raws: list[bytes]) -> None:
    decoded = DECODER.decode(raws)
    expected = [slow(raw) for raw in raws]
    assert [p for p, _ in sorted(decoded.rejected)] == [
        position for position, batch in enumerate(expected) if batch is None
    ]
    accepted = [batch for batch in expected if batch is not None]
    assert sum(batch.num_rows for batch in decoded.batches) == len(accepted)
    if accepted:
        together = pa.Table.from_batches(decoded.batches).combine_chunks().to_batches()[0]
        for row, batch in enumerate(accepted):
            assert same(together.slice(row, 1), batch)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.booleans())
@settings(deadline=None)
def test_decimals_are_exact_or_refused(number: Decimal, is_text: bool) -> None:
    literal = f'"{number}"' if is_text else str(number)
    batch = slow(f'{{"price":{literal}}}'.encode())
    fits = number == 0 or (
        number.adjusted() < 7 and number == number.quantize(Decimal("0.001")) if
        number.adjusted() < 20 else False
    )  # fmt: skip
    if batch is None:
        assert not fits
    else:
        assert fits
        assert batch.column("price")[0].as_py() == number


@pytest.mark.parametrize("column", ["price", "huge", "place"])
def test_digits_far_behind_the_point(column: str) -> None:
    """Every depth: what pyarrow makes of one depends on what lies behind its table."""
    written = [f"{head}e-{depth}" for depth in range(420) for head in ("1", "1.5", "10", "0")]
    written += [f"0.{'0' * depth}1" for depth in range(300)]
    written += [f"1.{'0' * depth}" for depth in range(1, 300)]
    written += [f"0.{'0' * depth}1e-{depth}" for depth in range(40)]
    written += ["1\\u0065-45", "1e\\u002d45", "1e-4\\u0035", "0\\u002e" + "0" * 44 + "1"]
    for text in written:
        for literal in (text, f'"{text}"'):
            value = f'{{"price":{literal}}}' if column == "place" else literal
            raw = f'{{"{column}":{value}}}'.encode()
            fast, by_the_book = DECODER.decode_lines(raw, 1), slow(raw)
            if fast is not None:
                assert by_the_book is not None, raw
                assert same(fast, by_the_book), raw


def test_identifiers_are_not_taken_for_digits_far_behind_the_point() -> None:
    """Else a stream of UUIDs and prices would be decoded record by record."""
    name = "8f33e-41d2-413e-9927-1234567890ab"
    assert DECODER.decode_lines(f'{{"name":"{name}","number":1.5e-18,"price":2}}'.encode(), 1)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"unknown":NaN}',
        b'{"unknown":[1,-Inf]}',
        b'{"unknown":{"a": Infinity}}',
        b'{"unknown":"\xff"}',
        b'{"\xff":1}',
        b'{"name":"\xed\xa0\x80"}',
        b'{"name":"a"}{"name":"b"}',
        b'{"unknown":' + b"[" * 9 + b"]" * 9 + b"}",
        b'{"unknown":"' + b"x" * LINE_BYTES_MAX + b'"}',
    ],
)
def test_what_pyarrow_would_let_pass_is_refused_alone_and_among_others(raw: bytes) -> None:
    assert slow(raw) is None
    assert DECODER.decode_lines(raw, 1) is None
    good = b'{"name":"Na In"}'
    decoded = DECODER.decode([good] * 20 + [raw] + [good] * 20)
    assert [position for position, _ in decoded.rejected] == [20]
    assert sum(batch.num_rows for batch in decoded.batches) == 40


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"whole":1}{"whole":2}', b'{"whole":3', b',"big":1}'],
        [b'{"whole":1} {"whole":2}', b'{"place":', b'{"city":"x"}}'],
        [b'{"whole":1},', b'{"whole":2}'],
    ],
)
def test_as_many_rows_as_lines_does_not_mean_one_each(lines: list[bytes]) -> None:
    together = [b'{"whole":0}'] * 10 + lines
    assert DECODER.decode_lines(b"\n".join(together), len(together)) is None
    decoded = DECODER.decode(together)
    expected = [p for p, raw in enumerate(together) if slow(raw) is None]
    assert [position for position, _ in decoded.rejected] == expected


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> JsonDecoder:
    """A decoder that tries to cut blocks of any size, and never leaves one out."""
    monkeypatch.setattr(decode_json, "LINES_CUT_MIN", 1)
    monkeypatch.setattr(decode_json, "CUTS_LEFT_OUT", 0)
    return JsonDecoder(STREAM, line_bytes_max=LINE_BYTES_MAX, nesting_max=8)


@st.composite
def blocks_written_alike(draw: st.DrawFn) -> list[bytes]:
    """Lines of one shape, with values of all kinds; sometimes one line is of another shape."""
    space, gap = draw(st.sampled_from([("", ""), ("", " "), (" ", " ")]))
    members = draw(st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=4))
    quoted = st.sampled_from(TEXTS) | timestamps | numbers
    bare = numbers | st.sampled_from(["null", "true", "false", "NaN", "-Inf", "[]", "{}", "1 2"])
    lines = []
    for _ in range(draw(st.integers(2, 5))):
        written = [
            f'"{name}"{space}:{gap}' + (f'"{draw(quoted)}"' if is_quoted else draw(bare))
            for name, is_quoted in members
        ]
        lines.append(f"{{{space}{f',{gap}'.join(written)}{space}}}".encode().replace(b"\n", b" "))
    if draw(st.integers(0, 3)) == 0:
        lines[draw(st.integers(0, len(lines) - 1))] = draw(records())
    return lines


@given(blocks_written_alike())
@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_lines_that_are_cut_are_what_they_are_by_the_book(
    cutting: JsonDecoder, lines: list[bytes]
) -> None:
    batch = cutting.decode_lines(b"\n".join(lines), len(lines))
    if batch is not None:
        for row, raw in enumerate(lines):
            by_the_book = slow(raw)
            assert by_the_book is not None, raw
            assert same(batch.slice(row, 1), by_the_book), raw


@pytest.mark.parametrize("column", TYPES)
def test_every_known_literal_in_every_column_of_lines_that_are_cut(
    cutting: JsonDecoder, column: str
) -> None:
    literals = [*NUMBERS, *RAW, *(json.dumps(text, ensure_ascii=False) for text in TEXTS)]
    for first in ('"x"', "0", '"2026-01-01T00:00:00Z"', "true", "1.5"):
        for literal in literals:
            lines = [f'{{"{column}":{value},"unknown":{value}}}' for value in (first, literal)]
            batch = cutting.decode_lines("\n".join(lines).encode(), 2)
            if batch is not None:
                by_the_book = slow(lines[1].encode())
                assert by_the_book is not None, lines
                assert same(batch.slice(1, 1), by_the_book), lines


@pytest.mark.parametrize(
    "line",
    [
        '{{"name":"a{0}","whole":{0},"number":0.{0},"price":"{0}.125"}}',
        '{{ "moment": "2026-01-31T00:{0:02}:00Z", "flag": true, "big": null }}',
        '{{"unknown":"é","octets":"aGk=","price":{0}.5,"other":null,"day":"2026-01-31"}}',
    ],
)
def test_lines_written_alike_are_cut(line: str) -> None:
    decoder = JsonDecoder(STREAM, line_bytes_max=LINE_BYTES_MAX, nesting_max=8)
    lines = [line.format(number % 30) for number in range(LINES_CUT_MIN)]
    block = "\n".join(lines).encode()
    cut = decoder._cut(block, len(lines))
    assert cut is not None
    batch = decoder.decode_lines(block, len(lines))
    assert batch is not None
    for row, raw in enumerate(lines):
        by_the_book = slow(raw.encode())
        assert by_the_book is not None
        assert same(batch.slice(row, 1), by_the_book)


def test_after_lines_that_were_not_alike_the_parser_is_asked_at_once() -> None:
    decoder = JsonDecoder(STREAM, line_bytes_max=LINE_BYTES_MAX, nesting_max=8)
    alike = b"\n".join([b'{"whole":1}'] * LINES_CUT_MIN)
    unlike = b"\n".join([b'{"whole":1}', b'{"whole": 1}'] * (LINES_CUT_MIN // 2))
    assert decoder._cut(unlike, LINES_CUT_MIN) is None
    tried = [decoder._cut(alike, LINES_CUT_MIN) is not None for _ in range(20)]
    assert tried == [False] * decode_json.CUTS_LEFT_OUT + [True] * (20 - decode_json.CUTS_LEFT_OUT)
