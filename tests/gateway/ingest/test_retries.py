"""Retries: the first answer again and nothing stored twice, whatever happens in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

Transaction = Callable[..., dict[str, Any]]


def numbered(first: int, count: int, make: Transaction) -> bytes:
    return b"\n".join(json.dumps(make(n)).encode() for n in range(first, first + count))


def producer(first: int, name: str = "p", epoch: int | None = None) -> dict[str, str]:
    headers = {"headrace-producer": name, "headrace-sequence": str(first)}
    return headers if epoch is None else {**headers, "headrace-epoch": str(epoch)}


def ids(gateway: Any) -> list[str]:
    return sorted(row["id"] for row in gateway.stored())


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_retries_are_recognised_across_a_restart(
    make_gateway: Callable[..., Any], make_transaction: Transaction, ending: str
) -> None:
    gateway = make_gateway()
    by_key = numbered(0, 20, make_transaction) + b"\nnot json"
    by_sequence = numbered(100, 20, make_transaction)
    first = gateway.send(by_key, headers={"idempotency-key": "k1"})
    second = gateway.send(by_sequence, headers=producer(100))
    assert (first.json()["accepted"], first.json()["quarantined"]) == (20, 1)
    getattr(gateway, ending)()
    gateway.start()
    gateway.send(numbered(200, 20, make_transaction))
    for body, headers, answer in (
        (by_key, {"idempotency-key": "k1"}, first),
        (by_sequence, producer(100), second),
    ):
        again = gateway.send(body, headers=headers)
        assert again.status_code == 200
        assert again.content == answer.content
        assert again.headers["headrace-retried"] == "true"
        assert again.headers["headrace-covers"] == answer.headers["headrace-covers"]
    assert "headrace-retried" not in first.headers
    assert len(ids(gateway)) == len(set(ids(gateway))) == 60
    assert len(gateway.client.get("/v1/deadletters").json()["deadletters"]) == 1
    counts = gateway.counts()
    assert counts == {"received": 61, "appended": 20, "retried": 41, "dead": 0}
    assert gateway.stop() == 0


def test_the_same_key_with_another_body_is_refused(
    shared_gateway: Any, make_transaction: Transaction
) -> None:
    headers = {"idempotency-key": "reused"}
    shared_gateway.send(make_transaction(1), headers=headers)
    refused = shared_gateway.send(make_transaction(2), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "key-reused")
    other_stream = shared_gateway.send({"text": "x"}, "notes", headers)
    assert other_stream.status_code == 200  # a key belongs to a stream
    body = numbered(0, 3, make_transaction)
    shared_gateway.send(body, headers=producer(0, "reused"))
    refused = shared_gateway.send(body.replace(b"t1", b"tx"), headers=producer(0, "reused"))
    assert (refused.status_code, refused.json()["code"]) == (422, "key-reused")


def test_only_new_numbers_of_an_overlapping_range_are_stored(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    answer = gateway.send(numbered(10, 10, make_transaction), headers=producer(10))
    assert answer.json() == {
        "accepted": 10, "quarantined": 0, "errors": [], "errors_truncated": False,
        "covers": answer.headers["headrace-covers"],
    }  # fmt: skip
    assert gateway.send(numbered(30, 5, make_transaction), headers=producer(30)).status_code == 200
    body = numbered(5, 35, make_transaction).split(b"\n")
    body[0], body[7] = b"bad and new", b"bad and stored before"
    answer = gateway.send(b"\n".join(body), headers=producer(5)).json()
    assert (answer["accepted"], answer["quarantined"], answer["retried"]) == (19, 1, 15)
    assert [error["position"] for error in answer["errors"]] == [0]
    assert ids(gateway) == sorted(f"t{n}" for n in range(6, 40))
    counts = gateway.counts()
    assert counts["received"] == counts["appended"] + counts["retried"] + counts["dead"] == 50


def test_a_higher_epoch_starts_over(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    for epoch in (0, 1):
        body = numbered(epoch * 100, 5, make_transaction)
        assert gateway.send(body, headers=producer(0, epoch=epoch)).json()["accepted"] == 5
    assert len(ids(gateway)) == 10


def test_requests_that_overtake_each_other_and_come_again_are_stored_once(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    batches = [(first, numbered(first, 25, make_transaction)) for first in range(0, 1_000, 25)]
    shuffled = sorted(batches * 4, key=lambda batch: hash((batch[0] * 7919) % 101))

    def send(batch: tuple[int, bytes]) -> httpx.Response:
        return gateway.send(batch[1], headers=producer(batch[0]))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, shuffled))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["accepted"] for answer in answers} == {25}
    assert sum(answer.headers.get("headrace-retried") == "true" for answer in answers) == 120
    assert ids(gateway) == sorted(f"t{n}" for n in range(1_000))
    counts = gateway.counts()
    assert counts == {"received": 4_000, "appended": 1_000, "retried": 3_000, "dead": 0}


def test_equal_keys_in_flight_at_once_are_stored_once(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    body = numbered(0, 10, make_transaction)
    barrier = threading.Barrier(16, timeout=60)

    def send(round_number: int) -> httpx.Response:
        barrier.wait()
        return gateway.send(body, headers={"idempotency-key": f"round {round_number // 16}"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(160)))
    assert {answer.status_code for answer in answers} == {200}
    by_key = [{answer.content for answer in answers[n : n + 16]} for n in range(0, 160, 16)]
    assert [len(contents) for contents in by_key] == [1] * 10
    assert len(ids(gateway)) == 100


def test_kill_at_any_moment_loses_nothing_acknowledged_and_doubles_nothing(
    make_gateway: Callable[..., Any], make_transaction: Transaction
) -> None:
    gateway = make_gateway()
    acknowledged: set[int] = set()
    batches = {first: numbered(first, 20, make_transaction) for first in range(0, 4_000, 20)}

    def send(first: int, killed_at: int) -> None:
        try:
            answer = gateway.send(batches[first], headers=producer(first))
        except httpx.HTTPError:
            return
        if answer.status_code == 200:
            acknowledged.add(first)
        if len(acknowledged) >= killed_at:
            gateway.process.kill()

    for _ in range(3):
        killed_at = len(acknowledged) + 40
        left = [first for first in batches if first not in acknowledged]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(send, left, [killed_at] * len(left)))
        gateway.kill()
        gateway.start()
        stored = ids(gateway)
        assert len(stored) == len(set(stored))
        assert {f"t{n}" for first in acknowledged for n in range(first, first + 20)} <= set(stored)
        assert len(stored) % 20 == 0  # a request is whole or not at all
    for first, body in batches.items():
        assert gateway.send(body, headers=producer(first)).status_code == 200
    assert ids(gateway) == sorted(f"t{n}" for n in range(4_000))
