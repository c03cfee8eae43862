"""Which groupings share a pass, and what the pass of one alone looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.model.plan import Partial
from headrace.model.types import DataType
from headrace.spark.aggregations import Grouping
from headrace.spark.passes import SHARED_SLOTS_MAX, build_pass, in_passes

SEVERAL_TEXTS = [f"concat(t, '{n}')" for n in range(5)]
TYPES = {
    "a": DataType("BIGINT"),
    "b": DataType("BIGINT"),
    "t": DataType("STRING"),
    "u": DataType("STRING"),
    **{text: DataType("STRING") for text in SEVERAL_TEXTS},
}
ROW_VIEWS = """
CREATE STREAM events (id BIGINT NOT NULL, x DOUBLE, t STRING);
CREATE MATERIALIZED VIEW kept AS SELECT id, 1 / x AS y, t FROM events WHERE x > 0;
CREATE MATERIALIZED VIEW counts AS SELECT t, count(*) AS n, sum(x) AS s FROM events GROUP BY t;
"""


def grouping(view: str, key: str, *inputs: tuple[str, str], where: str | None = None) -> Grouping:
    partials = tuple(Partial(f"p{n}", f, sql, "") for n, (f, sql) in enumerate(inputs))
    return Grouping(view, None, where, (("k", key),), partials)


def test_narrow_groupings_share_a_pass() -> None:
    first = grouping("first", "a", ("sum", "a"))
    second = grouping("second", "t", ("sum", "b"), ("max", "b"))
    assert in_passes([first, second], TYPES) == [[first, second]]


def test_a_wide_grouping_has_a_pass_of_its_own() -> None:
    narrow = [grouping(f"narrow{n}", "a", ("sum", "a")) for n in range(40)]
    inputs = [("count", f"a + {n}") for n in range(SHARED_SLOTS_MAX)]
    types = {**TYPES, **{text: DataType("BIGINT") for _, text in inputs}}
    wide = [grouping(f"wide{n}", "a", *inputs) for n in range(2)]
    found = in_passes([wide[0], *narrow, wide[1]], types)
    assert found == [[wide[0]], narrow, [wide[1]]]


def test_no_pass_of_several_is_wider_than_its_bound() -> None:
    counted = [grouping(f"long{n}", "a", *[("sum", "a"), ("sum", "b")]) for n in range(3)]
    texts = [
        grouping(f"text{n}", "t", *[("count", text) for text in SEVERAL_TEXTS]) for n in range(3)
    ]
    assert in_passes([*counted, *texts], TYPES) == [counted, texts]


def test_what_cannot_be_hashed_stays_apart() -> None:
    counted = grouping("counted", "a", ("count", "t"))
    sorted_ = grouping("sorted", "a", ("max", "t"))
    assert in_passes([counted, sorted_], TYPES) == [[counted], [sorted_]]


def test_rows_have_passes_of_their_own() -> None:
    rows = [Grouping(f"rows{n}", None, None, (("k", "a"),), (), is_single=True) for n in range(2)]
    counted = grouping("counted", "a", ("count", "a"))
    assert in_passes([rows[0], counted, rows[1]], TYPES) == [[rows[0]], [counted], [rows[1]]]


def test_a_grouping_alone_needs_no_structs() -> None:
    alone = grouping("alone", "a", ("sum", "b"), where="t = 'x'")
    sql = build_pass([alone], TYPES).sql("leaf")
    assert "struct" not in sql
    assert sql.count("t = 'x'") == 1


def test_rows_that_meet_a_where_are_selected_and_the_others_counted(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 / x fails for the events that the WHERE keeps out: they are never asked for it."""
    monkeypatch.setattr("headrace.engine.shared_plan.ROWS_TIMES_VIEWS_MAX", 0)
    rig = make_rig(ROW_VIEWS)
    rig.start()
    values = [0.0, 2.0, None, 4.0, -1.0, 2.0]
    rig.append("events", [{"id": n, "x": x, "t": "t"} for n, x in enumerate(values)])
    rig.settle()
    assert rig.store.dead_letters(None, 10) == []
    found = sorted((row["id"], row["y"], row["t"]) for row in rig.rows("kept"))
    assert found == [(1, 0.5, "t"), (3, 0.25, "t"), (5, 0.5, "t")]
    totals = rig.store.catalog()["kept"].totals
    assert (totals.applied, totals.filtered) == (3, 3)
    assert [(row["n"], row["s"]) for row in rig.rows("counts")] == [(6, 7.0)]
