"""Random expressions over aggregates: whatever is accepted gives Spark's value and type."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException

pytestmark = pytest.mark.spark

EXAMPLES = int(os.environ.get("MEANING_EXAMPLES", "6"))  # more, and other ones, when asked
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LEAVES = st.sampled_from(
    [
        "sum(m)",
        "count(*)",
        "max(i)",
        "avg(n)",
        "max(n)",
        "sum(l)",
        "sum(d)",
        "min(t)",
        "avg(m)",
        "avg(i)",
        "max(w)",
        "count(DISTINCT i)",
        "sum(i)",
        "min(f)",
        "2",
        "-3",
        "0.5",
        "1.25",
        "10",
        "1e1",
        "0",
        "3000000000",
        "7L",
    ]
)
DIVISORS = st.sampled_from(["3", "-7", "0.3", "count(*)", "nullif(sum(i), 0)", "nullif(max(n), 0)"])
TYPES = st.sampled_from(["DOUBLE", "BIGINT", "DECIMAL(20, 3)", "DECIMAL(30, 1)", "INT"])


def _numbers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    condition = st.one_of(
        st.tuples(inner, st.sampled_from(["<", ">=", "=", "<>", "<=>"]), inner).map(" ".join),
        inner.map(lambda a: f"{a} IS NOT NULL"),
        st.tuples(inner, inner, inner).map(lambda t: f"{t[0]} BETWEEN {t[1]} AND {t[2]}"),
        st.tuples(inner, inner).map(lambda t: f"NOT ({t[0]} IN ({t[1]}, 5))"),
    )
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, DIVISORS).map(lambda t: f"({t[0]} / {t[1]})"),
        two.map(lambda t: f"try_divide({t[0]}, {t[1]})"),
        two.map(lambda t: f"coalesce({t[0]}, {t[1]})"),
        two.map(lambda t: f"greatest({t[0]}, {t[1]})"),
        two.map(lambda t: f"least({t[0]}, {t[1]})"),
        two.map(lambda t: f"nullif({t[0]}, {t[1]})"),
        inner.map(lambda a: f"-({a})"),
        inner.map(lambda a: f"abs({a})"),
        inner.map(lambda a: f"ceil({a})"),
        st.tuples(inner, st.integers(-1, 4)).map(lambda t: f"round({t[0]}, {t[1]})"),
        st.tuples(inner, TYPES).map(lambda t: f"CAST({t[0]} AS {t[1]})"),
        st.tuples(condition, inner, inner).map(
            lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"
        ),
        st.tuples(condition, inner).map(lambda t: f"if({t[0]}, {t[1]}, NULL)"),
    )


NUMBERS = st.recursive(LEAVES, _numbers, max_leaves=5)
EVENT = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b"]),
        "t": st.none() | st.integers(-9, 9),
        "i": st.none() | st.integers(-1000, 1000),
        "l": st.none() | st.integers(-(10**6), 10**6),
        "f": st.none() | st.sampled_from([0.5, -1.25, 3.0]),
        "d": st.none() | st.integers(-1000, 1000).map(lambda n: n / 4),
        "m": st.integers(-(10**6), 10**6).map(lambda n: Decimal(n).scaleb(-2)),
        "n": st.none() | st.integers(-(10**6), 10**6).map(lambda n: Decimal(n).scaleb(-4)),
        "w": st.none() | st.integers(-(10**8), 10**8).map(lambda n: Decimal(n).scaleb(-6)),
        "at": st.just(EPOCH),
    }
)


def test_random_expressions(meaning: Any) -> None:
    accepted: list[str] = []
    refused: list[str] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="MEANING_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(NUMBERS, min_size=8, max_size=8, unique=True),
        st.lists(st.lists(EVENT, min_size=1, max_size=5), min_size=1, max_size=3),
    )
    def run(expressions: list[str], ticks: Any) -> None:
        chosen = []
        for text in expressions:
            reason = meaning.refusal(f"SELECT k, {text} AS e FROM events GROUP BY k")
            (refused if reason else chosen).append(text)
        outputs = ", ".join(f"{text} AS e{n}" for n, text in enumerate(chosen))
        if not chosen:
            return
        try:
            compared = meaning.compare(f"SELECT k, {outputs} FROM events GROUP BY k", ticks)
        except PySparkException:
            return  # Spark refuses these values: nothing to compare with
        accepted.extend(chosen)
        compared.check()

    run()
    assert len(accepted) > len(refused) / 2, refused
