"""Reading views and running SQL over HTTP."""

from __future__ import annotations

import csv
import io
import json
import stat
import threading
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.serve.operate.control import RebuildReport

ARROW = "application/vnd.apache.arrow.stream"


def _problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["code"] == code
    assert document["type"] == f"https://headrace.dev/errors/{code}"
    assert document["detail"]
    return document


def test_the_address_file_is_private_and_leaves_with_the_server(shop: Any) -> None:
    file = shop.settings.run_directory / "engine.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(json.loads(file.read_text())) == {"pid", "port", "secret"}
    shop.server.stop()
    assert not file.exists()
    shop.server.stop()


def test_stopping_leaves_a_newer_engines_address_alone(shop: Any) -> None:
    file = shop.settings.run_directory / "engine.json"
    newer = {"pid": 1, "port": 2, "secret": "another"}
    file.write_text(json.dumps(newer))
    shop.server.stop()
    assert json.loads(file.read_text()) == newer


def test_stopping_ends_queries_that_are_running(shop: Any, beside: Any, until: Any) -> None:
    asked = {"sql": "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000000) b"}
    answers: list[httpx.Response] = []
    with beside(lambda: answers.append(shop.http.post("/v1/sql", json=asked))):
        until(lambda: shop.store.metrics()["queries_running"])
        shop.server.stop()
    assert "stopping" in _problem(answers[0], 503, "query")["detail"]


@pytest.mark.parametrize("secret", ["", "wrong", "ü"])
def test_without_the_secret_there_is_no_answer(empty_shop: Any, secret: str) -> None:
    headers = {"Headrace-Internal": secret.encode()}
    _problem(empty_shop.http.get("/v1/views/income", headers=headers), 401, "internal-only")
    assert empty_shop.http.get("/healthz", headers=headers).status_code == 200


def test_views_are_listed_with_columns(empty_shop: Any) -> None:
    (view,) = empty_shop.http.get("/v1/views").json()["views"]
    assert (view["name"], view["stream"], view["state"]) == ("income", "payments", "live")
    assert [c["name"] for c in view["columns"]] == ["user_id", "total", "payments"]
    assert view["columns"][1]["type"].startswith("DECIMAL(28,")


def test_json_is_exact_and_says_how_fresh_it_is(shop: Any) -> None:
    shop.control.pending_events = 4
    shop.control.watermarks["income"] = 1_767_225_603_000_000
    shop.tick(income=[("ann", "70.00"), (None, "0.10")])
    answer = shop.http.get("/v1/views/income?order_by=-total").json()
    assert answer["rows"] == [
        {"user_id": "ann", "total": "70.00", "payments": 1},
        {"user_id": None, "total": "0.10", "payments": 1},
    ]
    freshness = answer["freshness"]
    assert (freshness["tick"], freshness["pending_events"]) == (1, 4)
    assert freshness["complete_up_to"] == "2026-01-01T00:00:03.000000Z"
    assert freshness["committed_at"].endswith("Z")
    assert answer["next_cursor"] is None


def test_before_the_first_tick_an_answer_is_empty(empty_shop: Any) -> None:
    answer = empty_shop.http.get("/v1/views/income").json()
    assert answer["rows"] == []
    assert answer["freshness"]["tick"] == 0
    assert answer["freshness"]["committed_at"] is None


def test_filters_order_limit_and_paging(shop: Any) -> None:
    shop.tick(income=[(f"user {n:03}", f"{n % 7}.00") for n in range(50)])
    one = shop.http.get("/v1/views/income", params={"user_id": "user 007"}).json()["rows"]
    assert [row["user_id"] for row in one] == ["user 007"]
    same = shop.http.get("/v1/views/income", params={"filter.user_id": "user 007"}).json()["rows"]
    assert same == one
    seen: list[str] = []
    parameters: dict[str, Any] = {"order_by": "-total,user_id", "limit": 7}
    while True:
        page = shop.http.get("/v1/views/income", params=parameters).json()
        seen += [row["user_id"] for row in page["rows"]]
        if page["next_cursor"] is None:
            break
        parameters["cursor"] = page["next_cursor"]
    assert seen == sorted((f"user {n:03}" for n in range(50)), key=lambda u: (-(int(u[5:]) % 7), u))


def test_all_formats_hold_the_same_rows(shop: Any) -> None:
    shop.tick(income=[('a,"b"\r\n', "70.00"), ("", "1.00"), (None, "-0.05"), ("ü", "12345.60")])

    def get(accept: str) -> httpx.Response:
        response = shop.http.get("/v1/views/income?order_by=total", headers={"Accept": accept})
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(accept)
        return response

    table = pa.ipc.open_stream(get(ARROW).content).read_all()
    expected = table.to_pylist()
    assert expected[0] == {"user_id": None, "total": Decimal("-0.05"), "payments": 1}
    as_json = [{**row, "total": str(row["total"])} for row in expected]
    assert get("application/json").json()["rows"] == as_json
    lines = get("application/x-ndjson")
    assert [json.loads(line) for line in lines.text.splitlines()] == as_json
    assert lines.headers["headrace-tick"] == "1"
    assert lines.headers["headrace-pending-events"] == "0"
    text = get("text/csv")
    rows = list(csv.reader(io.StringIO(text.content.decode(), newline="")))
    assert rows[0] == ["user_id", "total", "payments"]
    assert rows[1:] == [[r["user_id"] or "", str(r["total"]), "1"] for r in expected]
    assert b'\r\n,-0.05,1\r\n"",1.00,1\r\n' in text.content


def test_other_formats_carry_the_cursor_in_a_header(shop: Any) -> None:
    shop.tick(income=[("a", "1.00"), ("b", "2.00")])
    response = shop.http.get("/v1/views/income?limit=1", headers={"Accept": "text/csv"})
    cursor = response.headers["headrace-next-cursor"]
    following = shop.http.get("/v1/views/income", params={"limit": 1, "cursor": cursor})
    assert [row["user_id"] for row in following.json()["rows"]] == ["b"]


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("*/*", "application/json"),
        ("text/*", "text/csv"),
        ("text/html, text/csv;q=0.5, */*;q=0.1", "text/csv"),
        ("application/json;q=0.1, application/x-ndjson;q=0.9", "application/x-ndjson"),
        ("*/*, application/json;q=0", "application/x-ndjson"),
        (f"{ARROW}, application/json", "application/json"),
        (ARROW.upper(), ARROW),
    ],
)
def test_the_format_goes_by_accept(empty_shop: Any, accept: str, given: str) -> None:
    response = empty_shop.http.get("/v1/views/income", headers={"Accept": accept})
    assert response.headers["content-type"].split(";")[0] == given


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/html"])
def test_no_such_format_is_406(empty_shop: Any, accept: str) -> None:
    response = empty_shop.http.get("/v1/views/income", headers={"Accept": accept})
    assert "text/csv" in _problem(response, 406, "not-acceptable")["hint"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("limit=0", 400, "parameter"),
        ("limit=100001", 400, "parameter"),
        ("limit=x", 400, "parameter"),
        ("limit=%EF%BC%91", 400, "parameter"),
        ("limit=1&limit=2", 400, "parameter"),
        ("user_id=a&filter.user_id=b", 400, "parameter"),
        ("order_by=-", 400, "parameter"),
        ("order_by=a,,b", 400, "parameter"),
        ("order_by=nothing", 400, "query"),
        ("nothing=1", 400, "query"),
        ("total=many", 400, "query"),
        ("cursor=forged", 400, "query"),
        ("user_id=%FF", 400, "parameter"),
        ("&".join(f"a{n}=1" for n in range(65)), 400, "parameter"),
        ("user_id=" + "x" * 40_000, 414, "uri-too-long"),
    ],
)
def test_wrong_parameters_are_problems(empty_shop: Any, query: str, status: int, code: str) -> None:
    _problem(empty_shop.http.get(f"/v1/views/income?{query}"), status, code)


def test_unknown_views_paths_and_methods(empty_shop: Any) -> None:
    hint = _problem(empty_shop.http.get("/v1/views/outcome"), 404, "view-unknown")["hint"]
    assert "income" in hint
    _problem(empty_shop.http.get("/v1/nothing"), 404, "path-unknown")
    _problem(empty_shop.http.get("/v1/views/income/changes/more"), 404, "path-unknown")
    response = empty_shop.http.post("/v1/views/income")
    _problem(response, 405, "method")
    assert response.headers["allow"] == "GET, HEAD"
    response = empty_shop.http.get("/v1/sql")
    _problem(response, 405, "method")
    assert response.headers["allow"] == "POST"


def test_names_are_found_whatever_their_case(shop: Any) -> None:
    shop.tick(income=[("a", "1.00")])
    assert len(shop.http.get("/v1/views/INCOME").json()["rows"]) == 1


def test_head_has_the_headers_alone(empty_shop: Any) -> None:
    whole = empty_shop.http.get("/v1/views/income")
    head = empty_shop.http.head("/v1/views/income")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert empty_shop.http.head("/v1/views/nothing").status_code == 404
    assert empty_shop.http.head("/v1/views/income/changes").status_code == 200


def test_sql_answers_in_every_format(shop: Any) -> None:
    shop.control.watermarks["income"] = 5_000_000
    shop.tick(income=[("a", "1.00"), ("b", "2.50")])
    sql = {"sql": "SELECT sum(total) AS total, max(user_id) AS who FROM income"}
    answer = shop.http.post("/v1/sql", json=sql).json()
    assert answer["rows"] == [{"total": "3.50", "who": "b"}]
    assert answer["freshness"]["tick"] == 1
    assert answer["freshness"]["complete_up_to"] == "1970-01-01T00:00:05.000000Z"
    arrow = shop.http.post("/v1/sql", json=sql, headers={"Accept": ARROW})
    assert pa.ipc.open_stream(arrow.content).read_all().to_pylist() == [
        {"total": Decimal("3.50"), "who": "b"}
    ]
    text = shop.http.post("/v1/sql", json=sql, headers={"Accept": "text/csv"})
    assert text.content == b'total,who\r\n3.50,"b"\r\n'


def test_a_watermark_before_the_year_1_breaks_no_answer(shop: Any) -> None:
    """As after a first event at 0001-01-01T00:00:00Z, which is what some clocks begin with."""
    year_1 = -62_135_596_800_000_000
    shop.control.watermarks["income"] = year_1 - 5_000_000
    shop.tick(income=[("a", "1.00")])
    answer = shop.http.get("/v1/views/income").json()
    assert len(answer["rows"]) == 1
    assert answer["freshness"]["complete_up_to"] == "0001-01-01T00:00:00.000000Z"
    assert answer["freshness"]["text"].startswith("final up to 0001-01-01 00:00:00")
    assert shop.http.get("/v1/views/income", headers={"Accept": ARROW}).status_code == 200
    status = shop.http.get("/v1/status").json()
    assert status["views"]["income"]["watermark"] == "0001-01-01T00:00:00.000000Z"


def test_sql_with_two_columns_of_one_name_is_no_json(empty_shop: Any) -> None:
    sql = {"sql": "SELECT 1 AS a, 2 AS a"}
    hint = _problem(empty_shop.http.post("/v1/sql", json=sql), 400, "query")["hint"]
    assert "AS" in hint


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "body"),
        (b"SELECT 1", 400, "body"),
        (b"[]", 400, "body"),
        (b"{}", 400, "body"),
        (b'{"sql": 1}', 400, "body"),
        (b'{"sql": " "}', 400, "body"),
        (b'{"sql": "SELECT 1", "more": 1}', 400, "body"),
        (b'{"sql": "SELEC 1"}', 400, "query"),
        (b'{"sql": "DROP VIEW income"}', 400, "query"),
        (b'{"sql": "SELECT * FROM read_text(\'/etc/passwd\')"}', 400, "query"),
        (b'{"sql": "SELECT \'%s\'"}' % (b"x" * 65_536), 413, "body-too-large"),
        (b'{"sql": "SELECT \'%s\'"}' % (b"x" * 300_000), 413, "body-too-large"),
    ],
)
def test_wrong_sql_is_a_problem(empty_shop: Any, body: bytes, status: int, code: str) -> None:
    headers = {"Content-Type": "application/json"}
    _problem(empty_shop.http.post("/v1/sql", content=body, headers=headers), status, code)


def test_sql_must_be_json(empty_shop: Any) -> None:
    headers = {"Content-Type": "text/plain"}
    _problem(
        empty_shop.http.post("/v1/sql", content=b"SELECT 1", headers=headers), 415, "content-type"
    )


def test_too_many_rows_are_a_problem_and_not_a_broken_answer(make_shop: Any) -> None:
    shop = make_shop(query_rows_max=10)
    for accept in ("application/json", "text/csv", ARROW):
        sql = {"sql": "SELECT * FROM range(11)"}
        response = shop.http.post("/v1/sql", json=sql, headers={"Accept": accept})
        _problem(response, 413, "query")


def test_an_answer_of_too_many_bytes_is_a_problem(
    empty_shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.formats.answers.ANSWER_BYTES_MAX", 1_000)
    for accept in ("application/json", "application/x-ndjson", "text/csv", ARROW):
        sql = {"sql": "SELECT repeat('x', 100) AS x FROM range(100)"}
        response = empty_shop.http.post("/v1/sql", json=sql, headers={"Accept": accept})
        _problem(response, 413, "query")


def test_answers_never_go_backwards_while_ticks_run(shop: Any, beside: Any, until: Any) -> None:
    seen = [0]

    def look() -> bool:
        answer = shop.http.get("/v1/views/income").json()
        tick = answer["freshness"]["tick"]
        assert tick >= seen[-1]
        assert [row["payments"] for row in answer["rows"]] == ([tick] if tick else [])
        seen.append(tick)
        return bool(tick == 60)

    with beside(lambda: [shop.tick(income=[("a", "1.00")]) for _ in range(60)]):
        until(look)


def test_status_metrics_rebuild_and_dead_letters(shop: Any) -> None:
    status = shop.http.get("/v1/status").json()
    assert status["engine"]["state"] == "live"
    assert status["engine"]["tick_milliseconds"]["p99"] == 4.0
    assert status["streams"]["payments"]["ends"] == {"0": 5}
    assert status["views"]["income"]["counts"]["applied"] == 3
    assert status["views"]["income"]["watermark"] is None
    text = shop.http.get("/metrics").text
    assert 'headrace_view_events_total{fate="applied",view="income"} 3.0' in text
    assert "headrace_events_total 12.0" in text
    assert "headrace_subscribers 0.0" in text
    assert "headrace_store_" in text
    response = shop.http.post("/v1/views/income/rebuild")
    assert (response.status_code, shop.control.rebuilds) == (202, [("income", False, False)])
    assert shop.http.post("/v1/views/INCOME/rebuild", json={"swap": True}).status_code == 202
    assert shop.http.delete("/v1/views/income/rebuild").status_code == 202
    assert shop.control.rebuilds[1:] == [("income", "swap"), ("income", "cancel")]
    _problem(shop.http.post("/v1/views/nothing/rebuild"), 404, "view-unknown")
    _problem(shop.http.post("/v1/views/income/rebuild", json={"new": 1}), 400, "body")
    assert shop.http.get("/v1/views/income/rebuild").json()["state"] == "none"
    shop.control.rebuild_report = RebuildReport("building", "", 3, 9)
    shown = shop.http.get("/v1/views/income/rebuild").json()
    assert (shown["view"], shown["events"], shown["events_total"]) == ("income", 3, 9)
    assert shop.http.get("/v1/status").json()["views"]["income"]["rebuild"]["events"] == 3
    shop.add_dead_letter("income")
    (letter,) = shop.http.get("/v1/views/income/deadletters?limit=5").json()["deadletters"]
    assert (letter["offset"], letter["reason"]) == (17, "division by zero")
    _problem(shop.http.get("/v1/views/income/deadletters?after=5"), 400, "parameter")


def test_the_server_starts_again_after_a_stop(shop: Any) -> None:
    shop.tick(income=[("a", "1.00")])
    shop.restart_server()
    assert shop.http.get("/v1/views/income").json()["freshness"]["tick"] == 1


def test_reads_while_views_are_rebuilt_see_the_same_rows(shop: Any, beside: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    statuses: set[tuple[int, str]] = set()
    ended = threading.Event()

    def read() -> None:
        with shop.client() as http:
            while not ended.is_set():
                for answer in (
                    http.get("/v1/views/income"),
                    http.get("/v1/views/income/deadletters"),
                    http.post("/v1/sql", json={"sql": "SELECT * FROM income"}),
                ):
                    found = answer.json()
                    statuses.add((answer.status_code, str(found.get("rows", ""))))

    with beside(read, read):
        try:
            for _ in range(60):
                shop.rebuild("income", [("ann", "1.00")])
        finally:
            ended.set()
    row = {"user_id": "ann", "total": "1.00", "payments": 1}
    assert statuses == {(200, str([row])), (200, "")}
    shop.store.drop_view("income")
    for answer in (
        shop.http.get("/v1/views/income"),
        shop.http.post("/v1/sql", json={"sql": "SELECT * FROM income"}),
    ):
        assert answer.status_code == 503
        assert "being rebuilt" in answer.json()["detail"]
