"""Reading request bodies within bounds of size, of memory for all together, and of time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from granian._granian import RSGIProtocolClosed

from headrace.gateway.committer import RETRY_AFTER_SECONDS, Committer
from headrace.gateway.requests import Headers
from headrace.model.errors import RequestError
from headrace.model.settings import GatewaySettings

__all__ = ["BodyReader"]


class BodyReader:
    """Bodies being read count against the queue's bytes from the moment they are announced, so
    that many large ones at once are refused before they fill the memory."""

    def __init__(self, settings: GatewaySettings, committer: Committer) -> None:
        self._settings = settings
        self._committer = committer
        self._announced_bytes = 0
        self._deadlines: dict[asyncio.Task[Any], float] = {}
        self._cut: set[asyncio.Task[Any]] = set()

    @property
    def reading(self) -> int:
        return len(self._deadlines)

    async def read(self, protocol: Any, headers: Headers, bytes_max: int | None = None) -> bytes:
        """The whole body, never a part of it. Raises RequestError: 400 if it was cut off, 413
        beyond `bytes_max`, 429 when memory is spoken for, 408 for a client that takes longer than
        request_seconds_max."""
        bytes_max = self._settings.request_bytes_max if bytes_max is None else bytes_max
        length = headers.get("content-length")
        announced = int(length) if length is not None and length.isdigit() else None
        if announced is not None and announced > bytes_max:
            raise _too_large(bytes_max)
        task = asyncio.current_task()
        assert task is not None
        reserved = announced or 0
        self._reserve(reserved)
        self._deadlines[task] = time.monotonic() + self._settings.request_seconds_max
        try:
            if announced is not None:
                body: bytes = await protocol()
                return body
            parts: list[bytes] = []
            async for part in protocol:
                if reserved + len(part) > bytes_max:
                    raise _too_large(bytes_max)
                self._reserve(len(part))
                reserved += len(part)
                parts.append(part)
            # The server ends a whole body with one empty part. It does not raise for a body that
            # was cut off or badly chunked, but gives an empty part for that too.
            if parts.count(b"") != 1 or parts[-1]:
                raise _cut_off()
            return b"".join(parts)
        except RSGIProtocolClosed:
            raise _cut_off() from None
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            task.uncancel()
            raise RequestError(
                408,
                "too-slow",
                f"the body did not come within {self._settings.request_seconds_max} s",
                hint="send smaller batches; the bound is gateway.request_seconds_max",
            ) from None
        finally:
            self._announced_bytes -= reserved
            del self._deadlines[task]
            self._cut.discard(task)

    def cut_slow_clients(self) -> None:
        """Called about once a second."""
        now = time.monotonic()
        for task, deadline in self._deadlines.items():
            if now > deadline and task not in self._cut:
                self._cut.add(task)
                task.cancel()

    def _reserve(self, size: int) -> None:
        held = self._committer.queue_bytes + self._announced_bytes
        if held and held + size > self._settings.queue_bytes_max:
            raise RequestError(
                429,
                "queue-full",
                "more bytes are waiting than the gateway holds",
                hint="send again after Retry-After",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._announced_bytes += size


def _cut_off() -> RequestError:
    return RequestError(
        400, "body-cut-off", "the body ended before it was whole", hint="send the request again"
    )


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(
        413,
        "body-too-large",
        f"the body has more than {bytes_max} bytes",
        hint="send smaller batches; the bound is gateway.request_bytes_max",
    )
