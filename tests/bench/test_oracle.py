"""The oracle against plain Python, and its judgement of views that are wrong."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.events import Workload, tables
from bench.oracle import Difference, check_views, expected, rows_of
from bench.shop import VIEWS, write_project

from headrace.compile import load_project

pytestmark = pytest.mark.contract
EVENTS = pa.Table.from_batches(list(tables(Workload(seed=3, rate=100), 3_000)))


def _by_hand(name: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Which events each row of a view is made of, said once more without SQL."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for event in EVENTS.to_pylist():
        at = int(event["created_at"].timestamp()) * 1_000_000
        at += event["created_at"].microsecond

        def window(seconds: int, start: int) -> tuple[int, int]:
            return start, start + seconds * 1_000_000

        user, currency, status = event["user_id"], event["currency"], event["status"]
        if name in ("income", "income_by_user") and status == "paid":
            key = window(3, at - at % 3_000_000)
            groups[key if name == "income" else (*key, user)].append(event)
        if name == "events_by_status":
            groups[(*window(60, at - at % 60_000_000), status)].append(event)
        if name == "totals":
            groups[(currency,)].append(event)
        if name == "spending" and status != "failed":
            for start in (at - at % 5_000_000, at - at % 5_000_000 - 5_000_000):
                groups[(*window(10, start), user, currency)].append(event)
    return groups


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_oracle_agrees_with_plain_python(view: Any) -> None:
    wanted = {}
    for key, events in _by_hand(view.name).items():
        amounts = [event["amount"] for event in events]
        average = (sum(amounts) / len(amounts)).quantize(Decimal("0.000001"))
        values = {
            "sum": sum(amounts),
            "count": len(amounts),
            "avg": average,
            "min": min(amounts),
            "max": max(amounts),
        }
        wanted[key] = tuple(values[aggregate.function] for aggregate in view.aggregates)
    assert expected(EVENTS)[view.name] == wanted


def test_a_missing_extra_or_wrong_row_is_a_difference() -> None:
    wanted = expected(EVENTS)
    check_views(wanted, expected(EVENTS))
    for change in (
        lambda rows: rows.popitem(),
        lambda rows: rows.update({("XXX",): (Decimal(1), 1)}),
        lambda rows: rows.update({("EUR",): (rows[("EUR",)][0] + Decimal("0.01"), 1)}),
    ):
        found = dict(expected(EVENTS)["totals"])
        change(found)
        with pytest.raises(Difference, match="totals"):
            check_views(wanted, {**wanted, "totals": found})


def test_rows_compare_however_they_were_read() -> None:
    (income,) = (view for view in VIEWS if view.name == "income")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    end = start + timedelta(seconds=3)
    text = {
        "window_start": "2026-01-01T00:00:00.000000Z",
        "window_end": "2026-01-01T00:00:03.000000Z",
        "income": "70.00",
        "payments": 7,
        "average": "10.000000",
    }
    typed = {
        "window_start": start,
        "window_end": end.replace(tzinfo=None),
        "income": Decimal("70.00"),
        "payments": 7,
        "average": Decimal(10),
    }
    assert rows_of(income, [text]) == rows_of(income, [typed])
    with pytest.raises(Difference, match="two rows"):
        rows_of(income, [text, typed])


def test_the_project_is_valid(tmp_path: Path) -> None:
    write_project(tmp_path)
    project = load_project(tmp_path)
    assert {view.name for view in project.views} == {view.name for view in VIEWS}
    assert len(VIEWS) == 5
