"""Sending in the background with tasks of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

import httpx

from headrace.client.connection import GOODBYE_SECONDS_MAX, Callbacks, Connection
from headrace.client.outbox import Batch, Counts, Limits, Outbox, Refused, Retry, Stored, judge
from headrace.client.retry import pause_seconds
from headrace.model.errors import ClientError

__all__ = ["TaskSender"]


class TaskSender:
    """The outbox, and tasks that empty it. For one event loop; they start with the first event."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        connection: Connection,
        limits: Limits,
        callbacks: Callbacks,
        *,
        waits_when_full: bool,
    ) -> None:
        self._http = http
        self._connection = connection
        self._callbacks = callbacks
        self._waits_when_full = waits_when_full
        self._outbox = Outbox(limits)
        self._work = _Signal()
        self._progress = _Signal()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._broken: BaseException | None = None

    def is_closed(self) -> bool:
        return self._is_closed

    def counts(self) -> Counts:
        return dataclasses.replace(self._outbox.counts)

    def covers(self) -> str:
        """The token of what was flushed; "" while nothing was."""
        return self._outbox.covers

    def forget_covers(self, refused: str) -> None:
        self._outbox.forget_covers(refused)

    async def put(self, stream: str, line: bytes, taken: int, *, is_table: bool) -> None:
        """Raises BufferFullError at once or after the time of a request, as was chosen."""
        self._check_usable()
        has_news = self._outbox.put(stream, line, time.monotonic(), is_table=is_table)
        if has_news is None:
            has_news = await self._put_when_room(stream, line, taken, is_table)
        if has_news:
            self._start_tasks()
            self._work.give()

    async def _put_when_room(self, stream: str, line: bytes, taken: int, is_table: bool) -> bool:
        ends_at = time.monotonic() + self._connection.request_seconds_max
        self._outbox.seal_all()
        self._work.give()
        while True:
            remaining = ends_at - time.monotonic()
            if not self._waits_when_full or remaining <= 0:
                raise self._outbox.full(taken)
            await self._progress.wait(remaining)
            self._check_usable()
            has_news = self._outbox.put(stream, line, time.monotonic(), is_table=is_table)
            if has_news is not None:
                return has_news

    async def flush(self, timeout_seconds: float) -> None:
        ends_at = time.monotonic() + timeout_seconds
        self._check_usable()
        marks = self._outbox.seal_all()
        self._work.give()
        while held := self._outbox.held_before(marks):
            remaining = ends_at - time.monotonic()
            if remaining <= 0:
                raise self._outbox.not_durable(held, timeout_seconds)
            await self._progress.wait(remaining)
            self._check_usable()
        self._outbox.note_flushed()
        refusal = self._outbox.take_refusal()
        if refusal is not None:
            raise refusal

    async def close(self, timeout_seconds: float) -> None:
        if self._is_closed:
            return
        try:
            await self.flush(timeout_seconds)
            await self._say_goodbye()
        finally:
            self._is_closed = True
            self._progress.give()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._http.aclose()

    async def _say_goodbye(self) -> None:
        """Tried once: who does not hear it will call a producer silent, and that is all."""
        body = self._connection.goodbye(self._outbox.stored_streams())
        if body is not None:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                await self._http.post("/v1/heartbeats", content=body, timeout=GOODBYE_SECONDS_MAX)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientError("the client is closed", hint="make another one")
        if self._broken is not None:
            raise ClientError(f"sending has failed: {self._broken!r}") from self._broken

    def _start_tasks(self) -> None:
        if not self._tasks:
            for number in range(self._connection.connections):
                name = f"headrace-send-{number}"
                self._tasks.append(asyncio.create_task(self._send_batches(), name=name))

    # the tasks

    async def _send_batches(self) -> None:
        try:
            while True:
                batch = await self._next_batch()
                await self._send_batch(batch)
        except Exception as error:
            self._broken = error
            self._progress.give()

    async def _next_batch(self) -> Batch:
        while True:
            now = time.monotonic()
            batch = self._outbox.take(now)
            if batch is not None:
                batch.attempts += 1
                return batch
            await self._work.wait(self._outbox.wait_seconds(now))

    async def _send_batch(self, batch: Batch) -> None:
        outcome = await self._post(batch)
        self._callbacks.tell(outcome)
        if isinstance(outcome, Retry):
            pause = pause_seconds(batch.attempts, outcome.asked_seconds)
            self._outbox.again(batch, time.monotonic(), pause, outcome.reason)
        else:
            self._outbox.settle(batch, outcome)
            self._progress.give()
        self._work.give()

    async def _post(self, batch: Batch) -> Stored | Retry | Refused:
        try:
            response = await self._http.post(
                batch.address(),
                content=batch.body(),
                headers=self._connection.batch_headers(batch),
            )
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Retry(f"{type(error).__name__}: {error}")
        return judge(batch, response.status_code, response.headers, response.content)


class _Signal:
    """Wakes all who wait just now; nothing is remembered for those who come later."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def give(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=seconds)
        finally:
            self._waiting.discard(future)
