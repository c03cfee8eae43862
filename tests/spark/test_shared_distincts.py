"""Distinct values under several filters are found by one grouping and are those of each alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.spark.aggregations import VALUE, Grouping
from headrace.spark.prepared_plan import PreparedPlan
from headrace.spark.shared_distincts import share_distincts

VIEW = """
CREATE STREAM bids (k INT, v INT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE DROP;
CREATE MATERIALIZED VIEW counts AS
SELECT window.start AS s,
       count(DISTINCT 12 DIV v) FILTER (WHERE v > 0) AS low,
       count(DISTINCT 12 DIV v) FILTER (WHERE v > 3 AND k > 1) AS high,
       count(DISTINCT 12 DIV v) FILTER (WHERE v IS NULL) AS none,
       count(DISTINCT k) AS every,
       count(DISTINCT k) FILTER (WHERE CASE WHEN v > 4 THEN true END) AS some
FROM bids WHERE k <> 9 GROUP BY window(at, '10 seconds');
"""


def alone(name: str, value: str) -> Grouping:
    return Grouping("v", name, f"({value}) IS NOT NULL", (("k", "k"), (VALUE, value)), ())


@pytest.mark.parametrize(
    "text",
    [
        "CASE WHEN a THEN x ELSE y END",
        "CASE WHEN a THEN x WHEN b THEN y END",
        "CASE WHEN a THEN x END + CASE WHEN b THEN x END",
        "CASE a WHEN 1 THEN x END",
        "CASE WHEN a THEN y END",
    ],
)
def test_what_has_another_value_stays_alone(text: str) -> None:
    groupings = [alone("d0", "x"), alone("d1", text)]
    assert share_distincts(groupings, None) == (groupings, [])


def test_a_nested_case_belongs_to_the_condition() -> None:
    text = "CASE WHEN CASE WHEN b THEN 1 END = 1 THEN x END"
    rest, (shared,) = share_distincts([alone("d0", "x"), alone("d1", text)], "w")
    assert rest == []
    assert shared.grouping.where == "(w) AND (x) IS NOT NULL"
    assert shared.grouping.keys == (("k", "k"), (VALUE, "x"))
    assert [p.input for p in shared.grouping.partials] == [
        "true",
        "coalesce((CASE WHEN b THEN 1 END = 1), false)",
    ]


def test_a_large_tick_counts_the_same(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 DIV 0 fails: where no filter is met the value is not asked for."""
    monkeypatch.setattr("headrace.engine.shared_plan.ROWS_TIMES_VIEWS_MAX", 0)
    made: list[PreparedPlan] = []
    run = PreparedPlan.run
    monkeypatch.setattr(
        PreparedPlan, "run", lambda self, *rest: made.append(self) or run(self, *rest)
    )
    rig = make_rig(VIEW)
    rig.start()
    values = [0, 1, 2, 3, 4, 5, 6, 7, None]
    rig.append("bids", [{"k": k, "v": v, "at": 0} for k in (1, 2, 9) for v in values])
    rig.settle()
    assert rig.store.dead_letters(None, 10) == []
    (row,) = rig.rows("counts")
    assert [row[name] for name in ("low", "high", "none", "every", "some")] == [6, 3, 0, 2, 2]
    (plan,) = set(made)
    assert sum(len(single.layouts) for _, single in plan._passes) == 3
