"""Idle partitions: where no event has come for a while, the watermark moves on all the same.

A partition without events for the stream's idle time is put where the slowest of the active ones
is, and follows it from then on; when all are idle, at the clock less the delay. Partitions that
have not begun hold nothing back and are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from headrace.gateway.ingest.committer import Committer
from headrace.log.contract import NO_EVENT_TIME, Advance, Group, LogReader, LogWriter
from headrace.model.definitions import Stream
from headrace.model.errors import HeadraceError

__all__ = ["IdlePartitions", "IdleWatch", "idle_advances"]

logger = logging.getLogger("headrace.gateway")

_CHECKS_PER_INTERVAL = 10
_CHECK_SECONDS_MIN = 0.02
_CHECK_SECONDS_MAX = 1.0
_FOLLOW_MICROSECONDS = 1_000_000  # so often an idle partition is put where the others are


def idle_advances(
    stream: Stream,
    now: int,
    received: Sequence[int],
    maxima: Sequence[int],
    written: Mapping[int, int],
) -> list[Advance]:
    """What is due at the time `now`: `received` is when the newest event of each partition came,
    `maxima` are the partitions' highest event times, `written` says when the last record of this
    kind was written. A partition gets at most one per second while others are active, one per idle
    interval while none is, and never one that moves nothing.
    """
    interval = stream.idle_microseconds
    assert interval is not None
    known = [p for p, maximum in enumerate(maxima) if maximum != NO_EVENT_TIME]
    active = [p for p in known if received[p] != NO_EVENT_TIME and now - received[p] < interval]
    target = min(maxima[p] for p in active) if active else now
    pause = min(interval, _FOLLOW_MICROSECONDS) if active else interval
    return [
        Advance(stream.name, partition, target, "idle")
        for partition in known
        if partition not in active
        and maxima[partition] < target
        and now - written.get(partition, NO_EVENT_TIME) >= pause
    ]


class IdlePartitions:
    """The partitions of those streams that have an idle time, and when each was last moved on."""

    def __init__(self, streams: Sequence[Stream], writer: LogWriter, reader: LogReader) -> None:
        self.streams = [s for s in streams if s.idle_microseconds is not None]
        self._writer = writer
        self._reader = reader
        self._written: dict[str, dict[int, int]] = {s.name: {} for s in self.streams}

    def due(self, now: int) -> list[Advance]:
        return [
            advance
            for stream in self.streams
            for advance in idle_advances(
                stream,
                now,
                self._writer.received(stream.name),
                self._reader.maxima(stream.name),
                self._written[stream.name],
            )
        ]

    def move_on(self, now: int) -> None:
        """Store what is due. Belongs to whoever appends; raises what the log raises."""
        due = self.due(now)
        if not due:
            return
        self._writer.append(Group(advances=tuple(due)))
        for advance in due:
            self._written[advance.stream][advance.partition] = now


class IdleWatch:
    """Looks at streams with an idle time every now and then; only what is due costs a commit."""

    def __init__(self, streams: Sequence[Stream], committer: Committer, reader: LogReader) -> None:
        self._committer = committer
        self._partitions = IdlePartitions(streams, committer.writer, reader)

    @property
    def check_seconds(self) -> float:
        intervals = [stream.idle_microseconds or 0 for stream in self._partitions.streams]
        shortest = min(intervals, default=0) / 1_000_000
        return min(max(shortest / _CHECKS_PER_INTERVAL, _CHECK_SECONDS_MIN), _CHECK_SECONDS_MAX)

    async def run(self) -> None:
        """Until cancelled. A log that cannot be written is tried again."""
        said = ""
        while self._partitions.streams:
            await asyncio.sleep(self.check_seconds)
            try:
                if self._partitions.due(_now()):
                    await self._committer.run_job(lambda _: self._partitions.move_on(_now()))
                    said = ""
            except HeadraceError as error:
                if error.message != said:
                    logger.warning("idle partitions cannot be moved on: %s", error.message)
                said = error.message


def _now() -> int:
    return time.time_ns() // 1000
