"""The proof of the demo must itself be right, and must see every kind of difference."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.check import Expected, Row, expected_rows, first_difference, view_rows
from headrace.demo.shop import USERS

START = datetime(2026, 1, 1, tzinfo=UTC)
Sent = tuple[int, str, int]  # user's digit, status, microseconds after START


def _write(folder: Path, events: list[Sent]) -> list[Path]:
    files = [folder / "sent-0.csv", folder / "sent-1.csv"]
    lines: list[list[str]] = [[], []]
    for index, (digit, status, after) in enumerate(events):
        moment = START + timedelta(microseconds=after)
        user = USERS[digit]
        text = f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"
        lines[index % 2].append(f"{user.id},{user.amount:.2f},{status},{text}\n")
    for file, held in zip(files, lines, strict=True):
        file.write_text("".join(held))
    return files


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from(["paid", "paid", "failed", "refunded"]),
            st.integers(-20_000_000, 20_000_000),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_recomputation_is_a_plain_sum(events: list[Sent]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = expected_rows(_write(Path(folder), events))
    assert expected.events == len(events)
    paid = [event for event in events if event[1] == "paid"]
    assert expected.paid == len(paid)
    groups: dict[tuple[datetime, str], list[int]] = {}
    for digit, _, after in paid:
        start = START + timedelta(seconds=3 * (after // 3_000_000))
        groups.setdefault((start, USERS[digit].id), []).append(10 * digit or 100)
    found = expected.views["income_by_user"]
    assert len(found) == len(groups)
    for (start, user), amounts in groups.items():
        row = found[(f"{start:%Y-%m-%dT%H:%M:%S.%f}Z", user)]
        assert (row.income, row.payments) == (sum(amounts), len(amounts))
        assert row.window_end == f"{start + timedelta(seconds=3):%Y-%m-%dT%H:%M:%S.%f}Z"
    for (start,), row in expected.views["income"].items():
        mine = [
            a
            for (s, _), given in groups.items()
            if f"{s:%Y-%m-%dT%H:%M:%S.%f}Z" == start
            for a in given
        ]
        assert (row.income, row.payments) == (sum(mine), len(mine))
        exact = Fraction(sum(mine), len(mine)) * 10**6
        assert abs(Fraction(row.average) * 10**6 - exact) <= Fraction(1, 2)


@pytest.fixture
def expected(tmp_path: Path) -> Expected:
    events = [(d, "paid", 1_000_000 * s) for d in range(10) for s in (0, 1, 4)]
    return expected_rows(_write(tmp_path, events))


def _as_answered(view: str, expected: Expected) -> list[dict[str, Any]]:
    return [
        {
            "window_start": key[0],
            "window_end": row.window_end,
            "income": str(row.income),
            "payments": row.payments,
            "average": str(row.average),
            **({"user_id": key[1]} if len(key) > 1 else {}),
        }
        for key, row in expected.views[view].items()
    ]


def test_equal_rows_are_exact(expected: Expected) -> None:
    for view in ("income", "income_by_user"):
        found = view_rows(_as_answered(view, expected), by_user=view == "income_by_user")
        assert first_difference(view, expected.views[view], found) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"income": Decimal("0.01")},
        {"payments": 1_000},
        {"average": Decimal("0.000001")},
        {"window_end": "2026-01-01T00:00:04.000000Z"},
    ],
)
def test_every_column_counts(expected: Expected, wrong: dict[str, Any]) -> None:
    rows: dict[tuple[str, ...], Row] = dict(expected.views["income"])
    key = sorted(rows)[1]
    rows[key] = replace(rows[key], **wrong)
    difference = first_difference("income", expected.views["income"], rows)
    assert difference is not None
    assert difference.startswith("income, window 2026-01-01T00:00:03.000000Z: expected income ")


def test_missing_and_surplus_rows_are_differences(expected: Expected) -> None:
    rows = dict(expected.views["income_by_user"])
    key, row = min(rows.items())
    del rows[key]
    assert "has no such row" in str(first_difference("v", expected.views["income_by_user"], rows))
    rows = {**expected.views["income_by_user"], ("2026", "nobody"): row}
    assert "nothing was paid" in str(first_difference("v", expected.views["income_by_user"], rows))


def test_a_row_twice_is_refused(expected: Expected) -> None:
    rows = _as_answered("income", expected)
    with pytest.raises(ValueError, match="two rows for"):
        view_rows([*rows, rows[0]], by_user=False)
