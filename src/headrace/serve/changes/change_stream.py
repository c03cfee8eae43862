"""The handler of GET /v1/views/NAME/changes: a view's changes as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.formats.answers import choose
from headrace.model.errors import ChangesExpiredError, RequestError
from headrace.serve.changes.subscriptions import Heartbeat, Subscription
from headrace.serve.problems import error_document
from headrace.serve.requests import Receive, Request, Send
from headrace.serve.services import Services

__all__ = ["EventStream", "follow_changes"]

HEARTBEAT_SECONDS = 15.0
STALLED_SECONDS_MAX = 60.0
RECONNECT_MILLISECONDS = 1_000


@dataclass(frozen=True)
class EventStream:
    """An admitted subscriber; `send` must be called, it gives the place free again."""

    services: Services
    subscription: Subscription
    after: int

    async def send(self, receive: Receive, send: Send, *, head_only: bool) -> None:
        """Sends until the client leaves, takes nothing for STALLED_SECONDS_MAX, or the
        subscription ends. The last event is `problem` when the changes no longer reach back."""
        leaving = asyncio.create_task(self._end_when_left(receive))
        try:
            await self._start(send)
            if not head_only:
                await self._send_all(send)
            await _send(send, b"", more=False)
        except TimeoutError:
            return  # it takes nothing: it can come back with its last event id
        finally:
            self.services.hub.unsubscribe(self.subscription)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _start(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_all(self, send: Send) -> None:
        """The first lines carry the position, so that a client which loses the connection before
        the first change resumes without a gap; so do heartbeats."""
        await _send(send, f"retry: {RECONNECT_MILLISECONDS}\nid: {self.after}\n\n".encode())
        messages = self.services.hub.follow(self.subscription, self.after, HEARTBEAT_SECONDS)
        try:
            async with contextlib.aclosing(messages):
                async for message in messages:
                    if isinstance(message, Heartbeat):
                        await _send(send, f": heartbeat\nid: {message.tick}\n\n".encode())
                    else:
                        await _send(send, message.data)
        except TimeoutError:
            raise
        except Exception as error:
            document = msgspec.json.encode(error_document(error))
            await _send(send, b"event: problem\ndata: " + document + b"\n\n")

    async def _end_when_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self.subscription.end(None)


async def _send(send: Send, data: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(STALLED_SECONDS_MAX):
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def follow_changes(services: Services, request: Request, name: str) -> EventStream:
    """Raises RequestError (400, 404, 406, 503) or ChangesExpiredError before anything is sent."""
    choose(request.headers.get("accept"), ("text/event-stream",))
    asked = _after(request)
    view = await services.reads.run(partial(services.view_name, name))
    subscription = services.hub.subscribe(view)
    try:
        after = await services.reads.run(partial(_position, services, view, asked))
    except BaseException:
        services.hub.unsubscribe(subscription)
        raise
    return EventStream(services, subscription, after)


def _after(request: Request) -> int | None:
    """Last-Event-ID is the newer of the two: a client that reconnects keeps its address."""
    given = dict(request.parameters())
    unknown = sorted(set(given) - {"after"})
    if unknown:
        raise RequestError(
            400, "parameter", f"unknown parameter {unknown[0]!r}", hint="after is the only one"
        )
    text = request.headers.get("last-event-id") or given.get("after")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(
            400,
            "parameter",
            f"after={text[:40]} is not the number of a tick",
            hint="use the tick of an answer's freshness, or a message's id",
        )
    return int(text)


def _position(services: Services, view: str, asked: int | None) -> int:
    last_tick = services.store.last_tick()
    if asked is None:
        return last_tick
    if asked > last_tick:
        raise ChangesExpiredError(
            f"tick {asked} is not in this store, whose last is {last_tick}",
            hint="read the view again and go on after the tick of that answer",
        )
    with services.reading(view):
        services.store.changes(view, asked, 1)
    return asked
