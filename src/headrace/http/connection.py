"""An HTTP/1.1 connection: llhttp cuts what comes into requests, which are answered in their order.

No task and no future is made for a request: its handler is called as soon as its head is there, and
answers whenever it can. A request that comes while the one before it is being answered waits, and
reading stops meanwhile. A client that reads its answers slowly is not read from either.

Every wait for a client is bounded: for a head and for a body by gateway.request_seconds_max, from
one request to the next, and for one that reads nothing of its answer, by IDLE_SECONDS_MAX. What was
refused before its body had come is read on for a while and thrown away: the client shall see the
answer rather than a broken connection. After what is no request nothing more is understood; it is
refused when the requests before it have their answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

import httptools

from headrace.http.headers import Headers
from headrace.http.incoming import Incoming, read_head, whole_answer
from headrace.http.problems import problem_response
from headrace.http.refusals import (
    HEAD_BYTES_MAX,
    check_head,
    head_too_large,
    malformed,
    too_many_connections,
    too_slow,
)
from headrace.model.errors import RequestError

if TYPE_CHECKING:
    from headrace.http.connections import Connections

__all__ = ["Connection"]

logger = logging.getLogger("headrace.gateway")

IDLE_SECONDS_MAX = 75.0
LINGER_SECONDS_MAX = 5.0
LINGER_BYTES_MAX = 4 * 1024 * 1024
LINGER_ANNOUNCED_BYTES_MAX = 64 * 1024 * 1024


class Connection(asyncio.Protocol):
    __slots__ = (
        "_drain",
        "_due",
        "_fields",
        "_head_bytes",
        "_is_deaf",
        "_is_held",
        "_is_in_head",
        "_is_writable",
        "_owner",
        "_parser",
        "_reading",
        "_refusal",
        "_target",
        "_thrown_bytes",
        "_transport",
        "_unsent_bytes",
        "_waiting",
        "deadline",
        "is_lingering",
        "reader_deadline",
    )

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Incoming] = deque()  # the first one is being answered
        self._reading: Incoming | None = None  # the one whose body is coming
        self._fields = Headers()
        self._target = b""
        self._is_in_head = False
        self._head_bytes = 0  # what came since the last head or piece of a body
        self._due: Incoming | None = None  # the one to be handled next
        self._is_deaf = False  # nothing that comes is understood any more
        self._refusal: RequestError | None = None  # to be told when all waiting are answered
        self.is_lingering = False  # nothing more is answered
        self._thrown_bytes = 0
        self._is_writable = True
        self._unsent_bytes = 0  # when it was last looked at
        self._is_held = False  # the next one waits until it is writable
        self._drain: asyncio.Future[None] | None = None
        self.deadline = 0.0
        self.reader_deadline = float("inf")

    # -------------------------------------------------------------------------- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.deadline = time.monotonic() + self._owner.request_seconds_max
        if not self._owner.add(self):
            self._refuse(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.discard(self)
        self._transport = None
        for incoming in self._waiting:
            incoming.lose()
        self._waiting.clear()
        self._reading = self._due = None
        self._is_held = False
        self.resume_writing()

    def eof_received(self) -> bool:
        """A client may say that it sends nothing more, and wait for its answer. It looks the same
        when it goes away: who asked to be told of that is told."""
        if self.is_lingering or self._reading is not None or not self._waiting:
            return False
        self._waiting[-1].head.is_kept = False
        return not self._waiting[0].is_watched

    def data_received(self, data: bytes) -> None:
        if self.is_lingering or self._is_deaf:
            self._thrown_bytes += len(data)
            is_bounded = self._reading is not None and self._reading.is_announced
            if self._thrown_bytes > (
                LINGER_ANNOUNCED_BYTES_MAX if is_bounded else LINGER_BYTES_MAX
            ):
                self.abort()
                return
            if self._reading is None:
                return
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            logger.error("a request could not be handled", exc_info=error)
            self.abort()  # it is no fault of the client's
        except httptools.HttpParserError as error:
            self._refuse(malformed(str(error)))
        else:
            self._handle_due()
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(head_too_large())

    def _parse(self, data: bytes) -> None:
        """Nobody has to change to the protocol that a client would like."""
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._parser = httptools.HttpRequestParser(self)
                rest = memoryview(rest)[upgrade.args[0] :]

    def pause_writing(self) -> None:
        self._is_writable = False
        self._unsent_bytes = 0
        self.wait_for_reader()

    def resume_writing(self) -> None:
        self._is_writable = True
        if not self.is_lingering:
            self.reader_deadline = float("inf")
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
        self._is_in_head = True
        self.deadline = time.monotonic() + self._owner.request_seconds_max

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # nobody reads what follows a body
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        fields, self._fields = self._fields, Headers()
        received, self._head_bytes = self._head_bytes, 0
        self._is_in_head = False
        if self.is_lingering or self._is_deaf:
            return
        try:
            check_head(fields, self._target, received, parser.should_upgrade())
            head = read_head(parser.get_method(), self._target, fields, parser.get_http_version())
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
        self._head_bytes = 0
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
        if self.is_lingering:
            self._close()

    def _handle_due(self) -> None:
        incoming, self._due = self._due, None
        if incoming is not None:
            self._owner.handle(incoming)

    # ----------------------------------------------------------------------------- of the answers

    @property
    def date_line(self) -> str:
        return self._owner.date_line

    def count(self, status: int) -> None:
        self._owner.count(status)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_lingering:
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
            if incoming.is_whole and not self._is_deaf:
                self._close()
            else:
                self._linger()
        elif self._is_writable:
            self._go_on()
        else:
            self._is_held = True

    def _go_on(self) -> None:
        """With the next request, if one has come."""
        answered = self._waiting.popleft()
        if not answered.head.is_kept:
            self._close()
        elif self._waiting:
            self._due = self._waiting[0]
            if self._reading is self._due:
                self.deadline = time.monotonic() + self._owner.request_seconds_max
            asyncio.get_running_loop().call_soon(self._handle_due)  # there may be thousands
            if len(self._waiting) == 1 and self._transport is not None and not self._is_deaf:
                self._transport.resume_reading()
        elif self._refusal is not None:
            self._tell(self._refusal)
        elif self._owner.is_closing:
            self._close()
        else:
            is_begun = self._is_in_head
            seconds = self._owner.request_seconds_max if is_begun else IDLE_SECONDS_MAX
            self.deadline = time.monotonic() + seconds

    # ------------------------------------------------------------------------------ of the owner

    def expire(self) -> None:
        """The client took too long."""
        if self.is_lingering:
            if self._has_unsent:
                self.deadline = time.monotonic() + LINGER_SECONDS_MAX
            elif self._transport is not None:
                self._transport.close()
        elif self._reading is not None:
            self.deadline = time.monotonic() + LINGER_SECONDS_MAX
            if self._reading is self._waiting[0]:  # the others wait for it, not for the client
                self._reading.fail(too_slow("body", self._owner.request_seconds_max))
        elif self._waiting:
            self.deadline = float("inf")  # the client waits for its answer
        elif self._is_in_head:
            self._refuse(too_slow("head", self._owner.request_seconds_max))
        else:
            self._close()

    def wait_for_reader(self) -> None:
        """As long as it takes something of its answer."""
        if self._transport is None:
            return
        unsent, before = self._transport.get_write_buffer_size(), self._unsent_bytes
        if before and unsent >= before:
            self.abort()
        self._unsent_bytes = unsent
        self.reader_deadline = time.monotonic() + IDLE_SECONDS_MAX

    @property
    def _has_unsent(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def close_when_idle(self) -> None:
        if self.is_lingering or not self._waiting:
            self._close()
        else:
            self._waiting[-1].head.is_kept = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._begin_to_linger()
        if self._transport is not None:
            self._transport.close()

    def _linger(self) -> None:
        """The client is told that nothing more comes, while what it still sends is thrown away."""
        self._begin_to_linger()
        if self._transport is None:
            return
        try:
            if not self._has_unsent:
                self._transport.write_eof()
            self._transport.resume_reading()
        except OSError:  # the client is gone: what was written just now has shown it
            self.abort()

    def _begin_to_linger(self) -> None:
        self.is_lingering = True
        self.deadline = time.monotonic() + LINGER_SECONDS_MAX
        self._unsent_bytes = 0
        self.wait_for_reader()

    def _refuse(self, error: RequestError) -> None:
        """What came is not a request that anybody could answer."""
        incoming, self._reading = self._reading, None
        if self.is_lingering:
            return
        self._is_deaf = True
        if self._transport is not None:
            self._transport.pause_reading()
        if incoming is not None and incoming is self._waiting[0]:
            self._due = None
            incoming.fail(error)  # its body is broken
            return
        if incoming is not None:
            self._waiting.pop()
        self._refusal = error
        if not self._waiting:
            self._tell(error)

    def _tell(self, error: RequestError) -> None:
        self.write(whole_answer(problem_response(error), self.date_line, is_kept=False))
        self.count(error.status)
        self._linger()
