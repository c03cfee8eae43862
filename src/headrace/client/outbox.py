"""Events on their way to the server: the part of sending that does no I/O and knows no clock.

Each stream and each table has its own line of sequence numbers, counted from 0, and at most one
batch under way, so that events and changes are stored in the order they were given. However a name
is spelled, it is one line, as it is for the server. A batch never changes after it was first
sent: the server recognises its retry by producer, epoch and first sequence number, and stores
nothing twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.client.own_writes import merged_token
from headrace.client.retry import RETRIED_STATUSES, refused, retry_after_seconds
from headrace.model.errors import BufferFullError, ClientError, RefusedError, UnreachableError

__all__ = [
    "Batch",
    "Counts",
    "Limits",
    "Outbox",
    "Quarantined",
    "Refused",
    "Retry",
    "Stored",
    "judge",
]

STREAMS_MAX = 1_000
REFUSALS_KEPT_MAX = 100


@dataclass(frozen=True)
class Limits:
    batch_events_max: int = 1_000
    batch_bytes_max: int = 1024 * 1024
    batch_seconds_max: float = 0.05
    buffer_events_max: int = 100_000
    buffer_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True)
class Quarantined:
    """An event, or a change of the table that `stream` names then, that the server has kept as a
    dead letter: stored, but not in the stream."""

    stream: str
    sequence: int
    event: bytes
    reason: str


@dataclass(frozen=True)
class Refused:
    """A batch the server will not take, whatever the number of tries. Nothing of it is stored."""

    stream: str
    first_sequence: int
    events: tuple[bytes, ...] = field(repr=False)
    error: RefusedError


@dataclass
class Counts:
    """Events since the client was made. `held` is what is not yet known to be durable."""

    sent: int = 0
    accepted: int = 0
    quarantined: int = 0
    refused: int = 0
    held: int = 0
    retries: int = 0


@dataclass
class Batch:
    stream: str
    first_sequence: int
    opened_at: float
    events: list[bytes] = field(default_factory=list, repr=False)
    size_bytes: int = 0
    attempts: int = 0
    is_table: bool = False

    def address(self) -> str:
        name = quote(self.stream, safe="")
        return f"/v1/tables/{name}" if self.is_table else f"/v1/events?name={name}"

    def body(self) -> bytes:
        return b"\n".join(self.events) + b"\n"

    def headers(self, producer: str, epoch: int, *, with_sent_at: bool) -> dict[str, str]:
        """`with_sent_at` adds the time of this very attempt."""
        headers = {
            "content-type": "application/x-ndjson",
            "headrace-producer": producer,
            "headrace-epoch": str(epoch),
            "headrace-sequence": str(self.first_sequence),
        }
        if with_sent_at:
            headers["headrace-sent-at"] = str(time.time_ns() // 1000)
        return headers


@dataclass(frozen=True)
class Stored:
    """`covers` is the token of the answer, "" from a server that gives none."""

    accepted: int
    quarantined: tuple[Quarantined, ...]
    quarantined_count: int
    covers: str = ""


@dataclass(frozen=True)
class Retry:
    reason: str
    asked_seconds: float = 0.0


def judge(
    batch: Batch, status: int, headers: Mapping[str, str], content: bytes
) -> Stored | Retry | Refused:
    """What an answer means for a batch. An answer that cannot be read is tried again: the retry
    gets the first answer once more."""
    if status in RETRIED_STATUSES:
        return Retry(str(refused(status, content).message), retry_after_seconds(headers))
    if status != 200:
        error = refused(status, content)
        return Refused(batch.stream, batch.first_sequence, tuple(batch.events), error)
    try:
        answer: Any = msgspec.json.decode(content)
        letters = tuple(
            Quarantined(
                batch.stream,
                batch.first_sequence + item["position"],
                batch.events[item["position"]],
                item["reason"],
            )
            for item in answer["errors"]
        )
        covers = str(answer.get("covers", ""))
        return Stored(answer["accepted"], letters, answer["quarantined"], covers)
    except (msgspec.DecodeError, KeyError, TypeError, IndexError) as error:
        return Retry(f"the answer cannot be read: {error!r}")


_Key = tuple[str, str]  # stream or table, and its name in lower case


@dataclass
class _Lane:
    next_sequence: int = 0
    resolved: int = 0
    opened: Batch | None = None
    sealed: deque[Batch] = field(default_factory=deque)
    is_under_way: bool = False
    is_stored: bool = False
    not_before: float = 0.0
    covers: str = ""  # of the newest batch, which covers those before it too

    def seal(self) -> None:
        if self.opened is not None:
            self.sealed.append(self.opened)
            self.opened = None


class Outbox:
    """Not thread-safe: the client that owns it sees to that."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes: dict[_Key, _Lane] = {}
        self._bytes = 0
        self._refusals: deque[Refused] = deque(maxlen=REFUSALS_KEPT_MAX)
        self._refused_unreported = 0
        self._flushed: tuple[str, ...] = ()
        self.counts = Counts()
        self.covers = ""  # the token of what was flushed
        self.last_failure = ""

    def put(self, stream: str, event: bytes, now: float, *, is_table: bool = False) -> bool | None:
        """None when there is no room; else whether a sender has something new to look at.
        Raises ClientError for an event that would never have room."""
        limits = self._limits
        size = len(event) + 1
        if size > limits.buffer_bytes_max:
            raise ClientError(
                f"the event has {size} bytes, the whole buffer {limits.buffer_bytes_max}",
                hint="a larger buffer_bytes_max takes it, if the server does",
            )
        if (
            self.counts.held >= limits.buffer_events_max
            or self._bytes + size > limits.buffer_bytes_max
        ):
            return None
        lane = self._lane(stream, is_table)
        has_news = False
        if lane.opened is not None and lane.opened.size_bytes + size > limits.batch_bytes_max:
            lane.seal()
            has_news = True
        if lane.opened is None:
            lane.opened = Batch(stream, lane.next_sequence, now, is_table=is_table)
            has_news = True
        lane.opened.events.append(event)
        lane.opened.size_bytes += size
        lane.next_sequence += 1
        self._bytes += size
        self.counts.held += 1
        if len(lane.opened.events) >= limits.batch_events_max:
            lane.seal()
            has_news = True
        return has_news

    def _lane(self, stream: str, is_table: bool) -> _Lane:
        key = ("table" if is_table else "stream", stream.lower())
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= STREAMS_MAX:
                raise ClientError(f"a client sends to at most {STREAMS_MAX} streams and tables")
            lane = self._lanes[key] = _Lane()
        return lane

    def take(self, now: float) -> Batch | None:
        """The next batch to send, from the stream that has waited longest since its last turn."""
        for key, lane in self._lanes.items():
            due = self._due(lane)
            if due is None or due > now:
                continue
            if not lane.sealed:
                lane.seal()
            lane.is_under_way = True
            self._lanes[key] = self._lanes.pop(key)
            return lane.sealed.popleft()
        return None

    def _due(self, lane: _Lane) -> float | None:
        """From when on the lane has a batch to send; None if not by the passing of time alone."""
        if lane.is_under_way or (lane.opened is None and not lane.sealed):
            return None
        if lane.sealed or lane.opened is None:
            return lane.not_before
        return max(lane.not_before, lane.opened.opened_at + self._limits.batch_seconds_max)

    def wait_seconds(self, now: float) -> float | None:
        """Until take() may have something by the passing of time alone; None if never."""
        dues = [due for lane in self._lanes.values() if (due := self._due(lane)) is not None]
        return max(0.0, min(dues) - now) if dues else None

    def again(self, batch: Batch, now: float, pause_seconds: float, reason: str) -> None:
        lane = self._lane(batch.stream, batch.is_table)
        lane.sealed.appendleft(batch)
        lane.is_under_way = False
        lane.not_before = now + pause_seconds
        self.counts.retries += 1
        self.last_failure = reason

    def settle(self, batch: Batch, outcome: Stored | Refused) -> None:
        lane = self._lane(batch.stream, batch.is_table)
        lane.is_under_way = False
        lane.not_before = 0.0
        lane.resolved = batch.first_sequence + len(batch.events)
        self.counts.held -= len(batch.events)
        self.counts.sent += len(batch.events)
        self._bytes -= batch.size_bytes
        if isinstance(outcome, Stored):
            self.counts.accepted += outcome.accepted
            self.counts.quarantined += outcome.quarantined_count
            lane.is_stored = True
            lane.covers = outcome.covers
        else:
            self.counts.refused += len(batch.events)
            self._refused_unreported += len(batch.events)
            self._refusals.append(outcome)

    def stored_streams(self) -> list[str]:
        """Those the server has stored something of."""
        return [name for (_, name), lane in self._lanes.items() if lane.is_stored]

    def seal_all(self) -> dict[_Key, int]:
        """Everything given so far is due now; returns marks for held_before()."""
        for lane in self._lanes.values():
            lane.seal()
        return {key: lane.next_sequence for key, lane in self._lanes.items()}

    def held_before(self, marks: Mapping[_Key, int]) -> dict[_Key, int]:
        """How many events given before the marks are neither stored nor refused."""
        return {
            key: mark - self._lanes[key].resolved
            for key, mark in marks.items()
            if mark > self._lanes[key].resolved
        }

    def note_flushed(self) -> None:
        """What was given before is durable: from now on `covers` covers it."""
        tokens = tuple(lane.covers for lane in self._lanes.values() if lane.covers)
        if tokens != self._flushed:
            self._flushed, self.covers = tokens, merged_token(tokens)

    def forget_covers(self, refused: str) -> None:
        """The server's log does not have what the token covers."""
        if refused == self.covers:
            self._flushed, self.covers = (), ""
            for lane in self._lanes.values():
                lane.covers = ""

    def not_durable(self, held: Mapping[_Key, int], timeout_seconds: float) -> UnreachableError:
        which = ", ".join(f"{count} of {kind} {name}" for (kind, name), count in held.items())
        reason = self.last_failure or "the server has not answered yet"
        return UnreachableError(
            f"not known to be durable after {timeout_seconds:g} s: {which} ({reason})",
            hint="is the server up? `headrace status` says",
        )

    def full(self, taken: int) -> BufferFullError:
        return BufferFullError(
            f"{self.counts.held} events are waiting to be sent; of those given now, {taken} were "
            f"taken before ({self.last_failure or 'the server is slower'})",
            hint="send less at a time, or allow a larger buffer",
        )

    def take_refusal(self) -> RefusedError | None:
        """One error for all refusals since the last call; None without any."""
        if not self._refusals:
            return None
        newest, count = self._refusals[-1], self._refused_unreported
        self._refusals.clear()
        self._refused_unreported = 0
        detail = f"{count} events were refused, the last ones for {newest.stream}"
        problem = {**newest.error.problem, "detail": f"{detail}: {newest.error.message}"}
        return RefusedError(newest.error.status, problem)
