"""Sending in the background with threads."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
import time

import httpx

from headrace.client.connection import GOODBYE_SECONDS_MAX, Callbacks, Connection
from headrace.client.outbox import Batch, Counts, Limits, Outbox, Refused, Retry, Stored, judge
from headrace.client.retry import pause_seconds
from headrace.model.errors import ClientError

__all__ = ["ThreadSender"]

AT_EXIT_SECONDS_MAX = 5.0
JOIN_SECONDS_MAX = 5.0

_log = logging.getLogger("headrace.client")


class ThreadSender:
    """The outbox behind a lock, and threads that empty it. They start with the first event."""

    def __init__(
        self,
        http: httpx.Client,
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
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._progress = threading.Condition(lock)
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._broken: BaseException | None = None

    def is_closed(self) -> bool:
        return self._closed.is_set()

    def counts(self) -> Counts:
        with self._work:
            return dataclasses.replace(self._outbox.counts)

    def covers(self) -> str:
        """The token of what was flushed; "" while nothing was."""
        with self._work:
            return self._outbox.covers

    def forget_covers(self, refused: str) -> None:
        with self._work:
            self._outbox.forget_covers(refused)

    def put(self, stream: str, line: bytes, taken: int, *, is_table: bool) -> None:
        """Raises BufferFullError at once or after the time of a request, as was chosen."""
        with self._work:
            self._check_usable()
            has_news = self._outbox.put(stream, line, time.monotonic(), is_table=is_table)
            if has_news is None:
                has_news = self._put_when_room(stream, line, taken, is_table)
            if has_news:
                self._start_threads()
                self._work.notify_all()

    def _put_when_room(self, stream: str, line: bytes, taken: int, is_table: bool) -> bool:
        ends_at = time.monotonic() + self._connection.request_seconds_max
        self._outbox.seal_all()
        self._work.notify_all()
        while True:
            remaining = ends_at - time.monotonic()
            if not self._waits_when_full or remaining <= 0:
                raise self._outbox.full(taken)
            self._progress.wait(remaining)
            self._check_usable()
            has_news = self._outbox.put(stream, line, time.monotonic(), is_table=is_table)
            if has_news is not None:
                return has_news

    def flush(self, timeout_seconds: float) -> None:
        ends_at = time.monotonic() + timeout_seconds
        with self._work:
            self._check_usable()
            marks = self._outbox.seal_all()
            self._work.notify_all()
            while held := self._outbox.held_before(marks):
                remaining = ends_at - time.monotonic()
                if remaining <= 0:
                    raise self._outbox.not_durable(held, timeout_seconds)
                self._progress.wait(remaining)
                self._check_usable()
            self._outbox.note_flushed()
            refusal = self._outbox.take_refusal()
        if refusal is not None:
            raise refusal

    def close(self, timeout_seconds: float) -> None:
        if self._closed.is_set():
            return
        try:
            self.flush(timeout_seconds)
            self._say_goodbye()
        finally:
            with self._work:
                self._closed.set()
                self._work.notify_all()
                self._progress.notify_all()
            self._http.close()
            ends_at = time.monotonic() + min(timeout_seconds, JOIN_SECONDS_MAX)
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, ends_at - time.monotonic()))
            atexit.unregister(self._close_at_exit)

    def _say_goodbye(self) -> None:
        """Tried once: who does not hear it will call a producer silent, and that is all."""
        with self._work:
            body = self._connection.goodbye(self._outbox.stored_streams())
        if body is not None:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._http.post("/v1/heartbeats", content=body, timeout=GOODBYE_SECONDS_MAX)

    def _check_usable(self) -> None:
        if self._closed.is_set():
            raise ClientError("the client is closed", hint="make another one")
        if self._broken is not None:
            raise ClientError(f"sending has failed: {self._broken!r}") from self._broken

    def _start_threads(self) -> None:
        if self._threads:
            return
        atexit.register(self._close_at_exit)
        for number in range(self._connection.connections):
            name = f"headrace-send-{number}"
            thread = threading.Thread(target=self._send_batches, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _close_at_exit(self) -> None:
        if os.getpid() != self._connection.process:
            return
        try:
            self.close(AT_EXIT_SECONDS_MAX)
        except Exception:
            _log.exception("a client was not closed, and its events could not all be sent")

    # the threads

    def _send_batches(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._send_batch(batch)
        except BaseException as error:
            with self._work:
                self._broken = error
                self._progress.notify_all()

    def _next_batch(self) -> Batch | None:
        with self._work:
            while not self._closed.is_set():
                now = time.monotonic()
                batch = self._outbox.take(now)
                if batch is not None:
                    batch.attempts += 1
                    return batch
                self._work.wait(self._outbox.wait_seconds(now))
        return None

    def _send_batch(self, batch: Batch) -> None:
        outcome = self._post(batch)
        self._callbacks.tell(outcome)
        with self._work:
            if isinstance(outcome, Retry):
                pause = pause_seconds(batch.attempts, outcome.asked_seconds)
                self._outbox.again(batch, time.monotonic(), pause, outcome.reason)
            else:
                self._outbox.settle(batch, outcome)
                self._progress.notify_all()
            self._work.notify_all()

    def _post(self, batch: Batch) -> Stored | Retry | Refused:
        try:
            response = self._http.post(
                batch.address(),
                content=batch.body(),
                headers=self._connection.batch_headers(batch),
            )
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Retry(f"{type(error).__name__}: {error}")
        except RuntimeError as error:
            if not self._closed.is_set():
                raise
            return Retry(f"closed: {error}")
        return judge(batch, response.status_code, response.headers, response.content)
