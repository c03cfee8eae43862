"""The verbs for late events and the ledger, against answers of every kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from headrace.cli import exits
from headrace.cli.calls import Address
from headrace.cli.generate import _await_gateway

SUMS = {"received": 10, "appended": 7, "retried": 2, "dead": 1}
LEDGER: dict[str, Any] = {
    "gateway": {"payments": {**SUMS, "is_conserved": True, "incident": ""}},
    "engine": {"tick": 7},
    "streams": {
        "payments": {
            "advanced": 7,
            "accepted": 6,
            "duplicate": 1,
            "dead": 0,
            "is_conserved": True,
            "next_offsets": {"0": 7},
        }
    },
    "views": {
        "income": {
            "stream": "payments",
            "read": 6,
            "applied": 1_234,
            "filtered": 1,
            "late": 1,
            "sided": 1,
            "dropped": 1,
            "dead": 0,
            "duplicate": 1,
            "is_conserved": True,
            "incident": "",
        }
    },
}
LATE = {
    "stream": "payments",
    "sided": [{"view": "income", "aside": 3, "applied": 5}],
    "dropped": [
        {"view": "hourly", "window_start": "S", "window_end": "E", "events": 2, "reason": "late"}
    ],
    "decisions": [{"partition": 0, "offset": 17, "decision": "drop", "decided_at": "D"}],
    "cut": True,
}


class Played:
    """Answers with what the test gave for the path, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                played.asked.append((self.command, self.path, json.loads(body or b"null")))
                status, answer = played.answers[self.path.partition("?")[0]]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def played() -> Iterator[Played]:
    answering = Played()
    thread = threading.Thread(target=answering.server.serve_forever, daemon=True)
    thread.start()
    yield answering
    answering.server.shutdown()
    answering.server.server_close()
    thread.join()


def test_the_ledger_is_shown_and_holds(headrace: Callable[..., Any], played: Played) -> None:
    played.answers["/v1/ledger"] = (200, LEDGER)
    shown = headrace("ledger", "--url", played.url)
    assert shown.code == exits.DONE
    for text in ("received = appended + retried + dead", "payments", "income", "1,234", "yes"):
        assert text in shown.out
    assert headrace("ledger", "--url", played.url, "--json").document == LEDGER


@pytest.mark.parametrize("part", ["gateway", "streams", "views"])
def test_a_sum_that_does_not_hold_is_an_incident(
    headrace: Callable[..., Any], played: Played, part: str
) -> None:
    name, sums = next(iter(LEDGER[part].items()))
    broken = {**sums, "is_conserved": False}
    if "incident" in sums:
        broken["incident"] = "2 were read, 1 applied"
    played.answers["/v1/ledger"] = (200, {**LEDGER, part: {name: broken}})
    shown = headrace("ledger", "--url", played.url)
    assert shown.code == exits.CHECK_FAILED
    assert "no" in shown.out
    if "incident" in sums:
        assert f"{part} {name}: 2 were read, 1 applied" in shown.out
    assert headrace("ledger", "--url", played.url, "--json").code == exits.CHECK_FAILED


def test_without_an_engine_the_ledger_is_not_whole(
    headrace: Callable[..., Any], played: Played
) -> None:
    away = {"gateway": LEDGER["gateway"], "engine": {"state": "down", "reason": "not there"}}
    played.answers["/v1/ledger"] = (200, away)
    shown = headrace("ledger", "--url", played.url)
    assert shown.code == exits.UNREACHABLE
    assert "not there" in shown.err
    assert "payments" in shown.out


def test_late_events_are_listed(headrace: Callable[..., Any], played: Played) -> None:
    played.answers["/v1/streams/pay%20ments/late"] = (200, LATE)
    words = ("late", "list", "pay ments", "--limit", 5, "--url", played.url)
    shown = headrace(*words)
    assert shown.code == 0
    for text in ("set aside", "income", "dropped", "hourly", "decided", "17", "--limit is 5"):
        assert text in shown.out
    assert played.asked[-1][:2] == ("GET", "/v1/streams/pay%20ments/late?limit=5")
    assert headrace(*words, "--json").document == LATE
    nothing = {**LATE, "sided": [], "dropped": [], "decisions": [], "cut": False}
    played.answers["/v1/streams/pay%20ments/late"] = (200, nothing)
    assert headrace(*words).out == "no event was set aside, dropped or decided about\n"


@pytest.mark.parametrize(
    ("more", "view", "said"),
    [((), None, "every view of payments"), (("--view", "income"), "income", "to income;")],
)
def test_late_events_are_applied(
    headrace: Callable[..., Any],
    played: Played,
    more: tuple[str, ...],
    view: str | None,
    said: str,
) -> None:
    path = "/v1/streams/payments/late/apply"
    played.answers[path] = (202, {"stream": "payments", "view": view, "state": "applying"})
    shown = headrace("late", "apply", "payments", *more, "--url", played.url)
    assert shown.code == 0
    assert said in shown.out
    assert played.asked == [("POST", path, {"view": view})]


@pytest.mark.parametrize(
    ("decision", "said"), [("apply", "applied"), ("side", "set aside"), ("drop", "dropped")]
)
def test_a_halted_event_is_decided(
    headrace: Callable[..., Any], played: Played, decision: str, said: str
) -> None:
    path = "/v1/streams/payments/resume"
    events = [{"partition": 2, "offset": 17}]
    answer = {"stream": "payments", "decision": decision, "events": events}
    played.answers[path] = (200, answer)
    shown = headrace("resume", "payments", f"--{decision}", "--url", played.url)
    assert (shown.code, shown.out) == (0, f"event 17 of partition 2 of payments will be {said}\n")
    assert played.asked == [("POST", path, {"decision": decision})]
    again = headrace("resume", "payments", f"--{decision}", "--url", played.url, "--json")
    assert again.document == answer


@pytest.mark.parametrize("flags", [(), ("--apply", "--drop"), ("--apply", "--side", "--drop")])
def test_exactly_one_decision_is_needed(
    headrace: Callable[..., Any], played: Played, flags: tuple[str, ...]
) -> None:
    ended = headrace("resume", "payments", *flags, "--url", played.url)
    assert ended.code == exits.MISTAKE
    assert "one of --apply, --side and --drop" in ended.err
    assert played.asked == []


def test_a_stream_that_is_not_halted(headrace: Callable[..., Any], played: Played) -> None:
    problem = {"detail": "no view of stream payments is halted", "code": "not-halted"}
    played.answers["/v1/streams/payments/resume"] = (409, problem)
    ended = headrace("resume", "payments", "--drop", "--url", played.url)
    assert ended.code == exits.MISTAKE
    assert "no view of stream payments is halted" in ended.err


@pytest.mark.parametrize(
    ("state", "detail", "said"),
    [
        ("failed", "too many events failed", "the rebuild of view income has failed: too many ev"),
        ("cancelled", "", "the rebuild of view income was cancelled"),
        ("none", "", "how the rebuild of view income ended is not known"),
    ],
)
def test_a_rebuild_that_does_not_end_well_is_told(
    headrace: Callable[..., Any], played: Played, state: str, detail: str, said: str
) -> None:
    found = {"view": "income", "state": state, "detail": detail, "events": 0, "events_total": 9}
    played.answers["/v1/views/income/rebuild"] = (200, found)
    ended = headrace("rebuild", "income", "--url", played.url)
    assert (ended.code, said in ended.err) == (exits.FAILED, True), ended.err
    assert headrace("rebuild", "income", "--no-wait", "--url", played.url).code == exits.DONE


def test_status_says_why_views_are_halted_and_what_holds_them_back(
    headrace: Callable[..., Any], played: Played
) -> None:
    reason = "event 17 of partition 2 is late for the window that ended at 12:05" + "!" * 200
    view = {
        "stream": "payments",
        "state": "halted",
        "detail": reason,
        "next_offsets": {"0": 17},
        "pending_events": 4,
        "watermark": None,
        "freshness": "final up to 12:00:00",
        "held_back_by": "payments/3, held back by till-7, complete up to 12:00:00",
        "counts": {"applied": 1, "late": 0, "dead": 0},
    }
    status = {
        "gateway": {"state": "up"},
        "engine": {"state": "live"},
        "views": {"income": view, "hourly": view, "sound": {**view, "state": "live", "detail": ""}},
    }
    copy = {"state": "building", "events": 30, "events_total": 70}
    status["views"]["sound"]["rebuild"] = copy
    played.answers["/v1/status"] = (200, status)
    shown = headrace("status", "--url", played.url)
    assert shown.code == exits.CHECK_FAILED
    assert "till-7" in shown.out
    assert "its copy is building: 42 %" in shown.out
    assert f"payments is halted (income, hourly): {reason}\n" in shown.out
    assert "headrace resume payments --apply, --side or --drop" in shown.out


def test_status_shows_a_table_that_is_posted_to_once(
    headrace: Callable[..., Any], played: Played
) -> None:
    of_stream = {"state": "live", "events": 5, "pending_events": 0, "detail": ""}
    of_view = {"state": "live", "detail": "", "freshness": "complete", "held_back_by": ""}
    views = {
        "customers": {**of_view, "stream": "customers"},
        "accounts": {**of_view, "stream": "account_changes"},
    }
    status = {
        "engine": {"state": "live"},
        "streams": {"customers": of_stream, "account_changes": of_stream},
        "views": views,
    }
    played.answers["/v1/status"] = (200, status)
    lines = headrace("status", "--url", played.url).out.splitlines()
    (shown,) = [line for line in lines if "customers" in line]
    assert "posted" in shown
    assert len([line for line in lines if "account_changes" in line]) == 2


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ("till-7", {"producer": "till-7"}),
        ("till-7:3-5", {"producer": "till-7", "first": 3, "last": 5}),
        ("a:1-2:4", {"producer": "a:1-2", "first": 4, "last": 4}),
        ("a:b", {"producer": "a:b"}),
    ],
)
def test_gaps_are_accepted(
    headrace: Callable[..., Any], played: Played, given: str, body: dict[str, Any]
) -> None:
    path = "/v1/streams/payments/completeness/accept"
    answer = {"stream": "payments", "accepted_events": 3, "missing_events": 1_200, **body}
    played.answers[path] = (200, answer)
    shown = headrace("completeness", "payments", "--accept", given, "--url", played.url)
    assert shown.code == 0
    assert shown.out == (
        f"{body['producer']}: 3 missing events accepted, 1,200 are still missing on payments\n"
    )
    assert played.asked == [("POST", path, body)]
    ended = headrace("completeness", "--accept", given, "--url", played.url)
    assert (ended.code, len(played.asked)) == (exits.MISTAKE, 1)


def test_a_producer_is_retired(headrace: Callable[..., Any], played: Played) -> None:
    path = "/v1/streams/payments/completeness/retire"
    answer = {"stream": "payments", "producer": "till-7", "state": "retired"}
    played.answers[path] = (200, answer)
    shown = headrace("completeness", "payments", "--retire", "till-7", "--url", played.url)
    assert shown.out == "till-7 is retired on payments until it is heard from again\n"
    assert played.asked == [("POST", path, {"producer": "till-7"})]
    again = headrace(
        "completeness", "payments", "--retire", "till-7", "--url", played.url, "--json"
    )
    assert again.document == answer


def test_generate_waits_for_a_gateway_that_is_away(
    capsys: pytest.CaptureFixture[str], beside: Any, until: Any
) -> None:
    answering = Played()
    answering.answers["/v1/streams"] = (200, {"streams": []})
    port = answering.server.server_port
    answering.server.server_close()
    said: list[str] = []

    def has_said_it() -> bool:
        said.append(capsys.readouterr().err)
        return said[-1] != ""

    with beside(lambda: _await_gateway(Address(answering.url, None))):
        try:
            until(has_said_it)
        finally:
            with HTTPServer(("127.0.0.1", port), answering.server.RequestHandlerClass) as server:
                server.handle_request()
    assert said[-1] == f"waiting for the gateway at {answering.url}\n"
