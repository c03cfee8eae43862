"""Sending against a real server that misbehaves: everything once, in order, or said aloud."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import AsyncClient, Client, Quarantined, Refused
from headrace.client.outbox import Limits
from headrace.model.errors import BufferFullError, ClientError, RefusedError, UnreachableError

FAULTS = ("ok", "drop-before", "drop-after", "truncate", "garbage", "429", "503", "500", "slow")


def _numbers(ledger: Any, stream: str) -> list[int]:
    return [json.loads(event)["n"] for event in ledger.stored.get(stream, [])]


def test_flush_means_stored_in_order(ledger: Any, url: str) -> None:
    with Client(url) as client:
        assert client.send("payments", ({"n": n} for n in range(2_500))) == 2_500
        client.flush()
        assert _numbers(ledger, "payments") == list(range(2_500))
        assert ledger.first_sequences("payments") == [0, 1_000, 2_000]
        counts = client.counts
    assert (counts.sent, counts.accepted, counts.held) == (2_500, 2_500, 0)


def test_spellings_of_a_stream_share_one_line_of_numbers(ledger: Any, url: str) -> None:
    ledger.faults = deque(["drop-after", "503"])
    with Client(url, limits=Limits(batch_events_max=2, batch_seconds_max=60)) as client:
        for n in range(7):
            client.send("Payments" if n % 3 else "payments", {"n": n})
    assert _numbers(ledger, "payments") == list(range(7))
    assert ledger.first_sequences("payments") == [0, 2, 4, 6]


def test_changes_of_a_table_are_stored_once_in_the_order_given(ledger: Any, url: str) -> None:
    ledger.faults = deque(["drop-after", "503", "truncate"])
    with Client(url, limits=Limits(batch_events_max=2, batch_seconds_max=60)) as client:
        for n in range(5):
            client.upsert("Cust/omers", {"n": n})
            client.delete("cust/omers", {"n": n})
    assert _numbers(ledger, "cust/omers") == [n for n in range(5) for _ in range(2)]
    changes = [json.loads(change) for change in ledger.stored["cust/omers"]]
    assert [change.get("_op") for change in changes] == [None, "delete"] * 5


def test_one_event_goes_out_by_age_alone(ledger: Any, url: str, until: Any) -> None:
    with Client(url) as client:
        client.send("payments", {"n": 1})
        until(lambda: _numbers(ledger, "payments") == [1])


def test_batches_end_by_bytes(ledger: Any, url: str) -> None:
    with Client(url, limits=Limits(batch_bytes_max=100, batch_seconds_max=60)) as client:
        client.send("payments", ({"n": n, "pad": "x" * 30} for n in range(10)))
    assert _numbers(ledger, "payments") == list(range(10))
    assert all(len(body) <= 100 for body, _ in ledger.answers.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_mended_without_a_double(ledger: Any, url: str, fault: str) -> None:
    ledger.faults = deque([fault])
    with Client(url, request_seconds_max=2 if fault == "slow" else 60) as client:
        client.send("payments", ({"n": n} for n in range(10)))
        client.flush()
        retries = client.counts.retries
        assert retries >= 1 if fault == "slow" else retries == (fault != "ok")
    assert _numbers(ledger, "payments") == list(range(10))


@settings(max_examples=9, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    faults=st.lists(st.sampled_from([f for f in FAULTS if f != "slow"]), max_size=12),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.integers(1, 20),
)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_whatever_goes_wrong_each_event_is_stored_once_in_order(
    kind: str,
    faults: list[str],
    sizes: list[int],
    batch: int,
    serve_unreliably: Any,
    new_ledger: Any,
) -> None:
    ledger = new_ledger(faults=deque(faults))
    limits = Limits(batch_events_max=batch, batch_seconds_max=0.001)
    expected = {"a": list(range(sum(sizes))), "b": list(range(sum(sizes)))}
    with serve_unreliably(ledger) as url:
        if kind == "threads":
            with Client(url, limits=limits) as client:
                start = 0
                for size in sizes:
                    for stream in expected:
                        client.send(stream, ({"n": n} for n in range(start, start + size)))
                    start += size
        else:
            asyncio.run(_send_async(url, limits, sizes, list(expected)))
    assert {stream: _numbers(ledger, stream) for stream in expected} == expected


async def _send_async(url: str, limits: Limits, sizes: list[int], streams: list[str]) -> None:
    async with AsyncClient(url, limits=limits) as client:
        start = 0
        for size in sizes:
            for stream in streams:
                await client.send(stream, ({"n": n} for n in range(start, start + size)))
            start += size


def test_retry_after_is_honoured(ledger: Any, url: str) -> None:
    ledger.faults, ledger.retry_after = deque(["429"]), "1"
    with Client(url) as client:
        began = time.monotonic()
        client.send("payments", {"n": 1})
        client.flush()
    assert time.monotonic() - began >= 1.0


def test_quarantined_events_are_told_and_counted(ledger: Any, url: str) -> None:
    ledger.quarantine = lambda event: "odd" if json.loads(event)["n"] % 2 else None
    told: list[Quarantined] = []
    with Client(url, on_quarantined=told.append) as client:
        client.send("payments", ({"n": n} for n in range(10)))
        client.flush()
        counts = client.counts
    assert (counts.accepted, counts.quarantined) == (5, 5)
    assert [(q.sequence, q.event, q.reason) for q in told] == [
        (n, b'{"n":%d}' % n, "odd") for n in (1, 3, 5, 7, 9)
    ]


def test_a_refusal_is_raised_once_by_flush_and_told(ledger: Any, url: str) -> None:
    ledger.refuse = (404, {"detail": "no stream payments", "hint": "define it", "code": "stream"})
    told: list[Refused] = []
    with Client(url, on_refused=told.append) as client:
        client.send("payments", ({"n": n} for n in range(3)))
        with pytest.raises(RefusedError, match=r"3 events were refused.*no stream payments") as e:
            client.flush()
        assert (e.value.status, e.value.hint) == (404, "define it")
        assert [(r.stream, r.first_sequence, len(r.events)) for r in told] == [("payments", 0, 3)]
        ledger.refuse = None
        client.send("payments", {"n": 3})
        client.flush()
        assert client.counts.refused == 3
    assert _numbers(ledger, "payments") == [3]
    assert ledger.first_sequences("payments") == [3]


def test_a_failing_callback_does_not_stop_the_sending(
    ledger: Any, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.quarantine = lambda event: "bad"

    def fail(letter: Quarantined) -> None:
        raise RuntimeError("user's own mistake")

    with Client(url, on_quarantined=fail) as client:
        client.send("payments", {"n": 1})
    assert "user's own mistake" in caplog.text


def test_unreachable_says_what_is_not_durable() -> None:
    client = Client("http://127.0.0.1:1")
    client.send("payments", ({"n": n} for n in range(3)))
    client.send("orders", {"n": 1})
    with pytest.raises(UnreachableError, match="3 of stream payments, 1 of stream orders"):
        client.flush(0.3)
    with pytest.raises(UnreachableError, match="ConnectError"):
        client.close(0.1)
    client.close()
    with pytest.raises(ClientError, match="closed"):
        client.send("payments", {"n": 1})


def test_a_failed_flush_is_not_hidden_by_the_end_of_the_with() -> None:
    def flush() -> None:
        with Client("http://127.0.0.1:1") as client:
            client.send("payments", {"n": 1})
            client.flush(0.5)

    async def flush_async() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            await client.send("payments", {"n": 1})
            await client.flush(0.5)

    for run in (flush, lambda: asyncio.run(flush_async())):
        with pytest.raises(UnreachableError, match=r"after 0\.5 s: 1 of stream") as raised:
            run()
        assert "after 1 s: 1 of stream payments" in raised.value.__notes__[0]


def test_what_was_sent_before_a_failure_is_still_stored(ledger: Any, url: str) -> None:
    def fail() -> None:
        with Client(url) as client:
            client.send("payments", {"n": 1})
            raise ValueError("the caller's own")

    with pytest.raises(ValueError, match="the caller's own"):
        fail()
    assert _numbers(ledger, "payments") == [1]


@pytest.mark.parametrize(
    "limits", [Limits(buffer_events_max=5), Limits(buffer_bytes_max=40)], ids=["events", "bytes"]
)
def test_a_full_buffer_raises_when_asked_to(limits: Limits) -> None:
    client = Client("http://127.0.0.1:1", when_full="raise", limits=limits)
    with pytest.raises(BufferFullError, match="5 were taken before"):
        client.send("payments", ({"n": n} for n in range(9)))
    with pytest.raises(UnreachableError, match="5 of stream payments"):
        client.close(0.1)


def test_a_full_buffer_blocks_until_there_is_room(ledger: Any, url: str) -> None:
    ledger.faults = deque(["503"] * 3)
    limits = Limits(buffer_events_max=10, batch_events_max=5, batch_seconds_max=60)
    with Client(url, limits=limits) as client:
        client.send("payments", ({"n": n} for n in range(100)))
    assert _numbers(ledger, "payments") == list(range(100))


def test_blocking_ends_with_an_error() -> None:
    limits = Limits(buffer_events_max=1)
    client = Client("http://127.0.0.1:1", limits=limits, request_seconds_max=0.3)
    with pytest.raises(BufferFullError, match="1 events are waiting"):
        client.send("payments", [{"n": 1}, {"n": 2}])
    with pytest.raises(UnreachableError):
        client.close(0.1)


def test_an_event_larger_than_the_buffer_is_refused_at_once(url: str) -> None:
    with (
        Client(url, limits=Limits(buffer_bytes_max=100)) as client,
        pytest.raises(ClientError, match="the whole buffer"),
    ):
        client.send("payments", {"text": "x" * 100})


def test_many_threads_share_a_client(ledger: Any, url: str) -> None:
    with Client(url, limits=Limits(batch_events_max=50)) as client:

        def send(thread: int) -> None:
            for n in range(200):
                client.send("payments", {"n": n, "thread": thread})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, range(4)))
    events = [json.loads(event) for event in ledger.stored["payments"]]
    for thread in range(4):
        assert [e["n"] for e in events if e["thread"] == thread] == list(range(200))


def test_a_named_producer_starts_over_with_a_new_epoch(ledger: Any, url: str, until: Any) -> None:
    """Which is the time in milliseconds."""
    for n in range(2):
        with Client(url, producer="till-7") as client:
            client.send("payments", {"n": n})
        millisecond = time.time_ns() // 1_000_000
        until(lambda: time.time_ns() // 1_000_000 > millisecond)  # noqa: B023
    assert _numbers(ledger, "payments") == [0, 1]
    assert {headers["headrace-producer"] for headers in ledger.seen} == {"till-7"}
    assert len({headers["headrace-epoch"] for headers in ledger.seen}) == 2


def test_the_token_goes_along(ledger: Any, url: str) -> None:
    with Client(url, token="hr_secret") as client:
        client.send("payments", {"n": 1})
    assert ledger.seen[0]["authorization"] == "Bearer hr_secret"


@dataclass
class Payment:
    n: int
    amount: Decimal


def test_values_are_written_exactly(ledger: Any, url: str) -> None:
    identifier = uuid.UUID("12345678-1234-5678-1234-567812345678")
    event = {
        "amount": Decimal("70.00"),
        "at": datetime(2026, 1, 1, 0, 0, 3, 5, tzinfo=UTC),
        "id": identifier,
        "raw": b"\x00\xff",
        "nothing": None,
        "odd": [float("nan"), float("inf"), {"deep": float("-inf")}],
        "text": "zwölf\nlines",
        "big": 2**63 - 1,
    }
    with Client(url) as client:
        client.send("payments", event)
        client.send("payments", [Payment(1, Decimal("0.10"))])
    assert [json.loads(line) for line in ledger.stored["payments"]] == [
        {
            "amount": "70.00",
            "at": "2026-01-01T00:00:03.000005Z",
            "id": str(identifier),
            "raw": "AP8=",
            "nothing": None,
            "odd": ["NaN", "Infinity", {"deep": "-Infinity"}],
            "text": "zwölf\nlines",
            "big": 2**63 - 1,
        },
        {"n": 1, "amount": "0.10"},
    ]


@pytest.mark.parametrize("wrong", [5, "text", b"bytes", [1], ["text"], [{"x": object()}]])
def test_what_is_no_event_is_refused_before_buffering(url: str, wrong: Any) -> None:
    with Client(url) as client:
        with pytest.raises(ClientError):
            client.send("payments", wrong)
        assert client.counts.held == 0


def _child(client: Client, results: Any) -> None:
    try:
        client.send("payments", {"n": 2})
    except ClientError as error:
        results.put(str(error))


@pytest.mark.skipif(sys.platform == "win32", reason="fork is a POSIX call")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_gets_a_clear_error(ledger: Any, url: str) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with Client(url) as client:
        client.send("payments", {"n": 1})
        client.flush()
        child = context.Process(target=_child, args=(client, results))
        child.start()
        assert "made in another process" in results.get(timeout=60)
        child.join(60)
        client.send("payments", {"n": 3})
    assert _numbers(ledger, "payments") == [1, 3]


def test_a_client_that_was_not_closed_sends_at_exit(ledger: Any, url: str) -> None:
    program = f"import headrace.client as c; c.Client({url!r}).send('payments', {{'n': 1}})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert _numbers(ledger, "payments") == [1]
