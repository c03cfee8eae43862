"""HTTP/1.1 connections: llhttp cuts what comes into requests, which are answered in their order.

No task and no future is made for a request: its handler is called as soon as its head is there, and
answers whenever it can. A request that comes while the one before it is being answered waits, and
reading stops meanwhile. A client that reads its answers slowly is not read from either.

Every wait for a client is bounded: for a head and for a body by gateway.request_seconds_max, from
one request to the next by IDLE_SECONDS_MAX. What was refused before its body had come is read on
for a while and thrown away: the client shall see the answer rather than a broken connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate

import httptools

from headrace.gateway.incoming import BodyRoom, Incoming, answer_head, read_head
from headrace.gateway.problems import problem_response
from headrace.gateway.requests import Headers
from headrace.model.errors import RequestError

__all__ = ["Connections"]

IDLE_SECONDS_MAX = 75.0
LINGER_SECONDS_MAX = 5.0
LINGER_BYTES_MAX = 4 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
RETRY_AFTER_SECONDS = 1
_CLOSING_SECONDS_MAX = 2.0

Handler = Callable[[Incoming], None]


class Connections:
    """All that are open. `handle` is called on the event loop's thread with each request whose head
    has come, and must not raise."""

    def __init__(
        self, handle: Handler, room: BodyRoom, connections_max: int, request_seconds_max: float
    ) -> None:
        self.handle = handle
        self.room = room
        self.request_seconds_max = request_seconds_max
        self._connections_max = connections_max
        self._open: set[_Connection] = set()
        self.date_line = _date_line()
        self.is_closing = False

    async def listen(self, host: str, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _Connection(self), host.strip("[]"), port, backlog=1_024
        )

    def add(self, connection: _Connection) -> bool:
        """False if there are too many."""
        self._open.add(connection)
        return len(self._open) <= self._connections_max

    def discard(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def sweep(self) -> None:
        """About once a second: cut slow clients, and let idle ones go."""
        self.date_line = _date_line()
        now = time.monotonic()
        for connection in list(self._open):
            if now > connection.deadline:
                connection.expire()

    async def close(self) -> None:
        """Answers that are on their way are sent; those that nobody reads are given up."""
        self.is_closing = True
        deadline = time.monotonic() + _CLOSING_SECONDS_MAX
        for connection in list(self._open):
            connection.close_when_idle()
        while self._open and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._open):
            connection.abort()


class _Connection(asyncio.Protocol):
    __slots__ = (
        "_drain",
        "_due",
        "_fields",
        "_head_bytes",
        "_is_held",
        "_is_lingering",
        "_is_writable",
        "_owner",
        "_parser",
        "_reading",
        "_target",
        "_thrown_bytes",
        "_transport",
        "_waiting",
        "deadline",
    )

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Incoming] = deque()  # the first one is being answered
        self._reading: Incoming | None = None  # the one whose body is coming
        self._fields = Headers()
        self._target = b""
        self._head_bytes = 0
        self._due: Incoming | None = None  # the one to be handled next
        self._is_lingering = False  # nothing that comes is of use any more
        self._thrown_bytes = 0
        self._is_writable = True
        self._is_held = False  # the next one waits until it is writable
        self._drain: asyncio.Future[None] | None = None
        self.deadline = 0.0

    # -------------------------------------------------------------------------- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.deadline = time.monotonic() + self._owner.request_seconds_max
        if not self._owner.add(self):
            self._refuse(
                RequestError(
                    503,
                    "too-many-connections",
                    "as many connections are open as the gateway serves at once",
                    hint="use fewer, or raise gateway.connections_max",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.discard(self)
        self._transport = None
        for incoming in self._waiting:
            incoming.lose()
        self._waiting.clear()
        self._reading = None
        self.resume_writing()

    def eof_received(self) -> bool:
        """A client may say that it sends nothing more, and wait for its answer. It looks the same
        when it goes away: who asked to be told of that is told."""
        if self._reading is not None or not self._waiting or self._waiting[0].is_watched:
            return False
        self._waiting[-1].head.is_kept = False
        return True

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            self._thrown_bytes += len(data)
            if self._thrown_bytes > LINGER_BYTES_MAX:
                self.abort()
                return
            if self._reading is None:
                return
        if self._reading is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(
                RequestError(
                    400,
                    "malformed-request",
                    f"this is not HTTP/1.1: {error}",
                    hint="send the request again as HTTP/1.1",
                )
            )
            return
        self._handle_due()
        if self._reading is None and self._head_bytes > HEAD_BYTES_MAX and not self._waiting:
            self._refuse(_head_too_large())

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        self._drain = None
        if self._is_held:
            self._is_held = False
            self._go_on()

    # ------------------------------------------------------------------------------ of the parser

    def on_message_begin(self) -> None:
        self._fields = Headers()
        self._target = b""
        self.deadline = time.monotonic() + self._owner.request_seconds_max

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        fields, self._fields = self._fields, Headers()
        length = self._head_bytes
        self._head_bytes = 0
        try:
            if length > HEAD_BYTES_MAX and _size(fields, self._target) > HEAD_BYTES_MAX:
                raise _head_too_large()
            head = read_head(parser.get_method(), self._target, fields, parser.get_http_version())
            if parser.should_upgrade() and _has_body(fields):
                raise RequestError(
                    400,
                    "malformed-request",
                    "a request with a body cannot ask for another protocol",
                    hint="leave out the field Upgrade",
                )
        except RequestError as error:
            self._refuse(error)
            return
        head.is_kept = parser.should_keep_alive() and not self._owner.is_closing
        incoming = Incoming(head, self, self._owner.room)
        self._reading = incoming
        self._waiting.append(incoming)
        if len(self._waiting) == 1:
            self._due = incoming  # small bodies come with their heads: then it is whole at once
        elif self._transport is not None:
            self._transport.pause_reading()

    def on_body(self, part: bytes) -> None:
        if self._reading is not None:
            self._reading.add_part(part)

    def on_message_complete(self) -> None:
        incoming = self._reading
        if incoming is None:
            return
        self._reading = None
        self.deadline = float("inf")
        incoming.end_body()
        self._handle_due()
        if self._is_lingering:
            self._close()

    def _handle_due(self) -> None:
        incoming, self._due = self._due, None
        if incoming is not None:
            self._owner.handle(incoming)

    # ----------------------------------------------------------------------------- of the answers

    @property
    def date_line(self) -> str:
        return self._owner.date_line

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drained(self) -> None:
        if self._is_writable:
            return
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_future()
        await self._drain

    def end_answer(self) -> None:
        """The first of the waiting has its answer."""
        incoming = self._waiting[0] if self._waiting else None
        if incoming is None:
            return
        if not incoming.head.is_kept:
            if incoming.is_whole or self._reading is None:
                self._close()
            else:
                self._linger()
        elif self._is_writable:
            self._go_on()
        else:
            self._is_held = True

    def _go_on(self) -> None:
        """With the next request, if one has come."""
        if self._waiting:
            self._waiting.popleft()
        if self._waiting:
            self._due = self._waiting[0]
            if self._reading is self._due:
                self.deadline = time.monotonic() + self._owner.request_seconds_max
            asyncio.get_running_loop().call_soon(self._handle_due)  # there may be thousands
            if len(self._waiting) == 1 and self._transport is not None:
                self._transport.resume_reading()
        elif self._owner.is_closing:
            self._close()
        else:
            self.deadline = time.monotonic() + IDLE_SECONDS_MAX

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Nobody has to change to the protocol that a client would like."""
        self._parser = httptools.HttpRequestParser(self)
        if rest:
            self.data_received(rest)

    # ------------------------------------------------------------------------------ of the owner

    def expire(self) -> None:
        """The client took too long."""
        if self._is_lingering:
            self.abort()
        elif self._reading is not None:
            self.deadline = time.monotonic() + LINGER_SECONDS_MAX
            if self._reading is self._waiting[0]:  # the others wait for it, not for the client
                self._reading.fail(self._too_slow("body"))
        elif self._head_bytes:
            self._refuse(self._too_slow("head"))
        else:
            self._close()

    def close_when_idle(self) -> None:
        if not self._waiting:
            self._close()
        else:
            self._waiting[-1].head.is_kept = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._is_lingering = True
        self.deadline = time.monotonic() + LINGER_SECONDS_MAX
        if self._transport is not None:
            self._transport.close()

    def _linger(self) -> None:
        """The client is told that nothing more comes, while what it still sends is thrown away."""
        self._is_lingering = True
        self.deadline = time.monotonic() + LINGER_SECONDS_MAX
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def _refuse(self, error: RequestError) -> None:
        """What came is not a request that anybody could answer."""
        incoming, self._reading = self._reading, None
        if not self._waiting:
            status, headers, body = problem_response(error)
            headers.append(("content-length", str(len(body))))
            self.write(answer_head(status, headers, self.date_line, is_kept=False) + body)
        elif incoming is self._waiting[0] and not incoming.is_answered:
            incoming.fail(error)  # its body is broken
        else:
            self.abort()
        self._linger()

    def _too_slow(self, part: str) -> RequestError:
        return RequestError(
            408,
            "too-slow",
            f"the {part} did not come within {self._owner.request_seconds_max} s",
            hint="send smaller batches; the bound is gateway.request_seconds_max",
        )


def _head_too_large() -> RequestError:
    return RequestError(
        431,
        "head-too-large",
        f"the request's head has more than {HEAD_BYTES_MAX} bytes",
        hint="send fewer or shorter header fields",
    )


def _size(fields: Headers, target: bytes) -> int:
    return len(target) + sum(len(name) + len(value) + 4 for name, value in fields.items())


def _has_body(fields: Headers) -> bool:
    return "content-length" in fields or "transfer-encoding" in fields


def _date_line() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"
