"""Decimal sums through their halves are exact, whatever the values."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.definitions import Column, Stream
from headrace.model.plan import Partial
from headrace.model.types import parse_type
from headrace.spark.aggregations import Grouping
from headrace.spark.decimal_sums import narrow
from headrace.spark.leaf import _unscaled, unscaled_column

AMOUNT = Column("Amount", parse_type("DECIMAL(18,2)"))
STREAM = Stream("s", (AMOUNT, Column("wide", parse_type("DECIMAL(19,2)"))))
DECIMALS = st.decimals("-9999999999999999.99", "9999999999999999.99", places=2)


@given(st.lists(st.one_of(st.none(), DECIMALS), max_size=30), st.integers(0, 5))
def test_halves_sum_up_to_the_decimal(values: list[Decimal | None], skipped: int) -> None:
    array = pa.array(values, pa.decimal128(18, 2)).slice(min(skipped, len(values)))
    whole = [value for value in _unscaled(array).to_pylist() if value is not None]
    half = 10**9
    highs = [abs(v) // half * (1 if v >= 0 else -1) for v in whole]  # DIV and % as in Spark
    lows = [v - h * half for v, h in zip(whole, highs, strict=True)]
    grouping = Grouping("v", None, None, (), (Partial("total", "sum", "amount", ""),))
    narrowed = narrow(grouping, STREAM)
    assert [p.input for p in narrowed.grouping.partials] == [
        "`_unscaled_Amount` DIV 1000000000L",
        "`_unscaled_Amount` % 1000000000L",
    ]
    table = pa.table(
        {
            "total__high": pa.array([sum(highs) if whole else None], pa.int64()),
            "total__low": pa.array([sum(lows) if whole else None], pa.int64()),
            "_rows": [len(whole)],
        }
    )
    widened = narrowed.widen(table)
    assert widened.schema.names == ["total", "_rows"]
    assert widened.schema.field("total").type == pa.decimal128(28, 2)
    kept = [v for v in array.to_pylist() if v is not None]
    assert widened.column("total").to_pylist() == [sum(kept, Decimal(0)) if kept else None]


def test_what_does_not_fit_stays_a_decimal() -> None:
    assert unscaled_column(STREAM.columns[1]) is None
    partials = (
        Partial("a", "sum", "wide", ""),
        Partial("b", "sum", "amount * 2", ""),
        Partial("c", "min", "amount", ""),
    )
    grouping = Grouping("v", None, None, (), partials)
    assert narrow(grouping, STREAM).grouping == grouping
