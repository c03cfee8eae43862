"""All HTTP connections: how many may be open, which clients take too long, and how they end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

from headrace.http.connection import Connection
from headrace.http.incoming import BodyRoom, Incoming

__all__ = ["Connections"]

_CLOSING_SECONDS_MAX = 2.0

Handler = Callable[[Incoming], None]


class Connections:
    """All that are open. `handle` is called on the event loop's thread with each request whose head
    has come, and must not raise. `count` is told the status of each answer that no handler gave."""

    def __init__(
        self,
        handle: Handler,
        count: Callable[[int], None],
        room: BodyRoom,
        connections_max: int,
        request_seconds_max: float,
    ) -> None:
        self.handle = handle
        self.count = count
        self.room = room
        self.request_seconds_max = request_seconds_max
        self._connections_max = connections_max
        self._open: set[Connection] = set()
        self.date_line = _date_line()
        self.is_closing = False

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Connection(self), sock=listener, backlog=1_024)

    def add(self, connection: Connection) -> bool:
        """False if there are too many besides those that are being let go."""
        self._open.add(connection)
        if len(self._open) <= self._connections_max:
            return True
        return sum(not each.is_lingering for each in self._open) <= self._connections_max

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)

    def sweep(self) -> None:
        """About once a second: cut slow clients, and let idle ones go."""
        self.date_line = _date_line()
        now = time.monotonic()
        for connection in list(self._open):
            if now > connection.reader_deadline:
                connection.wait_for_reader()
            elif now > connection.deadline:
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


def _date_line() -> str:
    return f"date: {formatdate(usegmt=True)}\r\n"
