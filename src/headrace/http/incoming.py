"""One request as it came in over HTTP/1.1, and the one place its answer goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

from headrace.http.headers import Headers
from headrace.http.problems import Response, problem_response
from headrace.http.refusals import address_not_ascii, body_cut_off, body_too_large, queue_full
from headrace.model.errors import RequestError

__all__ = ["BodyRoom", "Head", "Incoming", "IncomingReply", "read_head", "whole_answer"]

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n" for s in HTTPStatus}


class Head:
    """`path` is percent-decoded, `query_string` is not. `authority` is that of an address in
    absolute form, which counts before the field Host."""

    __slots__ = ("authority", "headers", "is_kept", "method", "path", "query_string", "version")

    def __init__(self, method: str, target: bytes, headers: Headers, version: str) -> None:
        self.method = method
        self.headers = headers
        self.version = version
        self.is_kept = False
        self.authority: str | None = None
        address = target.decode("ascii")
        if not address.startswith("/") and "://" in address:
            self.authority, _, rest = address.partition("://")[2].partition("/")
            address = "/" + rest
        path, _, self.query_string = address.partition("#")[0].partition("?")
        self.path = unquote(path, errors="replace") if "%" in path else path

    @property
    def is_asking(self) -> bool:
        """Whether the client waits to be told that its body is wanted."""
        return self.version == "1.1" and self.headers.get("expect", "").lower() == "100-continue"


def read_head(method: bytes, target: bytes, headers: Headers, version: str) -> Head:
    """Raises RequestError for an address that cannot be read."""
    try:
        return Head(method.decode("ascii"), target, headers, version)
    except UnicodeDecodeError:
        raise address_not_ascii() from None


class Queue(Protocol):
    """Where whole bodies wait."""

    @property
    def queue_bytes(self) -> int: ...


class BodyRoom:
    """Bodies being read count against the queue's bytes from the moment they are announced, so
    that many large ones at once are refused before they fill the memory."""

    def __init__(self, bytes_max: int, queue: Queue) -> None:
        self._bytes_max = bytes_max
        self._queue = queue
        self._taken_bytes = 0
        self.reading = 0

    def take(self, size: int) -> None:
        """Raises RequestError 429 when memory is spoken for."""
        held = self._queue.queue_bytes + self._taken_bytes
        if held and held + size > self._bytes_max:
            raise queue_full("more bytes are waiting than the gateway holds")
        self._taken_bytes += size

    def give_back(self, size: int) -> None:
        self._taken_bytes -= size


class Outgoing(Protocol):
    """What a request needs of its connection."""

    def count(self, status: int) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end_answer(self) -> None: ...

    async def drained(self) -> None: ...

    def abort(self) -> None: ...

    @property
    def date_line(self) -> str: ...


class Incoming:
    """For the event loop's thread. The body is collected only when somebody wants it, within what
    they allow; the answer is given once, whole or part by part."""

    __slots__ = (
        "_announced",
        "_body",
        "_bytes_max",
        "_connection",
        "_deliver",
        "_is_chunked",
        "_left",
        "_refuse",
        "_room",
        "_taken",
        "authority",
        "head",
        "headers",
        "is_answered",
        "is_lost",
        "is_whole",
        "method",
        "path",
        "query_string",
    )

    def __init__(self, head: Head, connection: Outgoing, room: BodyRoom) -> None:
        self.head = head
        self.method, self.path, self.query_string = head.method, head.path, head.query_string
        self.headers, self.authority = head.headers, head.authority
        self._connection = connection
        self._room = room
        length = head.headers.get("content-length")
        self._announced = int(length) if length is not None else None
        self._body: bytes | bytearray = b""
        self._taken = 0
        self._bytes_max = -1  # nobody collects it yet
        self._deliver: Callable[[bytes], None] | None = None
        self._refuse: Callable[[RequestError], None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._is_chunked = False
        self.is_whole = False
        self.is_answered = False
        self.is_lost = False

    # ------------------------------------------------------------------------------ its body

    def collect(
        self,
        bytes_max: int,
        deliver: Callable[[bytes], None],
        refuse: Callable[[RequestError], None],
    ) -> None:
        """Calls one of the two, now or later, once: the whole body, or why it is not taken (413
        beyond `bytes_max`, 429 when memory is spoken for, 408 when it takes too long, 400 when it
        was cut off)."""
        if self.is_lost and not self.is_whole:
            refuse(body_cut_off())
            return
        self._bytes_max, self._deliver, self._refuse = bytes_max, deliver, refuse
        self._room.reading += 1
        size = len(self._body) if self._announced is None else self._announced
        if self._claim(size) and self.is_whole:
            self._hand_over()
        elif self._deliver is not None and self.head.is_asking:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def read(self, bytes_max: int) -> bytes:
        """The whole body. Raises RequestError as collect() says."""
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def deliver(body: bytes) -> None:
            if not found.done():
                found.set_result(body)

        def refuse(error: RequestError) -> None:
            if not found.done():
                found.set_exception(error)

        self.collect(bytes_max, deliver, refuse)
        return await found

    def add_part(self, part: bytes) -> None:
        if self.is_answered or self.method != "POST":
            return  # nobody wants it
        if not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # small parts by themselves would take far more
            self._body += part
        if self._announced is None and self._deliver is not None:
            self._claim(len(part))

    @property
    def is_announced(self) -> bool:
        """Whether the body's length was said before."""
        return self._announced is not None

    def end_body(self) -> None:
        self.is_whole = True
        if self._deliver is not None:
            self._hand_over()

    def fail(self, error: RequestError) -> None:
        """The body will not come."""
        refuse = self._refuse
        if refuse is not None:
            self._stop_collecting()
            refuse(error)
        elif not self.is_answered and not self.is_lost:
            self._connection.count(error.status)
            self.respond(problem_response(error))

    def _claim(self, size: int) -> bool:
        """Whether there is room for so many bytes more. Otherwise it is refused."""
        try:
            if self._taken + size > self._bytes_max:
                raise body_too_large(self._bytes_max)
            self._room.take(size)
        except RequestError as error:
            self.fail(error)
            return False
        self._taken += size
        return True

    def _hand_over(self) -> None:
        deliver, body = self._deliver, self._body
        assert deliver is not None
        self._stop_collecting()
        deliver(bytes(body))

    def _stop_collecting(self) -> None:
        self._room.give_back(self._taken)
        self._room.reading -= 1
        self._taken = 0
        self._body = b""
        self._deliver = self._refuse = None

    # ---------------------------------------------------------------------------- its answer

    def respond(self, response: Response) -> None:
        """The whole answer; nothing happens when the client has gone or has one already."""
        if self.is_answered or self.is_lost:
            return
        self._connection.write(
            whole_answer(
                response,
                self._connection.date_line,
                is_kept=self._may_be_kept(),
                is_head_only=self.method == "HEAD",
            )
        )
        self._end()

    def begin_stream(self, status: int, headers: list[tuple[str, str]]) -> None:
        """An answer that goes out part by part, in chunks where its length is not given. Raises
        ConnectionResetError when nobody waits for it any more."""
        if self.is_answered or self.is_lost:
            raise ConnectionResetError
        has_length = any(name == "content-length" for name, _ in headers)
        self._is_chunked = not has_length and self.head.version == "1.1"
        if not has_length and not self._is_chunked:
            self.head.is_kept = False  # it ends with the connection
        framing = [("transfer-encoding", "chunked")] if self._is_chunked else []
        is_kept = self._may_be_kept()
        head = _answer_head(status, [*headers, *framing], self._connection.date_line, is_kept)
        self._connection.write(head)
        self.is_answered = True

    async def send_part(self, part: bytes) -> None:
        """Waits while the client reads slowly. Raises ConnectionResetError when it has gone."""
        if self.is_lost:
            raise ConnectionResetError
        if self._is_chunked:
            part = b"%x\r\n%b\r\n" % (len(part), part)
        self._connection.write(part)
        await self._connection.drained()

    def end_stream(self) -> None:
        if self._is_chunked:
            self._connection.write(b"0\r\n\r\n")
        self._end()

    def break_off(self) -> None:
        """An answer that is not whole must not look as if it were."""
        self._connection.abort()

    def left(self) -> asyncio.Future[None]:
        """Done when the client goes away."""
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            if self.is_lost:
                self._left.set_result(None)
        return self._left

    @property
    def is_watched(self) -> bool:
        """Whether somebody asked when the client goes away."""
        return self._left is not None

    def lose(self) -> None:
        """The connection is no more."""
        self.is_lost = True
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        if not self.is_whole:
            self.fail(body_cut_off())

    def _may_be_kept(self) -> bool:
        """Whether the connection can take another request; from now on `head` says so."""
        if not self.is_whole or self.head.version != "1.1":
            self.head.is_kept = False
        return self.head.is_kept

    def _end(self) -> None:
        self.is_answered = True
        if self._deliver is not None:
            self._stop_collecting()
        self._connection.end_answer()


class IncomingReply:
    """Stands where the committer would complete a future."""

    __slots__ = ("_finish", "_request")

    def __init__(self, finish: Callable[[Incoming, Response], None], request: Incoming) -> None:
        self._finish = finish
        self._request = request

    def done(self) -> bool:
        """The client has gone; its retry is recognised."""
        return self._request.is_lost

    def set_result(self, response: Response) -> None:
        self._finish(self._request, response)

    def set_exception(self, error: RequestError) -> None:
        self._finish(self._request, problem_response(error))


def whole_answer(
    response: Response, date_line: str, *, is_kept: bool, is_head_only: bool = False
) -> bytes:
    status, headers, body = response
    framed = [*headers, ("content-length", str(len(body)))]
    head = _answer_head(status, framed, date_line, is_kept)
    return head if is_head_only else head + body


def _answer_head(
    status: int, headers: list[tuple[str, str]], date_line: str, is_kept: bool
) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    kept = "" if is_kept else "connection: close\r\n"
    return f"{line}{fields}{date_line}{kept}\r\n".encode("latin-1", "replace")
