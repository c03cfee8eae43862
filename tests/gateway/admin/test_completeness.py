"""Producers watched by the gateway: gaps, late fills, duplicates, resets and silence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.compile import parse_sql
from headrace.gateway.admin.clock_offset import ClockOffsets
from headrace.gateway.admin.completeness import ProducerWatch
from headrace.gateway.ingest.numbering import newest_senders
from headrace.gateway.ingest.requests import ProducerKey
from headrace.http.tokens import create_token
from headrace.log.contract import Group, ProducerRange, Receipt, heard_note, retire_note
from headrace.log.embedded.backend import open_writer
from headrace.model.definitions import Project
from headrace.model.settings import Settings

SECOND = 1_000_000
SENSORS = "CREATE STREAM sensors (value DOUBLE); CREATE STREAM notes (text STRING);"


class Watched:
    """A real log under a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(directory)
        self.settings.run_directory.mkdir(parents=True)
        sensors, notes = sorted(parse_sql(SENSORS).streams, key=lambda s: s.name != "sensors")
        expecting = replace(sensors, expect_microseconds=60 * SECOND)
        self.project = Project("plant", (expecting, notes))
        self.now = 1_000 * SECOND
        self.writer: Any = None
        self.clock_offsets: dict[str, ClockOffsets] = {}
        self.start()

    def start(self) -> None:
        """As a gateway does that was stopped and started."""
        if self.writer is not None:
            self.writer.close()
        settings = self.settings
        self.writer = open_writer(
            settings.log_directory, self.project.streams, settings.log, settings.gateway
        )
        self.watch = ProducerWatch(
            settings, self.project, self.writer, self.clock_offsets, lambda: self.now
        )

    def send(
        self, producer: str, first: int, count: int = 1, epoch: int = 0, at: int | None = None
    ) -> None:
        event_time = self.now - SECOND if at is None else at
        line = ProducerRange("sensors", producer, epoch, first, count, event_time)
        key = f"{producer}/{epoch}/{first}/{self.now}".encode()
        self.writer.append(Group(receipts=(Receipt(key, b"", b"", self.now, (line,)),)))

    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.settings.run_directory / "completeness.json").read_text()
        )
        return document

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.watch.document("sensors", "", 100)["summary"]
        return summary


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "plant")
    yield made
    made.writer.close()


def test_a_producer_is_silent_after_the_expected_interval(watched: Watched) -> None:
    watched.send("sensor-7", 0)
    watched.send("sensor-8", 0)
    watched.now += 60 * SECOND
    watched.send("sensor-8", 1)
    assert watched.summary()["text"] == "all heard from"
    watched.now += 1
    assert watched.summary()["silent_producers"] == 1
    watched.now += 180 * SECOND
    watched.send("sensor-8", 2)
    assert watched.summary()["text"] == "sensor-7 silent for 4 min"
    page = watched.watch.document("sensors", "", 100)
    seven, eight = page["producers"]
    assert seven["silent_for_seconds"] == pytest.approx(240.000001)
    assert eight["silent_for_seconds"] is None
    watched.watch.heard("sensors", "sensor-7", watched.now)
    assert watched.summary()["text"] == "all heard from"
    watched.now += 61 * SECOND
    assert watched.summary()["silent_producers"] == 2
    watched.writer.append(Group(receipts=(heard_note(watched.now, "sensors", "sensor-8"),)))
    assert watched.summary()["text"] == "sensor-7 silent for 61 s"
    watched.writer.append(Group(receipts=(retire_note(watched.now, "sensors", "sensor-7"),)))
    assert watched.summary()["text"] == "all heard from"
    watched.writer.checkpoint()
    watched.start()
    watched.now += 61 * SECOND
    assert watched.summary()["text"] == "sensor-8 silent for 61 s"
    watched.send("sensor-7", 1)
    watched.now += 61 * SECOND
    assert watched.summary()["silent_producers"] == 2


def test_nobody_is_silent_before_the_gateway_has_listened_long_enough(watched: Watched) -> None:
    watched.send("sensor-7", 0)
    watched.now += 3_600 * SECOND
    watched.start()
    assert watched.summary()["text"] == "all heard from"
    watched.now += 61 * SECOND
    assert watched.summary()["text"] == "sensor-7 silent for 61 min"


def test_a_stream_that_expects_nothing_has_no_silent_producers(watched: Watched) -> None:
    watched.watch.heard("notes", "desk", watched.now)
    watched.now += 10**6 * SECOND
    document = watched.watch.document("notes", "", 100)
    assert document["summary"]["text"] == "nothing missing"
    assert document["producers"][0]["silent_for_seconds"] is None


def test_a_producer_has_the_summary_of_its_clock(watched: Watched) -> None:
    watched.send("sensor-7", 0)
    assert watched.watch.document("sensors", "", 1)["producers"][0]["clocks"] is None
    clock_offsets = watched.clock_offsets["sensors"] = ClockOffsets()
    clock_offsets.add("sensor-7", np.array([5, 9]), np.array([0, 1], dtype=np.int8))
    clocks = watched.watch.document("sensors", "", 1)["producers"][0]["clocks"]
    assert (clocks["events"], clocks["corrected"], clocks["skew_microseconds_max"]) == (2, 1, 9)


def test_events_at_the_ends_of_time_break_no_answer(watched: Watched) -> None:
    year_1 = -62_135_596_800 * SECOND
    for producer, at in (("early", year_1 - SECOND), ("first", year_1), ("late", 2**62)):
        watched.send(producer, 1, at=at)
    page = watched.watch.document("sensors", "", 100)["producers"]
    assert [producer["epochs"][0]["last_event_time"] for producer in page] == [
        "0001-01-01T00:00:00.000000Z",
        "0001-01-01T00:00:00.000000Z",
        "9999-12-31T23:59:59.999999Z",
    ]


def test_the_mean_of_clocks_that_begin_in_1970_is_exact() -> None:
    """Their sum is more than 64 bits hold."""
    clock_offsets = ClockOffsets()
    clock_offsets.add(
        "sensor-7", np.full(6_000, 1_790_000_000_000_001), np.zeros(6_000, dtype=np.int8)
    )
    clock_offsets.add("sensor-7", np.full(6_000, -3), np.zeros(6_000, dtype=np.int8))
    summary = clock_offsets.of("sensor-7")
    assert summary is not None
    assert summary["skew_microseconds_mean"] == 894_999_999_999_999


def test_the_engine_is_told_when_something_changed_and_now_and_then(watched: Watched) -> None:
    assert watched.watch.tell()
    assert watched.told() == {"at_microseconds": watched.now, "streams": {}}
    assert not watched.watch.tell()
    for number in range(30):
        watched.send(f"sensor-{number:02}", 0)
    watched.send("sensor-00", 5)
    assert watched.watch.tell()
    assert watched.told()["streams"]["sensors"] == {
        "producers": 30,
        "missing_events": 4,
        "silent_producers": 0,
        "silent": [],
        "holders": [],
    }
    watched.now += 4 * SECOND
    assert not watched.watch.tell()
    watched.now += 1 * SECOND
    assert watched.watch.tell()
    watched.now += 60 * SECOND
    assert watched.watch.tell()
    told = watched.told()["streams"]["sensors"]
    assert (told["silent_producers"], len(told["silent"])) == (30, 20)
    watched.watch.close()
    assert not list(watched.settings.run_directory.iterdir())


def _numbered(
    gateway: Any, make: Callable[..., Any], first: int, count: int, **more: Any
) -> dict[str, Any]:
    events = [make(n) for n in range(first, first + count)]
    for position in more.get("broken", ()):
        events[position]["amount"] = "much"
    headers = {
        "Headrace-Producer": more.get("producer", "till-7"),
        "Headrace-Sequence": str(first),
        "Headrace-Epoch": str(more.get("epoch", 0)),
    }
    answer = gateway.send(events, headers=headers)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def _page(gateway: Any, **parameters: Any) -> dict[str, Any]:
    answer = gateway.client.get("/v1/streams/Transactions/completeness", params=parameters)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


def test_a_gateway_that_is_killed_counts_on(
    make_gateway: Callable[..., Any], make_transaction: Callable[..., Any]
) -> None:
    gateway = make_gateway()
    assert _page(gateway)["summary"]["text"] == "no producer has been heard from"
    send = _numbered
    send(gateway, make_transaction, 1, 4, broken=(2,))  # a dead letter is no gap
    send(gateway, make_transaction, 10, 5)
    send(gateway, make_transaction, 10, 5)  # a retry
    send(gateway, make_transaction, 8, 4)  # 8, 9 late, 10, 11 again
    send(gateway, make_transaction, 0, 2, epoch=3)
    send(gateway, make_transaction, 0, 1, producer="till-8")
    before = _page(gateway)
    gateway.kill()
    gateway.start()
    page = _page(gateway)
    assert page == before
    assert page["summary"] == {
        "producers": 2,
        "missing_events": 3,
        "silent_producers": 0,
        "late_fills": 2,
        "duplicates": 7,
        "resets": 1,
        "text": "3 events missing",
    }
    newest, line = page["producers"][0]["epochs"]
    assert (newest["epoch"], newest["missing_events"]) == (3, 0)
    assert (line["lowest"], line["highest"], line["start_is_known"]) == (1, 14, True)
    assert line["last_event_time"] == "2026-01-01T00:00:00.000000Z"
    assert [(gap["first"], gap["last"]) for gap in line["gaps"]] == [(5, 7)]
    send(gateway, make_transaction, 10, 5)
    send(gateway, make_transaction, 5, 3)
    assert _page(gateway)["summary"]["text"] == "nothing missing"
    assert _page(gateway)["summary"]["duplicates"] == 12
    assert len(gateway.stored()) == 16


def test_who_brought_each_partition_where_it_is(
    make_gateway: Callable[..., Any],
    make_transaction: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    gateway = make_gateway()
    file = gateway.settings.run_directory / "completeness.json"

    def holders() -> set[tuple[int, str]]:
        found = json.loads(file.read_text())["streams"].get("transactions", {})
        return {(holder["partition"], holder["producer"]) for holder in found.get("holders", ())}

    _numbered(gateway, make_transaction, 0, 40, producer="first")
    until(lambda: file.exists() and holders() == {(p, "first") for p in range(4)})
    late = make_transaction(7) | {"created_at": "2026-02-01T00:00:00Z"}
    gateway.send([late], headers={"Headrace-Producer": "second", "Headrace-Sequence": "0"})
    until(lambda: "second" in {name for _, name in holders()})
    before = holders()
    assert sorted(name for _, name in before) == ["first", "first", "first", "second"]
    gateway.kill()
    gateway.start()
    until(lambda: file.exists() and holders() == before)
    gateway.send([late | {"created_at": "2026-02-02T00:00:00Z"}])  # from nobody in particular
    until(lambda: {name for _, name in holders()} == {"first"})


def test_the_newest_event_of_several_requests_says_who_is_furthest() -> None:
    (stream,) = parse_sql(
        "CREATE STREAM s (at TIMESTAMP NOT NULL) WATERMARK at LATE REVISE"
    ).streams
    names = ("a", "", "b")
    keys = [ProducerKey(name, 0, 0) if name else None for name in names]
    requests: Any = [SimpleNamespace(retry_key=key) for key in keys]
    sent = newest_senders(stream, requests, [2, 0, 3])
    batch = pa.record_batch({"at": pa.array([5, 9, 9, 1, 7], pa.timestamp("us", "UTC"))})
    assert sent(batch, None) == "a"
    assert sent(batch.slice(2), np.array([2, 3, 4])) == "b"
    assert newest_senders(stream, requests[:1], [5])(batch, None) == "a"


def test_decisions_about_producers_outlive_a_crash(
    make_gateway: Callable[..., Any], make_transaction: Callable[..., Any]
) -> None:
    gateway = make_gateway()
    for first in (0, 5, 9):
        _numbered(gateway, make_transaction, first, 1)
    _numbered(gateway, make_transaction, 0, 1, epoch=2)
    _numbered(gateway, make_transaction, 3, 1, epoch=2)

    def decide(what: str, **body: Any) -> Any:
        path = f"/v1/streams/Transactions/completeness/{what}"
        return gateway.client.post(path, json={"producer": "till-7", **body})

    assert _page(gateway)["summary"]["missing_events"] == 9
    answer = decide("accept", epoch=0, first=2, last=6).json()
    assert answer == {
        "stream": "transactions",
        "producer": "till-7",
        "accepted_events": 4,
        "missing_events": 5,
    }
    assert decide("retire").json()["state"] == "retired"
    gateway.kill()
    gateway.start()
    (producer,) = _page(gateway)["producers"]
    newest, line = producer["epochs"]
    assert producer["retired"]
    assert (newest["missing_events"], line["missing_events"], line["accepted_events"]) == (2, 3, 4)
    assert [(gap["first"], gap["last"]) for gap in line["gaps"]] == [(1, 1), (7, 8)]
    assert _numbered(gateway, make_transaction, 3, 1)["accepted"] == 1  # it came after all
    assert decide("accept").json()["accepted_events"] == 5
    page = _page(gateway)
    assert page["summary"]["text"] == "nothing missing"
    assert not page["producers"][0]["retired"]
    assert page["producers"][0]["epochs"][1]["accepted_events"] == 6
    beat = {"stream": "transactions", "producer": "till-7", "finished": True}
    assert gateway.client.post("/v1/heartbeats", json=beat).status_code == 200
    assert _page(gateway)["producers"][0]["retired"]
    for path, body, status, code in (
        ("accept", {"producer": "nobody"}, 404, "unknown-producer"),
        ("retire", {"producer": "nobody"}, 404, "unknown-producer"),
        ("accept", {"first": 3, "last": 2}, 422, "bad-decision"),
        ("retire", {"first": 3}, 422, "bad-decision"),
    ):
        refused = decide(path, **body)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    secret = create_token(gateway.settings, "reader", ["query", "ingest:*"])
    gateway.kill()
    gateway.start()
    gateway.client.headers["Authorization"] = f"Bearer {secret}"
    assert decide("retire").json()["code"] == "scope-missing"
    assert gateway.client.post("/v1/heartbeats", json=beat).status_code == 200


METERS = """CREATE STREAM meters (meter STRING NOT NULL, seq INT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at LATE REVISE NUMBERED BY seq PER (meter) EXPECT EVERY INTERVAL 1 HOUR
PARTITION BY (meter) INTO 3 PARTITIONS;"""


def test_numbers_in_events_are_counted_over_a_crash(
    make_gateway: Callable[..., Any], until: Callable[..., None]
) -> None:
    gateway = make_gateway(definitions=METERS)

    def send(*rows: tuple[str, int, int], **headers: str) -> None:
        events = [{"meter": m, "seq": n, "at": f"2026-01-01T00:00:{t:02}Z"} for m, n, t in rows]
        assert gateway.send(events, "meters", headers).json()["accepted"] == len(events)

    def page() -> dict[str, Any]:
        found: dict[str, Any] = gateway.client.get("/v1/streams/meters/completeness").json()
        return found

    headers = {"Headrace-Producer": "hub", "Headrace-Sequence": "7"}
    send(("a", 1, 1), ("b", 1, 1), ("a", 4, 4), ("a", 4, 4), **headers)
    send(("a", 3, 3), ("b", 2, 2), ("b", 3, 3), ("b", 1, 9), ("b", 2, 10))  # b starts over
    before = page()
    gateway.kill()
    gateway.start()
    assert page() == before
    assert before["summary"] == {
        "producers": 2,
        "missing_events": 1,
        "silent_producers": 0,
        "late_fills": 1,
        "duplicates": 1,
        "resets": 1,
        "text": "1 event missing",
    }
    a, b, hub = before["producers"]
    assert [p["numbered_by"] for p in (a, b, hub)] == ["events", "events", "requests"]
    assert [(gap["first"], gap["last"]) for gap in a["epochs"][0]["gaps"]] == [(2, 2)]
    assert [(line["epoch"], line["lowest"], line["highest"]) for line in b["epochs"]] == [
        (1, 1, 2),
        (0, 1, 3),
    ]
    file = gateway.settings.run_directory / "completeness.json"
    until(lambda: file.exists() and b'"missing_events":1' in file.read_bytes())
    decided = {"producer": "a", "first": 2, "last": 2}
    path = "/v1/streams/meters/completeness/accept"
    assert gateway.client.post(path, json=decided).json()["accepted_events"] == 1
    assert gateway.client.post(path.replace("accept", "retire"), json={"producer": "b"}).is_success
    gateway.kill()
    gateway.start()
    assert page()["summary"]["text"] == "all heard from"
    assert [p["retired"] for p in page()["producers"]] == [False, True, False]
    send(("a", 2, 2), ("b", 3, 11))
    a, b, _ = page()["producers"]
    assert (a["epochs"][0]["accepted_events"], a["epochs"][0]["late_fills"]) == (0, 2)
    assert not b["retired"]


def test_pages_parameters_and_metrics(
    make_gateway: Callable[..., Any],
    make_transaction: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    gateway = make_gateway()
    for producer in ("a", "b", "c"):
        _numbered(gateway, make_transaction, 0, 1, producer=producer)
        _numbered(gateway, make_transaction, 3, 1, producer=producer)
    first = _page(gateway, limit=2)
    assert [p["producer"] for p in first["producers"]] == ["a", "b"]
    assert first["next_after"] == "b"
    second = _page(gateway, limit=2, after="b")
    assert ([p["producer"] for p in second["producers"]], second["next_after"]) == (["c"], None)
    path = "/v1/streams/transactions/completeness"
    assert gateway.client.get(f"{path}?limit=501").json()["code"] == "bad-parameter"
    missing = gateway.client.get("/v1/streams/nosuch/completeness")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown-stream")
    metrics = gateway.client.get("/metrics").text
    assert 'headrace_producer_missing_events{stream="transactions"} 6.0' in metrics
    assert 'headrace_producers_silent{stream="transactions"} 0.0' in metrics
    for name in ("late_fills", "duplicates", "resets"):
        assert f'headrace_producer_{name}_total{{stream="transactions"}} 0.0' in metrics
    file = gateway.settings.run_directory / "completeness.json"
    until(lambda: file.exists() and b'"missing_events":6' in file.read_bytes())
    assert gateway.stop() == 0
    assert not file.exists()
