"""Whatever is sent: an answer, never a 500, and every record accounted for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
events = st.fixed_dictionaries(
    {"text": st.text(max_size=10) | json_values}, optional={"weight": json_values}
)
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
line = st.one_of(
    events.map(lambda event: json.dumps(event).encode()),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")),
    st.binary(max_size=30),
)
bodies = st.one_of(
    st.lists(line, max_size=12).map(b"\n".join),
    st.lists(events | json_values, max_size=12).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
)
content_types = st.sampled_from(
    [
        "application/json",
        "application/x-ndjson",
        "application/vnd.apache.arrow.stream",
        "application/cloudevents+json",
        "application/cloudevents-batch+json",
        "text/html",
    ]
)


@pytest.fixture(scope="module")
def counted(shared_gateway: Any) -> Iterator[tuple[Any, dict[str, int]]]:
    """What the answers said in all must be what the gateway counted."""
    before = shared_gateway.counts("notes")
    sums = {"accepted": 0, "quarantined": 0}
    yield shared_gateway, sums
    after = shared_gateway.counts("notes")
    assert after["appended"] - before["appended"] == sums["accepted"]
    assert after["dead"] - before["dead"] == sums["quarantined"]
    assert after["received"] == after["appended"] + after["retried"] + after["dead"]


@given(body=bodies, content_type=content_types, is_zipped=st.booleans())
@settings(max_examples=250, deadline=None)
def test_any_body(
    counted: tuple[Any, dict[str, int]], body: bytes, content_type: str, is_zipped: bool
) -> None:
    gateway, sums = counted
    headers = {"content-type": content_type}
    if is_zipped:
        headers["content-encoding"] = "gzip"
        body = gzip.compress(body)
    answer: httpx.Response = gateway.send(body, "notes", headers)
    assert answer.status_code in (200, 400, 413, 415, 422), answer.text
    if answer.status_code == 200 and answer.headers.get("headrace-retried") != "true":
        outcome = answer.json()
        sums["accepted"] += outcome["accepted"]
        sums["quarantined"] += outcome["quarantined"]
        assert len(outcome["errors"]) == outcome["quarantined"]


def _is_line(raw: bytes) -> bool:
    """A body that begins like a compressed one is refused as a whole."""
    return bool(raw.strip()) and b"\n" not in raw and not raw.startswith((GZIP, ZSTD))


@given(lines=st.lists(line.filter(_is_line), min_size=1))
@settings(max_examples=100, deadline=None)
def test_every_line_is_accepted_or_quarantined(
    counted: tuple[Any, dict[str, int]], lines: list[bytes]
) -> None:
    gateway, sums = counted
    answer = gateway.send(b"\n".join(lines), "notes", {"content-type": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text
    outcome = answer.json()
    sums["accepted"] += outcome["accepted"]
    sums["quarantined"] += outcome["quarantined"]
    expected = len([raw for raw in lines if raw.strip(b" \t\r\n")])
    if not lines[0].startswith(b"\xef\xbb\xbf"):
        assert outcome["accepted"] + outcome["quarantined"] == expected
