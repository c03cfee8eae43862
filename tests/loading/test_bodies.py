"""Texts of a file become typed columns only where the decoder of JSON records says the same."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile import parse_sql
from headrace.formats.arrow_stream import ArrowDecoder
from headrace.formats.json_batch import JsonDecoder
from headrace.loading.bodies import ARROW, NDJSON, body_of
from headrace.loading.files import Piece

TYPES = ("BOOLEAN", "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(6, 2)", "STRING",
         "BINARY", "DATE", "TIMESTAMP", "ARRAY<INT>", "STRUCT<a: INT>")  # fmt: skip
TEXTS = [
    "0", "-0", "1", "-1", "007", "+1", "1.", ".5", "127", "128", "2147483648", "1.5", "1.50",
    "9223372036854775808", "1.505", "1e2", "1e-400", "NaN", "Infinity", "inf", "true", "True",
    "TRUE", "false", "t", "F", "1.0", "null", "aGk=", "aGk", "2026-01-31", "2026-02-30",
    "0000-01-01", "2026-01-31T12:00:00", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.1234567",
    "2026-01-31T12:00+02", "[1,2]", "[1", '{"a":1}', "{}", "x", "é", "", " 1",
    "2026-01-31 12:00:00", "2026-01-31 12:00:00.25+00",
]  # fmt: skip
texts = st.one_of(st.sampled_from(TEXTS), st.integers().map(str), st.text(max_size=5), st.none())


def table_of(data_type: str) -> Any:
    (table,) = parse_sql(f"CREATE TABLE t (id INT PRIMARY KEY, c {data_type})").streams
    return table


def piece_of(values: list[str | None]) -> Piece:
    columns = {
        "id": pa.array([str(n) for n in range(len(values))], pa.string()),
        "c": pa.array(values, pa.string()),
    }
    return Piece(pa.RecordBatch.from_pydict(columns), 0)


def taken(table: Any, content: bytes, content_type: str) -> list[dict[str, Any]]:
    if content_type == ARROW:
        decoded, _, _ = ArrowDecoder(table).decode(content, 1_000)
        assert not decoded.rejected
    else:
        json_decoder = JsonDecoder(table, line_bytes_max=4_096, nesting_max=8)
        decoded = json_decoder.decode(content.split(b"\n"))
    return [row for batch in decoded.batches for row in batch.to_pylist()]


@pytest.mark.parametrize("data_type", TYPES)
@given(values=st.lists(texts, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_typed_body_says_what_the_same_rows_say_as_json(
    data_type: str, values: list[str | None]
) -> None:
    table = table_of(data_type)
    body = body_of(piece_of(values), table)
    if body.content_type == NDJSON:
        return
    odd = ["no such value", None]  # makes the whole piece one of JSON
    whole = body_of(piece_of(values + odd), table)
    if whole.content_type == NDJSON:
        lines = whole.content.split(b"\n")[: len(values)]
        assert repr(taken(table, b"\n".join(lines), NDJSON)) == repr(
            taken(table, body.content, ARROW)
        )


PLAIN = {
    "BOOLEAN": (["true", "F", "1", None], [True, False, True, None]),
    "INT": (["1", "-2", None], [1, -2, None]),
    "DOUBLE": (["1.5", "2e3", None], [1.5, 2000.0, None]),
    "STRING": (["x", "", None], ["x", "", None]),
    "BINARY": (["aGk=", None], [b"hi", None]),
}


@pytest.mark.parametrize("data_type", PLAIN)
def test_plain_values_are_typed_at_once(data_type: str) -> None:
    values, wanted = PLAIN[data_type]
    body = body_of(piece_of(values), table_of(data_type))
    assert body.content_type == ARROW
    found = taken(table_of(data_type), body.content, ARROW)
    assert [row["c"] for row in found] == wanted


@pytest.mark.parametrize(
    ("data_type", "text", "written"),
    [
        ("BIGINT", "007", '"007"'),
        ("BIGINT", "12", "12"),
        ("DOUBLE", "NaN", '"NaN"'),
        ("BOOLEAN", "yes", '"yes"'),
        ("DECIMAL(6, 2)", "1.505", '"1.505"'),
        ("ARRAY<INT>", "[1,\n2]", "[1, 2]"),
        ("STRUCT<a: INT>", '{"a":1', '"{\\"a\\":1"'),
    ],
)
def test_what_is_not_certain_goes_as_json_for_the_gateway_to_judge(
    data_type: str, text: str, written: str
) -> None:
    table = table_of(data_type)
    others = ["[]"] if "<" in data_type else ["no such value"]  # so that it goes as JSON
    body = body_of(piece_of([text, *others]), table)
    assert body.content_type == NDJSON
    line = body.content.split(b"\n")[0]
    assert line == f'{{"id":0,"c":{written}}}'.encode()
    assert json.loads(line)["id"] == 0
