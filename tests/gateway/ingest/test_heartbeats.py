"""Heartbeats over HTTP: what moves, what is refused, and who may send them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.compile import load_project, parse_sql
from headrace.gateway.ingest.heartbeats import HEARTBEATS_MAX, HeartbeatReader
from headrace.gateway.ingest.partitioning import partition_of_text
from headrace.http.tokens import create_token
from headrace.log.contract import NO_EVENT_TIME
from headrace.log.embedded.backend import open_reader

T = 1_700_000_000_000_000
AT = "2023-11-14T22:13:20Z"


def maxima(gateway: Any, stream: str) -> tuple[int, ...]:
    streams = load_project(gateway.directory).streams
    return open_reader(gateway.settings.log_directory, streams).maxima(stream)


def beat(gateway: Any, body: Any, **more: Any) -> Any:
    return gateway.client.post("/v1/heartbeats", json=body, **more)


def test_a_stream_is_complete_on_every_partition(make_gateway: Any) -> None:
    gateway = make_gateway()
    answer = beat(gateway, {"stream": "Transactions", "complete_up_to": AT})
    assert (answer.status_code, answer.json()) == (200, {"state": "durable"})
    assert maxima(gateway, "transactions") == (T + 5_000_000,) * 4  # the delay is added
    beat(gateway, [{"stream": "transactions", "complete_up_to": "2020-01-01"}] * 3)
    assert maxima(gateway, "transactions") == (T + 5_000_000,) * 4
    assert maxima(gateway, "notes") == (NO_EVENT_TIME,) * 3
    gateway.kill()
    gateway.start()
    assert maxima(gateway, "transactions") == (T + 5_000_000,) * 4


def test_a_producer_moves_the_partition_its_events_go_to(make_gateway: Any) -> None:
    gateway = make_gateway()
    given = {"complete_up_to": AT, "producer": "sensor-7"}
    beat(gateway, [{"stream": "notes", **given}, {"stream": "transactions", **given}])
    expected = [NO_EVENT_TIME] * 3
    expected[partition_of_text("sensor-7", 3)] = T
    assert maxima(gateway, "notes") == tuple(expected)
    assert maxima(gateway, "transactions") == (T,) * 4  # its key decides, not its producer


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([], 422, "bad-heartbeat"),
        ({}, 422, "bad-heartbeat"),
        ({"stream": "notes"}, 422, "bad-heartbeat"),
        ({"stream": "notes", "complete_up_to": 5}, 422, "bad-heartbeat"),
        ({"stream": "notes", "complete_up_to": "soon"}, 422, "bad-heartbeat"),
        ({"stream": "notes", "complete_up_to": AT, "producer": ""}, 422, "bad-heartbeat"),
        ({"stream": "notes", "complete_up_to": AT, "more": 1}, 422, "bad-heartbeat"),
        ({"stream": "notes", "complete_up_to": AT, "finished": True}, 422, "bad-heartbeat"),
        ({"stream": "notes", "producer": "p"}, 422, "bad-heartbeat"),
        ([{"stream": "notes", "complete_up_to": AT}] * 1_001, 422, "bad-heartbeat"),
        ({"stream": "nothing", "complete_up_to": AT}, 404, "unknown-stream"),
    ],
)
def test_refusals(shared_gateway: Any, body: Any, status: int, code: str) -> None:
    answer = beat(shared_gateway, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_the_far_future_is_refused_with_all_that_came_along(make_gateway: Any) -> None:
    gateway = make_gateway()
    later = (datetime.now(UTC) + timedelta(days=1, minutes=1)).isoformat()
    good = {"stream": "notes", "complete_up_to": AT}
    answer = beat(gateway, [good, {"stream": "notes", "complete_up_to": later}])
    assert (answer.status_code, answer.json()["code"]) == (422, "far-future")
    assert maxima(gateway, "notes") == (NO_EVENT_TIME,) * 3


def test_the_scope_is_that_of_each_stream(make_gateway: Any) -> None:
    gateway = make_gateway()
    secret = create_token(gateway.settings, "device", ["ingest:notes"])
    gateway.kill()
    gateway.start()
    headers = {"Authorization": f"Bearer {secret}"}
    notes = {"stream": "notes", "complete_up_to": AT}
    assert beat(gateway, notes).json()["code"] == "token-missing"
    assert beat(gateway, notes, headers=headers).status_code == 200
    both = [notes, {"stream": "transactions", "complete_up_to": AT}]
    assert beat(gateway, both, headers=headers).json()["code"] == "scope-missing"
    unknown = {"stream": "unknown", "complete_up_to": AT}
    assert beat(gateway, unknown, headers=headers).json()["code"] == "scope-missing"


def test_many_heartbeats_of_one_request_are_one_advance_a_partition() -> None:
    """The event loop must not make one for each: there are hundreds of partitions."""
    project = parse_sql(
        "CREATE STREAM s (k STRING, at TIMESTAMP NOT NULL) WATERMARK at DELAY OF INTERVAL 5 SECONDS"
        " LATE DROP PARTITION BY (k) INTO 256 PARTITIONS",
        "s.sql",
    )
    asked = [
        {"stream": "s", "complete_up_to": f"2026-01-01T00:00:{n % 60:02d}Z", "producer": f"p{n}"}
        for n in range(HEARTBEATS_MAX)
    ]
    reader = HeartbeatReader(project)
    beats = reader.read(json.dumps(asked).encode(), time.time_ns() // 1_000, lambda stream: None)
    advances = list(beats.advances)
    assert [advance.partition for advance in advances] == list(range(256))
    second_59 = 1_767_225_659_000_000
    assert {(a.maximum_microseconds, a.producer) for a in advances} == {(second_59, "p59")}
    assert len(beats.heard) == HEARTBEATS_MAX
