"""The token of an answer covers the request's events, whatever became of each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.compile import load_project
from headrace.log.embedded.backend import open_reader
from headrace.model.covers import Covers

Transaction = Callable[..., dict[str, Any]]


def ends(gateway: Any, stream: str = "transactions") -> tuple[int, ...]:
    reader = open_reader(gateway.settings.log_directory, load_project(gateway.directory).streams)
    try:
        return reader.ends(stream)
    finally:
        reader.close()


def test_every_stored_request_is_covered(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    sequence = {"headrace-producer": "p", "headrace-sequence": "0"}
    twice = json.dumps(make_transaction(1)).encode()
    for body, headers in (
        (twice, {}),
        (twice, sequence),
        (twice + b"\n" + twice, sequence),  # the first of them is stored before
        (b"no record", {}),
        (b"no record", {"idempotency-key": "dead"}),
    ):
        answer = gateway.send(body, headers=headers)
        assert answer.status_code == 200
        token = answer.json()["covers"]
        assert answer.headers["headrace-covers"] == token
        assert Covers.read(token).ends == {"transactions": ends(gateway)}
    assert sum(ends(gateway)) == 3


def test_requests_that_are_stored_together_are_each_covered(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    """A token is made before anyone sees later events, so it never names what is not there."""
    gateway = make_gateway()

    def send(number: int) -> tuple[int, Any]:
        stream = "notes" if number % 3 == 0 else "transactions"
        event = {"text": str(number)} if stream == "notes" else make_transaction(number)
        answer = gateway.send(event, stream)
        token = Covers.read(answer.json()["covers"])
        assert list(token.ends) == [stream]
        now = ends(gateway, stream)
        assert all(a <= b for a, b in zip(token.ends[stream], now, strict=True))
        return number, token

    with ThreadPoolExecutor(8) as pool:
        tokens = dict(pool.map(send, range(200)))
    merged = Covers.read(tokens[0].text())
    for token in tokens.values():
        merged = merged.merged(token)
    assert merged.ends == {s: ends(gateway, s) for s in ("notes", "transactions")}
    # An event is below the end its own token names for its partition.
    for stream, key in (("transactions", "id"), ("notes", "text")):
        offsets: dict[int, int] = {}
        for row in gateway.stored(stream):
            partition = row["_partition"]
            offset = offsets.get(partition, 0)
            offsets[partition] = offset + 1
            token = tokens[int(row[key].removeprefix("t"))]
            assert offset < token.ends[stream][partition]
