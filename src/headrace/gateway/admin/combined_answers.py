"""Answers in which the gateway and the engine each have their part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.admin.proxy import EngineAway, EngineProxy
from headrace.model.errors import RequestError

__all__ = ["CombinedAnswers"]

ENGINE_ANSWER_SECONDS_MAX = 2.0


class CombinedAnswers:
    """The gateway's part is given also while there is no engine."""

    def __init__(self, proxy: EngineProxy) -> None:
        self._proxy = proxy

    async def read(self, path: str) -> bytes:
        """The engine's answer. Raises EngineAway where it is not 200."""
        code, body = await self._proxy.read(path, ENGINE_ANSWER_SECONDS_MAX)
        if code != 200:
            raise EngineAway(f"it answers with status {code}")
        return body

    async def views(self) -> list[dict[str, Any]]:
        """The engine's list of views. Raises EngineAway."""
        try:
            document = msgspec.json.decode(await self.read("/v1/views"), type=dict[str, Any])
        except msgspec.DecodeError:
            raise EngineAway("its answer cannot be read") from None
        views: list[dict[str, Any]] = document["views"]
        return views

    async def require_started(self) -> None:
        """Raises EngineAway, or RequestError 503 while the engine has yet to open its views."""
        code, _ = await self._proxy.read("/readyz", ENGINE_ANSWER_SECONDS_MAX)
        if code != 200:
            raise RequestError(
                503,
                "engine-starting",
                "the engine is starting and has not opened its views yet",
                hint="events are taken already; try again shortly",
                retry_after_seconds=2,
            )

    async def document(self, path: str, own: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The engine's document with the gateway's own part in it; `engine` says when the
        engine's is missing."""
        document: dict[str, Any] = {}
        try:
            document = msgspec.json.decode(await self.read(path), type=dict[str, Any])
        except EngineAway as error:
            document["engine"] = {"state": "down", "reason": error.message}
        except msgspec.DecodeError:
            document["engine"] = {"state": "down", "reason": "its answer cannot be read"}
        document["gateway"] = own()
        return document

    async def metrics(self, own: Metrics) -> bytes:
        text = own.exposition()
        with contextlib.suppress(EngineAway):  # the gateway's own figures are still true
            text += await self.read("/metrics")
        return text
