"""Connections in this process, with a handler and limits of the test's own: what is bounded, what
is not cut, and that each answer is given and counted once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.http import connection, connections
from headrace.http.connections import Connections
from headrace.http.incoming import BodyRoom, Incoming
from headrace.model.errors import RequestError

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
OK = (200, [], b"{}")
TCP_CLOSE = 7


class Served:
    """A server, what its handler was given, and the statuses that were counted."""

    def __init__(
        self, clock: Any = None, connections_max: int = 10, seconds_max: float = 20.0
    ) -> None:
        self.clock = clock
        self.port = 0
        self.requests: list[Incoming] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.counted: list[int] = []
        self.room = BodyRoom(1_000_000, SimpleNamespace(queue_bytes=0))  # type: ignore[arg-type]
        self.handle: Callable[[Incoming], None] = self.requests.append
        self.all = Connections(
            lambda request: self.handle(request),
            self.counted.append,
            self.room,
            connections_max,
            seconds_max,
        )

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def request(self, number: int = 0) -> Incoming:
        await self.until(lambda: len(self.requests) > number)
        return self.requests[number]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    def sweep_after(self, seconds: float) -> None:
        self.clock.let_pass(seconds)
        self.all.sweep()

    @property
    def transport(self) -> Any:
        """Of the one connection there is; None when there is none, or it is lost."""
        return next((each._transport for each in self.all._open), None)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    @property
    def open(self) -> int:
        return len(self.all._open)


def serve(try_it: Callable[[Served], Awaitable[Any]], **limits: Any) -> None:
    async def run() -> None:
        served = Served(**limits)
        listener = socket.create_server(("127.0.0.1", 0))
        served.port = listener.getsockname()[1]
        server = await served.all.listen(listener)
        try:
            async with asyncio.timeout(120):
                await try_it(served)
        finally:
            for writer in served.writers:
                writer.transport.abort()
            server.close()
            await served.all.close()
            await served.until(lambda: served.open == 0)
        assert (served.room.reading, served.room._taken_bytes) == (0, 0)

    asyncio.run(run())


@pytest.fixture
def moved(clock: Any) -> Any:
    """The clock of the connections."""
    clock.install(connection, connections)
    return clock


def test_an_answer_on_its_way_is_not_cut_by_what_comes_behind_it(moved: Any) -> None:
    async def try_it(served: Served) -> None:
        reader, writer = await served.connect(GET + GET[:9])
        await served.request()
        served.sweep_after(1_001)  # the next head is late, but whose turn is it?
        served.requests[0].respond(OK)
        writer.write(GET[9:] + GET[:9])
        (await served.request(1)).respond(OK)
        for _ in range(2):
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
        served.sweep_after(1_001)  # now it is the client's
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        assert served.counted == [408]

    serve(try_it, clock=moved, seconds_max=1_000)


@pytest.mark.parametrize(
    ("flood", "status"), [(b"GET / HTTP/1.1\r\nX: ", 431), (b"no request\r\n\r\n", 400)]
)
def test_a_flood_behind_an_answer_is_bounded_and_refused_in_its_turn(
    flood: bytes, status: int
) -> None:
    async def try_it(served: Served) -> None:
        reader, writer = await served.connect(GET + flood)
        request = await served.request()
        writer.write(b"y" * 30_000_000)
        await served.until(lambda: not served.transport.is_reading())
        assert writer.transport.get_write_buffer_size() > 10_000_000
        request.respond(OK)
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
        assert (await reader.readline()).startswith(b"HTTP/1.1 %d" % status)
        assert served.counted == [status]

    serve(try_it)


def test_whoever_reads_nothing_does_not_stay_and_whoever_reads_slowly_does(
    moved: Any,
) -> None:
    body = b"x" * 20_000_000

    async def take(served: Served, head: bytes, reads: bool) -> int:
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.setblocking(False)
            sock.sendall(head)
            (await served.request(len(served.requests))).respond((200, [], body))
            taken, sweeps = 0, 0

            def take_some(unsent: int) -> bool:
                """Until the server has sent something more, or has nothing left."""
                nonlocal taken
                with contextlib.suppress(BlockingIOError):
                    taken += len(sock.recv(100_000))
                return served.unsent_bytes < unsent or not unsent

            while taken <= len(body) if reads else served.open:
                sweeps += 1
                assert sweeps < 1_000
                if reads:
                    unsent = served.unsent_bytes
                    await served.until(lambda: take_some(unsent))  # noqa: B023
                served.sweep_after(connection.IDLE_SECONDS_MAX + 1)
                await asyncio.sleep(0)
            return taken

    async def try_it(served: Served) -> None:
        for head in (GET, GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")):
            assert await take(served, head, reads=True) >= len(body)
            await served.until(lambda: served.open == 0)
            assert await take(served, head, reads=False) == 0
            assert served.open == 0

    serve(try_it, clock=moved)


def test_connections_that_are_refused_take_nobody_s_place() -> None:
    async def try_it(served: Served) -> None:
        _, held = await served.connect(GET)
        (await served.request()).respond(OK)
        refused = [await served.connect() for _ in range(3)]
        for reader, _ in refused:
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        held.close()
        await served.until(lambda: served.open == 3)
        reader, _ = await served.connect(GET)
        (await served.request(1)).respond(OK)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert served.counted == [503] * 3

    serve(try_it, connections_max=1)


def test_a_request_has_one_answer(moved: Any) -> None:
    async def try_it(served: Served) -> None:
        reader, _writer = await served.connect(POST)
        request = await served.request()
        served.sweep_after(1_001)
        assert served.counted == [408]
        request.respond(OK)
        with pytest.raises(ConnectionResetError):
            request.begin_stream(200, [])
        assert (await reader.read()).count(b"HTTP/1.1") == 1

    serve(try_it, clock=moved, seconds_max=1_000)


def test_a_body_of_who_has_gone_takes_no_room() -> None:
    async def try_it(served: Served) -> None:
        _, writer = await served.connect(POST)
        request = await served.request()
        writer.transport.abort()
        await served.until(lambda: request.is_lost)
        with pytest.raises(RequestError, match="before it was whole"):
            await request.read(100)

    serve(try_it)


def test_a_body_behind_others_whose_client_leaves_takes_no_room() -> None:
    """It is its turn in the very moment in which the connection is found to be broken."""

    async def try_it(served: Served) -> None:
        def handle(request: Incoming) -> None:
            served.requests.append(request)
            if request.method == "POST":
                request.collect(100, lambda _: None, lambda _: None)

        served.handle = handle
        _, writer = await served.connect(GET + POST)
        request = await served.request()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await served.until(lambda: is_reset(served.transport))
        request.respond(OK)
        await served.until(lambda: served.open == 0)

    serve(try_it)


def is_reset(transport: Any) -> bool:
    """Whether the kernel knows that the client has gone: the first byte is TCP's state."""
    if transport is None:
        return True
    information = transport.get_extra_info("socket").getsockopt(
        socket.IPPROTO_TCP, socket.TCP_INFO, 1
    )
    return bool(information[0] == TCP_CLOSE)


def test_a_client_that_is_found_gone_by_its_answer_is_nobody_else_s_trouble() -> None:
    async def try_it(served: Served) -> None:
        head = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        _, writer = await served.connect(head + b"more")
        request = await served.request()
        writer.close()
        await writer.wait_closed()
        request.respond(OK)
        await served.until(lambda: served.open == 0)

    serve(try_it)


def test_a_body_in_small_chunks_takes_no_more_than_its_size() -> None:
    async def try_it(served: Served) -> None:
        head = POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked")
        _, writer = await served.connect(head + b"2\r\nab\r\n" * 50_000)
        request = await served.request()
        await served.until(lambda: len(request._body) == 100_000)
        assert isinstance(request._body, bytearray)
        writer.write(b"0\r\n\r\n")
        assert await request.read(100_000) == b"ab" * 50_000
        request.respond(OK)

    serve(try_it)


def test_a_fault_of_ours_is_logged_and_not_told_as_the_client_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Incoming) -> None:
        raise ValueError("here is the fault")

    async def try_it(served: Served) -> None:
        served.handle = fail
        reader, _writer = await served.connect(GET)
        with caplog.at_level(logging.ERROR), contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert "here is the fault" in caplog.text

    serve(try_it)
