"""The client for asyncio: tasks send in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx

from headrace.client import calls
from headrace.client.calls import Call
from headrace.client.connection import Callbacks, Connection, Trying
from headrace.client.encode import encode_delete, encode_event, events_of
from headrace.client.following import Follower
from headrace.client.outbox import Counts, Limits, Quarantined, Refused
from headrace.client.result import Change, Result
from headrace.client.task_sender import TaskSender
from headrace.model.errors import HeadraceError, RefusedError

__all__ = ["AsyncClient"]

Answer = TypeVar("Answer")


class AsyncClient:
    """Client for one event loop: the same promises, awaited.

    `send`, `upsert` and `delete` only buffer: `flush` and `close` say that everything is durable,
    or raise what is not. Sending is tried again until it succeeds or is refused for good; the
    client's producer id and sequence numbers see to it that nothing is stored twice. A given
    `producer` that starts over takes a new `epoch`, by default the time. With `sent_at` every
    request says when it was sent, by this machine's clock: streams with a SENT column correct event
    times by it.

    When the buffer is full, send waits up to `request_seconds_max` (`when_full="block"`) or raises
    BufferFullError at once (`"raise"`). `on_quarantined` gets every event the server put aside,
    `on_refused` every batch it will not take; both are called on a sending thread.

    A query shows everything that this client has flushed before: it waits for it, within the time
    of a request, and raises RefusedError when that is over (504) or when a view stands still
    without having it (409). With `reads_own_writes=False` it shows the views as they stand.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        *,
        producer: str | None = None,
        epoch: int | None = None,
        sent_at: bool = False,
        limits: Limits | None = None,
        when_full: Literal["block", "raise"] = "block",
        connections: int = 2,
        request_seconds_max: float = 30.0,
        reads_own_writes: bool = True,
        on_quarantined: Callable[[Quarantined], None] | None = None,
        on_refused: Callable[[Refused], None] | None = None,
    ) -> None:
        self._connection = Connection.make(
            url, token, request_seconds_max, connections, producer, epoch, sends_time=sent_at
        )
        self._reads_own_writes = reads_own_writes
        self._http = httpx.AsyncClient(
            base_url=self._connection.url,
            headers=self._connection.headers(),
            timeout=self._connection.timeout(),
            limits=self._connection.limits(),
        )
        self._sender = TaskSender(
            self._http,
            self._connection,
            limits or Limits(),
            Callbacks(on_quarantined, on_refused),
            waits_when_full=when_full == "block",
        )

    @property
    def producer(self) -> str:
        return self._connection.producer

    @property
    def counts(self) -> Counts:
        """A copy of the counts so far."""
        return self._sender.counts()

    # sending

    async def send(self, stream: str, events: Any) -> int:
        """Buffer one event (a mapping) or an iterable of them; returns how many. Raises
        BufferFullError, naming how many of an iterable had been taken before."""
        return await self._put(stream, events, encode_event)

    async def upsert(self, table: str, rows: Any) -> int:
        """Buffer one row of a table (a mapping) or an iterable of them, as `send` does. A row is
        stored whole, in place of the one with its key: a column that it lacks is NULL."""
        return await self._put(table, rows, encode_event, is_table=True)

    async def delete(self, table: str, keys: Any) -> int:
        """Buffer the deletion of one row of a table, or of an iterable of them, as `send` does. A
        row is named by a mapping with its key columns; others that it has do not count,
        but for those that the table is sequenced by or valid from: the first is needed too.

            client.delete("customers", {"id": "c-1"})
        """
        return await self._put(table, keys, encode_delete, is_table=True)

    async def _put(
        self,
        target: str,
        given: Any,
        encode: Callable[[Any], bytes],
        *,
        is_table: bool = False,
    ) -> int:
        self._connection.check_process()
        taken = 0
        for event in events_of(given):
            await self._sender.put(target, encode(event), taken, is_table=is_table)
            taken += 1
        return taken

    async def flush(self, timeout: float = 30.0) -> None:
        """Returns when every event given before is durable. Raises UnreachableError naming what is
        not within `timeout` seconds (it is still being tried), RefusedError if any was refused
        since the last flush."""
        self._connection.check_process()
        await self._sender.flush(timeout)

    async def heartbeat(
        self,
        stream: str,
        complete_up_to: datetime | str,
        producer: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        """Say that the stream, or what the producer writes to it, is complete up to this time:
        its watermark moves on without events. What was given to send before is flushed first, and
        raises as flush does. Durable when it returns."""
        await self.flush(timeout)
        await self._ask(calls.heartbeat(stream, complete_up_to, producer))

    async def close(self, timeout: float = 30.0) -> None:
        """Flush, then end. Whatever flush would raise is raised, after everything is let go: what
        is not durable then is lost. Does nothing when closed already."""
        self._connection.check_process()
        await self._sender.close(timeout)

    # asking

    async def query(self, sql: str) -> Result:
        """An ad-hoc SELECT in the store's dialect."""
        return await self._ask(calls.query(sql))

    async def view(
        self,
        name: str,
        *,
        order_by: str | Sequence[str] = (),
        limit: int | None = None,
        cursor: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Result:
        """Rows of a view whose columns equal the filters. `where` takes columns whose names are
        no Python names or are those of the other arguments. The next page: cursor=next_cursor."""
        return await self._ask(
            calls.view(name, {**(where or {}), **filters}, order_by, limit, cursor)
        )

    async def status(self) -> dict[str, Any]:
        return await self._ask(calls.status())

    async def views(self) -> list[dict[str, Any]]:
        return await self._ask(calls.views())

    async def streams(self) -> list[dict[str, Any]]:
        return await self._ask(calls.streams())

    async def rebuild(self, view: str) -> dict[str, Any]:
        """Asks for it; returns before it is done."""
        return await self._ask(calls.rebuild(view))

    async def dead_letters(
        self, stream: str | None = None, after: int = -1, limit: int = 100
    ) -> list[dict[str, Any]]:
        return await self._ask(calls.dead_letters(stream, after, limit))

    async def view_dead_letters(self, view: str, limit: int = 100) -> list[dict[str, Any]]:
        return await self._ask(calls.view_dead_letters(view, limit))

    async def resubmit(
        self, numbers: Iterable[int], records: Iterable[Any] | None = None
    ) -> dict[str, Any]:
        """Dead letters as new events, repaired if `records` are given, one per number."""
        return await self._ask(calls.resubmit(numbers, records))

    async def discard(self, numbers: Iterable[int]) -> dict[str, Any]:
        return await self._ask(calls.discard(numbers))

    async def _ask(self, call: Call[Answer]) -> Answer:
        self._connection.check_process()
        trying = Trying(f"{call.method} {call.path}", self._connection.request_seconds_max)
        covers = self._sender.covers() if call.of_views and self._reads_own_writes else ""
        while True:
            parameters, headers = trying.asked(call, covers)
            try:
                response = await self._http.request(
                    call.method, call.path, params=parameters, headers=headers, content=call.body
                )
            except (httpx.TransportError, httpx.DecodingError) as error:
                await asyncio.sleep(
                    trying.pause_after_failure(error, is_repeatable=call.is_repeatable)
                )
                continue
            try:
                pause = trying.pause_after_answer(call, response)
            except RefusedError as error:
                if error.problem.get("code") == "bad-covers":
                    self._sender.forget_covers(covers)  # it is gone: said once
                raise
            if pause is None:
                return call.read(response.headers, response.content)
            await asyncio.sleep(pause)

    # following

    async def subscribe(
        self, view: str, after: int | None = None, *, unreachable_seconds_max: float = 60.0
    ) -> AsyncIterator[Change]:
        """Every change of the view after tick `after` (without it: from now on), once and in
        order, over any number of lost connections. Raises ChangesExpiredError when the server no
        longer has them, UnreachableError after `unreachable_seconds_max` without a connection."""
        self._connection.check_process()
        follower = Follower.of(view, after, await self.views())
        async with aclosing(self._follow(follower, unreachable_seconds_max)) as changes:
            async for change in changes:
                yield change

    async def _follow(
        self, follower: Follower, unreachable_seconds_max: float
    ) -> AsyncGenerator[Change, None]:
        trying = Trying(f"the changes of {follower.view}", unreachable_seconds_max)
        while not self._sender.is_closed():
            path, parameters, headers = follower.request()
            failure: Exception = ConnectionError("the server ended the stream")
            was_connected = False
            try:
                async with self._http.stream(
                    "GET",
                    path,
                    params=parameters,
                    headers=headers,
                    timeout=self._connection.following_timeout(),
                ) as response:
                    if response.status_code == 200:
                        was_connected = True
                        async for piece in response.aiter_bytes():
                            for change in follower.feed(piece):
                                yield change
                    else:
                        follower.check(response.status_code, await response.aread())
                        failure = ConnectionError(f"HTTP {response.status_code}")
            except (httpx.TransportError, httpx.StreamError) as error:
                failure = error
            except RuntimeError:
                if not self._sender.is_closed():
                    raise
                return
            if was_connected:  # the time without a connection begins now
                trying = Trying(f"the changes of {follower.view}", unreachable_seconds_max)
            await asyncio.sleep(trying.pause_after_failure(failure))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close(self._connection.close_seconds(error))
        except HeadraceError as another:
            if error is None:
                raise
            error.add_note(f"closing the client: {another}")
