"""Heartbeats: a client says up to which time it has sent everything, and the watermark moves on.

For a stream, "complete up to T" puts the watermark of every partition at T at least. For a
producer it is as if an event of that producer at T had come: on the partition its events go to, or
on all of them where the producer does not decide it. Heartbeats that come together are stored by
one commit; one that says nothing new is not stored at all, so a retry is harmless.

A producer that ends says so with `finished`: it is retired, and nobody calls it silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from headrace.formats.json_record import RecordError, read_timestamp
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.partitioning import partition_of_text
from headrace.http.limits import PRODUCER_CHARACTERS_MAX
from headrace.http.problems import unknown_stream
from headrace.log.contract import (
    Advance,
    Group,
    LogWriter,
    Receipt,
    heard_note,
    retire_note,
)
from headrace.model.definitions import Project, Stream
from headrace.model.errors import RequestError

__all__ = ["HeartbeatReader", "Heartbeats"]

HEARTBEATS_MAX = 1_000  # in one request

_Producer = Annotated[str, msgspec.Meta(min_length=1, max_length=PRODUCER_CHARACTERS_MAX)]


class _Heartbeat(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    complete_up_to: str | None = None
    producer: _Producer | None = None
    finished: bool = False


_decoder = msgspec.json.Decoder(_Heartbeat | list[_Heartbeat])


@dataclass(frozen=True)
class Beats:
    """What a request asks for: by stream and partitions how far they are moved on at most, and for
    whom; the (stream, producer)s that it is from or that ended."""

    furthest: dict[tuple[str, range], tuple[int, str]] = field(default_factory=dict)
    heard: list[tuple[str, str]] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)

    @property
    def advances(self) -> Iterator[Advance]:
        for (stream, partitions), (maximum, producer) in self.furthest.items():
            for partition in partitions:
                yield Advance(stream, partition, maximum, "heartbeat", producer)

    def group(self, received: int) -> Group:
        """What one request stores by itself."""
        alone = _Waiting()
        alone.add(self, received)
        return alone.group()


@dataclass(slots=True)
class _Waiting:
    """The furthest advance of each partition among those stored together, and notes of the
    producers they were heard from, or that ended."""

    furthest: dict[tuple[str, int], Advance] = field(default_factory=dict)
    notes: dict[tuple[str, str], Receipt] = field(default_factory=dict)
    is_taken: bool = False
    failure: Exception | None = None

    def add(self, beats: Beats, received: int) -> None:
        for advance in beats.advances:
            place = (advance.stream, advance.partition)
            known = self.furthest.get(place)
            if known is None or known.maximum_microseconds < advance.maximum_microseconds:
                self.furthest[place] = advance
        for writer in beats.heard:
            self.notes[writer] = heard_note(received, *writer)
        for writer in beats.finished:
            self.notes[writer] = retire_note(received, *writer)

    def group(self) -> Group:
        return Group(receipts=tuple(self.notes.values()), advances=tuple(self.furthest.values()))


class HeartbeatReader:
    """What requests with heartbeats ask for."""

    def __init__(self, project: Project) -> None:
        self._streams = {stream.name.lower(): stream for stream in project.streams}

    def read(self, body: bytes, received: int, check: Callable[[str], None]) -> Beats:
        """What the body asks for. `check` raises unless the client may write to the
        stream. Raises RequestError: 404 for an unknown stream, 422 for a body that cannot be used
        or a time too far in the future."""
        try:
            decoded = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _bad(f"the body cannot be used: {error}") from None
        given = decoded if isinstance(decoded, list) else [decoded]
        if not 1 <= len(given) <= HEARTBEATS_MAX:
            raise _bad(f"a request holds 1 to {HEARTBEATS_MAX} heartbeats, not {len(given)}")
        for name in {heartbeat.stream for heartbeat in given}:
            known = self._streams.get(name.lower())
            check(known.name if known is not None else name)
        beats = Beats()
        for one in given:
            self._add(one, received, beats)
        return beats

    def _add(self, heartbeat: _Heartbeat, received: int, beats: Beats) -> None:
        stream = self._streams.get(heartbeat.stream.lower())
        if stream is None:
            raise unknown_stream(heartbeat.stream, self._streams.values())
        is_end = heartbeat.finished and heartbeat.producer is not None
        if not is_end and (heartbeat.finished or heartbeat.complete_up_to is None):
            raise _bad("a heartbeat has complete_up_to, or a producer that is finished")
        if heartbeat.producer is not None:
            writers = beats.finished if heartbeat.finished else beats.heard
            writers.append((stream.name, heartbeat.producer))
        if heartbeat.complete_up_to is not None:
            maximum = _maximum(stream, heartbeat, heartbeat.complete_up_to, received)
            place = (stream.name, _partitions(stream, heartbeat.producer))
            known = beats.furthest.get(place)
            if known is None or known[0] < maximum:
                beats.furthest[place] = (maximum, heartbeat.producer or "")


class Heartbeats:
    """Stores what was read. For the event loop's thread alone."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting = _Waiting()
        self._turn = asyncio.Lock()

    async def store(self, beats: Beats, received: int) -> None:
        """Returns when they are durable. Raises what the log raises."""
        mine = self._waiting
        mine.add(beats, received)
        async with self._turn:
            if not mine.is_taken:
                mine.is_taken = True
                self._waiting = _Waiting()
                await self._store(mine)
        if mine.failure is not None:
            raise mine.failure

    async def _store(self, waiting: _Waiting) -> None:
        group = waiting.group()

        def job(writer: LogWriter) -> Any:
            return writer.append(group)

        try:
            await self._committer.run_job(job)
        except Exception as error:
            waiting.failure = error
        except asyncio.CancelledError:
            waiting.failure = RequestError(
                503, "stopping", "the heartbeat was cut off", hint="send it again"
            )
            raise


def _maximum(stream: Stream, heartbeat: _Heartbeat, complete_up_to: str, received: int) -> int:
    try:
        complete = read_timestamp(complete_up_to)
    except RecordError as error:
        raise _bad(f"complete_up_to: {error}") from None
    if complete > received + stream.future_microseconds:
        raise RequestError(
            422,
            "far-future",
            f"complete_up_to {complete_up_to} is further in the future than the "
            f"stream {stream.name} allows",
            hint="check the client's clock; the bound is FUTURE UP TO in CREATE STREAM",
        )
    return complete if heartbeat.producer else complete + stream.delay_microseconds


def _partitions(stream: Stream, producer: str | None) -> range:
    if producer is None or stream.partition_by:
        return range(stream.partitions)
    only = partition_of_text(producer, stream.partitions)
    return range(only, only + 1)


def _bad(message: str) -> RequestError:
    return RequestError(
        422,
        "bad-heartbeat",
        message,
        hint='{"stream": "NAME", "complete_up_to": "2026-01-31T12:00:00Z"}, or an array of them',
    )
