"""What both clients need to talk to a server: address, token, timeouts, producer, and how long to
keep trying."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from headrace.client.calls import Call
from headrace.client.outbox import Batch, Quarantined, Refused, Retry, Stored
from headrace.client.retry import RETRIED_STATUSES, pause_seconds, refused, retry_after_seconds
from headrace.model.covers import WAIT_SECONDS_MAX
from headrace.model.errors import ClientError, UnreachableError

__all__ = ["Callbacks", "Connection", "Trying"]

_log = logging.getLogger("headrace.client")

CONNECT_SECONDS_MAX = 5.0
CLOSE_SECONDS_MAX = 30.0
CLOSE_UNREACHED_SECONDS_MAX = 1.0
GOODBYE_SECONDS_MAX = 2.0
ANSWER_SECONDS = 1.0  # of the time for a query, left for the answer after a wait
SILENCE_SECONDS_MAX = 45.0  # three heartbeats of a subscription


@dataclass(frozen=True)
class Connection:
    url: str
    token: str | None
    request_seconds_max: float
    connections: int
    producer: str
    epoch: int
    sends_time: bool
    process: int
    is_named: bool

    @classmethod
    def make(
        cls,
        url: str,
        token: str | None,
        request_seconds_max: float,
        connections: int,
        producer: str | None,
        epoch: int | None,
        *,
        sends_time: bool,
    ) -> Connection:
        """A random producer needs no epoch. A named one that starts over must have a new one:
        without an epoch given, the time in milliseconds is taken."""
        if connections < 1 or request_seconds_max <= 0:
            raise ClientError("connections and request_seconds_max must be above 0")
        if epoch is None:
            epoch = 0 if producer is None else time.time_ns() // 1_000_000
        return cls(
            url.rstrip("/"),
            token,
            request_seconds_max,
            connections,
            producer or uuid.uuid4().hex,
            epoch,
            sends_time,
            os.getpid(),
            producer is not None,
        )

    def close_seconds(self, error: BaseException | None) -> float:
        """How long to flush at the end of a `with` that `error` ends: whoever has just waited in
        vain is not made to wait as long again."""
        is_away = isinstance(error, UnreachableError)
        return CLOSE_UNREACHED_SECONDS_MAX if is_away else CLOSE_SECONDS_MAX

    def check_process(self) -> None:
        """Raises ClientError in a forked child: threads and sockets stay with the parent, and two
        processes counting one line of sequence numbers would have events taken for retries."""
        if os.getpid() != self.process:
            raise ClientError(
                "this client was made in another process, before a fork",
                hint="make a client in each process",
            )

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def batch_headers(self, batch: Batch) -> dict[str, str]:
        return batch.headers(self.producer, self.epoch, with_sent_at=self.sends_time)

    def goodbye(self, streams: Sequence[str]) -> bytes | None:
        """The body that says that this producer has ended, for POST /v1/heartbeats. None for one
        with a name, which will be back, and for one that the server knows nothing of."""
        if self.is_named or not streams:
            return None
        return msgspec.json.encode(
            [{"stream": s, "producer": self.producer, "finished": True} for s in streams]
        )

    def limits(self) -> httpx.Limits:
        return httpx.Limits(max_connections=None, max_keepalive_connections=self.connections + 4)

    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(
            self.request_seconds_max, connect=min(CONNECT_SECONDS_MAX, self.request_seconds_max)
        )

    def following_timeout(self) -> httpx.Timeout:
        return httpx.Timeout(SILENCE_SECONDS_MAX, connect=CONNECT_SECONDS_MAX)


@dataclass(frozen=True)
class Callbacks:
    on_quarantined: Callable[[Quarantined], None] | None
    on_refused: Callable[[Refused], None] | None

    def tell(self, outcome: Stored | Retry | Refused) -> None:
        """A callback that fails is for the user to see in the log; it must not stop sending."""
        try:
            if isinstance(outcome, Stored) and self.on_quarantined is not None:
                for letter in outcome.quarantined:
                    self.on_quarantined(letter)
            elif isinstance(outcome, Refused) and self.on_refused is not None:
                self.on_refused(outcome)
        except Exception:
            _log.exception("a callback of the client failed")


class Trying:
    """One call tried until it is answered or its time is over."""

    def __init__(self, what: str, seconds_max: float) -> None:
        self._what = what
        self._seconds_max = seconds_max
        self._ends_at = time.monotonic() + seconds_max
        self._attempts = 0

    def asked(self, call: Call[Any], covers: str) -> tuple[httpx.QueryParams, dict[str, str]]:
        """Parameters and headers of the next try. Where something is to be covered the server waits
        for it nearly as long as there is time, so that it is the server who says what is missing.
        """
        parameters = httpx.QueryParams(list(call.parameters))
        headers = dict(call.headers)
        if covers:
            margin = min(ANSWER_SECONDS, self._seconds_max / 10)
            left = max(0.0, self._ends_at - margin - time.monotonic())
            parameters = parameters.set("wait_seconds", f"{min(left, WAIT_SECONDS_MAX):.3f}")
            headers["headrace-covers"] = covers
        return parameters, headers

    def pause_after_answer(self, call: Call[Any], response: httpx.Response) -> float | None:
        """None for an answer to be read; seconds to wait before the next try. Raises RefusedError
        for an answer that stays, or when there is no time for another try."""
        if response.status_code < 400:
            return None
        error = refused(response.status_code, response.content)
        if response.status_code not in RETRIED_STATUSES or not call.is_repeatable:
            raise error
        pause = self._pause(retry_after_seconds(response.headers))
        if pause is None:
            raise error
        return pause

    def pause_after_failure(self, failure: Exception, *, is_repeatable: bool = True) -> float:
        """Raises UnreachableError when there is no time for another try."""
        pause = self._pause(0.0)
        if pause is None or not is_repeatable:
            raise UnreachableError(
                f"no answer to {self._what} within {self._seconds_max:g} s: "
                f"{type(failure).__name__}: {failure}",
                hint="is the server up? `headrace status` says",
            ) from failure
        return pause

    def _pause(self, asked_seconds: float) -> float | None:
        self._attempts += 1
        pause = pause_seconds(self._attempts, asked_seconds)
        return pause if time.monotonic() + pause < self._ends_at else None
