"""A small real HTTP server that stores events as the gateway does, and misbehaves as it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

# A fault is told per request, in order; "ok" afterwards.
FAULTS = (
    "ok",
    "drop-before",  # the connection ends before anything is stored
    "drop-after",  # everything is stored, then the connection ends without an answer
    "truncate",  # stored, and half of the answer is sent
    "garbage",  # stored, and the answer is no JSON
    "429",
    "503",
    "500",
    "slow",  # stored, and answered when the client has given up waiting and comes again
)


@dataclass
class Ledger:
    """What the server has stored: events per stream in order, and the answers it gave by key."""

    faults: deque[str] = field(default_factory=deque)
    stored: dict[str, list[bytes]] = field(default_factory=dict)
    answers: dict[tuple[str, str, str, int], tuple[bytes, bytes]] = field(default_factory=dict)
    requests: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)
    quarantine: Callable[[bytes], str | None] = lambda event: None
    retry_after: str = "0"
    refuse: tuple[int, dict[str, object]] | None = None
    goodbyes: list[dict[str, object]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.has_come = threading.Condition(self.lock)

    def take_fault(self) -> str:
        with self.lock:
            self.requests += 1
            self.has_come.notify_all()
            return self.faults.popleft() if self.faults else "ok"

    def wait_for_retry(self) -> None:
        with self.lock:
            requests = self.requests
            assert self.has_come.wait_for(lambda: self.requests > requests, 60)

    def store(self, stream: str, headers: dict[str, str], body: bytes) -> bytes:
        """As the gateway: a stream is the same however it is spelled; the same key gives the first
        answer again; another body under the same key is an error the test must see."""
        stream = stream.lower()
        first = int(headers["headrace-sequence"])
        key = (stream, headers["headrace-producer"], headers["headrace-epoch"], first)
        with self.lock:
            if key in self.answers:
                known, answer = self.answers[key]
                assert known == body, "a retry came with another body"
                return answer
            errors = []
            events = self.stored.setdefault(stream, [])
            for position, event in enumerate(body.splitlines()):
                reason = self.quarantine(event)
                if reason is None:
                    events.append(event)
                else:
                    errors.append({"position": position, "reason": reason})
            count = len(body.splitlines())
            answer = json.dumps(
                {
                    "accepted": count - len(errors),
                    "quarantined": len(errors),
                    "errors": errors[:100],
                    "errors_truncated": len(errors) > 100,
                }
            ).encode()
            self.answers[key] = (body, answer)
            return answer

    def first_sequences(self, stream: str) -> list[int]:
        return sorted(first for name, _, _, first in self.answers if name == stream)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ledger: Ledger

    def log_message(self, *arguments: object) -> None:
        """Silent."""

    def do_POST(self) -> None:
        ledger = self.ledger
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.path == "/v1/heartbeats":
            ledger.goodbyes += json.loads(body)
            self._answer(200, b'{"state":"durable"}')
            return
        ledger.seen.append(headers)
        address = urlsplit(self.path)
        of_table = address.path.removeprefix("/v1/tables/")
        is_table = of_table != address.path
        stream = unquote(of_table) if is_table else parse_qs(address.query)["name"][0]
        fault = ledger.take_fault()
        if ledger.refuse is not None:
            status, document = ledger.refuse
            self._answer(status, json.dumps(document).encode())
        elif fault == "drop-before":
            self._drop()
        elif fault in ("429", "503", "500"):
            self._answer(int(fault), b'{"detail":"not now"}', retry_after=ledger.retry_after)
        else:
            answer = ledger.store(stream, headers, body)
            if fault == "drop-after":
                self._drop()
            elif fault == "garbage":
                self._answer(200, b"<html>")
            elif fault == "truncate":
                self._answer(200, answer[: len(answer) // 2], length=len(answer))
                self._drop()
            else:
                if fault == "slow":
                    ledger.wait_for_retry()
                self._answer(200, answer)

    def _answer(
        self, status: int, body: bytes, *, length: int | None = None, retry_after: str = ""
    ) -> None:
        try:
            self.send_response(status)
            if retry_after:
                self.send_header("retry-after", retry_after)
            self.send_header("content-length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client did not wait, as the test wants

    def _drop(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


@contextmanager
def _unreliable_server(ledger: Ledger) -> Iterator[str]:
    """Its address. Requests are handled one thread each."""
    handler = type("Handler", (_Handler,), {"ledger": ledger})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def url(ledger: Ledger) -> Iterator[str]:
    with _unreliable_server(ledger) as address:
        yield address


@pytest.fixture(scope="session")
def serve_unreliably() -> Callable[[Ledger], AbstractContextManager[str]]:
    """For property tests, which need a server with an empty ledger for each example."""
    return _unreliable_server


@pytest.fixture(scope="session")
def new_ledger() -> Callable[..., Ledger]:
    return Ledger
