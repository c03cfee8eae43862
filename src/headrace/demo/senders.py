"""The senders: processes that each send their share of the shop's events.

Every sender counts for itself in shared memory and writes down what it sent, so that the proof at
the end needs nothing but the senders' word. One batch in twenty is sent by hand with an
Idempotency-Key, twice, as a client does that missed the first answer; with `faults` a few broken
records go along, which must end as dead letters and touch nothing else.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.demo.events import Generator, Pools
from headrace.demo.plain_http import PlainHttp
from headrace.demo.shop import STREAM
from headrace.model.errors import HeadraceError, RefusedError

__all__ = ["Plan", "Senders", "Tally", "record_files"]

BATCH_EVENTS_MAX = 1_000
BATCH_SECONDS = 0.05
BUFFER_EVENTS_MAX = 5_000
FLUSH_SECONDS_MAX = 60
BATCHES_PER_RETRY = 20
BATCHES_PER_FAULT = 25
STOP_SECONDS_MAX = 60
FAULTS = (
    b"this is not JSON",
    b'{"id": "without an amount", "user_id": "5", "currency": "EUR", "status": "paid",'
    b' "created_at": "2026-01-01T00:00:00Z"}',
    b'{"id": "no number", "user_id": "5", "amount": "ten", "currency": "EUR", "status": "paid",'
    b' "created_at": "2026-01-01T00:00:00Z"}',
)
_COUNTED = 3  # sent, retried, quarantined


@dataclass(frozen=True)
class Plan:
    """`events` is for all senders together, None for no end; `rate` likewise, in events per
    second, None for as fast as they are taken. `records` is the folder for what was sent."""

    url: str
    token: str | None
    senders: int
    events: int | None
    rate: float | None
    records: Path | None
    faults: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Tally:
    """Events acknowledged as durable, of those the ones sent twice, and records refused."""

    sent: int
    retried: int
    quarantined: int


class Senders:
    """Start before any thread: on Linux the processes are forked, which shares the pools."""

    def __init__(self, plan: Plan, pools: Pools) -> None:
        import headrace.client  # noqa: F401 - once here, not in every process

        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._counts: Any = context.Array("q", plan.senders * _COUNTED, lock=False)
        self._stop = context.Event()
        self._processes = []
        self._complaints = []
        for number in range(plan.senders):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(
                target=_send,
                args=(plan, number, pools, self._counts, self._stop, writer, os.getpid()),
                name=f"sender-{number}",
                daemon=True,
            )
            self._processes.append(process)
            self._complaints.append((reader, writer))

    def start(self) -> None:
        for process, (_, writer) in zip(self._processes, self._complaints, strict=True):
            process.start()
            writer.close()

    def tally(self) -> Tally:
        counts = list(self._counts)
        return Tally(*(sum(counts[i::_COUNTED]) for i in range(_COUNTED)))

    @property
    def running(self) -> bool:
        return any(process.is_alive() for process in self._processes)

    def complaint(self) -> str | None:
        """Why a sender gave up; None while none has."""
        for process, (reader, _) in zip(self._processes, self._complaints, strict=True):
            try:
                if reader.poll():
                    return str(reader.recv())
            except EOFError:
                pass
            if process.exitcode not in (None, 0):
                return f"{process.name} ended with code {process.exitcode}"
        return None

    def stop(self) -> None:
        """Everything already handed over is sent and acknowledged before a sender ends."""
        self._stop.set()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _share(total: int, senders: int, number: int) -> int:
    return total // senders + (number < total % senders)


def _send(
    plan: Plan,
    number: int,
    pools: Pools,
    counts: Any,
    stop: Any,
    complaints: Any,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with ExitStack() as stack:
            _Sender(plan, number, pools, counts, stack).run(stop, parent)
    except HeadraceError as error:
        complaints.send(f"sender {number}: {error}")
        sys.exit(1)


class _Sender:
    def __init__(
        self,
        plan: Plan,
        number: int,
        pools: Pools,
        counts: Any,
        stack: ExitStack,
    ) -> None:
        from headrace.client import Client
        from headrace.client.outbox import Limits

        self._plan, self._number, self._counts = plan, number, counts
        self._generator = Generator(pools, number, plan.seed)
        limits = Limits(buffer_events_max=BUFFER_EVENTS_MAX)
        self._client = stack.enter_context(Client(plan.url, token=plan.token, limits=limits))
        self._record: IO[str] | None = None
        if plan.records is not None:
            file = plan.records / f"sent-{number:04d}.csv"
            self._record = stack.enter_context(file.open("w", encoding="utf-8"))
        self._sent_plain = 0
        self._plain_http = stack.enter_context(PlainHttp(plan.url, plan.token))

    def run(self, stop: Any, parent: int) -> None:
        plan = self._plan
        left = None if plan.events is None else _share(plan.events, plan.senders, self._number)
        rate = None if plan.rate is None else plan.rate / plan.senders
        size = BATCH_EVENTS_MAX
        if rate is not None:
            size = max(1, min(size, round(rate * BATCH_SECONDS)))
        began, sent, batches = time.monotonic(), 0, 0
        while left != 0 and not stop.is_set() and os.getppid() == parent:
            if rate is not None:
                ahead = began + sent / rate - time.monotonic()
                if ahead > 0 and stop.wait(ahead):
                    break
            count = size if left is None else min(size, left)
            self._batch(count, batches)
            sent, batches = sent + count, batches + 1
            left = None if left is None else left - count
        self._client.flush(FLUSH_SECONDS_MAX)
        self._count_sent()

    def _batch(self, count: int, batches: int) -> None:
        events = self._generator.batch(count, time.time_ns() // 1_000)
        if self._record is not None:
            self._record.writelines(
                f"{e['user_id']},{e['amount']},{e['status']},{e['created_at']}\n" for e in events
            )
        if batches % BATCHES_PER_RETRY == 1:
            body = "\n".join(map(json.dumps, events)).encode()
            key = f"shop-{self._plan.seed}-{os.getpid()}-{batches}"
            first = self._plain_http.send(body, key)
            again = self._plain_http.send(body, key)
            if first != again or first.get("accepted") != count:
                raise RefusedError(200, {"detail": f"a retry was answered {again}, not {first}"})
            self._sent_plain += count
            self._count(1, count)
        else:
            self._client.send(STREAM, events)
        self._count_sent()
        if self._plan.faults and batches % BATCHES_PER_FAULT == 0:
            key = f"shop-faults-{self._plan.seed}-{os.getpid()}-{batches}"
            answer = self._plain_http.send(b"\n".join(FAULTS), key)
            self._count(2, answer["quarantined"])

    def _count(self, what: int, count: int) -> None:
        self._counts[self._number * _COUNTED + what] += count

    def _count_sent(self) -> None:
        """What is acknowledged as durable, by either way of sending."""
        durable = self._client.counts.accepted + self._sent_plain
        self._counts[self._number * _COUNTED] = durable


def record_files(plan: Plan) -> Sequence[Path]:
    """What the senders wrote down, complete once they have ended."""
    assert plan.records is not None
    return sorted(plan.records.glob("sent-*.csv"))
