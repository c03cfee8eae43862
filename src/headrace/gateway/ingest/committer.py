"""Group commit: everything that is queued becomes one append with one fsync.

Two threads work one after the other on each group, and side by side on two groups:
  1. decode   take what is queued, up to group_bytes_max of inflated bytes, and decode it;
  2. append   recognise retries, build the group, append it, then answer every request of it with
              a single call into the event loop. Only then is anything acknowledged.

Large groups are decoded beside the append of the one before. While little is queued, that would
only split it into more and smaller groups, each with its own cost: then the next group is taken
when the append is done, and, if several clients were served together last time, after giving them
a moment to come back together.

Jobs (on dead letters) run on the append thread between groups. Retention has a thread of its own:
archiving takes its time, and the writer lets it run beside appends.

When the log cannot be written, the whole group is answered 503 and the gateway is unhealthy until
an append succeeds: a full disk may be given room again; after a failed fsync the log refuses for
good, until the process is started anew and the log has repaired itself.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.ingest.commit_group import Draft, GroupBuilder, Outcome
from headrace.gateway.ingest.conservation import Conservation, Counts, count_group
from headrace.gateway.ingest.decoding import StreamDecoder, StreamRows
from headrace.gateway.ingest.requests import EventsRequest
from headrace.http.refusals import queue_full
from headrace.log.contract import Appended, LogWriter
from headrace.model.definitions import Project
from headrace.model.errors import (
    HeadraceError,
    KeyReusedError,
    LogError,
    LogFullError,
    ProducerGapsError,
    RequestError,
)
from headrace.model.settings import Settings

__all__ = ["Committer"]

logger = logging.getLogger("headrace.gateway")

LITTLE_QUEUED_BYTES = 256 * 1024
LINGER_SECONDS = 0.0003
LINGERINGS_MAX = 5
RETRY_AFTER_FULL_SECONDS = 10
_JOBS_MAX = 64


@dataclass(slots=True)
class _Job:
    run: Callable[[LogWriter], Any]
    future: asyncio.Future[Any]


class Committer:
    """`submit` and `run_job` are for the event loop's thread; the rest has threads of its own."""

    def __init__(
        self,
        settings: Settings,
        project: Project,
        writer: LogWriter,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
    ) -> None:
        self._settings = settings.gateway
        self._retention_seconds = settings.log.retention_check_seconds
        self.writer = writer
        self._loop = loop
        self._metrics = metrics
        self._builder = GroupBuilder(writer)
        self.conservation = Conservation()
        self.decoders = {s.name: StreamDecoder(s, settings.gateway) for s in project.streams}
        self._incoming: queue.SimpleQueue[EventsRequest | None] = queue.SimpleQueue()
        self._decoded: queue.Queue[list[StreamRows] | _Job | None] = queue.Queue(maxsize=1)
        self.jobs_waiting = 0
        self._is_append_idle = threading.Event()
        self._is_append_idle.set()
        self._requests_last = 0
        self.queue_requests = 0
        self.queue_bytes = 0
        self.failure: str | None = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._decode_groups, name="headrace-decode", daemon=True),
            threading.Thread(target=self._append_groups, name="headrace-append", daemon=True),
            threading.Thread(target=self._retain_regularly, name="headrace-retain", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Everything submitted before is committed and answered first. Then the writer is idle."""
        self._closing.set()
        self._incoming.put(None)
        for thread in self._threads:
            thread.join()

    # ------------------------------------------------------------------ on the event loop's thread

    def submit(self, request: EventsRequest) -> None:
        """Queue a request; its future is completed when it is durable or refused.

        Raises RequestError 429 when the queue is full.
        """
        size = len(request.body)
        if (
            self.queue_requests >= self._settings.queue_requests_max
            or self.queue_bytes + size > self._settings.queue_bytes_max
        ):
            raise queue_full(
                "more requests are waiting than the gateway holds",
                hint="send again after Retry-After; larger batches cost less each",
            )
        self.queue_requests += 1
        self.queue_bytes += size
        self._incoming.put(request)

    async def run_job(self, run: Callable[[LogWriter], Any]) -> Any:
        """The result of run(writer), done between two groups. Raises what it raises."""
        if self.jobs_waiting >= _JOBS_MAX:
            raise queue_full("too many administrative requests at once")
        future: asyncio.Future[Any] = self._loop.create_future()
        self.jobs_waiting += 1
        try:
            await asyncio.to_thread(self._decoded.put, _Job(run, future))
            return await future
        finally:
            self.jobs_waiting -= 1

    def _deliver(self, outcomes: Iterable[Outcome]) -> None:
        for request, outcome in outcomes:
            self.queue_requests -= 1
            self.queue_bytes -= len(request.body)
            future = request.future
            if future.done():
                continue  # the client has gone; its retry is recognised
            try:
                if isinstance(outcome, RequestError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            except Exception as error:  # the others of the group must have their answers
                logger.error("an answer could not be given", exc_info=error)

    # ------------------------------------------------------------------------ on the decode thread

    def _decode_groups(self) -> None:
        waiting: EventsRequest | None = self._incoming.get()
        while waiting is not None:
            self._let_more_come()
            by_stream: dict[str, list[tuple[EventsRequest, bytes]]] = {}
            refused: list[Outcome] = []
            group_bytes = 0
            request: EventsRequest | None = waiting
            waiting = None
            is_stopping = False
            while request is not None:
                try:
                    body = request.body
                    if request.encoding != "identity":
                        body = self.decoders[request.stream].inflated(request)
                    by_stream.setdefault(request.stream, []).append((request, body))
                    group_bytes += len(body)
                except Exception as error:
                    refused.append((request, self._as_refusal(error)))
                if group_bytes >= self._settings.group_bytes_max:
                    break
                try:
                    request = self._incoming.get_nowait()
                    is_stopping = request is None
                except queue.Empty:
                    break
            rows: list[StreamRows] = []
            for name, them in by_stream.items():
                rows += self._decode_stream(name, them, refused)
            if refused:
                self._loop.call_soon_threadsafe(self._deliver, refused)
            self._requests_last = sum(len(them) for them in by_stream.values())
            self._is_append_idle.clear()
            self._decoded.put(rows)
            if not is_stopping:
                waiting = self._incoming.get()
        self._decoded.put(None)

    def _let_more_come(self) -> None:
        if self.queue_bytes >= LITTLE_QUEUED_BYTES:
            return
        self._is_append_idle.wait()
        before = self.queue_requests
        for _ in range(LINGERINGS_MAX):
            if before >= self._requests_last:
                return
            time.sleep(LINGER_SECONDS)
            now = self.queue_requests
            if now == before:
                return
            before = now

    def _decode_stream(
        self,
        name: str,
        requests: list[tuple[EventsRequest, bytes]],
        refused: list[Outcome],
    ) -> list[StreamRows]:
        """A request that the decoder fails on is refused alone: the others are decoded again."""
        try:
            return [self.decoders[name].decode(requests)]
        except Exception as error:
            if len(requests) == 1:
                refused.append((requests[0][0], self._as_refusal(error)))
                return []
        return [rows for one in requests for rows in self._decode_stream(name, [one], refused)]

    def _as_refusal(self, error: Exception) -> RequestError:
        """A refusal as it is; anything else is a fault of ours, logged whole and told briefly."""
        if isinstance(error, RequestError):
            return error
        logger.error("a request could not be handled", exc_info=error)
        return RequestError(
            500, "internal", "the gateway failed on this request", hint="see the gateway's log"
        )

    # ------------------------------------------------------------------------ on the append thread

    def _append_groups(self) -> None:
        while (work := self._decoded.get()) is not None:
            if isinstance(work, _Job):
                self._run_job(work)
                continue
            if work:
                self._commit(work)
            self._is_append_idle.set()

    def _commit(self, all_rows: list[StreamRows]) -> None:
        try:
            outcomes = self._append(all_rows)
        except Exception as error:
            refusal = self._as_refusal(error)
            outcomes = [(e.request, refusal) for rows in all_rows for e in rows.entries]
            outcomes += [pair for rows in all_rows for pair in rows.refused]
        self._loop.call_soon_threadsafe(self._deliver, outcomes)
        for rows in all_rows:
            if rows.sampled_unknown_fields is not None:
                self._metrics.add_sample(rows.sampled_unknown_fields)

    def _append(self, all_rows: list[StreamRows]) -> list[Outcome]:
        draft = self._builder.build(all_rows)
        refusal = self._append_draft(all_rows, draft)
        if refusal is None:
            return self._builder.covered(draft.fresh) + draft.settled
        entries = [(rows, entry) for rows in all_rows for entry in rows.entries]
        if len(entries) == 1 or refusal.code == "log-failed":
            fresh: list[Outcome] = [(request, refusal) for request, _ in draft.fresh]
            before = draft.retried_before.items()
            self._metrics.add_counts({s: Counts(received=n, retried=n) for s, n in before})
            return fresh + draft.settled
        # One request's stream is full, or one producer has too many gaps: the others shall not
        # suffer, so each is stored by itself.
        outcomes: list[Outcome] = [pair for rows in all_rows for pair in rows.refused]
        for rows, entry in entries:
            outcomes += self._append([rows.slice(entry)])
        return outcomes

    def _append_draft(self, all_rows: list[StreamRows], draft: Draft) -> RequestError | None:
        """None if the draft is durable (or empty), else the refusal for its fresh outcomes."""
        appended = Appended()
        if draft.group.batches or draft.group.receipts or draft.group.dead:
            started = time.perf_counter()
            try:
                appended = self.writer.append(draft.group)
            except LogFullError as error:
                return RequestError(
                    503,
                    "log-full",
                    error.message,
                    hint=error.hint or "wait for the views to catch up, or raise the limit",
                    retry_after_seconds=RETRY_AFTER_FULL_SECONDS,
                )
            except (ProducerGapsError, KeyReusedError) as error:
                return RequestError(422, error.code, error.message, hint=error.hint)
            except (LogError, OSError) as error:
                return self._failed(error)
            self.failure = None
            self._metrics.observe_group(draft.group, time.perf_counter() - started)
        self.account(all_rows, draft, appended)
        return None

    def account(self, all_rows: Sequence[StreamRows], draft: Draft, appended: Appended) -> None:
        """Count what became of a group that is durable, and check that nothing got lost."""
        counts = count_group(all_rows, draft, appended)
        self._metrics.add_counts(counts)
        self._metrics.add_clock_offsets(draft.clock_offsets)
        self.conservation.check(counts)

    def _failed(self, error: Exception) -> RequestError:
        if self.failure is None:
            logger.critical("the log cannot be written; requests are refused", exc_info=error)
        self.failure = str(error) or type(error).__name__
        return RequestError(
            503,
            "log-failed",
            f"the log cannot be written: {self.failure}",
            hint="check the disk and the gateway's log; then start the gateway again",
            retry_after_seconds=RETRY_AFTER_FULL_SECONDS,
        )

    def _run_job(self, job: _Job) -> None:
        result: Any = None
        failure: Exception | None = None
        try:
            result = job.run(self.writer)
        except Exception as error:
            if isinstance(error, OSError):
                failure = self._failed(error)
            else:
                failure = error if isinstance(error, HeadraceError) else self._as_refusal(error)
        self._loop.call_soon_threadsafe(_complete, job.future, result, failure)

    # --------------------------------------------------------------------- on the retention thread

    def _retain_regularly(self) -> None:
        while not self._closing.wait(self._retention_seconds):
            try:
                freed = self.writer.retain(time.time_ns() // 1000)
            except (OSError, LogError) as error:
                logger.error("retention failed and is tried again", exc_info=error)
                continue
            for stream, size in freed.items():
                if size > 0:
                    logger.info("retention freed %d bytes of stream %s", size, stream)


def _complete(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)
