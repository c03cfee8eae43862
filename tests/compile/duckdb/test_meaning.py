"""Partial, combine and final give what Spark gives for the whole query: values and types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.spark

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    limit = 10**digits - 1
    return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-places))


FINITE = st.floats(-1e9, 1e9, allow_nan=False).map(lambda x: round(x, 6))
EVENT = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "É", None]),
        "b": st.sampled_from([True, False, None]),
        "t": st.none() | st.integers(-128, 127),
        "s": st.none() | st.integers(-(2**15), 2**15 - 1),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(10**15), 10**15),
        "f": st.none() | st.sampled_from([0.5, -1.25, 1e10, 3.0]),
        "d": st.none() | FINITE | st.sampled_from([2.675, 0.125, -0.005, 1.005, 1e17]),
        "m": decimals(16, 2),
        "n": st.none() | decimals(10, 4),
        "w": st.none() | decimals(20, 6),
        "x": st.none() | st.text("aBé'\\ ", max_size=4),
        "y": st.none() | st.dates(date(1960, 1, 1), date(2100, 1, 1)),
        "at": st.integers(0, 20).map(lambda n: EPOCH + timedelta(seconds=n)),
    }
)
TICKS = st.lists(st.lists(EVENT, min_size=1, max_size=8), min_size=1, max_size=3)
FEW = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(meaning: Any, select: str, ticks: Any) -> None:
    meaning.compare(select, ticks).check()


AGGREGATES = {
    "counts": "count(*) AS c0, count(i) AS c1, count(i, x) AS c2, count_if(i > 0) AS c3, "
    "count(DISTINCT x) AS c4, count(DISTINCT i, x) AS c5, count(DISTINCT x) FILTER (WHERE b) AS c6,"
    " count(*) FILTER (WHERE b) AS c7, count(m) AS c8, count(1) AS c9",
    "sums": "sum(t) AS s0, sum(s) AS s1, sum(i) AS s2, sum(l) AS s3, sum(f) AS s4, sum(d) AS s5, "
    "sum(m) AS s6, sum(n) AS s7, sum(w) AS s8, sum(m * n) AS s9, sum(i) FILTER (WHERE b) AS s10, "
    "sum(CASE WHEN b THEN m ELSE 0 END) AS s11",
    "averages": "avg(t) AS a0, avg(i) AS a1, avg(l) AS a2, mean(f) AS a3, avg(d) AS a4, "
    "avg(m) AS a5, avg(n) AS a6, avg(w) AS a7, avg(m) FILTER (WHERE b) AS a8, avg(m * n) AS a9",
    "extremes": "min(t) AS e0, max(i) AS e1, min(l) AS e2, max(f) AS e3, min(d) AS e4, "
    "max(m) AS e5, min(n) AS e6, max(w) AS e7, min(x) AS e8, max(x) AS e9, min(y) AS e10, "
    "max(at) AS e11, min(b) AS e12, max(x) FILTER (WHERE b) AS e13",
    "positions": "first(x) AS p0, last(x) AS p1, first(i) IGNORE NULLS AS p2, "
    "last(d IGNORE NULLS) AS p3, first_value(x, true) AS p4, last_value(m) AS p5, "
    "any_value(x) AS p6, last(x) FILTER (WHERE b) AS p7, min_by(x, i) AS p8, max_by(x, i) AS p9, "
    "max_by(m, x) FILTER (WHERE b) AS p10, min_by(y, d) AS p11, first(at) AS p12",
    "spreads": "stddev(d) AS v0, stddev_samp(m) AS v1, std(i) AS v2, stddev_pop(n) AS v3, "
    "variance(d) AS v4, var_samp(i) AS v5, var_pop(l) AS v6, var_pop(d) FILTER (WHERE b) AS v7",
    "truths": "bool_and(b) AS b0, bool_or(b) AS b1, every(i > 0) AS b2, some(b) AS b3, "
    "any(x = 'a') AS b4, bool_or(b) FILTER (WHERE i > 0) AS b5",
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_by_key(meaning: Any, name: str) -> None:
    @FEW
    @given(TICKS)
    def run(ticks: Any) -> None:
        check(meaning, f"SELECT k, {AGGREGATES[name]} FROM events GROUP BY k", ticks)

    run()


FINALS = {
    "sums": "sum(m) + sum(i) AS f0, sum(m) - 1 AS f1, sum(l) + 1 AS f2, sum(m) + 0.5 AS f3, "
    "sum(d) + sum(m) AS f4, count(*) - 1 AS f5, sum(m) + sum(n) AS f6, avg(m) - min(m) AS f7, "
    "max(t) + max(s) AS f8, max(f) + 1 AS f9, max(f) + max(f) AS f10, - sum(m) AS f11, "
    "-max(i) / 2 AS f12, sum(n) - -2 AS f13, max(t) + 1 AS f14",
    "products": "sum(m) * 2 AS f0, sum(n) * 0.19 AS f1, sum(i) * 3 AS f2, count(*) * 1.5 AS f3, "
    "avg(m) * -2 AS f4, sum(d) * 2 AS f5, max(n) * max(n) AS f6, count(*) * max(n) AS f7, "
    "sum(m) * sum(d) AS f8, max(n) * (-(2)) AS f9, max(n) * (2) AS f10, sum(m) * 1e2 AS f11",
    "quotients": "sum(m) / count(*) AS f0, sum(i) / count(*) AS f1, sum(m) / 3 AS f2, "
    "sum(m) / nullif(sum(i), 0) AS f3, try_divide(sum(m), sum(n)) AS f4, sum(n) / 0.3 AS f5, "
    "try_divide(sum(i), count(b)) AS f6, try_divide(max(m), max(n)) AS f7, avg(m) / 7 AS f8, "
    "try_divide(sum(d), sum(d)) AS f9, count(*) / 2 AS f10, try_divide(1, 0) AS f11, "
    "max(n) / nullif(max(m), 0) AS f12, try_divide(max(i), 3) AS f13, sum(m) / -3 AS f14",
    "conditions": "sum(m) > 0 AS f0, count(*) >= 2 AS f1, sum(m) BETWEEN -5 AND 1000.5 AS f2, "
    "count(*) IN (1, 2, 3) AS f3, max(x) = 'a' AS f4, sum(i) IS NULL AS f5, "
    "NOT (sum(i) > 0) AS f6, max(i) <=> max(l) AS f7, max(b) AND count(*) > 1 AS f8, "
    "max(b) OR min(b) AS f9, sum(d) < sum(m) AS f10, max(x) IS NOT NULL AS f11, "
    "max(y) > min(y) AS f12, count(*) NOT IN (1, 2) AS f13, max(n) <> max(m) AS f14, "
    "max(b) IS TRUE AS f15, avg(m) > 1 AS f16, max(x) IN ('a', NULL) AS f17",
    "choices": "CASE WHEN sum(m) > 0 THEN 'up' WHEN sum(m) < 0 THEN 'down' ELSE 'flat' END AS f0, "
    "if(count(*) > 1, sum(i), 0) AS f1, coalesce(sum(i), sum(m), 0) AS f2, "
    "nullif(sum(m), 0) AS f3, greatest(max(i), max(l), 5) AS f4, least(sum(m), 2.5) AS f5, "
    "CASE count(*) WHEN 1 THEN max(m) ELSE avg(m) END AS f6, coalesce(max(d), max(m)) AS f7, "
    "nvl(max(x), 'none') AS f8, ifnull(max(t), max(i)) AS f9, "
    "CASE WHEN count(*) > 1 THEN max(f) ELSE 1 END AS f10, greatest(max(d), max(n)) AS f11, "
    "CASE WHEN b IS NULL THEN count(*) END AS f12, coalesce(max(n), 1) AS f13",
    "functions": "round(avg(m), 2) AS f0, round(sum(d), 1) AS f1, round(avg(i)) AS f2, "
    "abs(sum(m)) AS f3, abs(min(i) + 1L) AS f4, ceil(avg(m)) AS f5, floor(avg(d)) AS f6, "
    "ceil(sum(d)) AS f7, floor(sum(n)) AS f8, round(sum(m), -2) AS f9, round(sum(l), -3) AS f10, "
    "round(max(d), 2) AS f11, abs(min(d)) AS f12, round(sum(m), 5) AS f13, floor(sum(i)) AS f14, "
    "round(min(d), 3) AS f15, ceil(max(s)) AS f16, round(max(w), 3) AS f17",
    "casts": "CAST(sum(m) AS DOUBLE) AS f0, CAST(avg(m) AS DECIMAL(20, 1)) AS f1, "
    "CAST(count(*) AS INT) AS f2, CAST(sum(m) AS BIGINT) AS f3, CAST(max(n) AS BIGINT) AS f4, "
    "CAST(count(*) AS STRING) AS f5, CAST(sum(m) AS STRING) AS f6, CAST(max(i) AS DOUBLE) AS f7, "
    "CAST(max(i) AS DECIMAL(12, 2)) AS f8, CAST(max(b) AS STRING) AS f9, "
    "CAST(avg(i) AS BIGINT) AS f10, CAST(max(f) AS DOUBLE) AS f11, sum(m)::double AS f12, "
    "CAST(avg(t) AS DECIMAL(12, 3)) AS f13, CAST(max(n) AS STRING) AS f14",
    "keys": "upper(k) AS f0, concat(k, '-', b) AS f1, k || max(x) AS f2, length(k) + 1 AS f3, "
    "concat(k, ' it''s ', count(*)) AS f4, 'back\\\\slash' AS f5, 1.50 AS f6, length(k) * sum(m) "
    "AS f7, -7 AS f8, 3000000000 AS f9, 'tab\\t' AS f10, TRUE AS f11, 1e2 AS f12, "
    "CAST(NULL AS INT) AS f13, CASE WHEN k = 'a' THEN sum(m) END AS f14, 0.05 AS f15",
}


@pytest.mark.parametrize("name", FINALS)
def test_expressions_over_aggregates(meaning: Any, name: str) -> None:
    @FEW
    @given(TICKS)
    def run(ticks: Any) -> None:
        check(meaning, f"SELECT k, b, {FINALS[name]} FROM events GROUP BY k, b", ticks)

    run()


SHAPES = {
    "having": "SELECT k, sum(m) AS total FROM events GROUP BY k "
    "HAVING total > 0 AND count(*) >= 1 AND k IS NOT NULL",
    "window": "SELECT window.start AS a, window.end AS z, window, k, avg(m) AS average "
    "FROM events GROUP BY window(at, '3 seconds'), k",
    "window start": "SELECT window, count(*) AS n FROM events "
    "GROUP BY window(at, '5 seconds', '5 seconds', '2 seconds')",
    "global": "SELECT count(*) AS n, sum(m) AS total, count(DISTINCT x) AS u, avg(i) AS a "
    "FROM events",
    "distinct": "SELECT DISTINCT k, b FROM events WHERE i > 0 OR i IS NULL",
    "per event": "SELECT upper(k) AS u, m * 2 AS twice, e.* FROM events AS e WHERE e.b",
    "key expression": "SELECT date_trunc('MINUTE', at) AS minute, length(x) % 2 AS odd, "
    "count(*) AS n FROM events GROUP BY minute, 2",
    "moments": "SELECT k, max(at) > TIMESTAMP '2026-01-01 00:00:03.5' AS late, "
    "max(y) <= DATE '2020-02-29' AS old, coalesce(max(y), DATE '2026-12-31') AS day, "
    "sum(m) / 7L AS week FROM events GROUP BY k",
    "group by all": "SELECT k, b, max(i) AS top FROM events GROUP BY ALL",
    "key of a float": "SELECT d, f, count(*) AS n FROM events GROUP BY d, f",
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_views(meaning: Any, name: str) -> None:
    @FEW
    @given(TICKS)
    def run(ticks: Any) -> None:
        check(meaning, SHAPES[name], ticks)

    run()


def test_a_global_view_of_nothing_has_one_row(meaning: Any) -> None:
    select = (
        "SELECT count(*) AS n, sum(m) AS s, avg(m) AS a, avg(i) AS b, max(x) AS x, first(x) AS f, "
        "count(DISTINCT x) AS d, stddev(d) AS v, count_if(b) AS c, count(*) + 1 AS more, "
        "try_divide(sum(m), count(*)) AS q, coalesce(sum(i), 0) AS z FROM events"
    )
    check(meaning, select, [[]])
    check(meaning, f"{select} HAVING n > 0", [[]])


def test_variance_of_close_values_far_from_zero(meaning: Any) -> None:
    """Squares of 1e7 leave no digits for a spread of 1: only a merge over means does."""
    ticks = [
        [{"m": Decimal(0), "d": 1e7 + (n * 7 + t) % 5, "at": EPOCH} for n in range(6)]
        for t in range(5)
    ]
    check(meaning, "SELECT k, var_samp(d) AS v, stddev_pop(d) AS s FROM events GROUP BY k", ticks)


def test_numbers_that_are_none(meaning: Any) -> None:
    values = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, None]
    ticks = [[{"m": Decimal(0), "d": value, "k": "a", "at": EPOCH} for value in values]] * 2
    select = (
        "SELECT k, sum(d) AS s, avg(d) AS a, min(d) AS low, max(d) AS high, "
        "count(DISTINCT d) AS u, var_pop(d) AS v, greatest(max(d), 1) AS g, max(d) > 5 AS more, "
        "round(max(d), 1) AS r FROM events GROUP BY k"
    )
    check(meaning, select, ticks)


def test_halves_round_away_from_zero(meaning: Any) -> None:
    values = ["0.005", "-0.005", "0.015", "2.675", "-2.675", "1.005", "10.125"]
    ticks = [
        [{"m": Decimal(0), "d": float(v), "n": Decimal(v), "k": v, "at": EPOCH}] for v in values
    ]
    select = (
        "SELECT k, round(max(d), 2) AS a, round(max(n), 2) AS b, max(n) / 2 AS c, "
        "CAST(max(n) AS DECIMAL(10, 2)) AS e, CAST(max(d) AS DECIMAL(10, 2)) AS g, "
        "CAST(max(d) AS INT) AS h, ceil(max(n)) AS i, floor(max(d)) AS j FROM events GROUP BY k"
    )
    check(meaning, select, ticks)
