"""Queries that are to cover what was written wait for it, and say so when they will not have it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.model.covers import Covers
from headrace.store.contract import ViewStatus

CROWD = 60  # more than may wait for a thread to run SQL
Ask = Callable[..., httpx.Response]


def token(*ends: int, log: str = "log", **others: tuple[int, ...]) -> str:
    return Covers(log, {"payments": ends, **others}).text()


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), answer.text
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["code"]) == (status, code), document
    return document


def by_page(http: httpx.Client, parameters: Any, headers: dict[str, str]) -> Any:
    return http.get("/v1/views/INCOME", params=parameters, headers=headers)


def by_row(http: httpx.Client, parameters: Any, headers: dict[str, str]) -> Any:
    row = httpx.QueryParams(parameters).add("user_id", "ann")
    return http.get("/v1/views/income", params=row, headers=headers)


def by_sql(http: httpx.Client, parameters: Any, headers: dict[str, str]) -> Any:
    sql = {"sql": "SELECT i.user_id FROM Income i JOIN outcome o ON o.user_id = i.user_id"}
    return http.post("/v1/sql", json=sql, params=parameters, headers=headers)


WAYS = (by_page, by_row, by_sql)


@pytest.fixture
def shop(make_shop: Callable[..., Any]) -> Any:
    """Both views are of one stream, of which the log has five events more than they have taken."""
    shop = make_shop(("income", "outcome"))
    shop.tick(income=[("ann", "1.00")], outcome=[("ann", "1.00")])
    shop.control.log_ends = {"payments": (6,)}
    return shop


def waiting(shop: Any) -> int:
    line = "headrace_queries_waiting "
    (found,) = (x for x in shop.http.get("/metrics").text.splitlines() if x.startswith(line))
    return int(float(found.removeprefix(line)))


@pytest.mark.parametrize("way", WAYS)
def test_a_query_waits_for_the_views_it_reads(
    shop: Any, way: Ask, until: Callable[..., None]
) -> None:
    """However it says what is to be covered; several tokens are merged."""
    asked: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"covers": token(3)}, {}),
        ({}, {"Headrace-Covers": token(3)}),
        (
            {"covers": token(1), "wait_seconds": "60"},
            {"Headrace-Covers": f"{token(2)}, {token(3)}"},
        ),
    ]
    with ThreadPoolExecutor(len(asked)) as pool, shop.client() as http:
        answers = [pool.submit(way, http, *one) for one in asked]
        until(lambda: waiting(shop) == len(asked))
        shop.tick(income=[("ann", "1.00")], outcome=[("ann", "1.00")])  # not yet
        assert waiting(shop) == len(asked)
        last = shop.tick(income=[("ann", "1.00")], outcome=[("ann", "1.00")])
        for answer in answers:
            found = answer.result()
            assert found.status_code == 200, found.text
            assert found.json()["freshness"]["tick"] >= last
    assert waiting(shop) == 0


@pytest.mark.parametrize("way", WAYS)
def test_what_is_covered_already_is_answered_at_once(shop: Any, way: Ask) -> None:
    """Also what the views do not read, and with no time to wait."""
    others: dict[str, tuple[int, ...]] = {"notes": (9, 9), "gone": (1,)}
    given = {"covers": token(1, **others), "wait_seconds": "0"}
    assert way(shop.http, given, {}).status_code == 200


def test_now_is_what_the_log_holds_when_the_query_comes(
    shop: Any, until: Callable[..., None]
) -> None:
    shop.control.log_ends["payments"] = (2,)
    with ThreadPoolExecutor(1) as pool, shop.client() as http:
        answer = pool.submit(http.get, "/v1/views/income?covers=now")
        until(lambda: waiting(shop) == 1)
        shop.control.log_ends["payments"] = (100,)
        shop.tick(income=[("ann", "1.00")])
        assert answer.result().json()["rows"][0]["payments"] == 2
    shop.control.log_ends["payments"] = (2,)
    both = {"covers": "now", "wait_seconds": "0"}
    assert by_page(shop.http, both, {"Headrace-Covers": token(1)}).status_code == 200
    refused(by_sql(shop.http, both, {"Headrace-Covers": token(1)}), 504, "not-covered")


@pytest.mark.parametrize("way", WAYS)
def test_after_the_time_the_answer_says_how_far_the_views_are(shop: Any, way: Ask) -> None:
    shop.control.pending_events = 4
    shop.control.watermarks = {"income": 3_000_000, "outcome": 3_000_000}
    document = refused(
        way(shop.http, {"covers": token(6), "wait_seconds": "0.05"}, {}), 504, "not-covered"
    )
    assert document["views"] == (["income", "outcome"] if way is by_sql else ["income"])
    freshness = document["freshness"]
    assert freshness["pending_events"] == (8 if way is by_sql else 4)
    assert freshness["complete_up_to"] == "1970-01-01T00:00:03.000000Z"
    assert freshness["tick"] == 7
    assert freshness["text"] in document["detail"]
    assert "wait_seconds" in document["hint"]


def test_only_the_views_that_are_read_count(shop: Any) -> None:
    """Not those whose names stand elsewhere in the text."""
    shop.tick(income=[("ann", "1.00")] * 5)
    given = {"params": {"covers": token(6), "wait_seconds": "0"}}
    for sql in (
        "SELECT 'outcome' AS outcome, total AS payments FROM income -- outcome",
        "WITH outcome AS (SELECT * FROM income) SELECT * FROM outcome",
        "SELECT 1",
    ):
        assert shop.http.post("/v1/sql", json={"sql": sql}, **given).status_code == 200, sql
    for sql in (
        "SELECT * FROM income WHERE user_id IN (SELECT user_id FROM outcome)",
        "SELECT * FROM income UNION ALL SELECT * FROM (FROM OUTCOME)",
    ):
        refused(shop.http.post("/v1/sql", json={"sql": sql}, **given), 504, "not-covered")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["halted", "failed", "changed"])
def test_a_view_that_stands_still_is_not_waited_for(
    shop: Any, way: Ask, state: str, until: Callable[..., None]
) -> None:
    """Whether it stood before, or stops meanwhile; what it has taken in it answers."""
    with ThreadPoolExecutor(1) as pool, shop.client() as http:
        before = pool.submit(way, http, {"covers": token(6)}, {})
        until(lambda: waiting(shop) == 1)
        shop.control.standing["income"] = ViewStatus(state, "event 6 is late")
        shop.server.moved()
        document = refused(before.result(), 409, "view-stands-still")
    assert f"it is {state}: event 6 is late" in document["detail"]
    refused(way(shop.http, {"covers": "now"}, {}), 409, "view-stands-still")
    assert way(shop.http, {"covers": token(1)}, {}).status_code == 200


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "no token"),
        ("nowhere", "no token"),
        ("NOW", "no token"),
        ("2" + token(1)[1:], "no token"),
        (token(1)[:-1], "damaged"),
        ("1é", "damaged"),
        ("1\x00\r\n", "damaged"),
        ("1" + "A" * 20_000, "more than 16384 characters"),
        (token(1) + "," + token(1), "damaged"),
        (token(1, log="another"), "another log"),
        (token(7), "does not have"),
        (token(1, 1), "does not have"),
        (token(2**63 - 1), "does not have"),
    ],
)
def test_what_is_no_token_of_this_log_is_refused_at_once(
    shop: Any, way: Ask, given: str, said: str
) -> None:
    assert said in refused(way(shop.http, {"covers": given}, {}), 400, "bad-covers")["detail"]
    if given.isprintable() and "," not in given:
        headers: Any = {"Headrace-Covers": given.encode()}
        assert said in refused(way(shop.http, {}, headers), 400, "bad-covers")["detail"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", ["", "-1", "61", "1e1", "nan", "inf", "٣", "1." + "0" * 99])
def test_a_wait_that_cannot_be_is_refused(shop: Any, way: Ask, seconds: str) -> None:
    given = {"covers": token(1), "wait_seconds": seconds}
    assert "from 0 to 60" in refused(way(shop.http, given, {}), 400, "parameter")["detail"]


@pytest.mark.parametrize("way", WAYS)
def test_parameters_are_not_guessed(shop: Any, way: Ask) -> None:
    refused(way(shop.http, {"wait_seconds": "1"}, {}), 400, "parameter")
    refused(way(shop.http, [("covers", "now"), ("covers", token(1))], {}), 400, "parameter")
    unknown = way(shop.http, {"cover": "now"}, {})
    refused(unknown, 400, "parameter" if way is by_sql else "query")
    refused(shop.http.get("/v1/views/outgo?covers=now"), 404, "view-unknown")
    wrong = shop.http.post("/v1/sql?covers=now", json={"sql": "SELECT * FROM outgo"})
    refused(wrong, 400, "query")


def test_who_goes_away_waits_no_more(shop: Any, until: Callable[..., None]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for way in WAYS:
            with shop.client() as http:
                http.timeout = 0.2
                answer = pool.submit(way, http, {"covers": "now"}, {})
                with pytest.raises(httpx.ReadTimeout):
                    answer.result()
    until(lambda: waiting(shop) == 0)


def test_as_many_as_may_wait_and_others_are_served(
    make_shop: Callable[..., Any], until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of those who wait holds a thread: reads and queries are answered meanwhile. Those beyond
    are told to come again. Each of those who wait is answered by the one tick, although they are
    more than may be waiting for a thread at once."""
    monkeypatch.setattr("headrace.serve.query.covers.WAITING_MAX", CROWD)
    monkeypatch.setattr("headrace.serve.services.READS_WAITING_MAX", 1)
    shop = make_shop(("income", "outcome"), queries_at_once_max=1)
    shop.tick(income=[("ann", "1.00")], outcome=[("ann", "1.00")])
    shop.control.log_ends = {"payments": (2,)}
    given = {"covers": "now", "wait_seconds": "60"}
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=shop.http.base_url, headers=shop.http.headers, limits=limits) as http,
        ThreadPoolExecutor(CROWD) as pool,
    ):
        http.timeout = 120
        crowd = []
        for number in range(CROWD):
            crowd.append(pool.submit(WAYS[number % 3], http, given, {}))
            until(lambda number=number: shop.server._coverage.waiting == number + 1)
        for way in WAYS:
            beyond = way(shop.http, given, {})
            refused(beyond, 503, "busy")
            assert beyond.headers["retry-after"] == "1"
            assert way(shop.http, {}, {}).status_code == 200
            assert way(shop.http, {"covers": token(1)}, {}).status_code == 200
        shop.tick(income=[("ann", "1.00")], outcome=[("ann", "1.00")])
        assert {answer.result().status_code for answer in crowd} == {200}
    assert waiting(shop) == 0


def test_a_view_that_could_not_be_opened_is_not_waited_for(make_shop: Callable[..., Any]) -> None:
    """It has no rows in the store, nor ever had."""
    shop = make_shop(("income",))
    shop.control.views = ("income", "outcome")
    for way in (by_sql, lambda *given: shop.http.get("/v1/views/OUTCOME?covers=now")):
        refused(way(shop.http, {"covers": "now"}, {}), 503, "query")  # it is being rebuilt
        shop.control.standing["outcome"] = ViewStatus("failed", "no such function")
        document = refused(way(shop.http, {"covers": "now"}, {}), 409, "view-closed")
        assert document["detail"] == "view outcome cannot be read: no such function"
        shop.control.standing.clear()


def test_a_view_that_is_taken_away_to_be_rebuilt_is_not_overlooked(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = shop.store.views_in

    def views_in(sql: str) -> frozenset[str]:
        found: frozenset[str] = names(sql)
        shop.store.drop_view("outcome")
        return found

    monkeypatch.setattr(shop.store, "views_in", views_in)
    document = refused(by_sql(shop.http, {"covers": "now"}, {}), 503, "query")
    assert "outcome is being rebuilt" in document["detail"]


def test_nothing_is_taken_for_covered_while_the_log_cannot_be_read(shop: Any) -> None:
    shop.control.log_ends = {}
    refused(by_page(shop.http, {"covers": "now"}, {}), 503, "engine-away")
    shop.control.log = ""
    refused(by_sql(shop.http, {"covers": token(1)}, {}), 503, "engine-away")


def test_an_engine_that_stops_lets_nobody_wait(shop: Any, until: Callable[..., None]) -> None:
    with ThreadPoolExecutor(1) as pool, shop.client() as http:
        answer = pool.submit(http.get, "/v1/views/income?covers=now")
        until(lambda: waiting(shop) == 1)
        shop.restart_server()
        refused(answer.result(), 503, "engine-away")
    shop.tick(income=[("ann", "1.00")] * 5)
    assert shop.http.get("/v1/views/income?covers=now").json()["rows"][0]["payments"] == 6


def test_the_one_tick_in_a_race_with_who_waits_for_it_is_noticed(
    shop: Any, beside: Callable[..., Any]
) -> None:
    """Nothing comes after it: who missed it would wait until the time is over."""
    shop.control.log_ends["payments"] = (1_000,)
    rounds = 100
    asked = threading.Semaphore(0)

    def ticks() -> None:
        for _ in range(rounds):
            assert asked.acquire(timeout=120)
            shop.tick(income=[("ann", "1.00")])

    with beside(ticks), shop.client() as http:
        http.timeout = 120
        for end in range(2, rounds + 2):
            asked.release()
            found = by_page(http, {"covers": token(end), "wait_seconds": "60"}, {})
            assert found.status_code == 200, found.text
            assert found.json()["rows"][0]["payments"] == end
