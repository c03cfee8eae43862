"""Every window has a kind, which says so in its shape and in the names of its tables."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from change_cases import table_view
from store_cases import HOPPING, TUMBLING, bound_view

from headrace.kinds.calculator import Calculator
from headrace.kinds.choice import make_kind
from headrace.kinds.contract import FINAL
from headrace.model.plan import CalendarWindow, EventGroup, SessionWindow, Sliding
from headrace.model.tables import VIEW

KINDS: tuple[tuple[Any, str], ...] = (
    (None, "grouped"),
    (TUMBLING, "grouped"),
    (HOPPING, "grouped"),
    (CalendarWindow("month", "UTC"), "grouped"),
    (SessionWindow(5), "session"),
    (EventGroup("a", "b", 5), "event_group"),
    (Sliding(("k0",), ()), "sliding"),
)


@pytest.mark.parametrize(("window", "name"), KINDS)
def test_every_window_has_a_kind(window: Any, name: str) -> None:
    finals = (("k", "STRING", '"k0"'),)
    view = bound_view("any", keys={"k0": "STRING"}, window=window, finals=finals)
    kind = make_kind(view, Calculator(duckdb.connect()))
    assert kind.shape.rpartition("_")[0] == name
    assert not kind.feed_is_rows
    assert [column.name for column in kind.public][1:] == (
        [] if window is None else ["revision", FINAL]
    )
    for table in kind.tables:
        assert table.name.startswith(kind.shape)
        assert (table.columns[0].name, table.key[0]) == (VIEW, VIEW)
    assert kind.tables[0].key[1:] == tuple(column.name for column in kind.key)


def test_no_two_windows_have_one_shape() -> None:
    shapes = set()
    for window, _ in KINDS:
        view = bound_view("any", keys={"k0": "STRING"}, window=window)
        shapes.add(make_kind(view, Calculator(duckdb.connect())).shape)
    assert len(shapes) == len(KINDS)


def test_a_table_has_a_kind_whose_shape_follows_from_what_it_means() -> None:
    calculator = Calculator(duckdb.connect())
    kinds = [
        make_kind(view, calculator)
        for view in (
            table_view(),
            table_view("other"),
            table_view(is_sequenced=False),
            table_view(has_history=True),
        )
    ]
    assert [kind.shape.rpartition("_")[0] for kind in kinds] == ["table"] * 4
    assert kinds[0].shape == kinds[1].shape
    assert len({kind.shape for kind in kinds}) == 3
    assert [len(kind.tables) for kind in kinds] == [3, 3, 3, 4]
