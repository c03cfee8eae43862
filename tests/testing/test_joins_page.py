"""The examples of docs/explanation/joins.md: each section with definitions is one project of the
test kit, and its tables are compared with what is there."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pages import Block, cells, sections

from headrace.testing import Project

SECTIONS = sections("explanation/joins.md")
DAY = dt.date(2026, 3, 1)
TO = re.compile(r"To the (table|stream) `(\w+)`.*:$")
HOLDS = re.compile(r"`(\w+)` holds[^`]*:$")
TABLES_OF = {  # how many tables of each section are compared
    "Tables": 1,
    "The order of changes": 2,
    "An event finds a row": 1,
    "The row is missing": 2,
}


def shown(value: Any) -> str:
    """A value as the page writes it."""
    if isinstance(value, dt.datetime):
        assert value.astimezone(dt.UTC).date() == DAY
        return value.astimezone(dt.UTC).strftime("%H:%M:%S")
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return "" if value is None else str(value)


def run(project: Project, blocks: Sequence[Block]) -> int:
    """How many tables were compared. Every ndjson block is one request."""
    compared = 0
    for block in blocks:
        if block.kind == "ndjson":
            given = TO.search(block.introduction)
            assert given is not None, block
            take = project.upsert if given[1] == "table" else project.send
            assert take(given[2], block.text.splitlines()).quarantined == 0
        elif block.kind == "table" and (held := HOLDS.search(block.introduction)) is not None:
            header, _, *lines = block.text.splitlines()
            found = project.query(f"SELECT * FROM {held[1]}")
            assert all(list(row) == cells(header) for row in found), block
            rows = sorted([shown(value) for value in row.values()] for row in found)
            assert rows == sorted(map(cells, lines)), block
            compared += 1
    return compared


@pytest.mark.parametrize(("heading", "tables"), TABLES_OF.items())
def test_the_page_tells_the_truth(make: Callable[..., Project], heading: str, tables: int) -> None:
    blocks = SECTIONS[heading]
    sql = "\n".join(block.text for block in blocks if block.kind == "sql")
    project = make(sql=sql, now=dt.datetime.combine(DAY, dt.time(12), dt.UTC))
    assert run(project, blocks) == tables  # a table that is not compared proves nothing


def test_no_section_is_left_out() -> None:
    assert set(SECTIONS) == set(TABLES_OF)
