"""Headers that cannot be read are refused: one taken for absent would have a retry stored twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

NOTE = b'{"text":"x"}'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, shared_gateway: Any) -> Iterator[Any]:
    gateway = type(shared_gateway)(tmp_path_factory.mktemp("headers") / "shop").start()
    yield gateway
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log_text()


# Header values that are not ASCII: a server's header object may take them for absent.
NOT_ASCII = {
    "idempotency-key": (("idempotency-key", "bestellung-käse-1"), 422, "bad-retry-key"),
    "producer": (("headrace-producer", "zähler-7"), 422, "bad-retry-key"),
    "sequence": (("headrace-sequence", "７"), 422, "bad-retry-key"),
    "epoch": (("headrace-epoch", "７"), 422, "bad-retry-key"),
    "encoding": (("content-encoding", "gzïp"), 415, "unsupported-encoding"),
    "type": (("content-type", "application/json; name=ä"), 415, "unsupported-media-type"),
    "specversion": (("ce-specversion", "1.0ä"), 422, "bad-cloudevent"),
    "event id": (("ce-id", "ä"), 422, "bad-cloudevent"),
    "origin": (("origin", "http://ä.example"), 403, "foreign-origin"),
}
PRODUCER = {"headrace-producer": "p", "headrace-sequence": "1"}
CLOUDEVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
@pytest.mark.parametrize("what", NOT_ASCII)
def test_a_header_that_is_not_ascii_is_not_taken_for_absent(
    gateway: Any, what: str, charset: str
) -> None:
    (name, value), status, code = NOT_ASCII[what]
    raw = value.encode("utf-8") if charset == "utf-8" else b"\xe4"
    headers: dict[str, str] = {}
    if name.startswith("headrace-"):
        headers = PRODUCER
    elif name.startswith("ce-"):
        headers = CLOUDEVENT
    pairs = [(k.encode(), v.encode()) for k, v in headers.items() if k != name]
    answer = gateway.send(NOTE, "notes", [*pairs, (name.encode(), raw)])
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert gateway.stored("notes") == []


@pytest.mark.parametrize(
    "headers",
    [{"headrace-sequence": "5"}, {"headrace-epoch": "5"}, {"headrace-producer": "p"}],
    ids=lambda headers: next(iter(headers)),
)
def test_half_of_a_producers_headers_is_refused(gateway: Any, headers: dict[str, str]) -> None:
    answer = gateway.send(NOTE, "notes", headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad-retry-key")
    assert gateway.stored("notes") == []
