"""A view is rebuilt beside itself: it goes on serving, and its copy takes its place in one tick."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.log.embedded.retention_floor import read_retention_floor
from headrace.model.errors import ChangesExpiredError, RequestError
from headrace.model.settings import EngineSettings, LogSettings
from headrace.store.contract import ViewStatus, copy_name

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SMALL = EngineSettings(tick_rows_max=10)
STREAM = """
CREATE STREAM readings (sensor STRING, value BIGINT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS
LATE {policy}
PARTITION BY (sensor)
INTO 2 PARTITIONS
RETAIN 1 HOUR;
"""
COUNTED = """
CREATE MATERIALIZED VIEW counted AS SELECT sensor, count(*) AS n FROM readings GROUP BY sensor;
"""
KINDS = """
CREATE MATERIALIZED VIEW tumbling AS
SELECT window.start AS s, sensor, count(*) AS n FROM readings
GROUP BY window(at, '4 seconds'), sensor;

CREATE MATERIALIZED VIEW sessions AS
SELECT session_window.start AS s, sensor, count(*) AS n, count(DISTINCT value) AS v FROM readings
GROUP BY session_window(at, '3 seconds'), sensor;

CREATE MATERIALIZED VIEW lines AS SELECT sensor, value FROM readings;
"""
WINDOWS = ("tumbling", "sessions")


def append(rig: Any, *events: tuple[int, str], partition: int = 0, value: int = 1) -> None:
    rows = [
        {"sensor": sensor, "value": value, "at": EPOCH + dt.timedelta(seconds=second)}
        for second, sensor in events
    ]
    rig.append("readings", rows, partition)


def begin(rig: Any, view: str, **how: bool) -> None:
    rig.control.rebuild(view, **how)
    rig.engine.rebuild_what_was_asked()


def finish(rig: Any, view: str) -> Any:
    rig.settle()
    found = rig.control.rebuilt(view)
    assert found.state == "done", found
    return found


def sorted_rows(rig: Any, view: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rig.rows(view))


def test_a_view_serves_and_goes_on_while_its_copy_is_built(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED, engine=SMALL)
    rig.recorder.views = frozenset(["counted"])
    rig.start()
    for _ in range(4):
        append(rig, *[(1, "a")] * 10)
    rig.settle()
    plan = rig.engine._ticker._computer._shared._plan
    begin(rig, "counted")
    assert rig.control.rebuilt("counted").state == "building"
    with pytest.raises(RequestError, match="has 0 of 40 events") as caught:
        rig.control.rebuild("counted")
    assert (caught.value.status, caught.value.code) == (409, "rebuild-running")
    append(rig, *[(1, "a")] * 5)
    before = len(rig.recorder.changes)
    rig.engine.step()
    assert sorted_rows(rig, "counted") == [("a", 45)]  # its news come first
    assert [c.after.to_pylist()[0]["n"] for c in rig.recorder.changes[before:]] == [45]
    found = rig.control.status().views["counted"]
    assert (found.state, found.pending_events) == ("live", 0)
    assert (found.rebuild.events, found.rebuild.events_total) == (10, 45)
    assert list(rig.store.catalog()) == ["counted"]
    rig.engine._advance_retention_floor()
    assert read_retention_floor(rig.settings.log_directory) == {"readings": (10, 0)}
    found = finish(rig, "counted")
    assert (found.tick, found.followed, found.events) == (rig.store.last_tick(), True, 45)
    assert rig.control.status().views["counted"].rebuild is None
    assert sorted_rows(rig, "counted") == [("a", 45)]
    append(rig, (1, "b"))
    rig.settle()
    assert sorted_rows(rig, "counted") == [("a", 45), ("b", 1)]
    assert [c.after.to_pylist()[0]["n"] for c in rig.recorder.changes[before:]] == [45, 1]
    assert rig.store.changes("counted", 0, 99)[-1].after.to_pylist() == [{"sensor": "b", "n": 1}]
    assert rig.engine._ticker._computer._shared._plan is plan
    assert rig.recorder.expired == []
    begin(rig, "counted")  # and once more
    finish(rig, "counted")


@pytest.mark.parametrize("policy", ["revise", "side", "drop"])
def test_late_events_count_in_the_copy_as_they_did(
    make_rig: Callable[..., Any], policy: str, seed: int
) -> None:
    """What was set aside is applied at places in the midst of the log, before the rebuild and while
    the copy is being built."""
    rig = make_rig(STREAM.format(policy=policy) + COUNTED + KINDS, engine=SMALL)
    rig.start()
    chance = random.Random(seed)
    second = 0

    def more(count: int) -> None:
        nonlocal second
        for _ in range(count):
            second += chance.randrange(3)
            at = max(0, second - chance.choice([0, 0, 0, 1, 4, 9]))
            partition = chance.randrange(2)
            append(rig, (at, "ab"[partition]), partition=partition, value=chance.randrange(4))

    def late() -> None:
        """It moves time on, and brings an event for the first window."""
        nonlocal second
        second += 20
        append(rig, (second, "a"), (1, "a"))

    def apply() -> None:
        rig.control.apply_late("readings", None)
        rig.engine.decide_what_was_asked()

    for count in (15, 12):
        more(count)
        late()
        rig.settle()
        apply()
    more(8)
    late()
    rig.settle()
    views = ("counted", "lines", *WINDOWS)
    for view in views:
        begin(rig, view)
    assert rig.engine.step() is not None
    apply()  # the copies are not as far yet
    more(4)
    late()
    assert rig.engine.step() is not None
    apply()  # at the place where the copies will swap
    rows = {view: sorted_rows(rig, view) for view in views}
    assert len(rig.store.copies()) == len(views)
    for view in views:
        tick = finish(rig, view).tick
        assert tick not in {change.tick for change in rig.store.changes(view, 0, 99)}
    totals = {view: rig.engine._views[view].totals for view in views}
    sided = {view: rig.store.late_side_output("readings", view, 99) for view in WINDOWS}
    assert rows == {view: sorted_rows(rig, view) for view in views}
    assert bool(totals["tumbling"].late) == (policy != "drop")
    for view in views:  # an equal one, with nothing to apply meanwhile
        begin(rig, view)
        assert finish(rig, view).followed
    assert rows == {view: sorted_rows(rig, view) for view in views}
    assert totals == {view: rig.engine._views[view].totals for view in views}
    assert sided == {view: rig.store.late_side_output("readings", view, 99) for view in WINDOWS}
    assert [change.tick for change in rig.store.changes("lines", 0, 99)] == sorted(
        {change.tick for change in rig.store.changes("counted", 0, 99)}
    )


def test_what_the_log_no_longer_has_is_named(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(
        STREAM.format(policy="revise") + COUNTED, log=LogSettings(segment_bytes_max=4_096)
    )
    rig.start()
    for _ in range(20):
        append(rig, *[(1, "a")] * 20)
    rig.settle()
    rig.engine._advance_retention_floor()
    append(rig, *[(1, "a")] * 20)
    rig.writer.retain(time.time_ns() // 1_000 + 36_000_000_000)
    rig.settle()
    oldest = rig.reader.oldest("readings")
    assert oldest[0] > 0
    with pytest.raises(RequestError) as caught:
        rig.control.rebuild("counted")
    assert (caught.value.status, caught.value.code) == (409, "log-too-short")
    said = f"partition 0 begins at offset {oldest[0]}, and the view at 0"
    assert said in caught.value.message
    assert "--from-oldest" in caught.value.hint
    assert rig.control.rebuilt("counted") is None
    begin(rig, "counted", from_oldest=True)
    finish(rig, "counted")
    assert sorted_rows(rig, "counted") == [("a", 420 - oldest[0])]
    begin(rig, "counted")  # it begins there now
    finish(rig, "counted")


def test_retention_that_comes_between_fails_the_rebuild_alone(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED)
    rig.start()
    append(rig, (1, "a"))
    rig.settle()
    rig.control.rebuild("counted")
    with monkeypatch.context() as patched:
        patched.setattr(rig.engine._reader, "oldest", lambda stream: (0, 7))
        rig.engine.rebuild_what_was_asked()
    found = rig.control.rebuilt("counted")
    assert found.state == "failed"
    assert "partition 1 begins at offset 7, and the view at 0" in found.detail
    assert sorted_rows(rig, "counted") == [("a", 1)]


def test_a_changed_definition_is_told_as_changes_where_columns_allow_it(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED)
    rig.recorder.views = frozenset(["counted"])
    rig.start()
    append(rig, (1, "a"), (2, "b"))
    rig.settle()
    tick = rig.store.last_tick()

    def redefine(old: str, new: str) -> None:
        rig.stop()
        rig.redefine(STREAM.format(policy="revise") + COUNTED.replace(old, new))
        rig.start()
        assert rig.control.status().views["counted"].state == "changed"
        append(rig, (3, "a"))  # which no view takes before the copy does
        assert rig.control.standstill("counted") is not None
        begin(rig, "counted")
        assert rig.control.standstill("counted") is None  # it will go on

    redefine("FROM readings", "FROM readings WHERE sensor <> 'b'")
    assert finish(rig, "counted").followed
    (change,) = rig.store.changes("counted", tick, 9)
    assert rig.recorder.changes[-1] == change
    assert sorted(change.before.column("sensor").to_pylist()) == ["a", "b"]
    assert change.after.to_pylist() == [{"sensor": "a", "n": 2}]
    assert rig.control.status().views["counted"].state == "live"
    tick = rig.store.last_tick()
    redefine("count(*) AS n", "count(*) AS n, sum(value) AS v")
    assert finish(rig, "counted").followed is False
    assert rig.recorder.expired == ["counted"]
    assert sorted_rows(rig, "counted") == [("a", 3, 3), ("b", 1, 1)]
    with pytest.raises(ChangesExpiredError):
        rig.store.changes("counted", tick, 9)


def test_after_a_crash_the_copy_goes_on(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED, engine=SMALL)
    rig.start()
    append(rig, *[(1, "a")] * 35)
    rig.settle()
    begin(rig, "counted")
    rig.engine.step()
    rig.lose_store()
    rig.start()
    found = rig.control.rebuilt("counted")
    assert (found.state, found.events) == ("building", 10)
    finish(rig, "counted")
    assert rig.store.copies() == {}
    assert sorted_rows(rig, "counted") == [("a", 35)]


def test_copies_that_cannot_go_on_are_dropped_at_the_start(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED + KINDS, engine=SMALL)
    rig.start()
    append(rig, *[(1, "a")] * 35)
    rig.settle()
    begin(rig, "counted", hold=True)  # nobody will come and prove it
    begin(rig, "tumbling")
    rig.store.set_status(copy_name("tumbling"), ViewStatus("catching_up"))  # not wholly begun
    begin(rig, "lines")  # another definition by then
    begin(rig, "sessions")  # defined no more
    rig.lose_store()
    text = KINDS.replace("sensor, value FROM", "sensor FROM")
    text = (
        text[: text.index("CREATE MATERIALIZED VIEW sessions")]
        + text[text.index("CREATE MATERIALIZED VIEW lines") :]
    )
    rig.redefine(STREAM.format(policy="revise") + COUNTED + text)
    rig.start()
    assert rig.store.copies() == {}
    assert rig.control.rebuilt("counted") is None
    rig.settle()
    assert sorted_rows(rig, "counted") == [("a", 35)]


def test_a_copy_that_is_held_waits_until_somebody_says_so(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + COUNTED)
    rig.start()
    append(rig, (1, "a"))
    rig.settle()
    with pytest.raises(RequestError, match="no copy of view counted waits"):
        rig.control.swap("counted")
    with pytest.raises(RequestError, match="no copy of view counted is being built"):
        rig.control.cancel("counted")
    for way in ("cancel", "swap"):
        begin(rig, "counted", hold=True)
        rig.settle()
        append(rig, (2, "a"))
        rig.settle()
        assert rig.control.rebuilt("counted").state == "held"
        assert (
            rig.store.copies()["counted"].next_offsets
            == rig.store.catalog()["counted"].next_offsets
        )
        getattr(rig.control, way)("counted")
        rig.engine.rebuild_what_was_asked()
        rig.settle()
        state = "done" if way == "swap" else "cancelled"
        assert rig.control.rebuilt("counted").state == state
        assert rig.store.copies() == {}
    assert sorted_rows(rig, "counted") == [("a", 3)]


def test_a_copy_that_fails_leaves_the_view_as_it_was(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(dead_letters_in_a_row_max=3)
    rig = make_rig(STREAM.format(policy="revise") + COUNTED, engine=settings)
    rig.start()
    append(rig, *[(1, "a")] * 8, value=0)
    rig.settle()
    with monkeypatch.context() as patched:
        patched.setattr("headrace.store.store.compare", None)  # the swap fails
        begin(rig, "counted")
        rig.settle()
        assert rig.control.rebuilt("counted").state == "failed"
        assert rig.store.copies() == {}
    rig.stop()
    rig.redefine(STREAM.format(policy="revise") + COUNTED.replace("count(*)", "sum(1 DIV value)"))
    rig.start()
    begin(rig, "counted")
    rig.settle()
    found = rig.control.rebuilt("counted")
    assert (found.state, "events failed" in found.detail) == ("failed", True)
    assert rig.store.copies() == {}
    assert rig.store.dead_letters(None, 9) == []
    rig.stop()
    rig.redefine(STREAM.format(policy="revise") + COUNTED)
    rig.start()
    append(rig, (1, "a"))
    rig.settle()
    assert sorted_rows(rig, "counted") == [("a", 9)]


def test_a_copy_halts_where_its_view_does(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="halt") + KINDS)
    rig.start()
    append(rig, (0, "a"), (20, "a"), (1, "b"), (21, "a"))
    rig.settle()
    begin(rig, "tumbling")
    finish(rig, "tumbling")
    view = rig.engine._views["tumbling"]
    assert (view.next_offsets, view.halt.offset) == ((2, 0), 2)
    begin(rig, "tumbling", hold=True)
    rig.settle()
    assert "event 2 of partition 0 is late" in rig.control.rebuilt("tumbling").detail
    rig.control.resume("readings", "apply")
    rig.engine.decide_what_was_asked()
    rig.settle()
    rig.control.swap("tumbling")
    rig.engine.rebuild_what_was_asked()
    finish(rig, "tumbling")
    assert [row["n"] for row in rig.rows("tumbling")] == [1, 2, 1]
    assert rig.engine._views["tumbling"].totals.late == 1
