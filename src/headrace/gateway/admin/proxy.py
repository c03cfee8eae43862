"""Passing queries on to the engine, which answers on an address of its own behind this one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.http.exchange import (
    Answer,
    BrokenExchange,
    Exchanges,
    NoConnection,
    StaleConnection,
)
from headrace.http.incoming import Incoming
from headrace.model.errors import RequestError
from headrace.model.settings import Settings

__all__ = ["EngineAway", "EngineProxy"]

logger = logging.getLogger("headrace.gateway")

ANSWER_SECONDS_MAX = 120.0  # longer than any query may take; heartbeats come every 15 s
WHOLE_BYTES_MAX = 256 * 1024  # answers up to this size are sent in one piece
CLIENT_LEFT = 499  # what is counted when nobody was there for the answer
READ_BYTES_MAX = 16 * 1024 * 1024
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "authorization", "content-length", "headrace-internal"}
_NOT_RETURNED = _HOP_BY_HOP | {"server", "date", "content-length"}


class EngineAway(RequestError):  # noqa: N818 - a state of the other process, not a fault
    """503, code engine-away: there is no engine, or it does not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            503,
            "engine-away",
            f"the engine does not answer: {reason}",
            hint="events are still accepted; queries work again when the engine is up",
            retry_after_seconds=2,
        )


@dataclass(frozen=True)
class _Address:
    port: int
    secret: str


class EngineProxy:
    """Finds the engine through its file in the run directory, read again when it fails."""

    def __init__(self, settings: Settings) -> None:
        self._file: Path = settings.run_directory / "engine.json"
        self._address: _Address | None = None
        self._exchanges = Exchanges()

    def close(self) -> None:
        self._exchanges.close()

    def _read_address(self) -> _Address:
        try:
            raw = json.loads(self._file.read_text(encoding="utf-8"))
            return _Address(int(raw["port"]), str(raw["secret"]))
        except FileNotFoundError:
            raise EngineAway("it has not started") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineAway(f"its address cannot be read ({type(error).__name__})") from None

    async def open(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> Answer:
        """The engine's answer with its body not yet read; the caller closes it.

        The address is read anew when connecting fails, so a restarted engine is found by the
        request that follows. What may have reached the engine is sent again only if it is a GET
        whose kept connection turned out to be closed. Raises EngineAway.
        """
        forwarded = [(k, v) for k, v in headers if k.lower() not in _NOT_FORWARDED]
        for attempt in (1, 2):
            address = self._address
            if address is None:
                address = self._address = self._read_address()
            sent = [*forwarded, ("headrace-internal", address.secret)]
            try:
                answer = await self._exchanges.send(
                    address.port, method, target, sent, body, seconds_max
                )
            except BrokenExchange as error:
                self._forget_address()
                is_unsent = isinstance(error, NoConnection)
                is_stale = isinstance(error, StaleConnection)
                if attempt == 2 or not (is_unsent or (is_stale and method == "GET")):
                    raise EngineAway(str(error)) from None
                continue
            if answer.status == 401 and attempt == 1:
                answer.close()  # another engine has the port now, with another secret
                self._forget_address()
                continue
            return answer
        raise EngineAway("it refuses this gateway")

    def _forget_address(self) -> None:
        """Kept connections go with it: they lead to the engine that was there."""
        self._address = None
        self._exchanges.close()

    async def read(self, target: str, seconds_max: float = 5.0) -> tuple[int, bytes]:
        """Status and whole body of a GET. Raises EngineAway."""
        try:
            async with asyncio.timeout(seconds_max):
                answer = await self.open("GET", target, seconds_max=seconds_max)
                try:
                    return answer.status, await answer.whole(READ_BYTES_MAX)
                finally:
                    answer.close()
        except (BrokenExchange, TimeoutError) as error:
            raise EngineAway(str(error) or "it takes too long") from None

    async def forward(self, request: Incoming, target: str, body: bytes) -> int:
        """Pass the engine's answer on, a long one part by part as it comes; a client that goes
        away ends the engine's work on it. Returns the status. Raises EngineAway while nothing
        was sent yet, ConnectionAbortedError when the answer broke off half-way."""
        task = asyncio.current_task()
        assert task is not None
        has_left = False

        def leave(_: object) -> None:
            nonlocal has_left
            has_left = True
            task.cancel()

        leaving = request.left()
        leaving.add_done_callback(leave)
        try:
            return await self._pass_on(request, target, body)
        except asyncio.CancelledError:
            if not has_left or task.uncancel():
                raise
            return CLIENT_LEFT
        finally:
            leaving.remove_done_callback(leave)

    async def _pass_on(self, request: Incoming, target: str, body: bytes) -> int:
        answer = await self.open(request.method, target, request.headers.items(), body)
        try:
            returned = [pair for pair in answer.headers if pair[0] not in _NOT_RETURNED]
            if answer.length is not None and answer.length <= WHOLE_BYTES_MAX:
                request.respond((answer.status, returned, await answer.whole(WHOLE_BYTES_MAX)))
            else:
                if answer.length is not None:
                    returned.append(("content-length", str(answer.length)))
                request.begin_stream(answer.status, returned)
                await _copy(answer, request)
        except BrokenExchange as error:
            raise EngineAway(str(error)) from None
        except ConnectionResetError:
            return CLIENT_LEFT
        finally:
            answer.close()
        return answer.status


async def _copy(answer: Answer, request: Incoming) -> None:
    try:
        while part := await answer.next_part():
            await request.send_part(part)
        request.end_stream()
    except BrokenExchange as error:
        # The status is sent already. An answer with a length does not look complete then; a change
        # feed ends, and its reader comes back with the position it has.
        logger.warning("the engine's answer broke off: %s", error)
        raise ConnectionAbortedError("the engine's answer broke off") from None
