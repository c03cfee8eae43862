"""Records of a changelog: the fast path, the path by the book and Arrow judge them alike."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile import parse_sql
from headrace.formats.arrow_stream import ArrowDecoder
from headrace.formats.changes import as_delete
from headrace.formats.json_batch import LINES_CUT_MIN, JsonDecoder

CUSTOMERS, PRICES = parse_sql(
    """
    CREATE TABLE customers (
      id STRING PRIMARY KEY, name STRING, tier STRING NOT NULL, spent DECIMAL(10, 2),
      tags ARRAY<STRING>
    );
    CREATE TABLE prices (
      model STRING PRIMARY KEY, price DECIMAL(12, 6), start TIMESTAMP, version BIGINT
    ) SEQUENCE BY version WITH HISTORY VALID FROM start;
    """
).streams
DECODER = JsonDecoder(CUSTOMERS, line_bytes_max=4_096, nesting_max=8)
NAMES = [column.name for column in CUSTOMERS.columns]
OPERATIONS = [None, "upsert", "delete", "Delete", "", 1]

Row = dict[str, Any]


def expected(row: Row) -> Row | None:
    """What is stored of the row; None for a dead letter."""
    operation = row.get("_op")
    if operation not in (None, "upsert", "delete") or row.get("id") is None:
        return None
    if operation == "delete":
        return {**dict.fromkeys(NAMES), "id": row["id"], "_op": "delete"}
    return None if row.get("tier") is None else {**dict.fromkeys(NAMES), **row}


rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from([None, "a", "b", "c"]),
            "name": st.sampled_from([None, "x", "é"]),
            "tier": st.sampled_from([None, "gold"]),
            "tags": st.sampled_from([None, [], ["x", None]]),
            "_op": st.sampled_from(OPERATIONS),
        },
    ),
    max_size=30,
)


def decoded(batches: list[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


@given(rows)
@settings(max_examples=300, deadline=None)
def test_json_is_judged_as_the_rules_say(given_rows: list[Row]) -> None:
    found = DECODER.decode([json.dumps(row).encode() for row in given_rows])
    wanted = [expected(row) for row in given_rows]
    assert decoded(found.batches) == [row for row in wanted if row is not None]
    assert [place for place, _ in found.rejected] == [i for i, row in enumerate(wanted) if not row]


def arrow_body(given_rows: list[Row], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(given_rows, schema=schema))
    return sink.getvalue()


@given(rows.map(lambda them: [row for row in them if row.get("_op") != 1]))
@settings(max_examples=200, deadline=None)
def test_arrow_is_judged_as_json_is(given_rows: list[Row]) -> None:
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in CUSTOMERS.columns])
    found, count, raws = ArrowDecoder(CUSTOMERS).decode(arrow_body(given_rows, schema), 1_000)
    wanted = [expected(row) for row in given_rows]
    assert count == len(given_rows)
    assert decoded(found.batches) == [row for row in wanted if row is not None]
    places = [i for i, row in enumerate(wanted) if not row]
    assert [place for place, _ in found.rejected] == places
    assert [json.loads(raws[place]).get("id") for place in places] == [
        given_rows[place].get("id") for place in places
    ]


def test_what_a_delete_says_beside_its_key_is_not_looked_at() -> None:
    record = b'{"id":"a","spent":"much","tags":7,"_op":"delete"}'
    found = DECODER.decode([record] * 20)
    assert not found.rejected
    assert decoded(found.batches) == [expected({"id": "a", "_op": "delete"})] * 20
    schema = pa.schema(
        [("id", pa.string()), ("spent", pa.decimal128(9, 3)), ("_op", pa.large_string())]
    )
    body = arrow_body([{"id": "a", "spent": Decimal("1.259"), "_op": "delete"}], schema)
    taken, _, _ = ArrowDecoder(CUSTOMERS).decode(body, 10)
    assert not taken.rejected
    assert decoded(taken.batches) == [expected({"id": "a", "_op": "delete"})]


REASONS = {
    '{"id":"a","tier":"x","_op":"Delete"}': "column _op STRING: expected upsert or delete, "
    'got "Delete"',
    '{"id":"a","tier":"x","_op":5}': "column _op STRING: expected upsert or delete, got 5",
    '{"id":"a"}': "column tier STRING NOT NULL: is missing",
    '{"id":"a","Tier":"x"}': "column tier STRING NOT NULL: is missing; there is a field Tier: "
    "names are matched exactly",
    '{"id":"a","tier":null}': "column tier STRING NOT NULL: is null",
    '{"id":null,"_op":"delete"}': "column id STRING NOT NULL: is null",
    '{"tier":"x"}': "column id STRING NOT NULL: is missing",
    '{"id":"a","_op":"upsert","_op":"delete"}': "column _op: given twice",
    '{"id":1,"_op":"delete"}': "column id STRING: expected a string, got 1",
}


@pytest.mark.parametrize("record", REASONS)
def test_a_dead_letter_says_what_is_wrong(record: str) -> None:
    assert DECODER.decode([record.encode()]).rejected == [(0, REASONS[record])]


def test_an_arrow_row_says_what_is_wrong() -> None:
    schema = pa.schema([("id", pa.string()), ("tier", pa.string()), ("_op", pa.string())])
    given_rows = [
        {"id": "a", "tier": "x", "_op": "remove"},
        {"id": "a"},
        {"tier": "x"},
        {"_op": "delete"},
        {"id": "a", "tier": "x"},
    ]
    found, _, _ = ArrowDecoder(CUSTOMERS).decode(arrow_body(given_rows, schema), 10)
    assert found.rejected == [
        (0, "column _op STRING: expected upsert or delete, got remove"),
        (1, "column tier STRING NOT NULL: is null or missing"),
        (2, "column id STRING NOT NULL: is null or missing"),
        (3, "column id STRING NOT NULL: is null or missing"),
    ]


@pytest.mark.parametrize("operation", ["", ',"_op":"upsert"', ',"_op":"delete"'])
def test_lines_written_alike_are_cut_and_judged(operation: str) -> None:
    """As many as the vector path takes at once."""
    lines = [f'{{"id":"{n}","name":"n{n}","tier":"gold"{operation}}}' for n in range(LINES_CUT_MIN)]
    batch = DECODER.decode_lines("\n".join(lines).encode(), len(lines))
    assert batch is not None
    assert batch.to_pylist() == [expected(json.loads(line)) for line in lines]
    for wrong in ('"tier":null', '"tier":"gold","_op":"Delete"'):
        lines[7] = f'{{"id":"7","name":"n7",{wrong}}}'
        assert DECODER.decode_lines("\n".join(lines).encode(), len(lines)) is None


def test_a_record_that_says_its_operation_keeps_it() -> None:
    assert as_delete(b'{"id":"a"}') == b'{"_op":"delete","id":"a"}'
    assert as_delete(b"{}") == b'{"_op":"delete"}'
    assert as_delete(b'{"id":"a","_op":"upsert"}') == b'{"id":"a","_op":"upsert"}'
    assert json.loads(as_delete(b'{"id":"a","_op":null}')) == {"id": "a", "_op": "delete"}
    assert as_delete(b"[1]") == b"[1]"


def test_a_delete_of_a_sequenced_table_says_its_place_too() -> None:
    """And may say from when it is valid; its price does not count."""
    at = "2026-01-01T00:00:00Z"
    given_rows = [
        {"model": "a", "price": "1.5", "start": at, "version": 7, "_op": "delete"},
        {"model": "a", "version": 8, "_op": "delete"},
        {"model": "a", "_op": "delete"},
        {"model": "a"},
    ]
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    nothing = {"price": None, "start": None, "version": None, "_op": None}
    wanted = [
        {"model": "a", "price": None, "start": moment, "version": 7, "_op": "delete"},
        {**nothing, "model": "a", "version": 8, "_op": "delete"},
        {**nothing, "model": "a"},
    ]
    decoder = JsonDecoder(PRICES, line_bytes_max=4_096, nesting_max=8)
    lines = [json.dumps(row).encode() for row in given_rows]
    reason = "column version BIGINT SEQUENCE BY, needed by a delete: is"
    for times in (1, 10):  # one by one, and many at once
        found = decoder.decode(lines * times)
        assert decoded(found.batches) == wanted * times
        assert found.rejected == [(4 * n + 2, f"{reason} missing") for n in range(times)]
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in PRICES.columns])
    typed = [
        {**row, "price": Decimal(row["price"]), "start": moment} if "price" in row else row
        for row in given_rows
    ]
    found, _, _ = ArrowDecoder(PRICES).decode(arrow_body(typed, schema), 10)
    assert decoded(found.batches) == wanted
    assert found.rejected == [(2, f"{reason} null or missing")]
