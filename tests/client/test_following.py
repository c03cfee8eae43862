"""Following with a server that breaks off, repeats itself and expires; reading its events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import AsyncClient, Change, Client, connection
from headrace.client.following import Event, EventReader, Follower
from headrace.model.errors import (
    ChangesExpiredError,
    ClientError,
    RefusedError,
    UnreachableError,
)

COLUMNS = [
    {"name": "user_id", "type": "STRING"},
    {"name": "total", "type": "DECIMAL(28,2)"},
    {"name": "at", "type": "TIMESTAMP"},
    {"name": "day", "type": "DATE"},
    {"name": "raw", "type": "BINARY"},
    {"name": "ratio", "type": "DOUBLE"},
]
ROW = {
    "user_id": "ann",
    "total": "70.00",
    "at": "2026-01-01T00:00:03.000001Z",
    "day": "2026-01-01",
    "raw": "AP8=",
    "ratio": "NaN",
}


def message(tick: int) -> bytes:
    document = {
        "tick": tick,
        "view": "income",
        "before": [],
        "after": [ROW],
        "freshness": {
            "tick": tick,
            "committed_at": "2026-01-01T00:00:04.000000Z",
            "complete_up_to": None,
            "pending_events": 2,
        },
    }
    return b"id: %d\nevent: changes\ndata: %s\n\n" % (tick, json.dumps(document).encode())


class Script:
    """What each connection gets, in order: a status with a body, or the bytes of a stream."""

    def __init__(self) -> None:
        self.answers: deque[bytes | tuple[int, dict[str, Any]]] = deque()
        self.asked: list[str | None] = []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Silent."""

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/v1/views":
                return self._json(200, {"views": [{"name": "income", "columns": COLUMNS}]})
            script.asked.append(parse_qs(parts.query).get("after", [None])[0])
            answer = script.answers.popleft() if script.answers else (404, {"detail": "the end"})
            if isinstance(answer, tuple):
                return self._json(*answer)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(answer)
            return None

        def _json(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def _collect(address: str, count: int, after: int | None = None) -> list[Change]:
    with Client(address) as client:
        changes = client.subscribe("income", after)
        return [next(changes) for _ in range(count)]


async def _collect_async(address: str, count: int, after: int | None = None) -> list[Change]:
    collected = []
    async with AsyncClient(address) as client:
        async for change in client.subscribe("income", after):
            collected.append(change)
            if len(collected) == count:
                break
    return collected


COLLECT = {
    "threads": _collect,
    "tasks": lambda *arguments: asyncio.run(_collect_async(*arguments)),
}


def test_rows_have_python_types(script: Script, address: str) -> None:
    script.answers.append(message(4))
    (change,) = _collect(address, 1)
    assert (change.tick, change.view, change.before) == (4, "income", [])
    (row,) = change.after
    assert row.pop("ratio") != row.get("ratio")
    assert row == {
        "user_id": "ann",
        "total": Decimal("70.00"),
        "at": datetime(2026, 1, 1, 0, 0, 3, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "raw": b"\x00\xff",
    }
    assert change.freshness.committed_at == datetime(2026, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert (change.freshness.complete_up_to, change.freshness.pending_events) == (None, 2)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_it_resumes_after_the_last_tick_and_drops_repeats(
    script: Script, address: str, kind: str
) -> None:
    script.answers += [
        b"id: 3\n\n" + message(5) + message(6) + message(7)[:40],  # broken off in a message
        (503, {"detail": "the engine is away"}),
        message(6) + message(7),  # repeats 6
        b"",
        message(8),
    ]
    changes = COLLECT[kind](address, 4)
    assert [change.tick for change in changes] == [5, 6, 7, 8]
    assert script.asked == [None, "6", "6", "7", "7"]


def test_the_position_moves_without_changes(script: Script, address: str) -> None:
    script.answers += [b"id: 9\n\n: heartbeat\nid: 12\n\n", message(13)]
    assert [change.tick for change in _collect(address, 1, after=2)] == [13]
    assert script.asked == ["2", "12"]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_expired_changes_are_an_error(script: Script, address: str, kind: str) -> None:
    script.answers.append((410, {"code": "changes-expired", "detail": "too old", "hint": "again"}))
    with pytest.raises(ChangesExpiredError, match="too old") as caught:
        COLLECT[kind](address, 1, 1)
    assert caught.value.hint == "again"


def test_expiry_in_the_middle_is_an_error(script: Script, address: str) -> None:
    problem = json.dumps({"code": "changes-expired", "detail": "rebuilt"}).encode()
    script.answers.append(message(1) + b"event: problem\ndata: " + problem + b"\n\n")
    with Client(address) as client:
        changes = client.subscribe("income")
        assert next(changes).tick == 1
        with pytest.raises(ChangesExpiredError, match="rebuilt"):
            next(changes)


def test_another_problem_in_the_middle_is_a_refusal(script: Script, address: str) -> None:
    script.answers.append(b'event: problem\ndata: {"status": 500, "detail": "broken"}\n\n')
    with Client(address) as client, pytest.raises(RefusedError, match="broken"):
        next(client.subscribe("income"))


def test_refusals_are_not_tried_again(script: Script, address: str) -> None:
    script.answers.append((403, {"detail": "no scope query"}))
    with Client(address) as client, pytest.raises(RefusedError, match="no scope query"):
        next(client.subscribe("income"))
    assert len(script.asked) == 1


def test_no_connection_for_too_long_is_an_error(script: Script, address: str) -> None:
    script.answers += [(503, {"detail": "away"})] * 5_000
    with Client(address) as client:
        changes = client.subscribe("income", unreachable_seconds_max=0.3)
        with pytest.raises(UnreachableError, match="the changes of income"):
            next(changes)


def test_the_time_without_a_connection_begins_when_it_is_lost(
    script: Script, address: str, clock: Any
) -> None:
    """A minute and more with the connection is longer than may be without one."""
    clock.install(connection)
    script.answers += [message(1), message(2), message(3)]
    ticks = []
    with Client(address) as client:
        for change in client.subscribe("income", unreachable_seconds_max=60):
            ticks.append(change.tick)
            if change.tick == 3:
                break
            clock.let_pass(61)
    assert ticks == [1, 2, 3]

    async def follow() -> list[int]:
        script.answers += [message(4), message(5)]
        found = []
        async with AsyncClient(address) as client:
            async for change in client.subscribe("income", unreachable_seconds_max=60):
                found.append(change.tick)
                if change.tick == 5:
                    break
                clock.let_pass(61)
        return found

    assert asyncio.run(follow()) == [4, 5]


def test_leaving_the_loop_closes_the_connection(script: Script, address: str) -> None:
    script.answers.append(b"".join(message(tick) for tick in range(1, 50)))
    with Client(address) as client:
        for change in client.subscribe("income"):
            if change.tick == 3:
                break
    assert len(script.asked) == 1


@given(st.data())
def test_events_are_read_whatever_the_pieces(data: st.DataObject) -> None:
    stream = b"retry: 5\nid: 0\n\n: hello\n\n" + message(1) + b"data: a\r\ndata: b\r\n\r\n"
    whole = list(EventReader().feed(stream))
    assert [event.identifier for event in whole] == ["0", None, "1", None]
    assert whole[3] == Event("message", None, b"a\nb")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = EventReader()
    assert [event for piece in pieces for event in reader.feed(piece)] == whole


def test_a_message_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.following.EVENT_BYTES_MAX", 100)
    reader = EventReader()
    assert list(reader.feed(b"data: " + b"x" * 90)) == []
    with pytest.raises(ClientError, match="more than 100 bytes"):
        list(reader.feed(b"xxxxx"))


def test_names_follow_the_servers_spelling() -> None:
    listed = [{"name": "Income", "columns": COLUMNS}]
    assert Follower.of("income", None, listed).view == "Income"
    assert Follower.of("a/b c", 3, listed).request()[:2] == (
        "/v1/views/a%2Fb%20c/changes",
        {"after": "3"},
    )
