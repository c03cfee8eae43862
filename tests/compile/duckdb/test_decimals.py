"""Decimal division in DuckDB against Python's exact decimals, at every size of number."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile.duckdb.decimals import divide_decimals, round_to_tens, unscaled
from headrace.compile.duckdb.spark_types import average_type, decimal, divided_type

EXACT = Context(prec=120, rounding=ROUND_HALF_UP)
TYPES = [((28, 2), (20, 0)), ((28, 2), (10, 4)), ((10, 4), (3, 1)), ((38, 6), (20, 0))]


def numbers(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """As many with few digits as with many, and the edges of 64-bit arithmetic."""
    sizes = st.integers(1, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    edges = [n for n in (2 * 10**18, 2 * 10**18 - 1, 2 * 10**14) if n < 10**precision]
    return (sizes | st.sampled_from(edges or [1])).map(lambda n: Decimal(n).scaleb(-scale, EXACT))


def divisors(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Any but 0, and every other one such that quotients often lie halfway."""
    halving = st.integers(0, precision - 1).map(lambda n: Decimal(2 * 10**n).scaleb(-scale, EXACT))
    return halving | numbers(precision, scale).filter(lambda n: n != 0)


@pytest.mark.parametrize(("left", "right"), TYPES)
def test_division_rounds_half_up(left: tuple[int, int], right: tuple[int, int]) -> None:
    left_type, right_type = decimal(*left), decimal(*right)
    result = divided_type(left_type, right_type)
    sql = divide_decimals("a", left_type, "b", right_type, result)
    unit = Decimal(1).scaleb(-result.scale, EXACT)
    with duckdb.connect() as connection:
        query = f"SELECT TRY({sql}) FROM (SELECT ?::{left_type} AS a, ?::{right_type} AS b)"

        @settings(max_examples=40, deadline=None)
        @given(numbers(*left), divisors(*right))
        def run(a: Decimal, b: Decimal) -> None:
            expected: Decimal | None = EXACT.divide(a, b).quantize(unit, context=EXACT)
            if expected is not None and len(expected.as_tuple().digits) > result.precision:
                expected = None
            found = connection.execute(query, [f"{a:f}", f"{b:f}"]).fetchone()
            assert found == (expected,)

        run()


@pytest.mark.parametrize(("left", "right"), TYPES)
def test_division_at_every_power_of_ten(left: tuple[int, int], right: tuple[int, int]) -> None:
    """Halves and overflows hide at the edges: every power of ten, and just beside it."""
    left_type, right_type = decimal(*left), decimal(*right)
    result = divided_type(left_type, right_type)
    sql = divide_decimals("a", left_type, "b", right_type, result)
    above = {n * 10**k + d for k in range(left[0]) for n in (1, 5, 8, 9) for d in (-1, 0, 1)}
    below = {n * 10**k for k in range(right[0]) for n in (1, 2, 7)} | {3}
    pairs = [(a, b) for a in above for b in below if 0 < a < 10 ** left[0]]
    pairs += [(-a, b) for a, b in pairs[::7]]
    rows = [(Decimal(a).scaleb(-left[1]), Decimal(b).scaleb(-right[1])) for a, b in pairs]
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.decimal128(*left)),
            "b": pa.array([b for _, b in rows], pa.decimal128(*right)),
        }
    )
    with duckdb.connect() as connection:
        connection.register("pairs", table)
        found = connection.execute(f"SELECT a, b, TRY({sql}) FROM pairs").fetchall()
    unit = Decimal(1).scaleb(-result.scale, EXACT)
    wrong = []
    for a, b, quotient in found:
        expected = EXACT.divide(a, b).quantize(unit, context=EXACT)
        fits = len(expected.as_tuple().digits) <= result.precision
        if quotient != (expected if fits else None):
            wrong.append((a, b, quotient, expected))
    assert wrong == []


@settings(max_examples=50, deadline=None)
@given(numbers(28, 6))
def test_a_decimal_as_a_whole_number(value: Decimal) -> None:
    query = f"SELECT {unscaled('a', decimal(28, 6))}, {unscaled('w', decimal(38, 6))} FROM "
    query += "(SELECT ?::DECIMAL(28,6) AS a, ?::DECIMAL(38,6) AS w)"
    whole = int(value.scaleb(6, EXACT))
    assert duckdb.execute(query, [f"{value:f}", f"{value:f}"]).fetchone() == (whole, whole)


def test_rounding_to_tens() -> None:
    for text, expected in (("1250.00", 1300), ("-1250.00", -1300), ("1249.99", 1200), ("0.01", 0)):
        sql = round_to_tens("a", decimal(18, 2), 2, decimal(17, 0))
        query = f"SELECT {sql} FROM (SELECT '{text}'::DECIMAL(18,2) AS a)"
        found = duckdb.execute(query).fetchone()
        assert found == (Decimal(expected),)


def test_what_does_not_fit_is_not_promised() -> None:
    wide = decimal(38, 10)
    assert divide_decimals("a", wide, "b", wide, divided_type(wide, wide)) is None
    assert round_to_tens("a", wide, 30, decimal(38, 0)) is None
    assert average_type(decimal(38, 6), 38) == decimal(38, 10)
