"""Events that do not add up: their stream stops loudly, and nothing of the tick is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.engine.counting import view_counts
from headrace.store.contract import INCIDENT

TWO = """
CREATE STREAM sound (n BIGINT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE REVISE;
CREATE STREAM broken (n BIGINT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND LATE REVISE;
CREATE MATERIALIZED VIEW all_sound AS SELECT count(*) AS events FROM sound;
CREATE MATERIALIZED VIEW all_broken AS SELECT count(*) AS events FROM broken;
"""


def test_only_the_stream_stops_and_the_others_go_on_without_a_new_event(
    make_rig: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    beside: Callable[..., Any],
    until: Callable[..., None],
) -> None:
    def miscount(view: Any, *rest: Any) -> Any:
        counted = view_counts(view, *rest)
        if view.stream.name == "broken":
            return replace(counted, applied=counted.applied - 1)
        return counted

    monkeypatch.setattr("headrace.engine.writes.view_counts", miscount)
    rig = make_rig(TWO)
    engine = rig.start()
    for stream in ("broken", "sound"):
        rig.append(stream, [{"n": n, "at": n} for n in range(3)])
    with beside(engine.run):
        try:
            until(lambda: not rig.control.pending("all_sound"))
        finally:
            engine.stop()
    assert rig.rows("all_sound") == [{"events": 3}]
    assert rig.control.violations == 1
    report = rig.control.status().views["all_broken"]
    assert report.state == "failed"
    assert report.detail.startswith(INCIDENT)
    assert (report.pending_events, report.counts.read) == (3, 0)
    assert rig.rows("all_broken") == [{"events": 0}]
