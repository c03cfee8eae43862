"""The client against the real gateway: its numbering, its dead letters, its refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.client import AsyncClient, Client, Quarantined
from headrace.client.outbox import Limits
from headrace.compile import load_project
from headrace.log.embedded.backend import open_reader
from headrace.model.covers import Covers
from headrace.model.errors import ClientError, RefusedError
from headrace.model.settings import load_settings

DEFINITIONS = """
CREATE STREAM payments (n BIGINT NOT NULL, amount DECIMAL(18, 2)) INTO 1 PARTITIONS;
CREATE TABLE customers (id STRING PRIMARY KEY, tier STRING NOT NULL);
"""


class Gateway:
    def __init__(self, directory: Path, until: Callable[..., None]) -> None:
        self.directory = directory
        self._until = until
        (directory / "headrace.toml").write_text("[gateway]\nport = 0\n")
        (directory / "streams.sql").write_text(DEFINITIONS)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, port: int = 0) -> str:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.gateway", str(self.directory)],
            env={**os.environ, "HEADRACE_GATEWAY_PORT": str(port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        file = self.directory / ".headrace" / "run" / "gateway.json"
        found: dict[str, int] = {}

        def is_listening() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, "the gateway ended"
            if file.exists():
                found.update(json.loads(file.read_text()))
            return found.get("pid") == self._process.pid

        self._until(is_listening)
        return f"http://127.0.0.1:{found['port']}"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None


@pytest.fixture
def gateway(tmp_path: Path, until: Callable[..., None]) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path, until)
    yield gateway
    gateway.kill()


def _stored(client: Client) -> int:
    stream = next(stream for stream in client.streams() if stream["name"] == "payments")
    return sum(stream["ends"]) - sum(stream["starts"])


def test_what_is_flushed_is_stored_and_the_rest_is_a_dead_letter(gateway: Gateway) -> None:
    told: list[Quarantined] = []
    with Client(gateway.start(), on_quarantined=told.append) as client:
        client.send("payments", ({"n": n, "amount": Decimal("1.50")} for n in range(2_500)))
        client.send("payments", [{"n": "many"}, {"n": 2_500, "amount": None}])
        client.flush()
        counts = client.counts
        assert (counts.accepted, counts.quarantined, counts.held) == (2_501, 1, 0)
        assert _stored(client) == 2_501
        assert Covers.read(client._sender.covers()).ends == {"payments": (2_501,)}
        assert [(q.sequence, q.event) for q in told] == [(2_500, b'{"n":"many"}')]
        (letter,) = client.dead_letters("payments")
        assert letter["raw"] == '{"n":"many"}'
        client.resubmit([letter["number"]], [{"n": 7}])
        assert client.dead_letters() == []
        assert _stored(client) == 2_502


def test_a_stream_spelled_in_two_ways_loses_nothing(gateway: Gateway) -> None:
    url = gateway.start()
    with Client(url) as client:
        for name, numbers in (("payments", (1, 2)), ("Payments", (3,)), ("PAYMENTS", (4, 5))):
            client.send(name, ({"n": n} for n in numbers))
            client.flush()
        assert (client.counts.accepted, _stored(client)) == (5, 5)

    async def send() -> int:
        async with AsyncClient(url) as other:
            for name, numbers in (("payments", (6, 7)), ("Payments", (8,))):
                await other.send(name, ({"n": n} for n in numbers))
                await other.flush()
            assert Covers.read(other._sender.covers()).ends == {"payments": (8,)}
            return other.counts.accepted

    assert asyncio.run(send()) == 3
    with Client(url) as client:
        assert _stored(client) == 8


def test_a_client_without_a_name_is_retired_when_it_is_closed(gateway: Gateway) -> None:
    url = gateway.start()
    with Client(url) as client, Client(url, producer="till") as named:
        client.send("payments", {"n": 1})
        named.send("payments", {"n": 2})

    async def send() -> str:
        async with AsyncClient(url) as other:
            await other.send("payments", {"n": 3})
            return other.producer

    names = {client.producer: True, "till": False, asyncio.run(send()): True}
    page = httpx.get(f"{url}/v1/streams/payments/completeness").json()
    assert {p["producer"]: p["retired"] for p in page["producers"]} == names


@dataclasses.dataclass
class CustomerKey:
    id: str


CHANGES = [("a", "gold", None), ("b", "iron", None), ("a", None, "delete"), ("b", None, "delete"),
           ("a", "tin", None)]  # fmt: skip


def _changes(gateway: Gateway) -> list[tuple[Any, ...]]:
    settings = load_settings(gateway.directory, {})
    with closing(
        open_reader(settings.log_directory, load_project(gateway.directory).streams)
    ) as reader:
        batches = reader.read(
            "customers", 0, *reader.starts("customers"), *reader.ends("customers")
        )
        rows = [row for piece in batches for row in piece.batch.to_pylist()]
    return [(row["id"], row["tier"], row["_op"]) for row in rows]


def test_upserts_and_deletes_are_stored_in_the_order_given(gateway: Gateway) -> None:
    url = gateway.start()
    told: list[Quarantined] = []
    with Client(url, on_quarantined=told.append) as client:
        client.upsert("customers", [{"id": "a", "tier": "gold"}, {"id": "b", "tier": "iron"}])
        client.send("payments", {"n": 1})
        assert client.delete("Customers", ({"id": key, "tier": 5} for key in "ab")) == 2
        client.upsert("customers", {"id": "a", "tier": "tin"})
        client.upsert("customers", {"id": "c"})
        client.flush()
        assert Covers.read(client._sender.covers()).ends == {"payments": (1,), "customers": (5,)}
        assert (client.counts.accepted, client.counts.quarantined) == (6, 1)
        assert [(q.stream.lower(), q.sequence, q.event) for q in told] == [
            ("customers", 5, b'{"id":"c"}')
        ]
    assert _changes(gateway) == CHANGES

    async def change() -> None:
        async with AsyncClient(url) as other:
            await other.upsert("customers", {"id": "x", "tier": "y"})
            await other.delete("customers", CustomerKey("x"))

    asyncio.run(change())
    assert _changes(gateway)[5:] == [("x", "y", None), ("x", None, "delete")]
    page = httpx.get(f"{url}/v1/streams/customers/completeness").json()
    assert [producer["retired"] for producer in page["producers"]] == [True, True]


def test_a_table_takes_no_events_and_a_stream_no_changes(gateway: Gateway) -> None:
    with Client(gateway.start()) as client:
        client.send("customers", {"id": "a", "tier": "x"})
        with pytest.raises(RefusedError, match="customers is a table, not a stream"):
            client.flush()
        client.upsert("payments", {"n": 1})
        with pytest.raises(RefusedError, match="payments is a stream, not a table"):
            client.flush()
        client.upsert("customers", {"id": "a", "tier": "x"})  # a line of numbers of its own
        client.flush()
    assert _changes(gateway) == [("a", "x", None)]


def test_a_key_is_a_mapping(gateway: Gateway) -> None:
    with Client(gateway.start()) as client, pytest.raises(ClientError, match="not str"):
        client.delete("customers", ["a"])


def test_an_unknown_stream_is_refused(gateway: Gateway) -> None:
    with Client(gateway.start()) as client:
        client.send("nothing", {"n": 1})
        with pytest.raises(RefusedError) as caught:
            client.flush()
    assert caught.value.status == 404


def test_heartbeats_come_after_what_was_sent_before(gateway: Gateway) -> None:
    url = gateway.start()
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))

    async def beat() -> None:
        async with AsyncClient(url) as other:
            await other.send("payments", {"n": 2})
            await other.heartbeat("payments", "2026-01-02T00:00:00Z", "sensor-7")

    with Client(url) as client:
        client.send("payments", {"n": 1})
        client.heartbeat("payments", moment)
        assert _stored(client) == 1
        asyncio.run(beat())
        assert _stored(client) == 2
        with pytest.raises(RefusedError) as caught:
            client.heartbeat("payments", "soon")
        assert caught.value.status == 422
    project = load_project(gateway.directory)
    reader = open_reader(load_settings(gateway.directory).log_directory, project.streams)
    # the events' own time is when they were received, which is later: nothing is moved back
    assert list(reader.advances("payments", 0, 0, 2)) == []
    assert reader.maxima("payments")[0] > moment.timestamp() * 1_000_000


def test_the_client_says_when_it_sends(gateway: Gateway) -> None:
    seen: list[httpx.Request] = []
    with Client(gateway.start(), sent_at=True) as client:
        client._http.event_hooks["request"].append(seen.append)
        before = time.time_ns() // 1000
        client.send("payments", {"n": 1})
        client.flush()
    (request,) = [one for one in seen if one.url.path == "/v1/events"]
    assert before <= int(request.headers["headrace-sent-at"]) <= time.time_ns() // 1000


def test_killed_gateways_store_every_event_once(
    gateway: Gateway, until: Callable[..., None]
) -> None:
    """The gateway dies again and again while the client sends; it comes back at its address."""
    url = gateway.start()
    port = httpx.URL(url).port
    assert port is not None
    limits = Limits(batch_events_max=50)
    total = 10_000
    with Client(url, limits=limits, request_seconds_max=60) as client:
        for start in range(0, total, 5_000):
            client.send("payments", ({"n": n} for n in range(start, start + 5_000)))
            until(lambda: client.counts.held <= 4_500)
            gateway.kill()
            gateway.start(port)
        client.flush()
        assert _stored(client) == total
        assert client.counts.accepted == total
        assert Covers.read(client._sender.covers()).ends == {"payments": (total,)}
    gateway.kill()
    numbers = _numbers_in_log(gateway)
    assert numbers == list(range(total))


def _numbers_in_log(gateway: Gateway) -> list[int]:
    directory = gateway.directory
    project = load_project(directory)
    reader = open_reader(load_settings(directory).log_directory, project.streams)
    (end,) = reader.ends("payments")
    batches = list(reader.read("payments", 0, 0, end, ["n"]))
    numbers = [n for batch in batches for n in batch.batch.column("n").to_pylist()]
    reader.close()
    return numbers
