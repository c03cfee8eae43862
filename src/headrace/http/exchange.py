"""HTTP/1.1 to one server on this machine: a request out, an answer in, connections kept.

Strict: an answer has a stated length or is chunked, and nothing may follow it. A connection is
used again only when its answer was read to the end; any other is closed, which is also how the
server learns that nobody wants the answer any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

__all__ = ["Answer", "BrokenExchange", "Exchanges", "NoConnection", "StaleConnection"]

CONNECT_SECONDS_MAX = 2.0
CONNECTIONS_MAX = 656
IDLE_CONNECTIONS_MAX = 32
IDLE_SECONDS_MAX = 10.0  # well before the server closes it
HEAD_BYTES_MAX = 64 * 1024
PART_BYTES_MAX = 64 * 1024
_BUFFER_BYTES_MAX = 2 * PART_BYTES_MAX
_CHUNK_LINE_BYTES_MAX = 64


class BrokenExchange(Exception):  # noqa: N818
    """The server did not answer, or not as it should; the message says what happened."""


class NoConnection(BrokenExchange):
    """Nothing listens there, or there are CONNECTIONS_MAX connections already."""


class StaleConnection(BrokenExchange):
    """A kept connection ended before a single byte of the answer came."""


class _Connection(asyncio.Protocol):
    """Received bytes wait in a buffer; reading from the socket pauses while it is full."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self.is_ended = False
        self.is_used = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _BUFFER_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._running_transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def _running_transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def has_received(self) -> bool:
        return bool(self._buffer)

    def send(self, data: bytes) -> None:
        self._running_transport.write(data)

    def close(self) -> None:
        self._running_transport.abort()

    async def _receive(self, seconds_max: float) -> None:
        """Waits until the buffer has grown."""
        if self.is_ended:
            raise BrokenExchange("it closed the connection")
        if self._is_paused:
            self._is_paused = False
            self._running_transport.resume_reading()
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds_max, _time_out, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def read_until(self, mark: bytes, bytes_max: int, seconds_max: float) -> bytes:
        """What comes before `mark`, which is taken too."""
        searched = 0
        while (found := self._buffer.find(mark, searched)) < 0:
            if len(self._buffer) > bytes_max:
                raise BrokenExchange("its answer has a line or head that is too long")
            searched = max(0, len(self._buffer) - len(mark) + 1)
            await self._receive(seconds_max)
        taken = bytes(self._buffer[:found])
        del self._buffer[: found + len(mark)]
        return taken

    async def read_some(self, bytes_max: int, seconds_max: float) -> bytes:
        """At least one byte, and no more than `bytes_max`, as soon as there are any."""
        while not self._buffer:
            await self._receive(seconds_max)
        taken = bytes(self._buffer[:bytes_max])
        del self._buffer[: len(taken)]
        return taken


def _time_out(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(BrokenExchange("it does not go on"))


class Answer:
    """`length` is None while it is not known: a chunked answer. Closed by whoever opened it."""

    def __init__(
        self,
        owner: Exchanges,
        connection: _Connection,
        status: int,
        headers: list[tuple[str, str]],
        seconds_max: float,
    ) -> None:
        self.status = status
        self.headers = headers
        self._owner = owner
        self._connection: _Connection | None = connection
        self._seconds_max = seconds_max
        named = dict(headers)
        self._may_keep = named.get("connection", "").lower() != "close"
        self.length = _body_length(status, named)
        self._left = self.length or 0
        self._is_whole = self.length == 0

    async def next_part(self) -> bytes:
        """The next bytes of the body as they come; empty at its end. Raises BrokenExchange if it
        ends too early or badly, or if nothing comes for too long."""
        if self._is_whole:
            return b""
        connection = self._connection
        assert connection is not None
        if self.length is None and not self._left:
            self._left = await self._chunk_length(connection)
            if not self._left:
                await self._line_end(connection)
                self._is_whole = True
                return b""
        part = await connection.read_some(min(self._left, PART_BYTES_MAX), self._seconds_max)
        self._left -= len(part)
        if not self._left:
            if self.length is None:
                await self._line_end(connection)
            else:
                self._is_whole = True
        return part

    async def whole(self, bytes_max: int) -> bytes:
        """The rest of the body. Raises BrokenExchange, also beyond `bytes_max`."""
        parts = []
        left = bytes_max
        while part := await self.next_part():
            left -= len(part)
            if left < 0:
                raise BrokenExchange(f"its answer has more than {bytes_max} bytes")
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._connection is not None:
            self._owner.give_back(self._connection, self._is_whole and self._may_keep)
            self._connection = None

    async def _chunk_length(self, connection: _Connection) -> int:
        line = await connection.read_until(b"\r\n", _CHUNK_LINE_BYTES_MAX, self._seconds_max)
        digits = line.partition(b";")[0].strip()
        try:
            length = int(digits, 16)
        except ValueError:
            length = -1
        if length < 0 or not digits.isalnum():
            raise BrokenExchange("its answer is badly chunked")
        return length

    async def _line_end(self, connection: _Connection) -> None:
        if await connection.read_until(b"\r\n", _CHUNK_LINE_BYTES_MAX, self._seconds_max):
            raise BrokenExchange("its answer is badly chunked")


def _body_length(status: int, named: dict[str, str]) -> int | None:
    length, coding = named.get("content-length"), named.get("transfer-encoding")
    if status in (204, 304):
        return 0
    if coding is not None and length is None and coding.lower() == "chunked":
        return None
    if coding is None and length is not None and length.isascii() and length.isdigit():
        return int(length)
    raise BrokenExchange("its answer has no length")


class Exchanges:
    """All connections to the server; for one event loop's thread."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._open = 0

    async def send(
        self,
        port: int,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        seconds_max: float,
    ) -> Answer:
        """The answer with its body not yet read. `seconds_max` bounds each wait for bytes. Raises
        NoConnection, StaleConnection or BrokenExchange."""
        request = _request_bytes(port, method, target, headers, body)
        connection = await self._take(port)
        is_whole = False
        try:
            connection.send(request)
            answer = await self._answer(connection, seconds_max)
            is_whole = True
            return answer
        except BrokenExchange:
            if connection.is_used and connection.is_ended and not connection.has_received:
                raise StaleConnection("it closed the connection") from None
            raise
        finally:
            if not is_whole:
                self.give_back(connection, may_keep=False)

    def give_back(self, connection: _Connection, may_keep: bool) -> None:
        may_keep = may_keep and not connection.is_ended and not connection.has_received
        if not may_keep or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            self._open -= 1
            connection.close()
            return
        connection.is_used = True
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def close(self) -> None:
        """Kept connections are closed; those in use end with their answers."""
        for connection in self._idle:
            connection.close()
        self._open -= len(self._idle)
        self._idle.clear()

    async def _take(self, port: int) -> _Connection:
        """The one given back last; those that are older than it are let go when it is too old."""
        while self._idle:
            connection = self._idle.pop()
            is_fresh = time.monotonic() - connection.idle_since < IDLE_SECONDS_MAX
            if is_fresh and not connection.is_ended and not connection.has_received:
                return connection
            self._open -= 1
            connection.close()
        if self._open >= CONNECTIONS_MAX:
            raise NoConnection(f"{CONNECTIONS_MAX} requests are waiting for it already")
        self._open += 1
        try:
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, made = await loop.create_connection(_Connection, "127.0.0.1", port)
            return made
        except OSError:
            self._open -= 1
            raise NoConnection("nothing listens at its address") from None
        except BaseException:
            self._open -= 1
            raise

    async def _answer(self, connection: _Connection, seconds_max: float) -> Answer:
        head = await connection.read_until(b"\r\n\r\n", HEAD_BYTES_MAX, seconds_max)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = status_line.partition(" ")
        code = rest[:3]
        if version != "HTTP/1.1" or not (code.isascii() and code.isdigit() and int(code) >= 200):
            raise BrokenExchange("its answer is not HTTP/1.1")
        headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BrokenExchange("its answer has a header that cannot be read")
            headers.append((name.lower(), value.strip(" \t")))
        return Answer(self, connection, int(code), headers, seconds_max)


def _request_bytes(
    port: int, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method != "GET":
        lines.append(f"content-length: {len(body)}")
    head = "\r\n".join(lines).encode("utf-8", "replace")
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise BrokenExchange("the request has a line break where none may be")
    return head + b"\r\n\r\n" + body
