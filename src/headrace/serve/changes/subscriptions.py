"""Who follows which view, and how each tick's changes reach them: in order, no gap, no double.

1. A subscriber is entered in the hub first; from then on the hub puts each tick's message into the
   subscriber's buffer.
2. Then it reads the store from its position until the store has no more.
3. Then it takes messages from its buffer, leaving out ticks it has already sent.

A tick is published after its commit. So a tick committed before step 1 is found in step 2, and one
committed after step 1 is in the buffer, or in both. A buffer that is full is emptied and the
subscriber marked as behind: it starts again at step 2, from its own position, at its own speed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence, Set
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from headrace.formats.answers import ROWS_AT_ONCE_MAX
from headrace.formats.text import json_rows
from headrace.model.errors import ChangesExpiredError, RequestError
from headrace.serve.pool import Pool
from headrace.serve.query.progress import ProgressReader
from headrace.store.contract import Store, ViewChange

__all__ = ["Heartbeat", "Hub", "Message", "Subscription"]

BUFFER_MESSAGES_MAX = 64
BUFFER_BYTES_MAX = 4 * 1024 * 1024
HANDED_OVER_TICKS_MAX = 64
CATCH_UP_TICKS_MAX = 16

_log = logging.getLogger("headrace.serve")


@dataclass(frozen=True)
class Message:
    """One tick's changes of one view as a server-sent event. Shared by all who follow the view."""

    tick: int
    data: bytes


@dataclass(frozen=True)
class Heartbeat:
    """Nothing happened for a while; the subscriber has everything up to `tick`."""

    tick: int


@dataclass(frozen=True)
class _Published:
    tick: int | None
    committed_at_microseconds: int
    changes: Sequence[ViewChange]
    watched: frozenset[str] | None


class Subscription:
    """One follower of one view. All methods are called on the hub's event loop."""

    def __init__(self, view: str) -> None:
        self.view = view
        self.behind = True
        self.ended: BaseException | None = None
        self.is_closed = False
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()

    def put(self, message: Message) -> None:
        """Never waits: a full buffer is emptied and the subscriber is behind. A message that is
        larger than the whole buffer is still taken when it is the only one."""
        if self.behind:
            return
        size = len(message.data)
        is_full = len(self._buffer) >= BUFFER_MESSAGES_MAX or self._bytes + size > BUFFER_BYTES_MAX
        if self._buffer and is_full:
            self.fall_behind()
            return
        self._buffer.append(message)
        self._bytes += size
        self._wake.set()

    def fall_behind(self) -> None:
        self.behind = True
        self._buffer.clear()
        self._bytes = 0
        self._wake.set()

    def restart(self) -> None:
        """From now on messages are buffered; what was before must be read from the store."""
        self._buffer.clear()
        self._bytes = 0
        self.behind = False

    def take(self) -> Message | None:
        if not self._buffer:
            self._wake.clear()
            return None
        message = self._buffer.popleft()
        self._bytes -= len(message.data)
        return message

    async def wait(self, seconds: float) -> bool:
        """Whether there is news: a message, having fallen behind, or the end."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def end(self, reason: BaseException | None) -> None:
        """The follower's stream ends, with `reason` as its last message if there is one."""
        self.is_closed = True
        self.ended = reason
        self._wake.set()


class Hub:
    """`publish` and `watched` may be called from any thread, everything else on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        progress: ProgressReader,
        subscribers_max: int,
    ) -> None:
        self._loop = loop
        self._store = store
        self._progress = progress
        self._encoder = Pool("changes", threads=1, waiting_max=1)
        self._replayer = Pool("replay", threads=2, waiting_max=subscribers_max)
        self._subscribers_max = subscribers_max
        self._subscriptions: set[Subscription] = set()
        self._watched: frozenset[str] = frozenset()
        self._delivered_tick = 0
        self._lock = threading.Lock()
        self._handed_over: deque[_Published] = deque()
        self._has_dropped = False
        self._has_news = asyncio.Event()
        self._delivery: asyncio.Task[None] | None = None
        self._is_closed = False
        self.fallen_behind_total = 0
        self.messages_total = 0

    # called by the tick thread

    def watched(self) -> frozenset[str]:
        return self._watched

    def publish(
        self,
        changes: Sequence[ViewChange],
        tick: int | None,
        committed_at_microseconds: int,
        watched: frozenset[str] | None,
    ) -> None:
        """`watched` names the views whose changes were asked for; None: all. O(1).

        At HANDED_OVER_TICKS_MAX ticks not yet delivered the waiting ones are dropped, and every
        subscriber reads them from the store instead.
        """
        with self._lock:
            if self._is_closed:
                return
            if not self._watched:
                changes = ()  # whoever subscribes from now on finds this tick in the store
            if len(self._handed_over) >= HANDED_OVER_TICKS_MAX:
                self._handed_over.clear()
                self._has_dropped = True
            self._handed_over.append(_Published(tick, committed_at_microseconds, changes, watched))
            self._loop.call_soon_threadsafe(self._has_news.set)

    # called on the event loop

    def start(self) -> None:
        self._delivery = self._loop.create_task(self._deliver_all())

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, view: str) -> Subscription:
        """Raises RequestError (503) when there are as many subscribers as allowed."""
        if len(self._subscriptions) >= self._subscribers_max:
            raise RequestError(
                503,
                "subscribers",
                f"there are {len(self._subscriptions)} subscribers already",
                hint="store.subscribers_max allows more",
                retry_after_seconds=5,
            )
        subscription = Subscription(view)
        self._subscriptions.add(subscription)
        self._set_watched()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        self._set_watched()

    def expire(self, view: str) -> None:
        """End every stream of a view whose stored changes no longer fit what was sent."""
        error = ChangesExpiredError(
            f"view {view} was rebuilt; its earlier changes do not lead to its rows",
            hint="read the view again and go on after the tick of that answer",
        )
        for subscription in list(self._subscriptions):
            if subscription.view == view:
                subscription.end(error)

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._handed_over.clear()
        for subscription in list(self._subscriptions):
            subscription.end(None)
        if self._delivery is not None:
            self._delivery.cancel()
            await asyncio.gather(self._delivery, return_exceptions=True)
        self._encoder.close()
        self._replayer.close()

    def _set_watched(self) -> None:
        self._watched = frozenset(s.view for s in self._subscriptions)

    async def _deliver_all(self) -> None:
        while True:
            await self._has_news.wait()
            with self._lock:
                has_dropped, self._has_dropped = self._has_dropped, False
                published = self._handed_over.popleft() if self._handed_over else None
                if published is None:
                    self._has_news.clear()
            if has_dropped:
                self._fall_behind(self._watched)
            if published is not None:
                await self._deliver(published)

    async def _deliver(self, published: _Published) -> None:
        """Messages are made on another thread; the order of ticks is kept since each is waited
        for. A view the engine did not know to be watched is read from the store."""
        live = {s.view for s in self._subscriptions if not s.behind}
        for change in published.changes:
            if change.view not in live:
                continue
            try:
                message = await self._encoder.run(
                    partial(self.encode, change, published.committed_at_microseconds)
                )
            except Exception:
                _log.exception("changes of view %s could not be written", change.view)
                self._fall_behind({change.view})
                continue
            self._put(message, change.view)
        if published.watched is not None:
            self._fall_behind(live - published.watched)
        if published.tick is not None:
            self._delivered_tick = published.tick

    def _put(self, message: Message, view: str) -> None:
        for subscription in self._subscriptions:
            if subscription.view == view and not subscription.behind:
                subscription.put(message)
                self.fallen_behind_total += subscription.behind
                self.messages_total += not subscription.behind

    def _fall_behind(self, views: Set[str]) -> None:
        for subscription in self._subscriptions:
            if not subscription.behind and subscription.view in views:
                subscription.fall_behind()
                self.fallen_behind_total += 1

    def encode(
        self, change: ViewChange, committed_at_microseconds: int | None, *, is_replay: bool = False
    ) -> Message:
        """Blocking. What a replayed tick was complete up to is not kept: it says null."""
        view = change.view
        progress = self._progress.of_replayed(view) if is_replay else self._progress.of([view])
        freshness = progress.of_tick(change.tick, committed_at_microseconds)
        start = msgspec.json.encode({"tick": change.tick, "view": change.view})
        parts = [
            f"id: {change.tick}\nevent: changes\ndata: ".encode(),
            start[:-1],
            b',"before":[',
            _rows(change.before),
            b'],"after":[',
            _rows(change.after),
            b'],"freshness":',
            msgspec.json.encode(freshness.document()),
            b"}\n\n",
        ]
        return Message(change.tick, b"".join(parts))

    async def follow(
        self, subscription: Subscription, after: int, heartbeat_seconds: float
    ) -> AsyncGenerator[Message | Heartbeat, None]:
        """Every change of the view after tick `after`, exactly once, in order of ticks, until the
        subscription ends. Raises ChangesExpiredError when the store no longer reaches back."""
        position = after
        while not subscription.is_closed:
            if subscription.behind:
                subscription.restart()
                async for message in self._replay(subscription, position):
                    yield message
                    position = message.tick
                continue
            delivered_tick = self._delivered_tick
            message_or_none = subscription.take()
            if message_or_none is None:
                position = max(position, delivered_tick)
                if not await subscription.wait(heartbeat_seconds):
                    yield Heartbeat(position)
            elif message_or_none.tick > position:
                yield message_or_none
                position = message_or_none.tick
        if subscription.ended is not None:
            raise subscription.ended

    async def _replay(self, subscription: Subscription, after: int) -> AsyncIterator[Message]:
        position = after
        while not subscription.is_closed:
            messages = await self._replayer.run(partial(self._stored, subscription.view, position))
            if not messages:
                return
            for message in messages:
                yield message
                position = message.tick

    def _stored(self, view: str, after: int) -> list[Message]:
        changes = self._store.changes(view, after, CATCH_UP_TICKS_MAX)
        if not changes:
            return []
        ledger = self._store.ledger(self._store.last_tick() - changes[0].tick + 1)
        ticks = ledger.column("tick").to_pylist()
        committed = ledger.column("committed_at").cast(pa.int64()).to_pylist()
        committed_at = dict(zip(ticks, committed, strict=True))
        return [self.encode(c, committed_at.get(c.tick), is_replay=True) for c in changes]


def _rows(table: pa.Table) -> bytes:
    slices = [
        json_rows(batch.slice(start, ROWS_AT_ONCE_MAX), ",")
        for batch in table.to_batches()
        for start in range(0, batch.num_rows, ROWS_AT_ONCE_MAX)
    ]
    return b",".join(slices)
