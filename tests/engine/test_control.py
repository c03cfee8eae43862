"""What is asked of the engine by those who serve, while ticks run on another thread."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from holes import CountedLog

from headrace.engine.control import EngineControl
from headrace.engine.rebuilds import RebuildAsked
from headrace.engine.views import Halt
from headrace.engine.watermarks import Watermark
from headrace.model.errors import QueryError
from headrace.store.contract import CatalogEntry, Counts, ViewStatus

LOG = CountedLog()


def _control(catalog: dict[str, CatalogEntry]) -> EngineControl:
    reader: Any = SimpleNamespace(ends=lambda stream: (LOG.offset(9),), rows_of=LOG.rows_of)
    store: Any = SimpleNamespace(catalog=lambda: catalog, last_tick=lambda: 3)
    return EngineControl(reader, store)


def _halted() -> Any:
    return SimpleNamespace(
        name="hourly",
        stream=SimpleNamespace(name="readings"),
        is_running=False,
        next_offsets=(7,),
        status=ViewStatus("live", ""),
        halt=Halt(0, 7, "event 7 is late"),
        watermark_microseconds=None,
        totals=Counts(),
        held_back=Watermark(None),
        lookups=frozenset(),
    )


def _failed() -> Any:
    view = _halted()
    view.halt, view.status = None, ViewStatus("failed", "of its own accord")
    return view


def test_a_late_event_is_decided_once_however_many_ticks_come_between() -> None:
    control = _control({})
    control.set_views([_halted()], 1)
    places, recorded = control.resume("readings", "apply")
    assert places == [(0, 7)]
    control.set_views([_halted()], 2)  # a tick of another stream, before the decision is taken
    with pytest.raises(QueryError, match="no view of stream readings is halted"):
        control.resume("readings", "drop")
    ((decisions, answer),) = control.take_decisions()
    assert [(d.offset, d.decision) for d in decisions] == [(7, "apply")]
    assert answer is recorded


def test_a_view_stands_still_until_something_is_done_about_it() -> None:
    control = _control({})
    assert control.standstill("hourly") is None  # not open yet
    control.set_views([_halted()], 1)
    assert control.standstill("hourly") == ViewStatus("halted", "event 7 is late")
    control.resume("readings", "apply")
    control.set_views([_halted()], 2)  # before the decision is taken
    assert control.standstill("hourly") is None
    control.take_decisions()
    control.set_views([_failed()], 3)
    assert control.standstill("hourly") == ViewStatus("failed", "of its own accord")
    control.rebuild("hourly")
    control.set_views([_failed()], 4)
    assert control.standstill("hourly") is None
    assert control.take_rebuilds() == [("hourly", RebuildAsked())]
    control.set_rebuild("hourly", "cancelled")
    assert control.standstill("hourly") == ViewStatus("failed", "of its own accord")


def test_whoever_asked_may_leave_before_the_answer() -> None:
    """To answer somebody who has gone must not fail in the tick's thread."""
    control = _control({})
    control.set_views([_halted()], 1)
    _, recorded = control.resume("readings", "side")
    assert not recorded.cancel()
    recorded.set_result(None)


def test_how_far_a_view_is_follows_the_store_from_the_moment_it_has_the_view() -> None:
    """Also before views are opened, while a new one is, and while one begins anew."""
    catalog: dict[str, CatalogEntry] = {}
    control = _control(catalog)
    assert (control.pending("hourly"), control.watermark("hourly")) == (0, None)
    live = ViewStatus("live", "")
    entry = CatalogEntry(
        "hourly", "readings", "f", "SELECT", live, {0: LOG.offset(7)}, 5_000_000, Counts()
    )
    catalog["hourly"] = entry
    assert (control.pending("hourly"), control.watermark("hourly")) == (2, 5_000_000)
    assert (control.status().tick, control.status().views) == (3, {})
    control.set_views([_halted()], 3)
    catalog["hourly"] = replace(entry, next_offsets={0: 0}, watermark_microseconds=None)
    assert (control.pending("hourly"), control.watermark("hourly")) == (9, None)
