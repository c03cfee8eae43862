"""Passing queries on to the engine, which answers on an address of its own behind this one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from granian._granian import RSGIProtocolClosed

from headrace.model.errors import RequestError
from headrace.model.settings import Settings

__all__ = ["EngineAway", "EngineProxy"]

logger = logging.getLogger("headrace.gateway")

CONNECT_SECONDS_MAX = 2.0
ANSWER_SECONDS_MAX = 120.0  # longer than any query may take; heartbeats come every 15 s
ENGINE_CONNECTIONS_MAX = 400
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
_NOT_RETURNED = _HOP_BY_HOP | {"server", "date"}


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
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_SECONDS_MAX, connect=CONNECT_SECONDS_MAX),
            limits=httpx.Limits(
                max_connections=ENGINE_CONNECTIONS_MAX, max_keepalive_connections=32
            ),
            trust_env=False,
            verify=False,  # never TLS: reading the system's certificates would take a while
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

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
        timeout_seconds: float | None = None,
    ) -> httpx.Response:
        """The engine's answer with its body not yet read; the caller closes it.

        The address is read anew when connecting fails, so a restarted engine is found by the
        request that follows. Raises EngineAway.
        """
        forwarded = [(k, v) for k, v in headers if k.lower() not in _NOT_FORWARDED]
        for attempt in (1, 2):
            address = self._address if attempt == 1 else None
            if address is None:
                address = self._address = self._read_address()
            request = self._client.build_request(
                method,
                f"http://127.0.0.1:{address.port}{target}",
                headers=[*forwarded, ("headrace-internal", address.secret)],
                content=body,
                timeout=self._client.timeout if timeout_seconds is None else timeout_seconds,
            )
            try:
                answer = await self._client.send(request, stream=True)
            except httpx.ConnectError:
                self._address = None
                if attempt == 2:
                    raise EngineAway("nothing listens at its address") from None
                continue
            except httpx.HTTPError as error:
                self._address = None
                if attempt == 2 or method != "GET":
                    raise EngineAway(type(error).__name__) from None
                continue
            if answer.status_code == 401 and attempt == 1:
                await answer.aclose()  # another engine has the port now, with another secret
                self._address = None
                continue
            return answer
        raise EngineAway("it refuses this gateway")

    async def read(self, target: str, timeout_seconds: float = 5.0) -> tuple[int, bytes]:
        """Status and whole body of a GET. Raises EngineAway."""
        answer = await self.open("GET", target, timeout_seconds=timeout_seconds)
        try:
            return answer.status_code, await answer.aread()
        except httpx.HTTPError as error:
            raise EngineAway(type(error).__name__) from None
        finally:
            await answer.aclose()

    async def forward(
        self,
        protocol: Any,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
    ) -> int:
        """Stream the engine's answer to the client, chunk by chunk as it comes; a client that
        goes away ends the engine's work on it. Returns the status."""
        answer = await self.open(method, target, headers, body)
        try:
            returned = [
                (name, value)
                for name, value in answer.headers.multi_items()
                if name.lower() not in _NOT_RETURNED
            ]
            transport = protocol.response_stream(answer.status_code, returned)
            await self._copy_while_connected(answer, protocol, transport)
        finally:
            await answer.aclose()
        return answer.status_code

    async def _copy_while_connected(
        self, answer: httpx.Response, protocol: Any, transport: Any
    ) -> None:
        copying = asyncio.ensure_future(_copy(answer, transport))
        leaving = protocol.client_disconnect()
        leaving.add_done_callback(lambda _: copying.cancel())
        try:
            await asyncio.wait((copying,))
        finally:
            # not awaited: it would only end with the connection, which other requests go on using
            leaving.cancel()
            copying.cancel()
        failure = None if copying.cancelled() else copying.exception()
        if isinstance(failure, httpx.HTTPError):
            # The status is sent already. The stream must not look complete.
            logger.warning("the engine's answer broke off: %s", type(failure).__name__)
            raise ConnectionAbortedError("the engine's answer broke off")
        if failure is not None and not isinstance(failure, RSGIProtocolClosed):
            raise failure


async def _copy(answer: httpx.Response, transport: Any) -> None:
    async for chunk in answer.aiter_raw():
        await transport.send_bytes(chunk)
