"""The probe against a server that answers with prepared counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bench.load import Acknowledged
from bench.oracle import Difference
from bench.probe import Probe, visible_after

pytestmark = pytest.mark.contract


class Server(ThreadingHTTPServer):
    """Answers with one count after the other, in the end with the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.counts = [0]
        self.paths: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        place = min(len(self.server.paths), len(self.server.counts) - 1)
        self.server.paths.append(self.path)
        raw = json.dumps({"count": self.server.counts[place]}).encode()
        self.send_response(200)
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


def _probe(server: Server) -> Probe:
    return Probe(server.server_address[1], ["/a", "/b", "/c"], lambda said: int(said["count"]))


def test_the_probe_asks_by_turns_and_notes_what_is_new(server: Server) -> None:
    server.counts = [0, 3, 3, 3, 7]
    with _probe(server) as probe:
        probe.wait_for(7)
    assert [count for count, _ in probe.seen] == [0, 3, 7]
    times = [at for _, at in probe.seen]
    assert times == sorted(times)
    assert probe.reads == len(server.paths)
    assert server.paths[:5] == ["/a", "/b", "/c", "/a", "/b"]


def test_an_answer_that_shows_less_than_an_earlier_one_is_a_difference(server: Server) -> None:
    server.counts = [0, 3, 2]
    with pytest.raises(Difference, match="showed 2, one before 3"), _probe(server) as probe:
        probe.wait_for(7)


def test_an_event_is_visible_when_a_query_counts_all_that_was_sent_before() -> None:
    acknowledged = [Acknowledged(0.0, 1.0, 10, ""), Acknowledged(0.0, 1.5, 30, "")]
    seen = [(100, 0.5), (110, 1.2), (120, 1.4), (130, 2.5)]
    assert visible_after(acknowledged, 100, seen) == pytest.approx([0.2, 1.0])
    assert visible_after([Acknowledged(0.0, 3.0, 10, "")], 100, seen) == [0.0]
    with pytest.raises(ValueError, match="never seen"):
        visible_after([Acknowledged(0.0, 3.0, 31, "")], 100, seen)
