"""What `headrace query` does with answers that lack something, from a server that plays them."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.cli import exits

FRESHNESS = {"tick": 3, "committed_at": "2026-01-01T00:00:00.000000Z", "text": "all there"}
ROWS = (200, {"rows": [{"n": 7}], "freshness": FRESHNESS})


def problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    return status, {"detail": f"because of {code}", "code": code, "hint": "of the server"}


@dataclass
class Played:
    """Gives the answers in turn, the last one again and again."""

    url: str = ""
    answers: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    asked: list[dict[str, list[str]]] = field(default_factory=list)


@pytest.fixture
def played() -> Iterator[Played]:
    server = Played()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert body == {"sql": "SELECT n FROM v"}
            target = urlsplit(self.path)
            assert target.path == "/v1/sql"
            server.asked.append(parse_qs(target.query))
            some = server.answers
            status, answer = some.popleft() if len(some) > 1 else some[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Silent."""

    answering = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=answering.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{answering.server_port}"
    yield server
    answering.shutdown()
    answering.server_close()
    thread.join()


def test_it_asks_for_all_that_is_stored_and_says_nothing_of_it(
    headrace: Callable[..., Any], played: Played
) -> None:
    played.answers.append(ROWS)
    ended = headrace("query", "SELECT n FROM v", "--url", played.url)
    assert (ended.code, "7" in ended.out) == (0, True)
    assert ended.err == "1 row · tick 3 · committed 2026-01-01T00:00:00.000000Z · all there\n"
    assert played.asked == [{"covers": ["now"], "wait_seconds": ["1.000"]}]
    assert headrace("query", "SELECT n FROM v", "--url", played.url, "--now").code == 0
    assert played.asked[1:] == [{}]


def test_what_it_waits_for_is_said_once(headrace: Callable[..., Any], played: Played) -> None:
    away = [problem(503, code) for code in ("engine-away", "engine-starting", "busy")]
    played.answers += [*away, problem(504, "not-covered"), ROWS]
    ended = headrace("query", "SELECT n FROM v", "--url", played.url, "--json")
    assert ended.document["rows"] == [{"n": 7}]
    said = "because of engine-away. Waiting up to 60 s; --now shows the views as they stand.\n"
    assert ended.err == said
    assert len(played.asked) == 5
    left = [float(asked["wait_seconds"][0]) for asked in played.asked]
    assert left[0] == 1.0
    assert 60 > left[1] > left[2] > left[3] > left[4] > 0


def test_its_time_ends(
    headrace: Callable[..., Any], played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.query.WAIT_SECONDS_MAX", 0.5)
    for status, code in ((503, "engine-away"), (504, "not-covered")):
        played.answers.append(problem(status, code))
        ended = headrace("query", "SELECT n FROM v", "--url", played.url)
        assert (ended.code, ended.out) == (exits.UNREACHABLE, "")
        assert f"error: HTTP {status}: because of {code}\n  hint: --now shows" in ended.err
        played.answers.clear()


def test_what_stands_still_is_shown_as_it_stands(
    headrace: Callable[..., Any], played: Played
) -> None:
    played.answers += [problem(409, "view-stands-still"), ROWS]
    ended = headrace("query", "SELECT n FROM v", "--url", played.url, "--json")
    assert ended.document["rows"] == [{"n": 7}]
    assert ended.err == "because of view-stands-still. It is shown as it stands.\n"
    assert played.asked[1:] == [{}]


@pytest.mark.parametrize(("status", "code"), [(400, "query"), (409, "view-closed")])
def test_what_no_waiting_mends_is_told_at_once(
    headrace: Callable[..., Any], played: Played, status: int, code: str
) -> None:
    played.answers.append(problem(status, code))
    ended = headrace("query", "SELECT n FROM v", "--url", played.url)
    assert ended.code == exits.MISTAKE
    assert ended.err == f"error: HTTP {status}: because of {code}\n  hint: of the server\n"
    assert len(played.asked) == 1
