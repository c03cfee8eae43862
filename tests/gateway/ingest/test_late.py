"""The paths about late events and the ledger: who may ask, and who answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.ingest.conservation import Counts
from headrace.http.tokens import create_token

ENGINE_LEDGER = {"engine": {"tick": 7}, "streams": {}, "views": {}}
PATHS = (
    ("GET", "/v1/ledger", "query"),
    ("GET", "/v1/streams/notes/late?limit=5", "query"),
    ("POST", "/v1/streams/notes/late/apply", "admin"),
    ("POST", "/v1/streams/notes/resume", "admin"),
)


class _Engine(BaseHTTPRequestHandler):
    """In the engine's place: remembers what reached it."""

    protocol_version = "HTTP/1.1"
    reached: list[tuple[str, str, bytes]]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.reached.append((self.command, self.path, body))
        answer = msgspec.json.encode(ENGINE_LEDGER if self.path == "/v1/ledger" else {})
        self.send_response(200 if self.command == "GET" else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.send_header("connection", "close")  # the next test has an engine of its own
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(shared_gateway: Any) -> Iterator[list[tuple[str, str, bytes]]]:
    yield from _serve(shared_gateway)


def _serve(gateway: Any) -> Iterator[list[tuple[str, str, bytes]]]:
    handler = type("Engine", (_Engine,), {"reached": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    file = gateway.settings.run_directory / "engine.json"
    file.write_bytes(msgspec.json.encode({"pid": 1, "port": server.server_port, "secret": "s"}))
    yield handler.reached
    file.unlink()
    server.shutdown()
    server.server_close()
    thread.join()


def test_they_reach_the_engine_as_they_are(shared_gateway: Any, engine: list[Any]) -> None:
    client = shared_gateway.client
    assert client.get("/v1/streams/Notes/late?limit=5").status_code == 200
    body = {"decision": "drop"}
    assert client.post("/v1/streams/notes/resume", json=body).status_code == 202
    assert client.post("/v1/streams/notes/late/apply", json={}).status_code == 202
    assert [(method, path) for method, path, _ in engine] == [
        ("GET", "/v1/streams/Notes/late?limit=5"),
        ("POST", "/v1/streams/notes/resume"),
        ("POST", "/v1/streams/notes/late/apply"),
    ]
    assert msgspec.json.decode(engine[1][2]) == body


@pytest.mark.parametrize("path", ["late", "late/apply", "resume"])
def test_an_unknown_stream_reaches_nobody(
    shared_gateway: Any, engine: list[Any], path: str
) -> None:
    method = "GET" if path == "late" else "POST"
    answer = shared_gateway.client.request(method, f"/v1/streams/nothing/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-stream")
    wrong = shared_gateway.client.request("DELETE", f"/v1/streams/notes/{path}")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, method)
    assert shared_gateway.client.get("/v1/streams/notes/later").status_code == 404
    assert engine == []


def test_the_ledger_joins_both(shared_gateway: Any, engine: list[Any]) -> None:
    before = shared_gateway.client.get("/v1/ledger").json()["gateway"]["notes"]
    assert shared_gateway.send([{"text": "a"}, {"text": 1, "weight": "x"}], "notes").is_success
    answer = shared_gateway.client.get("/v1/ledger").json()
    gateway = answer.pop("gateway")
    assert answer == ENGINE_LEDGER
    added = {fate: gateway["notes"][fate] - before[fate] for fate in ("received", "appended")}
    assert added == {"received": 2, "appended": 1}
    assert gateway["notes"]["dead"] == before["dead"] + 1
    assert all(sums["is_conserved"] for sums in gateway.values())
    assert set(gateway) == {"transactions", "notes", "everything", "customers"}


def test_without_an_engine_the_gateways_sums_remain(shared_gateway: Any) -> None:
    answer = shared_gateway.client.get("/v1/ledger").json()
    assert answer["engine"]["state"] == "down"
    assert set(answer) == {"engine", "gateway"}
    late = shared_gateway.client.get("/v1/streams/notes/late")
    assert (late.status_code, late.json()["code"]) == (503, "engine-away")


def test_deciding_needs_more_than_reading(
    make_gateway: Callable[..., Any], until: Callable[..., None]
) -> None:
    gateway = make_gateway()
    secrets = {
        scope: create_token(gateway.settings, scope.partition(":")[0], [scope])
        for scope in ("query", "admin", "ingest:notes", "sql")
    }
    until(lambda: gateway.client.get("/v1/ledger").status_code == 401)
    for _ in _serve(gateway):
        for method, path, needed in PATHS:
            assert gateway.client.request(method, path).status_code == 401, path
            for scope, secret in secrets.items():
                headers = {"authorization": f"Bearer {secret}"}
                answer = gateway.client.request(method, path, headers=headers)
                expected = (200, 202) if scope == needed else (403,)
                assert answer.status_code in expected, (path, scope)


def test_a_reader_of_the_totals_never_sees_half_of_a_group() -> None:
    metrics = Metrics()
    metrics.add_counts({"notes": Counts(received=3, appended=2, dead=1)})
    seen = metrics.counts["notes"]
    metrics.add_counts({"notes": Counts(received=1, retried=1)})
    assert seen == Counts(received=3, appended=2, dead=1)
    assert metrics.counts["notes"] == Counts(received=4, appended=2, retried=1, dead=1)
