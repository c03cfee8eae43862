"""What `headrace tail` writes for one change, for programs and for people."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from headrace.cli import tail
from headrace.client import Change, Freshness

MOMENT = datetime(2026, 1, 1, 2, 0, 3, tzinfo=timezone(timedelta(hours=2)))
CHANGE = Change(
    view="income",
    tick=7,
    before=[],
    after=[{"user": "ann", "n": 1}],
    freshness=Freshness(7, MOMENT, datetime(2026, 1, 1, 0, 0, 3, 500, UTC), 0),
)


def test_moments_are_written_as_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    tail._show(CHANGE, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["freshness"]["committed_at"] == "2026-01-01T00:00:03.000000Z"
    assert document["freshness"]["complete_up_to"] == "2026-01-01T00:00:03.000500Z"


def test_other_values_are_written_as_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"at": MOMENT, "raw": b"x", "bad": [float("nan"), float("-inf")], "sum": Decimal("1E+2")}
    tail._show(replace(CHANGE, after=[row]), as_json=True)
    assert json.loads(capsys.readouterr().out)["after"] == [
        {
            "at": "2026-01-01T00:00:03.000000Z",
            "raw": "eA==",
            "bad": ["NaN", "-Infinity"],
            "sum": "100",
        }
    ]


def test_ticks_and_rows_go_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    tail._show(CHANGE, as_json=False)
    assert capsys.readouterr().out == "tick 7\n+ user=ann  n=1\n"
