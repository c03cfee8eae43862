"""Changes of a table, through the real server into the real log."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.gateway.ingest.partitioning import partition_of_text
from headrace.http.tokens import create_token

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
NONE = {"name": None, "tier": None, "spent": None, "tags": None}


def rows(prefix: str, count: int = 20) -> list[dict[str, Any]]:
    return [{"id": f"{prefix} {n}", "name": f"n{n}", "tier": "gold"} for n in range(count)]


def lines(changes: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(change) for change in changes).encode()


def arrow(changes: list[dict[str, Any]]) -> bytes:
    batch = pa.RecordBatch.from_pylist(changes)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def envelope(change: dict[str, Any]) -> dict[str, Any]:
    return {"specversion": "1.0", "id": change["id"], "source": "/x", "type": "y", "data": change}


Encode = Callable[[list[dict[str, Any]]], bytes]
ENCODED: dict[str, tuple[Encode, dict[str, str]]] = {
    "array": (lambda c: json.dumps(c).encode(), {"content-type": "application/json"}),
    "ndjson": (lines, {"content-type": "application/x-ndjson"}),
    "gzip": (lambda c: gzip.compress(lines(c)), {"content-encoding": "gzip"}),
    "arrow": (arrow, ARROW),
    "cloudevents": (
        lambda c: json.dumps([envelope(change) for change in c]).encode(),
        {"content-type": "application/cloudevents-batch+json"},
    ),
}


def stored(gateway: Any, prefix: str) -> list[dict[str, Any]]:
    """In the order of the log, partition by partition, without the place."""
    found = [row for row in gateway.stored("customers") if row["id"].startswith(prefix)]
    for row in found:
        assert row.pop("_partition") == partition_of_text(row["id"], 2)
        row.pop("_received_at")
    return found


def in_order(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(changes, key=lambda change: change["id"])


@pytest.mark.parametrize("kind", ENCODED)
@pytest.mark.parametrize("how", ["by record", "by parameter"])
def test_upserts_and_deletes_in_every_format(shared_gateway: Any, kind: str, how: str) -> None:
    encode, headers = ENCODED[kind]
    prefix = f"{kind} {how}"
    changes = rows(prefix)
    answer = shared_gateway.change(encode(changes), headers=headers)
    assert answer.json() == {
        "accepted": 20,
        "quarantined": 0,
        "errors": [],
        "errors_truncated": False,
        "covers": answer.headers["headrace-covers"],
    }
    upserts = [{**NONE, **change, "_op": None} for change in changes]
    assert in_order(stored(shared_gateway, prefix)) == in_order(upserts)

    deletes = [{**change, "_op": "delete"} for change in changes]
    if how == "by parameter":
        answer = shared_gateway.change(encode(changes), "?op=delete", headers)
    else:
        answer = shared_gateway.change(encode(deletes), headers=headers)
    assert answer.json()["accepted"] == 20, answer.text
    keys = [{**NONE, "id": change["id"], "_op": "delete"} for change in changes]
    found = [row for row in stored(shared_gateway, prefix) if row["_op"] is not None]
    assert in_order(found) == in_order(keys)


def test_one_change_and_one_binary_cloudevent(shared_gateway: Any) -> None:
    assert shared_gateway.change({"id": "one", "tier": "x"}).json()["accepted"] == 1
    assert shared_gateway.change({"id": "one"}, "?op=delete").json()["accepted"] == 1
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/t", "ce-type": "t"}
    for retried in (None, "true"):
        answer = shared_gateway.change({"id": "one", "tier": "y"}, headers=headers)
        assert answer.headers.get("headrace-retried") == retried
    changes = [(row["_op"], row["tier"]) for row in stored(shared_gateway, "one")]
    assert changes == [(None, "x"), ("delete", None), (None, "y")]


def test_what_a_record_says_itself_counts_more_than_the_parameter(shared_gateway: Any) -> None:
    body = [
        {"id": "own 1", "tier": "x", "_op": "upsert"},
        {"id": "own 2", "tier": "x", "_op": None},
        {"id": "own 3", "tier": "x"},
    ]
    assert shared_gateway.change(body, "?op=delete").json()["accepted"] == 3
    assert shared_gateway.change(arrow(body), "?op=delete", ARROW).json()["accepted"] == 3
    found = {row["id"]: (row["_op"], row["tier"]) for row in stored(shared_gateway, "own")}
    assert found == {
        "own 1": ("upsert", "x"),
        "own 2": ("delete", None),
        "own 3": ("delete", None),
    }


@pytest.mark.parametrize(
    "parameters", ["op=remove", "op=", "op=delete&op=upsert", "_op=delete", "op=delete&Op=upsert"]
)
def test_a_parameter_that_could_mean_another_change_is_refused(
    shared_gateway: Any, parameters: str
) -> None:
    refused = shared_gateway.change({"id": "meant", "tier": "x"}, f"?{parameters}")
    assert (refused.status_code, refused.json()["code"]) == (422, "bad-parameter")
    assert not stored(shared_gateway, "meant")


def test_dead_letters_are_listed_repaired_and_discarded(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway()
    broken = [
        {"id": "a", "tier": "x", "_op": "remove"},
        {"id": "b"},
        {"tier": "x"},
        {"id": "c", "tier": "x"},
    ]
    answer = gateway.change(broken).json()
    assert (answer["accepted"], answer["quarantined"]) == (1, 3)
    assert [error["reason"] for error in answer["errors"]] == [
        'column _op STRING: expected upsert or delete, got "remove"',
        "column tier STRING NOT NULL: is missing",
        "column id STRING NOT NULL: is missing",
    ]
    assert gateway.change([{"ID": "d"}], "?op=delete").json()["quarantined"] == 1
    page = gateway.client.get("/v1/deadletters?stream=Customers").json()["deadletters"]
    assert [letter["stream"] for letter in page] == ["customers"] * 4
    assert json.loads(page[3]["raw"]) == {"_op": "delete", "ID": "d"}  # still a delete
    first, second, third, fourth = [letter["number"] for letter in page]

    repaired = {"numbers": [first, fourth], "records": [{"id": "a", "_op": "delete"}, {"id": "d"}]}
    answer = gateway.client.post("/v1/deadletters/resubmit", json=repaired).json()
    assert answer["accepted"] == 1
    assert answer["errors"] == [
        {"number": fourth, "reason": "column tier STRING NOT NULL: is missing"}
    ]
    assert gateway.client.post("/v1/deadletters/discard", json={"numbers": [second]}).json() == {
        "discarded": 1,
        "missing": [],
    }
    left = gateway.client.get("/v1/deadletters").json()["deadletters"]
    assert [letter["number"] for letter in left] == [third, fourth]
    changes = {row["id"]: row["_op"] for row in stored(gateway, "")}
    assert changes == {"a": "delete", "c": None}
    assert gateway.counts("customers") == {"received": 6, "appended": 2, "retried": 0, "dead": 4}


def test_retries_are_recognised(shared_gateway: Any) -> None:
    key = {"idempotency-key": "a table's"}
    body = rows("retried", 3)
    first = shared_gateway.change(body, headers=key)
    assert shared_gateway.change(body, headers=key).content == first.content
    other = shared_gateway.change(body, "?op=delete", key)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    numbered = {"headrace-producer": "loader", "headrace-sequence": "0"}
    shared_gateway.change(rows("numbered", 5), headers=numbered)
    more = shared_gateway.change(rows("numbered", 8), headers=numbered).json()
    assert (more["accepted"], more["retried"]) == (3, 5)
    assert len(stored(shared_gateway, "retried")) == 3
    assert len(stored(shared_gateway, "numbered")) == 8
    page = shared_gateway.client.get("/v1/streams/customers/completeness").json()
    assert "loader" in [producer["producer"] for producer in page["producers"]]


def test_limits_hold(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway("request_records_max = 5\nrequest_bytes_max = 1000\n")
    for body, code in (
        (rows("x", 6), "too-many-records"),
        ([{"id": "x" * 1000, "tier": "x"}], "body-too-large"),
    ):
        refused = gateway.change(body)
        assert (refused.status_code, refused.json()["code"]) == (413, code)
    assert gateway.change(b"").json()["code"] == "empty-body"
    assert stored(gateway, "") == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "hint"),
    [
        ("POST", "/v1/events?name=Customers", 422, "not-a-stream", "POST /v1/tables/customers"),
        ("POST", "/v1/tables/Notes", 422, "not-a-table", "POST /v1/events?name=notes"),
        ("GET", "/v1/tables/notes", 422, "not-a-table", "POST /v1/events?name=notes"),
        ("POST", "/v1/tables/users", 422, "table-from-stream",
         "POST /v1/events?name=transactions"),
        ("POST", "/v1/tables/custmers", 404, "unknown-table",
         "did you mean customers? tables are customers, users"),
        ("GET", "/v1/tables/zzz/changes", 404, "unknown-table",
         "tables are customers, users"),
        ("POST", "/v1/events?name=nosuch", 404, "unknown-stream",
         "streams are everything, notes, transactions"),
        ("POST", "/v1/tables", 405, "method-not-allowed", "use GET"),
        ("PUT", "/v1/tables/customers", 405, "method-not-allowed", "use GET, POST"),
        ("POST", "/v1/tables/customers/changes", 405, "method-not-allowed", "use GET"),
    ],
)  # fmt: skip
def test_names_that_do_not_fit_are_refused_with_what_to_do(
    shared_gateway: Any, method: str, path: str, status: int, code: str, hint: str
) -> None:
    refused = shared_gateway.client.request(method, path, content=b'{"id":"a"}')
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert refused.json()["hint"] == hint


def test_the_name_is_matched_case_aside_and_the_list_says_what_is_a_table(
    shared_gateway: Any,
) -> None:
    assert shared_gateway.change(rows("case", 1), table="CUSTOMERS").json()["accepted"] == 1
    listed = shared_gateway.client.get("/v1/streams").json()["streams"]
    assert {stream["name"]: stream["table"] for stream in listed} == {
        "customers": {"key": ["id"], "required": ["id", "tier"], "sequence": None},
        "everything": None,
        "notes": None,
        "transactions": None,
    }


def test_the_scope_is_that_of_the_table(make_gateway: Callable[..., Any]) -> None:
    gateway = make_gateway()
    mine = create_token(gateway.settings, "mine", ["ingest:customers"])
    other = create_token(gateway.settings, "other", ["ingest:transactions"])
    gateway.stop()
    gateway.start()

    def post(token: str) -> httpx.Response:
        return gateway.change(rows("x", 1), headers={"authorization": f"Bearer {token}"})

    assert post(mine).status_code == 200
    assert (post(other).status_code, post(other).json()["code"]) == (403, "scope-missing")
    assert gateway.change(rows("x", 1)).status_code == 401
