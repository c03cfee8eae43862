"""Expected rows beside found ones: how they are read, matched and told apart."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import KitError
from headrace.model.types import parse_type
from headrace.testing.rows import RowReader, compare

pytestmark = pytest.mark.unit

COLUMNS = {
    "amount": "DECIMAL(18,2)",
    "at": "TIMESTAMP",
    "day": "DATE",
    "mean": "DOUBLE",
    "n": "BIGINT",
    "tags": "ARRAY<STRUCT<name: STRING, weight: DECIMAL(4,1)>>",
    "raw": "BINARY",
    "ok": "BOOLEAN",
}
READER = RowReader("v", {name: parse_type(text) for name, text in COLUMNS.items()})
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "written", "read"),
    [
        ("amount", "10", Decimal("10.00")),
        ("amount", 2.5, Decimal("2.50")),
        ("amount", Decimal("1.20"), Decimal("1.20")),
        ("at", "2026-01-31T13:00:00+01:00", MOMENT),
        ("at", MOMENT, MOMENT),
        ("at", MOMENT.replace(tzinfo=None), MOMENT),
        ("day", "2026-01-31", date(2026, 1, 31)),
        ("day", date(2026, 1, 31), date(2026, 1, 31)),
        ("mean", 1, 1.0),
        ("mean", float("inf"), float("inf")),
        ("n", None, None),
        ("tags", [{"name": "a", "weight": "1"}], [{"name": "a", "weight": Decimal("1.0")}]),
        ("raw", b"ab", b"ab"),
        ("ok", True, True),
    ],
)
def test_a_value_is_read_by_the_type_of_its_column(column: str, written: Any, read: Any) -> None:
    assert READER.read({column: written}) == {column: read}


def test_what_is_no_value_is_kept_to_be_compared() -> None:
    expected = READER.read({"mean": pytest.approx(0.3), "n": 1})
    assert compare([expected], [{"mean": 0.1 + 0.2, "n": 1}], ()).is_equal
    assert not compare([expected], [{"mean": 0.31, "n": 1}], ()).is_equal


def test_a_row_that_no_view_could_have_is_refused() -> None:
    for row, said in (
        ({"amount": "1.234"}, "amount"),
        ({"n": 1.5}, "column n"),
        ({"at": 17}, "column at"),
        ({"ok": "yes"}, "column ok"),
        ({}, "a mapping from column to value"),
        (["n"], "a mapping from column to value"),
        ({"N": 1}, "no column 'N'"),
    ):
        with pytest.raises(KitError, match=said):
            READER.read(row)


def test_rows_with_one_key_differ_and_the_others_are_missing_or_unexpected() -> None:
    found = [{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "c", "n": 3}]
    expected = [{"k": "b", "n": 5}, {"k": "c"}, {"k": "d", "n": 1}]
    comparison = compare(expected, found, ["k"])
    assert comparison.differing == [({"k": "b", "n": 5}, {"k": "b", "n": 2})]
    assert comparison.missing == [{"k": "d", "n": 1}]
    assert comparison.unexpected == [{"k": "a", "n": 1}]
    assert comparison.told() == [
        "  differs    k='b'",
        "                 n: expected 5, is 2",
        "  missing    k='d', n=1",
        "  unexpected k='a', n=1",
    ]


def test_without_keys_the_row_with_most_equal_values_is_meant() -> None:
    found = [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "c": 8}]
    comparison = compare([{"a": 1, "b": 2, "c": 4}], found, ())
    assert comparison.differing == [({"a": 1, "b": 2, "c": 4}, found[0])]


def test_a_nan_is_a_nan() -> None:
    nan = READER.read({"mean": float("nan")})
    assert compare([nan], [{"mean": float("nan")}], ()).is_equal
    assert not compare([nan], [{"mean": 0.0}], ()).is_equal


def test_of_very_many_missing_rows_the_first_are_told_apart() -> None:
    expected = [{"k": n, "n": 0} for n in range(150)]
    comparison = compare(expected, [{"k": n, "n": 1} for n in range(150)], ["k"])
    assert [row["k"] for row, _ in comparison.differing] == list(range(100))
    assert [row["k"] for row in comparison.missing] == list(range(100, 150))
    assert [row["k"] for row in comparison.unexpected] == list(range(100, 150))
    assert compare(expected[::-1], expected, ["k"]).is_equal


def test_long_lists_are_cut() -> None:
    told = compare([], [{"n": n} for n in range(30)], ()).told()
    assert len(told) == 21
    assert told[-1] == "  unexpected and 10 more"


_ROWS = st.lists(
    st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.integers(0, 2)}), max_size=8
)


@given(found=_ROWS, data=st.data())
def test_rows_that_say_less_than_others_never_take_what_these_need(
    found: list[Mapping[str, int]], data: st.DataObject
) -> None:
    """Each found row is expected by some of its columns, in any order: all of them are there."""
    expected = [
        {name: row[name] for name in data.draw(st.sets(st.sampled_from("ab"), min_size=1))}
        for row in data.draw(st.permutations(found))
    ]
    assert compare(expected, found, ()).is_equal
    assert not compare([*expected, {"a": 0}], found, ()).is_equal
    if found:
        assert not compare(expected[1:], found, ()).is_equal
