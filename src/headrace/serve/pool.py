"""Threads for calls that block, with a stated number at work and a stated number waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.model.errors import RequestError

__all__ = ["Pool"]

Result = TypeVar("Result")


class Pool:
    """Used from one event loop only, which is what keeps the count of waiting calls right."""

    def __init__(self, name: str, threads: int, waiting_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"headrace-{name}")
        self._name = name
        self._admitted_max = threads + waiting_max
        self._admitted = 0
        self._patient: deque[asyncio.Future[None]] = deque()

    async def run(self, call: Callable[[], Result], seconds: float = 0.0) -> Result:
        """Raises RequestError (503) when as many calls as allowed are waiting already, and go on
        doing so for the seconds that the caller has.

        A caller that is cancelled leaves its call to end by itself; it counts until it has.
        """
        ends_at = asyncio.get_running_loop().time() + seconds
        while self._admitted >= self._admitted_max:
            if not seconds or not await self._has_left(ends_at):
                raise RequestError(
                    503,
                    "busy",
                    f"{self._admitted} {self._name} requests are under way or waiting",
                    hint="try again in a moment",
                    retry_after_seconds=1,
                )
        self._admitted += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        future.add_done_callback(self._left)
        return await asyncio.shield(future)

    async def _has_left(self, ends_at: float) -> bool:
        """Whether a call has ended before that time."""
        loop = asyncio.get_running_loop()
        room = loop.create_future()
        self._patient.append(room)
        try:
            await asyncio.wait({room}, timeout=max(0.0, ends_at - loop.time()))
        except asyncio.CancelledError:
            if room.done():
                self._tell_one()  # another one takes the place
            raise
        finally:
            if room in self._patient:
                self._patient.remove(room)
        return room.done()

    def _tell_one(self) -> None:
        if self._patient:
            self._patient.popleft().set_result(None)

    def _left(self, future: asyncio.Future[Result]) -> None:
        self._admitted -= 1
        self._tell_one()
        if not future.cancelled():
            future.exception()  # a caller that left must not leave an unread error behind

    @property
    def admitted(self) -> int:
        return self._admitted

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
