"""Queries go through to the engine and its answers come back as they come, for a real HTTP
server in the engine's place."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest

from headrace.http.exchange import CONNECTIONS_MAX
from headrace.http.tokens import create_token

# What an engine that fails or lies might send before it closes the connection.
RAW_ANSWERS = {
    "raw-short": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
    "raw-two-lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked"
    b"\r\n\r\n0\r\n\r\n",
    "raw-no-length": b"HTTP/1.1 200 OK\r\n\r\nwhat comes until the end",
    "raw-negative": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "raw-old": b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
    "raw-header": b"HTTP/1.1 200 OK\r\ncontent-length : 1\r\n\r\nx",
    "raw-long-head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000,
    "raw-nothing": b"",
}
RAW_STREAMS = {
    "raw-half-chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
    "raw-bad-chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "raw-no-number": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n-1\r\n\r\n",
    "raw-no-end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
}


REQUESTS_MEANWHILE = 50
RAW_LONG = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 500_000


class EngineServer:
    """Speaks just enough HTTP to show what reached it and to answer slowly."""

    def __init__(self, gateway: Any, secret: str = "s3cret") -> None:
        self.secret = secret
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.sent_bytes = 0
        self.is_starting = False
        self.go_on = asyncio.Event()
        self.left = threading.Event()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", 0)
            )
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            self._loop.run_forever()
            server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert ready.wait(60)
        file = gateway.settings.run_directory / "engine.json"
        file.write_text(json.dumps({"pid": 1, "port": self.port, "secret": secret}))

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self.go_on.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append((head[0], headers, body))
                if b"hang up" in body or "/hang-up" in head[0]:
                    await self._hang_up_once(head[0], writer)
                    continue
                await self._answer(head[0].split(" ")[1], headers, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _hang_up_once(self, line: str, writer: asyncio.StreamWriter) -> None:
        if sum(one == line for one, _, _ in self.requests) == 1:
            raise ConnectionResetError
        await self._whole(writer, 200, b"{}")

    async def _answer(
        self,
        target: str,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if headers.get("headrace-internal") != self.secret:
            await self._whole(writer, 401, b"{}")
        elif target.endswith("/changes"):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            for number in range(2):
                event = b"id: %d\n\n" % number
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await writer.drain()
                if number == 0:
                    await self.go_on.wait()
            await reader.read(1)  # nothing more comes: it ends with the one who reads
            self.left.set()
        elif target == "/readyz":
            await self._whole(writer, 503 if self.is_starting else 200, b"{}")
        elif target == "/v1/views/endless":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                while True:
                    writer.write(b"10000\r\n%b\r\n" % bytes(0x10000))
                    await writer.drain()
                    self.sent_bytes += 0x10000
            except ConnectionError:
                self.left.set()
                raise
        elif target.startswith("/v1/views/raw"):
            writer.write({**RAW_ANSWERS, **RAW_STREAMS, "raw-long": RAW_LONG}[target[10:]])
            await writer.drain()
            raise ConnectionResetError
        elif target == "/v1/views/slow":
            await reader.read(1)
            self.left.set()
        elif target == "/v1/views":
            listed = [{"name": "income"}, {"name": "customers", "state": "live"}]
            await self._whole(writer, 200, json.dumps({"views": listed}).encode())
        elif target == "/v1/status":
            await self._whole(writer, 200, b'{"engine":{"state":"up"},"views":[]}')
        elif target == "/metrics":
            await self._whole(writer, 200, b"headrace_engine_ticks_total 5\n")
        elif target.startswith("/v1/views/missing"):
            await self._whole(writer, 404, b'{"code":"unknown-view"}')
        else:
            await self._whole(writer, 200, b'{"rows":[]}')

    async def _whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nheadrace-tick: 7\r\n"
            b"connection: keep-alive\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
        )
        await writer.drain()


@pytest.fixture
def engine(shared_gateway: Any) -> Iterator[EngineServer]:
    server = EngineServer(shared_gateway)
    yield server
    server.close()
    (shared_gateway.settings.run_directory / "engine.json").unlink()


def test_queries_pass_through(shared_gateway: Any, engine: EngineServer) -> None:
    answer = shared_gateway.client.get(
        "/v1/views/income?user_id=5&order_by=-a,b&x=%20%2F",
        headers={"accept": "text/csv", "authorization": "Bearer x", "te": "trailers"},
    )
    assert answer.json() == {"rows": []}
    assert answer.headers["headrace-tick"] == "7"
    line, headers, _ = engine.requests[-1]
    assert line == "GET /v1/views/income?user_id=5&order_by=-a,b&x=%20%2F HTTP/1.1"
    assert headers["accept"] == "text/csv"
    assert "authorization" not in headers  # the user's token stays here
    assert "te" not in headers
    answer = shared_gateway.client.post("/v1/sql", json={"sql": "SELECT 1"})
    assert answer.status_code == 200
    assert json.loads(engine.requests[-1][2]) == {"sql": "SELECT 1"}
    missing = shared_gateway.client.get("/v1/views/missing")
    assert (missing.status_code, missing.json()) == (404, {"code": "unknown-view"})
    large = shared_gateway.client.post("/v1/sql", content=b"x" * 2_000_000)
    assert large.status_code == 413


def test_a_table_is_asked_for_as_a_view(shared_gateway: Any, engine: EngineServer) -> None:
    client = shared_gateway.client
    assert client.get("/v1/tables").json() == {"tables": [{"name": "customers", "state": "live"}]}
    answer = client.get("/v1/tables/Customers?tier=gold&covers=now", headers={"accept": "text/csv"})
    assert (answer.json(), answer.headers["headrace-tick"]) == ({"rows": []}, "7")
    line, headers, _ = engine.requests[-1]
    assert line == "GET /v1/views/customers?tier=gold&covers=now HTTP/1.1"
    assert headers["accept"] == "text/csv"
    engine.release()
    with client.stream("GET", "/v1/tables/customers/changes") as stream:
        assert next(stream.iter_raw()).startswith(b"id: 0")
    assert engine.requests[-1][0] == "GET /v1/views/customers/changes HTTP/1.1"
    engine.close()
    assert client.get("/v1/tables").json()["code"] == "engine-away"


def test_what_a_query_is_to_cover_is_passed_on_whole_or_refused(
    shared_gateway: Any, engine: EngineServer
) -> None:
    """A query that lost it on the way would not wait."""
    address = f"{shared_gateway.url}/v1/views/income?covers=now"
    given = [("Headrace-Covers", "1abc"), ("headrace-covers", "1DEF,1ghi"), ("X", "1")]
    assert httpx.get(address, headers=given).status_code == 200
    line, headers, _ = engine.requests[-1]
    assert line == "GET /v1/views/income?covers=now HTTP/1.1"
    assert headers["headrace-covers"] == "1abc, 1def,1ghi"  # this server folds them
    count = len(engine.requests)
    for method, path in (("GET", "/v1/views/income"), ("POST", "/v1/sql")):
        broken = [("Headrace-Covers", "1abc"), ("Headrace-Covers", "1é".encode())]
        answer = httpx.request(method, shared_gateway.url + path, headers=broken)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-covers")
    huge = httpx.get(address, headers={"Headrace-Covers": "1" * 70_000})
    assert huge.status_code == 431
    assert len(engine.requests) == count


ADMIN_PATHS = ("/deadletters", "/rebuild", "/snapshot", "/sql", "/metrics")
QUERY_PATHS = (
    *(f"/v1/views/income{slash}deadletters" for slash in ("/", "%2F", "%2f", "%252F", "%25252F")),
    *(f"/v1/views/income%{odd}deadletters" for odd in ("c0%af", "25c0%25af", "EF%BC%8F", "5C")),
    "/v1/views/%252e%252e%252Fsql",
    "/v1/views/x%252F..%252F..%252F..%252Fmetrics",
    "/v1/views/income%253Flimit=5",
    "/v1/views/income%2500%252Fdeadletters",
    "/v1/views/income%25%32%46deadletters",
)


def test_a_query_token_reaches_no_other_scope_by_an_odd_name(
    make_gateway: Callable[..., Any], until: Callable[..., None]
) -> None:
    gateway = make_gateway()
    secret = create_token(gateway.settings, "reader", ["query"])
    until(lambda: gateway.client.get("/v1/streams").status_code == 401)
    engine = EngineServer(gateway)
    try:
        for path in QUERY_PATHS:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
            connection.request("GET", path, headers={"authorization": f"Bearer {secret}"})
            assert connection.getresponse().status in (200, 403, 404), path
            connection.close()
    finally:
        engine.close()
    reached = [unquote(line.split(" ")[1]) for line, _, _ in engine.requests]
    assert len(reached) >= 8
    assert [path for path in reached if path.endswith(ADMIN_PATHS)] == []
    assert all(path.count("/") == 3 and "?" not in path for path in reached)


def test_the_engine_reads_the_path_that_was_checked(
    shared_gateway: Any, engine: EngineServer
) -> None:
    for name in ("100% wool", "a%2Fb", "größe", "a?b", "a#b", "a;b", "%", "a+b", "日 本"):
        assert shared_gateway.client.get(f"/v1/views/{quote(name, safe='')}").status_code == 200
        target = engine.requests[-1][0].split(" ")[1]
        assert unquote(target) == f"/v1/views/{name}"


def test_status_metrics_and_readiness_join_both(shared_gateway: Any, engine: EngineServer) -> None:
    assert shared_gateway.client.get("/readyz").status_code == 200
    engine.is_starting = True
    ready = shared_gateway.client.get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "engine-starting")
    status = shared_gateway.client.get("/v1/status").json()
    assert status["engine"]["state"] == "up"
    assert status["gateway"]["state"] == "up"
    metrics = shared_gateway.client.get("/metrics").text
    assert "headrace_engine_ticks_total 5" in metrics
    assert "headrace_gateway_healthy 1.0" in metrics


def test_changes_flow_at_once_and_end_with_the_client(
    shared_gateway: Any, engine: EngineServer
) -> None:
    with httpx.stream("GET", f"{shared_gateway.url}/v1/views/income/changes", timeout=20) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        parts = answer.iter_raw()
        assert next(parts) == b"id: 0\n\n"  # the engine has not gone on yet
        engine.release()
        assert next(parts).startswith(b"id: 1\n\n")
    assert engine.left.wait(60)


def test_requests_on_one_connection_leave_nothing_behind(
    shared_gateway: Any, engine: EngineServer
) -> None:
    with httpx.Client(base_url=shared_gateway.url, timeout=20) as client:
        for _ in range(50):
            assert client.get("/v1/views").status_code == 200
        assert "headrace_gateway_forwarding 0.0" in client.get("/metrics").text


def test_connections_to_the_engine_are_used_again(
    shared_gateway: Any, engine: EngineServer
) -> None:
    for _ in range(CONNECTIONS_MAX + 50):
        assert shared_gateway.client.get("/v1/views").status_code == 200
    assert engine.connections == 1


def test_only_a_get_is_sent_again_when_a_kept_connection_is_closed(
    shared_gateway: Any, engine: EngineServer
) -> None:
    assert shared_gateway.client.get("/v1/views").status_code == 200
    assert shared_gateway.client.get("/v1/views/hang-up").status_code == 200
    assert [line.split(" ")[1] for line, _, _ in engine.requests[1:]] == ["/v1/views/hang-up"] * 2
    refused = shared_gateway.client.post("/v1/sql", content=b"hang up")
    assert (refused.status_code, refused.json()["code"]) == (503, "engine-away")
    assert len(engine.requests) == 4


@pytest.mark.parametrize("name", RAW_ANSWERS)
def test_an_answer_that_is_not_whole_is_engine_away(
    shared_gateway: Any, engine: EngineServer, name: str
) -> None:
    answer = shared_gateway.client.get(f"/v1/views/{name}")
    assert (answer.status_code, answer.json()["code"]) == (503, "engine-away")


def test_an_answer_with_a_length_that_breaks_off_does_not_look_complete(
    shared_gateway: Any, engine: EngineServer
) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{shared_gateway.url}/v1/views/raw-long", timeout=20)


@pytest.mark.parametrize("name", RAW_STREAMS)
def test_a_badly_chunked_answer_does_not_look_complete(
    shared_gateway: Any, engine: EngineServer, name: str
) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{shared_gateway.url}/v1/views/{name}", timeout=20)
    assert "the engine's answer broke off" in shared_gateway.log_text()


def test_an_answer_that_nobody_reads_is_not_taken_from_the_engine(
    shared_gateway: Any, engine: EngineServer
) -> None:
    """What lies in between is bounded by buffers, most of them the kernel's."""
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=20) as sock:
        sock.sendall(b"GET /v1/views/endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
        sent = [-1] * REQUESTS_MEANWHILE
        while sent[0] < engine.sent_bytes:  # it has stood still while others were answered
            sent = [*sent[1:], engine.sent_bytes]
            assert sent[-1] < 64 * 1024 * 1024
            assert shared_gateway.client.get("/healthz").status_code == 200
    assert engine.left.wait(60)


def test_a_client_that_leaves_before_the_answer_ends_the_work(
    shared_gateway: Any, engine: EngineServer
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{shared_gateway.url}/v1/views/slow", timeout=0.2)
    assert engine.left.wait(60)


def test_a_body_that_nobody_wants_is_not_kept(shared_gateway: Any, engine: EngineServer) -> None:
    def resident_mebibytes() -> int:
        lines = Path(f"/proc/{shared_gateway.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024

    before = resident_mebibytes()
    head = b"GET /v1/views/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000001\r\n\r\n"
    with socket.create_connection(("127.0.0.1", shared_gateway.port), timeout=20) as sock:
        sock.sendall(head)
        for _ in range(100):
            sock.sendall(bytes(1_000_000))
        assert resident_mebibytes() < before + 40
    assert engine.left.wait(60)


def test_an_end_tells_who_waits_and_breaks_off_who_subscribes(
    make_gateway: Callable[..., Any], until: Callable[..., None]
) -> None:
    gateway = make_gateway()
    engine = EngineServer(gateway)
    try:
        with (
            socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as waiting,
            socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as subscribed,
        ):
            waiting.sendall(b"GET /v1/views/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            subscribed.sendall(b"GET /v1/views/v/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert subscribed.recv(12) == b"HTTP/1.1 200"
            until(lambda: len(engine.requests) == 2)
            assert gateway.stop() == 0
            assert waiting.recv(65_536).startswith(b"HTTP/1.1 503")
            with contextlib.suppress(ConnectionResetError):
                assert not subscribed.recv(65_536).endswith(b"0\r\n\r\n")
    finally:
        engine.close()


def test_a_restarted_engine_is_found(shared_gateway: Any, engine: EngineServer) -> None:
    assert shared_gateway.client.get("/v1/views").status_code == 200
    engine.close()
    assert shared_gateway.client.get("/v1/views").json()["code"] == "engine-away"
    restarted = EngineServer(shared_gateway, secret="another")
    try:
        assert shared_gateway.client.get("/v1/views").status_code == 200
    finally:
        restarted.close()


def test_a_broken_address_file_is_engine_away(
    shared_gateway: Any, until: Callable[..., None]
) -> None:
    file = shared_gateway.settings.run_directory / "engine.json"
    file.write_text("{")
    try:
        answer = shared_gateway.client.get("/v1/views")
        assert (answer.status_code, answer.json()["code"]) == (503, "engine-away")
    finally:
        file.unlink()
