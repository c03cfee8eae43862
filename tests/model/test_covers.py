"""Tokens of what was written: read back, merged by maximum, and refused when they are not whole."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import covers
from headrace.model.covers import Covers
from headrace.model.errors import CoversError

ENDS = st.lists(st.integers(0, 2**62), max_size=5).map(tuple)
TOKENS = st.builds(Covers, st.just("log"), st.dictionaries(st.text(max_size=8), ENDS, max_size=4))


def covered(token: Covers) -> set[tuple[str, int, int]]:
    """The last event that is covered, of each partition that has one."""
    return {(s, p, end) for s, ends in token.ends.items() for p, end in enumerate(ends) if end}


@given(TOKENS, TOKENS)
def test_a_merged_token_covers_what_both_do_and_nothing_else(one: Covers, other: Covers) -> None:
    one, other = Covers.read(one.text()), Covers.read(other.text())
    merged = Covers.read(one.merged(other).text())
    furthest: dict[tuple[str, int], int] = {}
    for stream, partition, end in covered(one) | covered(other):
        furthest[stream, partition] = max(end, furthest.get((stream, partition), 0))
    assert covered(merged) == {(*place, end) for place, end in furthest.items()}
    assert merged.merged(one) == merged


@given(TOKENS, st.data())
def test_a_changed_token_is_refused(token: Covers, data: st.DataObject) -> None:
    text = token.text()
    place = data.draw(st.integers(0, len(text) - 2))
    letter = data.draw(st.sampled_from("AZaz09-_=+ é").filter(lambda c: c != text[place]))
    with pytest.raises(CoversError):
        Covers.read(text[:place] + letter + text[place + 1 :])
    with pytest.raises(CoversError):
        Covers.read(text[:place])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no token of version 1"),
        ("2abc", "'2abc' is no token of version 1"),
        ("1", "the token '1' is damaged"),
        ("1é", "the token '1é' is damaged"),
        ("1" + "A" * 20_000, "more than 16384 characters"),
    ],
)
def test_what_is_no_token_is_told(text: str, said: str) -> None:
    with pytest.raises(CoversError, match=said):
        Covers.read(text)


def test_tokens_of_two_logs_do_not_merge() -> None:
    with pytest.raises(CoversError, match="tokens of two logs cannot be merged"):
        Covers("a", {}).merged(Covers("b", {}))


def test_the_examples_are_right() -> None:
    assert doctest.testmod(covers).failed == 0
