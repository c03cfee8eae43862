"""`python -m bench.generator SPEC`: sends prepared bodies over keep-alive sockets.

It says "ready", waits for a line, sends, and says the result as one line of JSON. Every answer
must accept every event: any other ends the process, and with it the figure.
"""

from __future__ import annotations

import gc
import json
import pickle
import select
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from bench.events import Bodies, bodies
from bench.load import LoadSpec

__all__ = ["answered", "main"]

ANSWER_BYTES_MAX = 64 * 1024
ANSWERS_KNOWN_MAX = 1_000
ANSWER_SECONDS_MAX = 60.0


class Refused(Exception):  # noqa: N818
    """An answer that does not say that every event was accepted."""


@dataclass
class _Connection:
    socket: socket.socket
    pending: list[memoryview] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    due: float = 0.0
    stream: str = ""


def answered(data: bytes, size: int) -> bool:
    """Whether `data` is a whole answer. Raises Refused unless it accepts all `size` events."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    if "content-length" not in headers:
        raise Refused(f"an answer without a length: {head!r}")
    if len(body) < int(headers["content-length"]):
        return False
    said = json.loads(body) if body.startswith(b"{") else {}
    if status.split(" ")[1] != "200" or said.get("accepted") != size or said.get("quarantined"):
        raise Refused(f"{status}: {body[:500]!r}")
    return True


class Generator:
    """One thread, one epoll; requests go out in the order of the bodies."""

    def __init__(self, spec: LoadSpec, prepared: list[Bodies]) -> None:
        self._spec = spec
        self._prepared = prepared
        self._per_chunk = len(prepared[0])
        self._count = sum(len(chunk) for chunk in prepared)
        self._next = 0
        self._acked = 0
        self._known: set[bytes] = set()
        self._streams = spec.workload.streams
        self._skipped = spec.first // spec.size  # bodies: the streams' turns go on where they were
        self._begun: Counter[str] = Counter()
        self._headers: dict[tuple[str, int], bytes] = {}
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        for _ in range(spec.connections):
            opened = socket.create_connection((spec.host, spec.port), ANSWER_SECONDS_MAX)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setblocking(False)
            self._connections[opened.fileno()] = _Connection(opened)
            self._epoll.register(opened.fileno(), select.EPOLLIN)
        self.latencies: list[float] = []
        self.acknowledged: list[tuple[float, float, int, str]] = []
        self.measured_from = self.began = self.ended = 0.0
        self.events_before = 0

    @property
    def events(self) -> int:
        return self._acked * self._spec.size

    @property
    def exhausted(self) -> bool:
        return self._next == self._count

    def closed_loop(self) -> None:
        clock = time.monotonic
        self.began = self.measured_from = clock()
        warm_at = self.began + self._spec.warm_up_seconds
        stop_at = warm_at + self._spec.seconds
        warm = self._spec.warm_up_seconds == 0
        for connection in self._connections.values():
            self._send(connection, clock())
        while self._acked < self._next:
            for connection in self._wait(ANSWER_SECONDS_MAX):
                now = clock()
                if warm:
                    self.latencies.append(now - connection.due)
                elif now >= warm_at:
                    warm, self.measured_from, self.events_before = True, now, self.events
                self.ended = now
                if now < stop_at and not self.exhausted:
                    self._send(connection, now)

    def open_loop(self) -> None:
        clock, gap = time.monotonic, 1.0 / self._spec.requests_per_second
        free = deque(self._connections.values())
        self.began = self.measured_from = clock()
        total = min(self._count, int(self._spec.seconds * self._spec.requests_per_second))
        while self._acked < total:
            due = self.began + self._next * gap
            is_waiting_for_time = self._next < total and bool(free)
            if is_waiting_for_time and due <= clock():
                self._send(free.popleft(), due)
                continue
            timeout = max(0.0, due - clock()) if is_waiting_for_time else ANSWER_SECONDS_MAX
            for connection in self._wait(timeout, may_be_none=is_waiting_for_time):
                self.ended = clock()
                self.latencies.append(self.ended - connection.due)
                begun = self._begun[connection.stream]
                self.acknowledged.append((connection.due, self.ended, begun, connection.stream))
                free.append(connection)

    def _send(self, connection: _Connection, due: float) -> None:
        chunk, number = divmod(self._next, self._per_chunk)
        body = self._prepared[chunk][number]
        connection.due = due
        connection.stream = stream = self._streams[
            (self._skipped + self._next) % len(self._streams)
        ]
        header = self._headers.get((stream, len(body))) or self._header(stream, len(body))
        self._next += 1
        self._begun[stream] += self._spec.size
        sent = connection.socket.sendmsg([header, body])
        if sent < len(header) + len(body):
            connection.pending = [memoryview(header)[sent:], body[max(0, sent - len(header)) :]]
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _header(self, stream: str, length: int) -> bytes:
        made = (
            f"POST /v1/events?name={stream} HTTP/1.1\r\nHost: {self._spec.host}\r\n"
            f"Content-Type: application/x-ndjson\r\nContent-Length: {length}\r\n\r\n"
        ).encode()
        self._headers[stream, length] = made
        return made

    def _wait(self, timeout: float, may_be_none: bool = False) -> list[_Connection]:
        """The connections whose answers are whole now."""
        done = []
        happened = self._epoll.poll(timeout)
        if not happened and not may_be_none:
            raise Refused(f"no answer within {timeout:.0f} seconds")
        for number, mask in happened:
            connection = self._connections[number]
            if mask & select.EPOLLOUT:
                self._send_on(connection)
            if mask & ~select.EPOLLOUT and self._receive(connection):
                self._acked += 1
                done.append(connection)
        return done

    def _send_on(self, connection: _Connection) -> None:
        sent = connection.socket.sendmsg(connection.pending)
        rest = []
        for part in connection.pending:
            rest.append(part[sent:])
            sent = max(0, sent - len(part))
        connection.pending = [part for part in rest if part]
        if not connection.pending:
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN)

    def _receive(self, connection: _Connection) -> bool:
        data = connection.socket.recv(ANSWER_BYTES_MAX)
        if not data:
            raise Refused("the gateway closed a connection")
        if connection.received:
            connection.received += data
            data = bytes(connection.received)
        if data not in self._known:
            if not answered(data, self._spec.size):
                connection.received = bytearray(data)
                return False
            if len(self._known) >= ANSWERS_KNOWN_MAX:
                self._known.clear()
            self._known.add(data)
        connection.received.clear()
        return True


def _percentiles(latencies: list[float]) -> dict[str, float]:
    if not latencies:
        return {}
    found = np.percentile(np.array(latencies) * 1_000, [50, 95, 99])
    return {f"p{p}": float(v) for p, v in zip((50, 95, 99), found, strict=True)}


def main() -> None:
    spec: LoadSpec = pickle.loads(bytes.fromhex(sys.argv[1]))
    generator = Generator(spec, list(bodies(spec.workload, spec.events, spec.size, spec.first)))
    gc.freeze()
    gc.disable()
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_before = time.process_time()
    if spec.requests_per_second:
        generator.open_loop()
    else:
        generator.closed_loop()
    result = {
        "events": generator.events,
        "began": generator.began,
        "ended": generator.ended,
        "measured_events": generator.events - generator.events_before,
        "measured_seconds": generator.ended - generator.measured_from,
        "latency_milliseconds": _percentiles(generator.latencies),
        "cpu_seconds": time.process_time() - cpu_before,
        "exhausted": generator.exhausted,
        "acknowledged": generator.acknowledged,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (Refused, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
