"""The verbs against a running project: real gateway, real engine, real Spark.

What becomes of it when its processes are killed is in test_killed.py."""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from headrace.client import Client
from headrace.demo.background_project import BackgroundProject

pytestmark = pytest.mark.end_to_end
SENSORS = """
CREATE STREAM readings (sensor STRING NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE REVISE EXPECT EVERY INTERVAL 2 SECONDS;

CREATE MATERIALIZED VIEW sensors AS
SELECT window.start AS window_start, sensor, count(*) AS readings
FROM readings GROUP BY window(at, '1 second'), sensor;
"""
METER = """
CREATE STREAM metered (id INT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND
LATE HALT;

CREATE MATERIALIZED VIEW counted AS
SELECT window.start AS since, count(*) AS readings
FROM metered GROUP BY window(at, '10 seconds');
"""
CUSTOMERS = """
CREATE TABLE customers (id INT PRIMARY KEY, name STRING, since TIMESTAMP, tier STRING NOT NULL);
"""
until = partial(wait_until, look_seconds=0.1)
QUERIES = 700  # more than the connections the gateway may have to the engine


class Up:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._project = BackgroundProject(folder)
        self.log = self._project.log_file
        self.is_up = True
        try:
            self.url = self._project.wait_ready(lambda _: None)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        self.is_up = False
        return self._project.stop()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    from headrace.demo.shop import write_project

    folder = tmp_path_factory.mktemp("running") / "shop"
    write_project(folder, "shop")
    (folder / "definitions" / "sensors.sql").write_text(SENSORS)
    (folder / "definitions" / "meter.sql").write_text(METER)
    (folder / "definitions" / "customers.sql").write_text(CUSTOMERS)
    started = Up(folder)
    yield started
    if started.is_up:
        started.stop()


def _sent(up: Up, body: bytes) -> dict[str, Any]:
    request = urllib.request.Request(f"{up.url}/v1/events?name=transactions", data=body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def _caught_up(headrace: Callable[..., Any], where: tuple[Any, ...]) -> bool:
    document = headrace("status", *where, "--json").document
    return all(view["pending_events"] == 0 for view in document["views"].values())


def test_from_events_to_an_answer(up: Up, headrace: Callable[..., Any]) -> None:
    where = ("--project", up.folder)
    lines = (up.folder / "events.ndjson").read_bytes()
    assert _sent(up, lines)["accepted"] == 1_000
    paid = sum(json.loads(line)["status"] == "paid" for line in lines.splitlines())
    answer = headrace("query", "SELECT sum(payments) AS n FROM income", *where, "--json").document
    assert int(answer["rows"][0]["n"]) == paid
    assert answer["freshness"]["tick"] >= 1
    shown = headrace("query", "SELECT * FROM income ORDER BY window_start LIMIT 3", *where)
    assert "window_start" in shown.out
    assert "tick" in shown.err
    status = headrace("status", *where)
    assert status.code == 0, status.out
    assert "income_by_user" in status.out


def test_generate_and_tail(up: Up, headrace: Callable[..., Any]) -> None:
    where = ("--project", up.folder)
    tick = headrace("query", "SELECT 1", *where, "--json").document["freshness"]["tick"]
    made = headrace("generate", "--events", 3_000, "--senders", 2, *where, "--json").document
    assert made["events"] == 3_000
    assert made["retried"] > 0
    tailed = headrace("tail", "income", "--after", tick, "--ticks", 1, *where, "--json")
    assert tailed.document["tick"] > tick
    assert tailed.document["after"]
    shown = headrace("tail", "income", "--after", tick, "--ticks", 1, *where)
    assert "+ window_start=" in shown.out


def _read(up: Up, first: int, count: int) -> None:
    now = datetime.now(UTC).isoformat()
    lines = [json.dumps({"sensor": "hall", "at": now}) for _ in range(count)]
    headers = {"Headrace-Producer": "sensor-7", "Headrace-Sequence": str(first)}
    address = f"{up.url}/v1/events?name=readings"
    request = urllib.request.Request(address, "\n".join(lines).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["accepted"] == count


def test_what_is_missing_and_who_is_silent_is_said_in_words(
    up: Up, headrace: Callable[..., Any]
) -> None:
    where = ("--project", up.folder)
    _read(up, 1, 2)
    _read(up, 6, 1)
    query = ("query", "SELECT sum(readings) AS n FROM sensors", *where)

    def said() -> dict[str, Any]:
        freshness: dict[str, Any] = headrace(*query, "--json").document["freshness"]
        return freshness

    until(lambda: "silent" in said()["text"] and not said()["pending_events"])
    assert (said()["missing_events"], said()["silent_producers"]) == (3, ["sensor-7"])
    words = r"final up to (\S+ )?\d\d:\d\d:\d\d; sensor-7 silent for \d+ s; 3 events missing"
    assert re.fullmatch(words, said()["text"])
    assert re.search(words, headrace(*query).err)
    status = headrace("status", *where, "--json").document["views"]
    assert re.fullmatch(words, status["sensors"]["freshness"])
    assert "silent" not in status["income"]["freshness"]
    asked = headrace("completeness", "readings", *where, "--json")
    assert asked.code == 1
    (page,) = asked.document["streams"]
    assert page["producers"][0]["epochs"][0]["gaps"][0]["first"] == 3
    shown = headrace("completeness", *where).out
    assert re.search(r"sensor-7 │ +0 │ 1–6 +│ +3 │ +0 │ 3–5 ", shown), shown
    _read(up, 3, 3)
    until(lambda: said()["missing_events"] == 0 and said()["silent_producers"] == [])
    filled = headrace("completeness", "readings", *where)
    assert "late fills" in filled.out
    assert filled.code == 0


def test_dead_letters_are_listed_repaired_and_discarded(
    up: Up, headrace: Callable[..., Any], tmp_path: Path
) -> None:
    where = ("--project", up.folder)
    assert _sent(up, b'{"id": "1"}\nnot JSON\n')["quarantined"] == 2
    listed = headrace("deadletters", "list", *where)
    assert "not JSON" in listed.out
    document = headrace(
        "deadletters", "list", "--stream", "transactions", *where, "--json"
    ).document
    numbers = [letter["number"] for letter in next(iter(document.values()))]
    repaired = tmp_path / "repaired.ndjson"
    repaired.write_bytes((up.folder / "events.ndjson").read_bytes().splitlines()[0] + b"\n")
    again = ("deadletters", "resubmit", numbers[0], "--repaired", repaired, *where, "--json")
    assert headrace(*again).document["accepted"] == 1
    gone = headrace(*again)
    assert gone.code == 1
    assert gone.document["errors"] == [{"number": numbers[0], "reason": "no such dead letter"}]
    bad = headrace("deadletters", "resubmit", numbers[1], *where)
    assert bad.code == 1
    assert f"  {numbers[1]}: not JSON" in bad.out
    missing = headrace("deadletters", "discard", 99_999, *where)
    assert (missing.code, missing.out) == (1, "discarded 0\n  99999: no such dead letter\n")
    assert headrace("deadletters", "discard", numbers[1], *where).code == 0
    assert "no dead letters" in headrace("deadletters", "list", *where).out
    assert "no dead letters" in headrace("deadletters", "list", "--view", "income", *where).out


def test_the_ledger_holds_and_nothing_waits_for_a_decision(
    up: Up, headrace: Callable[..., Any]
) -> None:
    where = ("--project", up.folder)
    until(lambda: _caught_up(headrace, where))
    shown = headrace("ledger", *where, "--json")
    assert shown.code == 0, shown.out
    sums = shown.document
    appended = sums["gateway"]["transactions"]["appended"]
    assert appended == sums["streams"]["transactions"]["advanced"] > 0
    assert sums["views"]["income"]["read"] == sums["streams"]["transactions"]["accepted"]
    assert "income_by_user" in headrace("ledger", *where).out
    assert headrace("late", "list", "transactions", *where, "--json").document["decisions"] == []
    refused = headrace("resume", "transactions", "--drop", *where)
    assert (refused.code, "is halted" in refused.err) == (2, True)
    assert headrace("late", "apply", "transactions", *where).code == 0


def test_a_table_is_loaded_replaced_changed_and_read(
    up: Up, headrace: Callable[..., Any], tmp_path: Path
) -> None:
    where = ("--project", up.folder)
    file = tmp_path / "customers.csv"
    header = "id,name,since,tier\n"
    file.write_text(header + "".join(f"{n},n{n},2026-01-01 12:00:00,gold\n" for n in range(100)))
    assert headrace("load", "customers", file, *where, "--json").document["rows"] == 100
    file.write_text(header + "".join(f"{n},m{n},,iron\n" for n in range(0, 90, 2)))
    replaced = headrace("load", "customers", file, "--replace", *where, "--json").document
    assert (replaced["rows"], replaced["deleted"]) == (45, 55)
    with Client(up.url) as client:
        client.upsert("customers", {"id": 2, "tier": "tin"})
        client.delete("customers", [{"id": n} for n in range(4, 100)])
        client.flush()
        rows = client.view("customers", order_by="id").rows  # its own writes, and the load's
    assert rows == [
        {"id": 0, "name": "m0", "since": None, "tier": "iron"},
        {"id": 2, "name": None, "since": None, "tier": "tin"},
    ]
    with urllib.request.urlopen(f"{up.url}/v1/tables") as answer:
        (table,) = json.load(answer)["tables"]
    assert (table["name"], table["is_table"], table["state"]) == ("customers", True, "live")
    with urllib.request.urlopen(f"{up.url}/v1/tables/Customers?tier=tin") as answer:
        assert [row["id"] for row in json.load(answer)["rows"]] == [2]


def test_rebuild_gives_the_same_view(up: Up, headrace: Callable[..., Any]) -> None:
    where = ("--project", up.folder)
    sql = "SELECT count(*) AS n, sum(income) AS income FROM income"
    until(lambda: _caught_up(headrace, where))
    before = headrace("query", sql, *where, "--json").document["rows"]
    said = headrace("rebuild", "income", *where)
    assert (said.code, "income is rebuilt from" in said.out) == (0, True), said.err
    assert headrace("query", sql, *where, "--json").document["rows"] == before
    document = headrace("rebuild", "income", *where, "--json").document
    assert (document["state"], document["followed"]) == ("done", True)
    assert document["events"] == document["events_total"] > 0
    assert headrace("rebuild", "income", "--no-wait", *where).code == 0
    until(lambda: headrace("rebuild", "income", "--cancel", *where).code == 2)  # there is none
    assert headrace("rebuild", "nothing", *where).code == 2


def test_a_wrong_query_is_the_users_mistake(up: Up, headrace: Callable[..., Any]) -> None:
    ended = headrace("query", "SELEC 1", "--project", up.folder)
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_the_gateway_does_not_tire_of_queries(up: Up) -> None:
    """Every query passed on to the engine must give its connection back, also when the client
    keeps its own."""
    connection = http.client.HTTPConnection(up.url.removeprefix("http://"), timeout=30)
    try:
        for _ in range(QUERIES):
            connection.request("GET", "/v1/views")
            assert json.load(connection.getresponse())["views"]
    finally:
        connection.close()


class Meter:
    """A stream that halts on late events, and its one view."""

    def __init__(self, up: Up, headrace: Callable[..., Any]) -> None:
        self._up = up
        self._headrace = headrace

    def run(self, *words: str) -> Any:
        return self._headrace(*words, "--url", self._up.url)

    def send(self, *seconds: int) -> None:
        when = "2026-01-01T00:00:{:02}Z"
        events = [{"id": n, "at": when.format(second)} for n, second in enumerate(seconds)]
        request = urllib.request.Request(
            f"{self._up.url}/v1/events?name=metered",
            data=json.dumps(events).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["accepted"] == len(events)

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("status", "--json").document["views"]["counted"]
        return found

    def is_halted_at(self, offset: int) -> bool:
        view = self.view()
        return bool(view["state"] == "halted" and view["next_offsets"]["0"] == offset)

    def is_done(self) -> bool:
        view = self.view()
        return bool(view["state"] == "live" and view["pending_events"] == 0)

    def first_window(self) -> tuple[int, int]:
        sql = "SELECT readings, revision FROM counted ORDER BY since LIMIT 1"
        (row,) = self.run("query", sql, "--json").document["rows"]
        return row["readings"], row["revision"]


def test_a_stream_halts_and_every_decision_is_taken_once_and_accounted_for(
    up: Up, headrace: Callable[..., Any]
) -> None:
    meter = Meter(up, headrace)
    meter.send(1, 30, 2, 31, 3, 4, 32)  # 2, 3 and 4 are late for the first window
    until(lambda: meter.is_halted_at(2))
    shown = meter.run("status")
    assert shown.code == 1
    assert "metered is halted (counted): " in shown.out
    assert meter.first_window() == (1, 0)
    said = meter.run("query", "SELECT * FROM counted").err
    assert "does not go on: it is halted: event 2 of partition 0 is late" in said
    assert "shown as it stands" in said
    assert "stands" not in meter.run("query", "SELECT * FROM counted", "--now").err

    for offset, decision in ((2, "--apply"), (4, "--side"), (5, "--drop")):
        until(partial(meter.is_halted_at, offset))
        said = meter.run("resume", "metered", decision)
        assert said.code == 0, said.err
        assert f"event {offset} of partition 0 of metered" in said.out
    until(meter.is_done)
    assert meter.run("resume", "metered", "--drop").code == 2
    assert meter.first_window() == (2, 1)

    late = meter.run("late", "list", "metered", "--json").document
    assert late["sided"] == [{"view": "counted", "aside": 1, "applied": 0}]
    taken = sorted((d["offset"], d["decision"]) for d in late["decisions"])
    assert taken == [(2, "apply"), (4, "side"), (5, "drop")]

    assert meter.run("late", "apply", "metered", "--view", "counted").code == 0
    until(lambda: meter.first_window() == (3, 2))
    late = meter.run("late", "list", "metered", "--json").document
    assert late["sided"] == [{"view": "counted", "aside": 0, "applied": 1}]
    sums = meter.run("ledger", "--json")
    assert sums.code == 0, sums.out
    view = sums.document["views"]["counted"]
    assert {fate: view[fate] for fate in ("read", "applied", "late", "sided", "dropped")} == {
        "read": 7, "applied": 6, "late": 2, "sided": 0, "dropped": 1,
    }  # fmt: skip


def test_it_ends_in_order(up: Up) -> None:
    """The last test of this file: afterwards the project is down."""
    assert up.stop() == 0
    log = up.log.read_text()
    assert "is killed" not in log
    assert "nanobind" not in log  # which reports what a process leaves open
    assert log.index("everything acknowledged is durable") < log.rindex("engine ended")
