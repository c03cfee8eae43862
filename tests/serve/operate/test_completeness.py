"""What an answer says about producers, in every format, and in words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.client import Client
from headrace.model.completeness import (
    Silent,
    StreamProducers,
    WatchedProducers,
    WatermarkOrigin,
    duration_words,
    joined,
)
from headrace.model.definitions import Column, Stream
from headrace.model.types import parse_type
from headrace.serve.operate.completeness import Completeness, freshness_text
from headrace.store.contract import ViewStatus

SECOND = 1_000_000
HOUR = 3_600 * SECOND  # a test may take some of it
NOON = 1_768_564_800 * SECOND  # 2026-01-16 12:00:00 UTC


def _tell(directory: Path, at: int, **streams: StreamProducers) -> None:
    file = directory / "completeness.json"
    temporary = directory / "next"
    temporary.write_bytes(msgspec.json.encode(WatchedProducers(at, streams)))
    temporary.replace(file)


@pytest.mark.parametrize(
    ("final", "pending", "producers", "text"),
    [
        (None, 0, StreamProducers(), "nothing final yet"),
        (NOON + 5 * 60 * SECOND + 999_999, 0, StreamProducers(), "final up to 12:05:00"),
        (NOON - 86_400 * SECOND, 1, None, None),
        (
            NOON,
            120,
            StreamProducers(9, 3, 1, (Silent("sensor-7", NOON + 60 * SECOND),)),
            "final up to 12:00:00; sensor-7 silent for 4 min; 3 events missing; 120 events pending",
        ),
        (
            NOON,
            0,
            StreamProducers(
                9, 1, 5, tuple(Silent(f"s{n}", NOON + n * 60 * SECOND) for n in range(4))
            ),
            "final up to 12:00:00; s0 silent for 5 min; s1 silent for 4 min; "
            "s2 silent for 3 min; 2 more silent; 1 event missing",
        ),
    ],
)
def test_the_words(
    final: int | None, pending: int, producers: StreamProducers | None, text: str | None
) -> None:
    expected = text or "final up to 2026-01-15 12:00:00; producers are not watched; 1 event pending"
    assert freshness_text(final, pending, producers, NOON + 5 * 60 * SECOND) == expected


def test_durations_are_cut_and_never_rounded_up() -> None:
    shown = {0: "0 s", 119: "119 s", 120: "2 min", 7_199: "119 min", 7_200: "2 h", 172_800: "2 d"}
    assert {seconds: duration_words(seconds) for seconds in shown} == shown


def test_streams_join_by_the_longest_silence() -> None:
    one = StreamProducers(2, 1, 1, (Silent("b", 5),))
    other = StreamProducers(3, 2, 2, (Silent("c", 1), Silent("a", 5)))
    assert joined([one, other]) == StreamProducers(
        5, 3, 3, (Silent("c", 1), Silent("a", 5), Silent("b", 5))
    )


def test_a_file_that_is_missing_damaged_or_old_means_that_nobody_watches(tmp_path: Path) -> None:
    now = NOON
    found = Completeness(tmp_path / "completeness.json", None, lambda: now)  # type: ignore[arg-type]
    assert found.of_streams(["payments"]) is None
    _tell(tmp_path, NOON, Payments=StreamProducers(1, 4))
    assert found.of_streams(["payments"]) == StreamProducers(1, 4)
    assert found.of_streams(["other"]) == StreamProducers()
    now = NOON + 15 * SECOND
    assert found.of_streams(["payments"]) == StreamProducers(1, 4)
    now += 1
    assert found.of_streams(["payments"]) is None
    _tell(tmp_path, now, payments=StreamProducers(1, 5))
    assert found.of_streams(["payments"]) == StreamProducers(1, 5)
    (tmp_path / "completeness.json").write_text("{")
    assert found.of_streams(["payments"]) is None
    (tmp_path / "completeness.json").unlink()
    assert found.of_streams(["payments"]) is None


def _following(shop: Any, tick: Callable[[], int]) -> dict[str, Any]:
    """A change of income that comes as it happens. One that comes while the subscription begins may
    be read from the store, which does not keep how complete it was; the one after it is not."""
    with shop.client() as http, http.stream("GET", "/v1/views/income/changes") as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("id:"))
        for _ in range(2):
            tick()
            data = next(line for line in lines if line.startswith("data:"))
            message: dict[str, Any] = json.loads(data.removeprefix("data:"))
            if "not kept" not in message["freshness"]["text"]:
                break
    return message


def test_every_answer_says_what_is_missing_and_who_is_silent(shop: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    now = time.time_ns() // 1_000
    shop.control.watermarks["income"] = 3 * SECOND
    missing = {"missing_events": None, "silent_producers": None}
    unwatched = shop.http.get("/v1/views/income").json()["freshness"]
    assert unwatched.items() >= missing.items()
    assert unwatched["text"] == "final up to 1970-01-01 00:00:03; producers are not watched"

    silent = (Silent("sensör-7", now - 4 * HOUR - HOUR // 2),)
    _tell(shop.settings.run_directory, now + HOUR, payments=StreamProducers(4, 3, 1, silent))
    text = "final up to 1970-01-01 00:00:03; sensör-7 silent for 4 h; 3 events missing"
    expected = {"missing_events": 3, "silent_producers": ["sensör-7"], "text": text}
    sql = {"sql": "SELECT * FROM income"}
    for answer in (shop.http.get("/v1/views/income"), shop.http.post("/v1/sql", json=sql)):
        assert answer.json()["freshness"].items() >= expected.items()
    change = _following(shop, lambda: shop.tick(income=[("bob", "2.00")]))
    assert change["freshness"].items() >= expected.items()
    for accept in ("application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"):
        headers = shop.http.get("/v1/views/income", headers={"Accept": accept}).headers
        assert headers["headrace-missing-events"] == "3"
        assert json.loads(headers["headrace-silent-producers"]) == ["sensör-7"]
        assert headers["headrace-freshness"] == text.replace("ö", "?")
    status = shop.http.get("/v1/status").json()["views"]["income"]
    assert status["freshness"].endswith(
        "sensör-7 silent for 4 h; 3 events missing; 2 events pending"
    )
    nothing = shop.http.post("/v1/sql", json={"sql": "SELECT 1 AS one"}).json()["freshness"]
    assert nothing["text"] == "no view is read"


def test_events_set_aside_are_as_fresh_as_the_views_of_their_stream(shop: Any) -> None:
    shop.store.declare_stream(Stream("payments", (Column("n", parse_type("INT")),)))
    shop.control.watermarks["income"] = 3 * SECOND
    sql = {"sql": "SELECT count(*) AS n FROM payments_late"}
    freshness = shop.http.post("/v1/sql", json=sql).json()["freshness"]
    assert freshness["text"].startswith("final up to 1970-01-01 00:00:03")


def test_a_view_that_was_changed_says_so_to_sql_too(shop: Any) -> None:
    shop.store.set_status("income", ViewStatus("changed", "its definition changed"))
    for answer in (
        shop.http.get("/v1/views/income"),
        shop.http.post("/v1/sql", json={"sql": "SELECT * FROM income"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "view-closed")
        assert "its definition changed" in answer.json()["detail"]


def test_while_the_engine_starts_no_view_is_unknown(make_shop: Callable[..., Any]) -> None:
    shop = make_shop(())
    asked = (
        lambda: shop.http.get("/v1/views/income"),
        lambda: shop.http.get("/v1/views/income/changes"),
        lambda: shop.http.post("/v1/sql", json={"sql": "SELECT * FROM income"}),
        lambda: shop.http.post("/v1/views/income/rebuild"),
        lambda: shop.http.get("/readyz"),
    )
    shop.control.state = "starting"
    for ask in asked:
        answer = ask()
        assert (answer.status_code, answer.json()["code"]) == (503, "engine-starting")
        assert answer.headers["retry-after"] == "2"
    shop.control.state = "live"
    assert [ask().status_code for ask in asked] == [404, 404, 400, 404, 200]


def test_the_status_names_who_holds_a_view_back(shop: Any) -> None:
    now = time.time_ns() // 1_000
    shop.control.watermarks["income"] = 3 * SECOND
    shop.control.held_back = (1, 5 * SECOND)

    def held_back() -> tuple[str, int | None, str | None]:
        view = shop.http.get("/v1/status").json()["views"]["income"]
        return view["held_back_by"], view["held_back_partition"], view["held_back_producer"]

    assert held_back() == ("", 1, None)  # one partition, of nobody known
    shop.control.partitions = 2
    complete = "complete up to 1970-01-01 00:00:03"
    assert held_back() == (f"payments/1, {complete}", 1, None)
    for maximum, name in ((4 * SECOND, None), (5 * SECOND, "sensor-7")):
        holders = (WatermarkOrigin(0, 5 * SECOND, "other"), WatermarkOrigin(1, maximum, "sensor-7"))
        told = StreamProducers(2, holders=holders)
        _tell(shop.settings.run_directory, now + HOUR, payments=told)
        by = f", held back by {name}" if name else ""
        assert held_back() == (f"payments/1{by}, {complete}", 1, name)
    shop.control.held_back = (-1, 0)
    assert held_back() == ("", None, None)


def test_a_change_read_again_does_not_claim_to_be_complete(shop: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    with shop.client() as http, http.stream("GET", "/v1/views/income/changes?after=0") as response:
        data = next(line for line in response.iter_lines() if line.startswith("data:"))
    freshness = json.loads(data.removeprefix("data:"))["freshness"]
    assert freshness["text"] == "an earlier tick: how complete it was is not kept"
    assert (freshness["complete_up_to"], freshness["missing_events"]) == (None, None)


def test_the_python_client_has_it(shop: Any) -> None:
    shop.tick(income=[("ann", "1.00")])
    now = time.time_ns() // 1_000
    silent = (Silent("sensor-7", now - 4 * HOUR - HOUR // 2),)
    _tell(shop.settings.run_directory, now + HOUR, payments=StreamProducers(4, 3, 1, silent))
    url = str(shop.http.base_url)
    with Client(url) as client:
        client._http.headers["Headrace-Internal"] = shop.http.headers["Headrace-Internal"]
        freshness = client.view("income").freshness
    assert (freshness.missing_events, freshness.silent_producers) == (3, ("sensor-7",))
    assert freshness.text == "nothing final yet; sensor-7 silent for 4 h; 3 events missing"
