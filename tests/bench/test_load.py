"""The load generator against a server that writes down what it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bench.events import CHUNK_EVENTS, Workload, encoded
from bench.generator import Refused, answered
from bench.load import Load, LoadFailed, LoadSpec

pytestmark = pytest.mark.contract
WORKLOAD = Workload(seed=1, rate=10_000)


class ThreeStreams(Workload):
    @property
    def streams(self) -> tuple[str, ...]:
        return ("a", "b", "c")


class Server(ThreadingHTTPServer):
    """Accepts everything until `refuse_after` requests have come."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[bytes] = []
        self.streams: list[str] = []
        self.lock = threading.Lock()
        self.refuse_after = 1_000_000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.bodies.append(body)
            self.server.streams.append(self.path.partition("name=")[2])
            refused = len(self.server.bodies) > self.server.refuse_after
        said = {"accepted": 0 if refused else body.count(b"\n"), "quarantined": 0}
        raw = json.dumps(said).encode()
        self.send_response(429 if refused else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def _spec(server: Server, **changes: object) -> LoadSpec:
    given: dict[str, object] = {
        "port": server.server_address[1],
        "workload": WORKLOAD,
        "events": CHUNK_EVENTS,
        "size": 10_000,
        "connections": 3,
        "seconds": 30.0,
    }
    return LoadSpec(**{**given, **changes})  # type: ignore[arg-type]


def test_the_closed_loop_sends_every_body_once_and_whole(server: Server) -> None:
    with Load(_spec(server)) as load:
        result = load.run()
    assert result.events == CHUNK_EVENTS
    assert result.exhausted
    assert result.measured_events == CHUNK_EVENTS
    assert result.latency_milliseconds["p50"] <= result.latency_milliseconds["p99"]
    assert result.cpu_seconds > 0
    lines = sorted(line for body in server.bodies for line in body.splitlines(keepends=True))
    assert lines == sorted(line.encode() for line in encoded(WORKLOAD, 0).to_pylist())


def test_the_closed_loop_stops_in_time_and_counts_after_the_warm_up(server: Server) -> None:
    """Tried with more time where the machine has not sent anything in either part of it."""
    for seconds in (0.4, 4.0, 40.0):
        server.bodies.clear()
        with Load(_spec(server, size=1, seconds=seconds, warm_up_seconds=seconds / 2)) as load:
            result = load.run()
        assert result.events == len(server.bodies) == sum(b.count(b"\n") for b in server.bodies)
        if 0 < result.measured_events < result.events:
            break
    assert 0 < result.measured_events < result.events
    assert not result.exhausted
    assert 0 < result.measured_seconds < result.ended - result.began


def test_the_open_loop_keeps_its_rate_and_notes_each_acknowledgement(server: Server) -> None:
    with Load(_spec(server, size=100, seconds=1.0, requests_per_second=50)) as load:
        result = load.run()
    assert result.events == 5_000 == 100 * len(server.bodies)
    dues = [each.due - result.began for each in result.acknowledged]
    assert sorted(dues) == pytest.approx([number / 50 for number in range(50)])
    assert all(each.at > each.due for each in result.acknowledged)
    begun = [each.begun for each in result.acknowledged]
    assert begun == sorted(begun)
    assert begun[-1] == 5_000
    assert all(mine >= 100 * (number + 1) for number, mine in enumerate(begun))


def test_a_refused_request_fails_the_load(server: Server) -> None:
    server.refuse_after = 4
    with Load(_spec(server)) as load, pytest.raises(LoadFailed, match="429"):
        load.run()


def test_an_answer_counts_when_it_is_whole_and_accepts_everything() -> None:
    body = b'{"accepted": 5, "quarantined": 0}'
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for cut in range(len(whole)):
        assert not answered(whole[:cut], 5)
    assert answered(whole, 5)
    for wrong in (
        whole.replace(b" 5,", b" 4,"),
        whole.replace(b" 0}", b" 1}"),
        whole.replace(b"200 OK", b"503 No"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        with pytest.raises(Refused):
            answered(wrong, 5)


def test_bodies_go_to_the_streams_by_turns_and_each_stream_counts_its_own(server: Server) -> None:
    workload = ThreeStreams(seed=1, rate=10_000)
    first = CHUNK_EVENTS  # a thousand bodies: the next is the second stream's
    with Load(
        _spec(
            server,
            workload=workload,
            events=2 * CHUNK_EVENTS,
            first=first,
            size=100,
            connections=1,
            seconds=0.1,
            requests_per_second=100,
        )
    ) as load:
        result = load.run()
    assert result.events == 1_000
    order = [name for name, _ in zip("bcabcabcab", server.bodies, strict=True)]
    assert [each.stream for each in result.acknowledged] == order
    assert server.streams == order
    assert [each.begun for each in result.acknowledged] == [100] * 3 + [200] * 3 + [300] * 3 + [400]
    assert b"".join(server.bodies) == "".join(encoded(workload, 1)[:1_000].to_pylist()).encode()
