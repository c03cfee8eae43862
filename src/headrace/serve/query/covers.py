"""Queries that are to cover what was written: they wait until the views they read have taken it in.

A waiting query holds neither a thread nor a lock: it is a future on the server's event loop, looked
at when the engine has moved a view. It is registered before it is looked at for the first time,
and the engine commits before it asks whether anybody waits; so none misses its tick.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from headrace.model.covers import COVERS_NOW, WAIT_SECONDS, WAIT_SECONDS_MAX, Covers, Ends
from headrace.model.errors import CoversError, QueryError, RequestError
from headrace.serve.operate.control import Control
from headrace.serve.requests import Receive, Request
from headrace.store.contract import CatalogEntry, Store

__all__ = ["COVERS_PARAMETERS", "Coverage", "Reached", "Wanted", "read_wanted"]

WAITING_MAX = 256
COVERS_HEADER = "headrace-covers"
COVERS_PARAMETERS = ("covers", "wait_seconds")

_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """What a query is to cover: a token, all that the log holds now, or both; and how long it may
    wait for that."""

    token: Covers | None
    is_now: bool
    seconds: float


def read_wanted(request: Request, given: Mapping[str, str]) -> Wanted | None:
    """`given` are the parameters. None where the query asks for nothing of the kind. Raises
    CoversError for what is no token, RequestError for a wait that cannot be."""
    texts = [given["covers"]] if "covers" in given else []
    if COVERS_HEADER in request.headers:
        texts += [text.strip() for text in request.headers[COVERS_HEADER].split(",")]
    if not texts:
        if "wait_seconds" in given:
            raise RequestError(
                400,
                "parameter",
                "wait_seconds is given, but nothing to cover",
                hint="add covers=; a column of that name is filtered with filter.wait_seconds",
            )
        return None
    tokens = [Covers.read(text) for text in texts if text != COVERS_NOW]
    token = reduce(Covers.merged, tokens) if tokens else None
    return Wanted(token, COVERS_NOW in texts, _seconds(given.get("wait_seconds")))


def _seconds(text: str | None) -> float:
    if text is None:
        return WAIT_SECONDS
    if not _SECONDS.fullmatch(text) or float(text) > WAIT_SECONDS_MAX:
        raise RequestError(
            400,
            "parameter",
            f"wait_seconds={text[:40]} is not a number from 0 to {WAIT_SECONDS_MAX:g}",
            hint=f"{WAIT_SECONDS:g} without it",
        )
    return float(text)


@dataclass(frozen=True)
class Reached:
    """`lacking` are the views that have not taken in what is wanted; `seconds` is what is left of
    the time of a query that had to wait."""

    lacking: Sequence[str]
    seconds: float


@dataclass(eq=False)
class _Waiter:
    """`ends` are by view. `done` gets None when all of them are reached, else why they will not
    be."""

    ends: Mapping[str, Ends]
    done: asyncio.Future[RequestError | None]

    def end(self, reason: RequestError | None) -> None:
        if not self.done.done():
            self.done.set_result(reason)


class Coverage:
    """`moved` may be called from any thread, everything else on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, control: Control) -> None:
        self._loop = loop
        self._store = store
        self._control = control
        self._waiters: set[_Waiter] = set()
        self._is_closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def moved(self) -> None:
        """A view has come further, or no longer goes on. Costs nothing while nobody waits."""
        if self._waiters and not self._is_closed:
            self._loop.call_soon_threadsafe(self._look)

    @asynccontextmanager
    async def reached(
        self, views: Sequence[str], wanted: Wanted, receive: Receive
    ) -> AsyncIterator[Reached]:
        """Waits until the views have taken in what is wanted of their streams, the time is over or
        the client has gone. Streams that no view of these reads count nothing. Who had to wait
        keeps its place among WAITING_MAX until it leaves.

        Raises CoversError for a token of another log; RequestError 409 as soon as one of the views
        stands still without having reached it, 503 when too many wait already.
        """
        ends_at = self._loop.time() + wanted.seconds
        waiter = _Waiter(self._ends(views, wanted), self._loop.create_future())
        if not _lacking(waiter.ends, self._store.catalog()):
            yield Reached((), 0.0)
            return
        if self._is_closed:
            raise _stopping()
        if len(self._waiters) >= WAITING_MAX:
            raise RequestError(
                503,
                "busy",
                f"{len(self._waiters)} queries wait for what they are to cover",
                hint="try again in a moment",
                retry_after_seconds=1,
            )
        self._waiters.add(waiter)
        try:
            self._judge(waiter, self._store.catalog())
            lacking = await self._wait(waiter, wanted.seconds, receive)
            yield Reached(lacking, max(0.0, ends_at - self._loop.time()))
        finally:
            self._waiters.discard(waiter)

    async def _wait(self, waiter: _Waiter, seconds: float, receive: Receive) -> Sequence[str]:
        leaving = self._loop.create_task(_left(receive))
        try:
            ended: set[asyncio.Future[Any]] = {waiter.done, leaving}
            await asyncio.wait(ended, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        if not waiter.done.done():
            waiter.end(None)
            return _lacking(waiter.ends, self._store.catalog())
        reason = waiter.done.result()
        if reason is not None:
            raise reason
        return ()

    def close(self) -> None:
        """Who waits is told that the engine is stopping; nobody waits from now on."""
        self._is_closed = True
        for waiter in self._waiters:
            waiter.end(_stopping())

    def _ends(self, views: Iterable[str], wanted: Wanted) -> dict[str, Ends]:
        token = wanted.token
        log = "" if token is None else self._control.log_identity()
        if token is not None and not log:
            raise _unreadable()
        if token is not None and token.log != log:
            raise CoversError(
                "the token is of another log than this project's",
                hint="leave it out; was the project's data removed since, or is this another one?",
            )
        catalog = self._store.catalog()
        found: dict[str, Ends] = {}
        for view in views:
            entry = catalog.get(view)
            if entry is None:
                raise QueryError(
                    f"view {view} is being rebuilt", hint="try again shortly", status=503
                )
            stream = entry.stream
            present = self._control.ends(stream)
            if not present:
                raise _unreadable()
            ends = () if token is None else token.ends.get(stream, ())
            if len(ends) > len(present) or any(a > b for a, b in zip(ends, present, strict=False)):
                raise CoversError(
                    f"the token covers events that the log of stream {stream} does not have",
                    hint="leave it out; was the project's data restored from a backup?",
                )
            found[view] = present if wanted.is_now else ends
        return found

    def _look(self) -> None:
        """Only comparisons: a few microseconds for each that waits."""
        catalog = self._store.catalog()
        for waiter in self._waiters:
            if not waiter.done.done():
                self._judge(waiter, catalog)

    def _judge(self, waiter: _Waiter, catalog: Mapping[str, CatalogEntry]) -> None:
        lacking = _lacking(waiter.ends, catalog)
        if not lacking:
            waiter.end(None)
        elif (reason := self._standstill(lacking)) is not None:
            waiter.end(reason)

    def _standstill(self, views: Iterable[str]) -> RequestError | None:
        for view in views:
            status = self._control.standstill(view)
            if status is not None:
                return RequestError(
                    409,
                    "view-stands-still",
                    f"view {view} has not taken in what is to be covered, and does not go on: "
                    f"it is {status.state}: {status.detail}",
                    hint="headrace status says what it waits for; without covers it can be read "
                    "as it stands",
                )
        return None


def _lacking(wanted: Mapping[str, Ends], catalog: Mapping[str, CatalogEntry]) -> list[str]:
    """The views that have not reached their ends. One that begins anew is missing for a moment."""

    def has(entry: CatalogEntry | None, ends: Ends) -> bool:
        return entry is not None and all(
            entry.next_offsets.get(partition, 0) >= end for partition, end in enumerate(ends)
        )

    return [view for view, ends in wanted.items() if not has(catalog.get(view), ends)]


def _stopping() -> RequestError:
    return _away("the engine is stopping")


def _unreadable() -> RequestError:
    return _away("the engine cannot read the log just now")


def _away(reason: str) -> RequestError:
    hint = "try again in a moment"
    return RequestError(503, "engine-away", reason, hint=hint, retry_after_seconds=2)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
