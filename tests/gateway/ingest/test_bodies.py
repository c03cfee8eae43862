"""Every kind of body a client may send, through the real server into the real log."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

Transaction = Callable[..., dict[str, Any]]


def zstd(body: bytes) -> bytes:
    sink = io.BytesIO()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(body)
        stream.flush()
        return sink.getvalue() + b""


def zstd_whole(body: bytes) -> bytes:
    compressed: bytes = pa.Codec("zstd").compress(body, asbytes=True)
    return compressed


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def lines(events: list[dict[str, Any]], end: str = "\n") -> bytes:
    return end.join(json.dumps(event) for event in events).encode()


ENCODED: dict[str, tuple[Callable[[list[dict[str, Any]]], bytes], dict[str, str]]] = {
    "array": (lambda e: json.dumps(e).encode(), {"content-type": "application/json"}),
    "pretty array": (lambda e: json.dumps(e, indent=2).encode(), {}),
    "ndjson": (lines, {"content-type": "application/x-ndjson"}),
    "ndjson as json": (lines, {"content-type": "application/json; charset=utf-8"}),
    "ndjson with last newline": (lambda e: lines(e) + b"\n", {}),
    "ndjson with blank lines": (lambda e: b"\n\n" + lines(e, "\n\n") + b"\n \n", {}),
    "ndjson with crlf": (lambda e: lines(e, "\r\n"), {"content-type": "application/x-ndjson"}),
    "ndjson with byte order mark": (lambda e: b"\xef\xbb\xbf" + lines(e), {}),
    "as curl sends it": (lines, {"content-type": "application/x-www-form-urlencoded"}),
    "gzip": (lambda e: gzip.compress(lines(e)), {"content-encoding": "gzip"}),
    "gzip in two members": (
        lambda e: gzip.compress(lines(e[:2]) + b"\n") + gzip.compress(lines(e[2:])),
        {"content-encoding": "gzip"},
    ),
    "zstd": (lambda e: zstd_whole(lines(e)), {"content-encoding": "zstd"}),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_many_events(shared_gateway: Any, make_transaction: Transaction, kind: str) -> None:
    encode, headers = ENCODED[kind]
    marker = f"bodies {kind}"
    events = [make_transaction(n, status=marker) for n in range(20)]
    answer = shared_gateway.send(encode(events), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "accepted": 20,
        "quarantined": 0,
        "errors": [],
        "errors_truncated": False,
        "covers": answer.headers["headrace-covers"],
    }
    stored = [row for row in shared_gateway.stored() if row["status"] == marker]
    assert sorted(row["id"] for row in stored) == sorted(event["id"] for event in events)
    one = next(row for row in stored if row["id"] == "t3")
    assert one["amount"] == Decimal("3.50")
    assert one["created_at"] == datetime(2026, 1, 1, tzinfo=UTC)
    partitions = {row["user_id"]: row["_partition"] for row in stored}
    assert all(row["_partition"] == partitions[row["user_id"]] for row in stored)


@pytest.mark.parametrize("indent", [None, 2])
def test_one_object(shared_gateway: Any, make_transaction: Transaction, indent: int | None) -> None:
    marker = f"one object {indent}"
    body = json.dumps(make_transaction(1, status=marker), indent=indent).encode()
    assert shared_gateway.send(body).json()["accepted"] == 1
    assert [row["status"] for row in shared_gateway.stored()].count(marker) == 1


def test_every_type_comes_back_as_it_was_sent(shared_gateway: Any) -> None:
    event = {
        "flag": True, "tiny": -128, "small": 32767, "whole": -1, "big": 2**63 - 1, "single": 0.5,
        "number": "NaN", "price": "1234567.890", "name": "é😀", "octets": "aGk=",
        "day": "2026-02-28", "moment": "2026-01-01T01:30:00.25+01:30", "numbers": [1, None, 3],
        "place": {"city": "Ulm", "since": "1999-12-31", "tags": ["a", None], "zip": "ignored"},
        "ignored": {"deep": [1, {"x": []}]},
    }  # fmt: skip
    assert shared_gateway.send(event, "everything").json()["accepted"] == 1
    row = shared_gateway.stored("everything")[0]
    assert row["number"] != row["number"]
    expected = {
        "flag": True, "tiny": -128, "small": 32767, "whole": -1, "big": 2**63 - 1, "single": 0.5,
        "price": Decimal("1234567.890"), "name": "é😀", "octets": b"hi", "day": date(2026, 2, 28),
        "moment": datetime(2026, 1, 1, 0, 0, 0, 250000, tzinfo=UTC), "numbers": [1, None, 3],
        "place": {"city": "Ulm", "since": date(1999, 12, 31), "tags": ["a", None]},
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def arrow_table(count: int, marker: str, **changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "id": pa.array([f"a{n}" for n in range(count)]),
        "user_id": pa.array(["u"] * count, pa.large_string()),
        "amount": pa.array(range(count), pa.int32()),
        "status": pa.array([marker] * count),
        "created_at": pa.array([0] * count, pa.timestamp("ms")),
        "extra": pa.array([1.5] * count),
    }
    return pa.table({**columns, **changes})


ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def test_arrow_stream(shared_gateway: Any) -> None:
    body = arrow_stream(arrow_table(10, "arrow"))
    answer = shared_gateway.send(body, headers=ARROW)
    assert answer.json()["accepted"] == 10, answer.text
    stored = [row for row in shared_gateway.stored() if row["status"] == "arrow"]
    assert sorted(row["amount"] for row in stored) == [Decimal(n) for n in range(10)]
    assert {row["currency"] for row in stored} == {None}


def test_arrow_rows_that_do_not_fit_are_quarantined_alone(shared_gateway: Any) -> None:
    amounts = pa.array([Decimal("1.00"), Decimal("1.001"), None], pa.decimal128(20, 3))
    body = arrow_stream(arrow_table(3, "arrow rows", amount=amounts))
    answer = shared_gateway.send(body, headers=ARROW).json()
    assert (answer["accepted"], answer["quarantined"]) == (1, 2)
    assert [error["position"] for error in answer["errors"]] == [1, 2]
    assert "amount" in answer["errors"][0]["reason"]
    assert "NOT NULL" in answer["errors"][1]["reason"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"not arrow at all", 400, "bad-framing"),
        (arrow_stream(arrow_table(5, "x"))[:-200], 400, "bad-framing"),
        (arrow_stream(arrow_table(5, "x"), compression="zstd"), 415, "unsupported-encoding"),
        (
            arrow_stream(arrow_table(2, "x", id=pa.array(["a", "b"]).dictionary_encode())),
            422,
            "bad-schema",
        ),
        (arrow_stream(arrow_table(2, "x", id=pa.array([1, 2]))), 422, "bad-schema"),
    ],
)
def test_arrow_that_is_refused(shared_gateway: Any, body: bytes, status: int, code: str) -> None:
    answer = shared_gateway.send(body, headers=ARROW)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_damaged_arrow_never_harms_the_gateway(shared_gateway: Any) -> None:
    whole = arrow_stream(arrow_table(50, "damaged"))
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        answer = shared_gateway.send(bytes(damaged), headers=ARROW)
        assert answer.status_code in (200, 400, 413, 415, 422), answer.text
    assert shared_gateway.client.get("/healthz").status_code == 200


def envelope(data: Any, **changes: Any) -> dict[str, Any]:
    outside = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "paid", "data": data}
    return {key: value for key, value in {**outside, **changes}.items() if value is not None}


def test_structured_cloudevent(shared_gateway: Any, make_transaction: Transaction) -> None:
    data = make_transaction(1, status="structured")
    del data["created_at"]
    body = envelope(data, time="2026-03-01T00:00:00Z", id="structured")
    headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
    first = shared_gateway.send(body, headers=headers)
    again = shared_gateway.send(body, headers=headers)
    assert first.json()["accepted"] == 1
    assert again.headers["headrace-retried"] == "true"
    assert again.content == first.content
    stored = [row for row in shared_gateway.stored() if row["status"] == "structured"]
    assert [row["created_at"] for row in stored] == [datetime(2026, 3, 1, tzinfo=UTC)]


def test_cloudevents_batch(shared_gateway: Any, make_transaction: Transaction) -> None:
    good = make_transaction(1, status="batch")
    encoded = base64.b64encode(json.dumps(good, indent=1).encode()).decode()
    body = [
        envelope(good),
        envelope(None, data_base64=encoded),
        envelope(good, specversion="0.3"),
        envelope(good, id=None),
        envelope({**good, "amount": "many"}),
        envelope(good, datacontenttype="text/xml"),
        7,
    ]
    headers = {"content-type": "application/cloudevents-batch+json"}
    answer = shared_gateway.send(body, headers=headers).json()
    assert (answer["accepted"], answer["quarantined"]) == (2, 5)
    assert [error["position"] for error in answer["errors"]] == [2, 3, 4, 5, 6]
    assert len([r for r in shared_gateway.stored() if r["status"] == "batch"]) == 2


def test_binary_cloudevent(shared_gateway: Any, make_transaction: Transaction) -> None:
    data = make_transaction(1, status="binary")
    del data["created_at"]
    headers = {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "binary-1",
        "ce-source": "/shop",
        "ce-type": "paid",
        "ce-time": "2026-04-01T00:00:00Z",
    }
    assert shared_gateway.send(data, headers=headers).json()["accepted"] == 1
    assert shared_gateway.send(data, headers=headers).headers["headrace-retried"] == "true"
    stored = [row for row in shared_gateway.stored() if row["status"] == "binary"]
    assert [row["created_at"] for row in stored] == [datetime(2026, 4, 1, tzinfo=UTC)]
    del headers["ce-id"]
    refused = shared_gateway.send(data, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad-cloudevent")


def test_a_bad_record_does_not_take_its_neighbours_with_it(
    shared_gateway: Any, make_transaction: Transaction
) -> None:
    records = [json.dumps(make_transaction(n, status="neighbours")).encode() for n in range(500)]
    bad = {
        0: (b"not json", "not JSON"),
        7: (b'{"id":"x"}', "user_id STRING NOT NULL: is missing"),
        100: (json.dumps(make_transaction(1, amount=1.234)).encode(), "amount DECIMAL(18,2)"),
        101: (json.dumps(make_transaction(1, created_at=1767225600)).encode(), "epoch"),
        200: (records[5] + records[6], "Extra data"),
        300: (b"[1]", "expected a JSON object"),
        301: (b'{"id":"\xff"}', "not UTF-8"),
        499: (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper"),
    }
    for position, (raw, _) in bad.items():
        records[position] = raw
    answer = shared_gateway.send(b"\n".join(records)).json()
    assert (answer["accepted"], answer["quarantined"]) == (492, 8)
    assert [error["position"] for error in answer["errors"]] == sorted(bad)
    for error in answer["errors"]:
        assert bad[error["position"]][1] in error["reason"]
    letters = shared_gateway.client.get("/v1/deadletters?limit=1000").json()["deadletters"]
    by_position = {letter["position"]: letter for letter in letters[-8:]}
    assert by_position[0]["raw"] == "not json"
    assert base64.b64decode(by_position[301]["raw_base64"]) == bad[301][0]


def test_reasons_say_what_to_do(shared_gateway: Any, make_transaction: Transaction) -> None:
    event = make_transaction(1)
    event["Amount"] = event.pop("amount")
    reason = shared_gateway.send(event).json()["errors"][0]["reason"]
    assert reason == (
        "column amount DECIMAL(18,2) NOT NULL: is missing; there is a field Amount: "
        "names are matched exactly"
    )
    del event["Amount"]
    reason = shared_gateway.send(event).json()["errors"][0]["reason"]
    assert reason == "column amount DECIMAL(18,2) NOT NULL: is missing"
    glued = json.dumps(make_transaction(1)).encode() * 3
    (error,) = shared_gateway.send(glued).json()["errors"]
    assert error["reason"].startswith("not JSON: Extra data at character ")
    assert "--data-binary" in error["reason"]
    (error,) = shared_gateway.send(b'{"id":"1"} x').json()["errors"]
    assert error["reason"] == "not JSON: Extra data at character 11"


def test_errors_are_listed_up_to_a_hundred(shared_gateway: Any) -> None:
    answer = shared_gateway.send(b"\n".join([b"x"] * 150)).json()
    assert (answer["accepted"], answer["quarantined"]) == (0, 150)
    assert len(answer["errors"]) == 100
    assert answer["errors_truncated"] is True


def test_an_empty_array_is_no_event_and_no_fault(shared_gateway: Any) -> None:
    assert shared_gateway.send(b"[]").json()["accepted"] == 0


def test_without_partition_by_requests_take_turns(shared_gateway: Any) -> None:
    for _ in range(3):
        assert shared_gateway.send([{"text": "turns"}] * 5, "notes").json()["accepted"] == 5
    rows = [row["_partition"] for row in shared_gateway.stored("notes") if row["text"] == "turns"]
    assert sorted(rows) == [0] * 5 + [1] * 5 + [2] * 5
