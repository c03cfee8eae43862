"""`make lines`: what counts as a line of code."""

from __future__ import annotations

from bench.lines import count_lines

SOURCE = '''
"""A module's docstring
counts for nothing."""

# nor does a comment


def add(
    one: int,  # a comment beside code
    other: int,
) -> int:
    """Nor a function's."""
    text = """a string
    that is no docstring counts

    with all its lines"""
    "and so does one that is said after the first statement"
    return one + other + len(text)


class Nothing:
    """Nor a class's."""
'''


def test_comments_docstrings_and_blank_lines_do_not_count() -> None:
    assert count_lines(SOURCE) == 4 + 4 + 1 + 1 + 1
    assert count_lines("") == 0
