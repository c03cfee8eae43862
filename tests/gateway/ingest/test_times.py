"""Clocks and the far future, judged at the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.bodies import BodyKind
from headrace.gateway.admin.clock_offset import PRODUCERS_MAX, ClockOffsets
from headrace.gateway.ingest.decoding import StreamDecoder, StreamRows
from headrace.gateway.ingest.requests import EventsRequest, read_sent_at
from headrace.log.contract import QUALITIES, stored_schema
from headrace.model.definitions import DAY, Clocks, Column, Stream
from headrace.model.errors import RequestError
from headrace.model.settings import GatewaySettings
from headrace.model.types import parse_type

NOW = 1_800_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = (
    Column("n", parse_type("INT"), nullable=False),
    Column("at", parse_type("TIMESTAMP"), nullable=False),
    Column("sent_at", parse_type("TIMESTAMP")),
)
PLAIN = Stream("readings", COLUMNS, event_time="at")
CLOCKED = Stream(
    "readings", COLUMNS, event_time="at", clocks=Clocks("sent_at", 2_000_000, 3_600_000_000)
)


def iso(microseconds: int) -> str:
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def request(
    body: bytes, kind: BodyKind = BodyKind.LINES, received: int = NOW, **more: Any
) -> EventsRequest:
    loop = asyncio.new_event_loop()
    try:
        future: Any = loop.create_future()
    finally:
        loop.close()
    return EventsRequest("readings", body, kind, "identity", None, received, future, **more)


def decode(stream: Stream, *requests: EventsRequest) -> StreamRows:
    decoder = StreamDecoder(stream, GatewaySettings())
    return decoder.decode([(r, r.body) for r in requests])


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(record).encode() for record in records)


def table(rows: StreamRows) -> list[dict[str, Any]]:
    return pa.Table.from_batches(rows.batches).to_pylist() if rows.batches else []


SKEW = st.sampled_from([0, 1, 1_999_999, 2_000_000, 2_000_001, 3_600_000_000, 3_600_000_001])
EVENT = st.tuples(
    st.integers(-(10**9), 10**9),
    st.one_of(st.none(), st.tuples(st.sampled_from([1, -1]), SKEW)),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(EVENT, min_size=1, max_size=12),
            st.integers(0, 10**7),
            st.one_of(st.none(), st.integers(-(10**8), 10**8)),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_clocks_correct_as_the_definition_says(
    bodies: list[tuple[list[Any], int, int | None]],
) -> None:
    requests, expected = [], []
    for events, later, header in bodies:
        received = NOW + later
        records = []
        for n, (moved, skew) in enumerate(events):
            sent = None if skew is None else received - skew[0] * skew[1]
            record = {"n": n, "at": iso(NOW + moved)}
            records.append(record if sent is None else {**record, "sent_at": iso(sent)})
            if sent is None and header is not None:
                sent = NOW + header
            expected.append(oracle(NOW + moved, sent, received))
        hint = None if header is None else NOW + header
        requests.append(request(lines(records), received=received, sent_at_microseconds=hint))
    rows = decode(CLOCKED, *requests)
    assert [entry.rejected for entry in rows.entries] == [[] for _ in bodies]
    batch = pa.Table.from_batches(rows.batches)
    assert batch.schema.names == stored_schema(CLOCKED).names[:-1]
    found = zip(
        batch["_event_time"].cast(pa.int64()).to_pylist(),
        batch["_skew"].to_pylist(),
        [QUALITIES[q] for q in batch["_quality"].to_pylist()],
        batch["sent_at"].cast(pa.int64()).to_pylist(),
        strict=True,
    )
    assert list(found) == expected


def oracle(
    occurred: int, sent: int | None, received: int
) -> tuple[int, int | None, str, int | None]:
    if sent is None:
        return occurred, None, "exact", None
    skew = received - sent
    if abs(skew) <= 2_000_000:
        return occurred, skew, "exact", sent
    if abs(skew) <= 3_600_000_000:
        return occurred + skew, skew, "corrected", sent
    return received, skew, "received", sent


def test_without_an_event_time_the_received_one_counts() -> None:
    stream = Stream("readings", COLUMNS, clocks=Clocks("sent_at"))
    (row,) = table(
        decode(stream, request(lines([{"n": 1, "at": iso(0), "sent_at": iso(NOW - 5)}])))
    )
    assert (row["_skew"], row["_quality"]) == (5, QUALITIES.index("received"))
    assert row["_event_time"] == EPOCH + timedelta(microseconds=NOW)


def test_an_event_submitted_again_has_the_skew_it_came_with() -> None:
    record = lines([{"n": 1, "at": iso(NOW - 9), "sent_at": iso(NOW - 9)}])
    later = request(record, received=NOW + DAY, first_received_at_microseconds=NOW)
    (row,) = table(decode(CLOCKED, later))
    assert (row["_skew"], row["_quality"]) == (9, 0)


@pytest.mark.parametrize("stream", [PLAIN, CLOCKED], ids=["plain", "clocks"])
@pytest.mark.parametrize("form", ["lines", "array", "arrow"])
@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_far_future_is_a_dead_letter(stream: Stream, form: str, count: int) -> None:
    bad = {1, count - 1}
    records = [
        {"n": n, "at": iso(NOW + DAY + (1 if n in bad else 0)), "sent_at": None}
        for n in range(count)
    ]
    good = request(lines([{"n": -1, "at": iso(NOW)}]))
    rows = decode(stream, good, _as(form, records))
    by_count = {entry.count: entry for entry in rows.entries}
    entry = by_count[count]
    assert [rejected.position for rejected in entry.rejected] == sorted(bad)
    assert entry.end - entry.start == count - 2
    assert by_count[1].end - by_count[1].start == 1
    assert "is more than 86400 s after it was received" in entry.rejected[0].reason
    assert [json.loads(rejected.raw)["n"] for rejected in entry.rejected] == sorted(bad)
    stored = [row["n"] for row in table(rows)]
    assert stored[entry.start : entry.end] == [n for n in range(count) if n not in bad]


def _as(form: str, records: list[dict[str, Any]]) -> EventsRequest:
    if form == "lines":
        return request(lines(records))
    if form == "array":
        return request(json.dumps(records).encode(), BodyKind.SNIFF)
    times = [datetime.fromisoformat(record["at"]) for record in records]
    batch = pa.record_batch(
        {
            "n": pa.array([r["n"] for r in records], pa.int32()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return request(sink.getvalue().to_pybytes(), BodyKind.ARROW)


def test_each_request_has_its_own_bound() -> None:
    records = lines([{"n": n, "at": iso(NOW + DAY + 5)} for n in range(300)])
    rows = decode(PLAIN, request(records), request(records, received=NOW + 5))
    first, second = rows.entries
    assert (len(first.rejected), len(second.rejected)) == (300, 0)
    assert (second.start, second.end) == (0, 300)


def test_corrected_times_are_what_is_too_far() -> None:
    ahead = 3_000_000_000
    record = {"n": 1, "at": iso(NOW + DAY + ahead), "sent_at": iso(NOW + ahead)}
    rows = decode(CLOCKED, request(lines([record])))
    assert rows.entries[0].rejected == []
    record = {"n": 1, "at": iso(NOW + DAY), "sent_at": iso(NOW - ahead)}
    rows = decode(CLOCKED, request(lines([record])))
    assert len(rows.entries[0].rejected) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1800000000000000", 1_800_000_000_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("9" * 19, None),
        ("253402300799999999", 253_402_300_799_999_999),
        ("253402300800000000", None),  # the year 10000
        ("2026-13-01T00:00:00Z", None),
    ],
)
def test_the_sent_header(given: str, expected: int | None) -> None:
    assert read_sent_at({}) is None
    if expected is not None:
        assert read_sent_at({"headrace-sent-at": given}) == expected
        return
    with pytest.raises(RequestError) as caught:
        read_sent_at({"headrace-sent-at": given})
    assert (caught.value.status, caught.value.code) == (422, "bad-sent-at")


def test_skews_are_summed_up_per_producer() -> None:
    clock_offsets = ClockOffsets()
    clock_offsets.add("a", np.array([5, -7]), np.array([0, 1, 2], dtype=np.int8))
    clock_offsets.add("a", np.array([20]), np.array([1], dtype=np.int8))
    clock_offsets.add("", np.array([], dtype=np.int64), np.array([0], dtype=np.int8))
    assert clock_offsets.snapshot() == {
        "a": {
            "events": 4, "exact": 1, "corrected": 2, "received": 1, "measured": 3,
            "skew_microseconds_min": -7, "skew_microseconds_max": 20, "skew_microseconds_mean": 6,
        },
        "": {
            "events": 1, "exact": 1, "corrected": 0, "received": 0, "measured": 0,
            "skew_microseconds_min": None, "skew_microseconds_max": None,
            "skew_microseconds_mean": None,
        },
    }  # fmt: skip
    for number in range(PRODUCERS_MAX + 10):
        clock_offsets.add(str(number), np.array([1]), np.array([0], dtype=np.int8))
    assert len(clock_offsets.snapshot()) <= PRODUCERS_MAX + 1
    assert sum(clock_offsets.totals().qualities) == 5 + PRODUCERS_MAX + 10


def _letters(gateway: Any) -> Iterator[dict[str, Any]]:
    """All dead letters, page by page: others may have left more than fit on one."""
    after: int | None = -1
    while after is not None:
        page = gateway.client.get(f"/v1/deadletters?limit=1000&after={after}").json()
        yield from page["deadletters"]
        after = page["next_after"]


def test_over_http(shared_gateway: Any, make_transaction: Any, until: Callable[..., None]) -> None:
    """A far-future event is quarantined and judged anew; a bad header is refused."""
    bad = shared_gateway.send(make_transaction(1), headers={"Headrace-Sent-At": "soon"})
    assert (bad.status_code, bad.json()["code"]) == (422, "bad-sent-at")
    answer = {"accepted": 1}
    seconds = 1
    while answer["accepted"]:  # the machine was slower than that
        seconds *= 2
        later = datetime.now(UTC) + timedelta(days=1, seconds=seconds)
        event = make_transaction(7, id="future", created_at=later.isoformat())
        answer = shared_gateway.send(event).json()
    assert (answer["accepted"], answer["quarantined"]) == (0, 1)
    (letter,) = [one for one in _letters(shared_gateway) if '"future"' in (one["raw"] or "")]
    body = {"numbers": [letter["number"]]}
    until(lambda: datetime.now(UTC) > later - timedelta(days=1))
    again = shared_gateway.client.post("/v1/deadletters/resubmit", json=body).json()
    assert (again["accepted"], again["quarantined"]) == (1, 0)
