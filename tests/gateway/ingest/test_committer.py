"""Group commit where it can be watched: failures of the log, and neighbours of a bad request."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.bodies import BodyKind
from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.requests import EventsRequest, ProducerKey
from headrace.log.contract import Appended, Group
from headrace.log.embedded.backend import open_writer
from headrace.model.definitions import Column, Project, Stream
from headrace.model.errors import LogError, RequestError
from headrace.model.settings import GatewaySettings, Settings
from headrace.model.types import parse_type

pytestmark = pytest.mark.anyio

NOTES = Stream("notes", (Column("text", parse_type("STRING"), nullable=False),))
PROJECT = Project("shop", (NOTES,))
NOTE = b'{"text":"x"}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watched:
    """The real writer, with its appends seen and, when asked for, failing like a broken disk."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.groups: list[Group] = []
        self.failure: Exception | None = None

    def append(self, group: Group) -> Appended:
        if self.failure is not None:
            raise self.failure
        self.groups.append(group)
        appended: Appended = self._writer.append(group)
        return appended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def outcomes(
    tmp_path: Path,
    requests: Sequence[tuple[bytes, Any]],
    settings: GatewaySettings | None = None,
    failure: Exception | None = None,
) -> tuple[list[Any], Watched, Committer]:
    """What becomes of requests that are all queued before the committer starts."""
    whole = Settings(tmp_path, gateway=settings or GatewaySettings())
    writer = open_writer(whole.log_directory, [NOTES], whole.log, whole.gateway)
    watched = Watched(writer)
    watched.failure = failure
    loop = asyncio.get_running_loop()
    committer = Committer(whole, PROJECT, watched, loop, Metrics())
    futures = []
    for body, key in requests:
        future: asyncio.Future[Any] = loop.create_future()
        committer.submit(EventsRequest("notes", body, BodyKind.LINES, "identity", key, 1, future))
        futures.append(future)
    committer.start()
    results = await asyncio.gather(*futures, return_exceptions=True)
    await asyncio.to_thread(committer.close)
    writer.close()
    return results, watched, committer


def statuses(results: Sequence[Any]) -> list[Any]:
    return [r.code if isinstance(r, RequestError) else r[0] for r in results]


async def test_many_requests_are_one_append(tmp_path: Path) -> None:
    results, watched, committer = await outcomes(tmp_path, [(NOTE, None)] * 100)
    assert statuses(results) == [200] * 100
    assert len(watched.groups) == 1
    assert len(watched.groups[0].batches) == 1
    assert (committer.queue_requests, committer.queue_bytes) == (0, 0)


async def test_a_group_is_bounded_by_bytes(tmp_path: Path) -> None:
    settings = GatewaySettings(group_bytes_max=200)
    results, watched, _ = await outcomes(tmp_path, [(NOTE, None)] * 100, settings)
    assert statuses(results) == [200] * 100
    assert len(watched.groups) > 4


@pytest.mark.parametrize(
    "failure", [OSError(errno.EIO, "Input/output error"), LogError("the group was not stored")]
)
async def test_a_log_that_cannot_be_written_is_never_acknowledged(
    tmp_path: Path, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    results, watched, committer = await outcomes(tmp_path, [(NOTE, None)] * 5, failure=failure)
    assert statuses(results) == ["log-failed"] * 5
    assert results[0].status == 503
    assert results[0].retry_after_seconds
    assert committer.failure is not None
    assert watched.groups == []
    assert "requests are refused" in caplog.text


async def test_a_disk_that_has_room_again_makes_the_gateway_healthy(tmp_path: Path) -> None:
    settings = Settings(tmp_path)
    writer = open_writer(settings.log_directory, [NOTES], settings.log, settings.gateway)
    watched = Watched(writer)
    loop = asyncio.get_running_loop()
    committer = Committer(settings, PROJECT, watched, loop, Metrics())
    committer.start()

    async def send() -> Any:
        future: asyncio.Future[Any] = loop.create_future()
        committer.submit(EventsRequest("notes", NOTE, BodyKind.LINES, "identity", None, 1, future))
        return (await asyncio.gather(future, return_exceptions=True))[0]

    watched.failure = OSError(errno.ENOSPC, "No space left on device")
    assert statuses([await send()]) == ["log-failed"]
    assert committer.failure is not None
    watched.failure = None
    assert statuses([await send()]) == [200]
    assert committer.failure is None
    await asyncio.to_thread(committer.close)
    writer.close()


async def test_a_producer_with_too_many_gaps_is_refused_alone(tmp_path: Path) -> None:
    settings = GatewaySettings(producer_intervals_max=3)
    gappy = [(NOTE, ProducerKey("gappy", 0, first)) for first in range(0, 20, 2)]
    good = [(NOTE, ProducerKey("good", 0, first)) for first in range(10)]
    mixed = [pair for two in zip(gappy, good, strict=True) for pair in two]
    results, _, _ = await outcomes(tmp_path, mixed, settings)
    assert statuses(results[1::2]) == [200] * 10
    assert statuses(results[0::2]) == [200] * 3 + ["producer-gaps"] * 7


async def test_equal_keys_in_one_group(tmp_path: Path) -> None:
    other = b'{"text":"other"}'
    requests = [(NOTE, "k"), (NOTE, "k"), (other, "k"), (NOTE, "l"), (other, None)]
    results, watched, _ = await outcomes(tmp_path, requests)
    assert statuses(results) == [200, 200, "key-reused", 200, 200]
    assert ("headrace-retried", "true") not in results[0][1]
    assert ("headrace-retried", "true") in results[1][1]
    assert results[0][2] == results[1][2]
    assert len(watched.groups) == 1
    assert watched.groups[0].batches[0].batch.column("text").to_pylist() == ["x", "x", "other"]


async def test_overlapping_numbers_in_one_group(tmp_path: Path) -> None:
    lines = [b'{"text":"%d"}' % n for n in range(10)]
    requests = [
        (b"\n".join(lines[4:8]), ProducerKey("p", 0, 4)),
        (b"\n".join(lines[0:6]), ProducerKey("p", 0, 0)),
        (b"\n".join(lines[7:10]), ProducerKey("p", 0, 7)),
        (b"\n".join(lines[4:8]), ProducerKey("p", 0, 4)),
    ]
    results, watched, _ = await outcomes(tmp_path, requests)
    assert statuses(results) == [200] * 4
    stored = watched.groups[0].batches[0].batch.column("text").to_pylist()
    assert sorted(stored) == [str(n) for n in range(10)]


class LosesEvents(Watched):
    """A log that forgets the last event of a batch, or a letter, and does not say so."""

    def append(self, group: Group) -> Appended:
        appended = super().append(group)
        if group.dead:
            return replace(appended, dead_numbers=appended.dead_numbers[1:])
        return replace(appended, rows=tuple(rows - 1 for rows in appended.rows))


@pytest.mark.parametrize("body", [NOTE, b"{}"])
async def test_a_stream_that_loses_events_is_closed(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Settings(tmp_path)
    writer = LosesEvents(open_writer(whole.log_directory, [NOTES], whole.log, whole.gateway))
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    committer = Committer(whole, PROJECT, writer, loop, metrics)
    metrics.violations = lambda: committer.conservation.violations
    committer.start()
    committer.conservation.require("notes")
    future: asyncio.Future[Any] = loop.create_future()
    committer.submit(EventsRequest("notes", body, BodyKind.LINES, "identity", None, 1, future))
    assert (await future)[0] == 200
    await asyncio.to_thread(committer.close)
    with pytest.raises(RequestError) as caught:
        committer.conservation.require("notes")
    assert (caught.value.status, caught.value.code) == (503, "conservation")
    assert "1 received, but 0 appended, 0 retried and 0 dead" in caplog.text
    exposed = metrics.exposition().decode()
    assert 'headrace_gateway_conservation_violated{stream="notes"} 1.0' in exposed


async def test_counts_add_up_whatever_becomes_of_the_events(tmp_path: Path) -> None:
    key = ProducerKey("p", 0, 0)
    requests = [
        (NOTE, None),
        (b'{"text":"a"}\n{}', "k1"),
        (b'{"text":"a"}\n{}', "k1"),
        (NOTE, "k1"),
        (b"\n".join([NOTE] * 4), key),
        (b"\n".join([NOTE] * 3 + [b"{}"] * 2), ProducerKey("p", 0, 2)),
    ]
    _, watched, committer = await outcomes(tmp_path, requests)
    counts = committer._metrics.counts["notes"]
    # the fourth is refused; of the last, two numbers came before
    assert (counts.received, counts.appended, counts.retried, counts.dead) == (14, 7, 4, 3)
    assert counts.is_conserved
    assert committer.conservation.violations == {}
    assert len(watched.groups) == 1


async def test_an_answer_that_fails_keeps_no_other_from_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(asyncio.Future[Any]):
        def set_result(self, result: Any) -> None:
            raise OSError("no connection")

    results, _, committer = await outcomes(tmp_path, [(NOTE, None)])
    replies = [Broken(), asyncio.get_running_loop().create_future()]
    each = [EventsRequest("notes", NOTE, BodyKind.ONE, "identity", None, 0, r) for r in replies]
    committer._deliver([(request, results[0]) for request in each])
    assert replies[1].result() == results[0]
    assert "no connection" in caplog.text
