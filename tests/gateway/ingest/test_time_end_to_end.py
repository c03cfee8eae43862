"""A stream that says all about its time, over HTTP and over a restart."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.compile import load_project
from headrace.log.contract import NO_EVENT_TIME, QUALITIES
from headrace.log.embedded.backend import open_reader

DEFINITIONS = """
CREATE STREAM readings (
  sensor STRING NOT NULL, at TIMESTAMP NOT NULL, sent_at TIMESTAMP, value DOUBLE
)
WATERMARK at DELAY OF INTERVAL 5 SECONDS
FUTURE UP TO INTERVAL 1 HOUR
IDLE AFTER INTERVAL 1 SECOND
LATE REVISE
SENT sent_at SKEW OVER INTERVAL 2 SECONDS CAP INTERVAL 1 DAY
INTO 2 PARTITIONS;
"""
MINUTE = timedelta(minutes=1)


def reading(at: datetime, **more: Any) -> dict[str, Any]:
    return {"sensor": "s", "at": at.isoformat(), "value": 1.5, **more}


def producer(name: str, sequence: int, sent: datetime | None = None) -> dict[str, str]:
    headers = {"Headrace-Producer": name, "Headrace-Sequence": str(sequence)}
    return headers if sent is None else {**headers, "Headrace-Sent-At": sent.isoformat()}


def test_clocks_skews_and_the_bound(make_gateway: Any) -> None:
    gateway = make_gateway(definitions=DEFINITIONS)
    now = datetime.now(UTC)
    slow = now - MINUTE  # a device whose clock is a minute behind
    events = [reading(slow), reading(slow, sent_at=now.isoformat()), reading(now + 2 * MINUTE)]
    for _ in range(2):  # the second is a retry, and counts for no skew
        answer = gateway.send(events, "readings", producer("p", 0, slow))
        assert answer.json()["accepted"] == 3
    gateway.send([reading(now)], "readings", producer("q", 0))
    ancient = now - timedelta(days=3)
    gateway.send([reading(ancient)], "readings", producer("p", 3, ancient))
    late = gateway.send([reading(now + timedelta(minutes=61))], "readings", producer("q", 1))
    assert late.json()["quarantined"] == 1
    ahead = gateway.send([reading(now + timedelta(minutes=59, seconds=30))], "readings",
                         producer("q", 2))  # fmt: skip
    assert ahead.json()["quarantined"] == 0

    rows = {(row["at"], row["sent_at"]): row for row in gateway.stored("readings")}
    assert len(rows) == 6
    corrected = rows[slow, slow]
    assert QUALITIES[corrected["_quality"]] == "corrected"
    assert corrected["_event_time"] == slow + timedelta(microseconds=corrected["_skew"])
    assert corrected["_received_at"] == slow + timedelta(microseconds=corrected["_skew"])
    assert QUALITIES[rows[slow, now]["_quality"]] == "exact"
    assert rows[slow, now]["_event_time"] == slow
    unknown = rows[now, None]
    assert (unknown["_event_time"], unknown["_skew"], unknown["_quality"]) == (now, None, 0)
    disbelieved = rows[ancient, ancient]
    assert QUALITIES[disbelieved["_quality"]] == "received"
    assert disbelieved["_event_time"] == disbelieved["_received_at"]

    clocks = gateway.client.get("/v1/status").json()["gateway"]["clocks"]["readings"]
    assert {name: clocks["p"][name] for name in ("events", "measured", *QUALITIES)} == {
        "events": 4, "measured": 4, "exact": 1, "corrected": 2, "received": 1
    }  # fmt: skip
    assert clocks["p"]["skew_microseconds_max"] > 3 * 86_400_000_000
    assert clocks["q"]["measured"] == 0
    counts = gateway.counts("readings")
    assert counts == {"received": 10, "appended": 6, "retried": 3, "dead": 1}
    metrics = gateway.client.get("/metrics").text
    assert 'headrace_gateway_clock_events_total{quality="corrected",stream="readings"} 2.0' in (
        metrics
    )
    assert 'headrace_gateway_conservation_violated{stream="readings"} 0.0' in metrics


def test_idle_partitions_move_on_also_after_a_restart(make_gateway: Any, until: Any) -> None:
    gateway = make_gateway(definitions=DEFINITIONS)
    streams = load_project(gateway.directory).streams
    reader = open_reader(gateway.settings.log_directory, streams)
    now = datetime.now(UTC)
    gateway.send([reading(now - 2 * MINUTE)], "readings", producer("p", 0))
    (partition,) = [p for p, end in enumerate(reader.ends("readings")) if end]
    clock = time.time_ns() // 1000
    for _ in range(2):
        until(lambda since=clock: reader.maxima("readings")[partition] >= since)
        assert reader.maxima("readings")[1 - partition] == NO_EVENT_TIME
        gateway.kill()
        gateway.start()
        clock = time.time_ns() // 1000
    found = reader.advances("readings", partition, 0, 1)
    assert {item.reason for item in found} == {"idle"}
    assert [item.offset for item in found] == [1] * len(found)
