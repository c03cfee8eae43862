"""Late events: what is set aside can be applied later, a stream that halts waits for a decision,
and heartbeats alone make windows final. For all policies and windows at once: test_truth.py."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from event_model import Event, Policy, regular, windowed

from headrace.log.contract import Advance, Group
from headrace.store.contract import ViewStatus

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MICROSECONDS = int(EPOCH.timestamp()) * 1_000_000
SECOND = 1_000_000
DELAY = 2
STREAM = """
CREATE STREAM readings (sensor STRING, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS
LATE {policy}
INTO 2 PARTITIONS;
"""
VIEWS = """
CREATE MATERIALIZED VIEW tumbling AS
SELECT window.start AS s, sensor, count(*) AS n FROM readings
WHERE sensor <> 'broken' GROUP BY window(at, '4 seconds'), sensor;

CREATE MATERIALIZED VIEW hopping AS
SELECT window.start AS s, count(*) AS n, count(DISTINCT sensor) AS sensors FROM readings
GROUP BY window(at, '6 seconds', '2 seconds');

CREATE MATERIALIZED VIEW closed AS
SELECT window.start AS s, count(*) AS n FROM readings
GROUP BY window(at, '4 seconds') EMIT ON WINDOW CLOSE;

CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n FROM readings;
"""


def rows_of(rig: Any, view: str, *columns: str) -> dict[tuple[Any, ...], Any]:
    return {
        (int((row["s"] - EPOCH).total_seconds()), *(row[c] for c in columns)): row
        for row in rig.rows(view)
    }


def append(rig: Any, events: list[tuple[int, int, str]]) -> None:
    for partition, second, sensor in events:
        at = EPOCH + dt.timedelta(seconds=second)
        rig.append("readings", [{"sensor": sensor, "at": at}], partition)


def sided(rig: Any, view: str) -> Counter[tuple[int, int, int]]:
    sql = (
        "SELECT _partition, _offset, epoch(window_start)::BIGINT AS s FROM readings_late"
        f" WHERE view = '{view}' AND _applied_in_tick IS NULL"
    )
    rows = [row for batch in rig.store.query(sql).batches for row in batch.to_pylist()]
    start = int(EPOCH.timestamp())
    return Counter((row["_partition"], row["_offset"], row["s"] - start) for row in rows)


def revised(events: list[tuple[int, int, str]]) -> dict[tuple[int], tuple[int, int]]:
    """What `hopping` has of the events of one partition when every late one is applied."""
    logged, highest = [], None
    for offset, (partition, second, _) in enumerate(events):
        watermark = None if highest is None else highest - DELAY
        logged.append(Event((partition, offset), second, watermark, {}))
        highest = max(second, highest or 0)
    find = windowed(lambda event: None, regular(6, 2))
    rows = find(logged, Policy("revise")).rows
    return {(row.span[0],): (len(row.events), row.revision) for row in rows}


def test_what_was_set_aside_can_be_applied_later(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(STREAM.format(policy="side") + VIEWS)
    rig.start()
    events = [(0, 0, "a"), (0, 20, "a"), (0, 1, "b"), (0, 1, "a"), (0, 17, "c")]
    append(rig, events)
    rig.settle()
    assert sided(rig, "tumbling") == Counter({(0, 2, 0): 1, (0, 3, 0): 1})
    assert rows_of(rig, "tumbling", "sensor")[(0, "a")]["n"] == 1
    with monkeypatch.context() as patched:  # retention took an event
        patched.setattr(rig.engine._reader, "oldest", lambda stream: (3, 0))
        rig.control.apply_late("readings", "tumbling")
        rig.engine.decide_what_was_asked()
    assert sided(rig, "tumbling") == Counter({(0, 2, 0): 1})
    rig.control.apply_late("readings", None)
    rig.engine.decide_what_was_asked()
    assert not sided(rig, "tumbling")
    assert not sided(rig, "hopping")
    found = rows_of(rig, "hopping")
    assert {key: (row["n"], row["revision"]) for key, row in found.items()} == revised(events)
    assert found[(0,)]["sensors"] == 2
    row = rows_of(rig, "tumbling", "sensor")[(0, "a")]
    assert (row["n"], row["revision"]) == (2, 1)
    totals = rig.engine._views["tumbling"].totals
    assert (totals.read, totals.applied, totals.sided) == (5, 5, 0)
    rig.control.apply_late("readings", "tumbling")  # there is nothing left to apply
    tick = rig.store.last_tick()
    rig.engine.decide_what_was_asked()
    assert rig.store.last_tick() == tick
    for view in ("tumbling", "hopping"):  # which honours that they were applied
        rig.control.rebuild(view)
    rig.engine.rebuild_what_was_asked()
    rig.settle()
    assert rows_of(rig, "hopping") == found
    assert not sided(rig, "tumbling")
    assert rig.engine._views["tumbling"].totals == totals


def test_what_is_set_aside_keeps_its_clocks_and_columns_of_any_name(
    make_rig: Callable[..., Any],
) -> None:
    sql = """
    CREATE STREAM calls (view STRING, at TIMESTAMP NOT NULL, sent_at TIMESTAMP)
    WATERMARK at LATE SIDE SENT sent_at;
    CREATE MATERIALIZED VIEW hourly AS
    SELECT window.start AS s, count(*) AS n FROM calls GROUP BY window(at, '1 hour');
    """
    rig = make_rig(sql)
    rig.start()
    clock = {"_skew": 5, "_quality": 1}
    for hour in (0, 5, 1):
        at = EPOCH + dt.timedelta(hours=hour)
        rig.append("calls", [{"view": "v", "at": EPOCH, "sent_at": at, "_event_time": at, **clock}])
    rig.settle()
    assert [row["n"] for row in rig.rows("hourly")] == [1, 1]
    (batch,) = rig.store.query("SELECT * FROM calls_late").batches
    (row,) = batch.to_pylist()
    assert (row["view"], row["event_view"], row["_offset"]) == ("hourly", "v", 2)
    assert (row["_event_time"], row["_skew"]) == (EPOCH + dt.timedelta(hours=1), 5)
    assert row["_quality"] == "corrected"


def test_a_stream_that_halts_waits_for_a_decision(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="halt") + VIEWS)
    told = []
    rig.recorder.on_moved = lambda: told.append(rig.control.standstill("tumbling"))
    rig.start()
    append(rig, [(0, 0, "a"), (0, 20, "a"), (0, 1, "b"), (0, 1, "c"), (0, 1, "d"), (0, 21, "a")])
    append(rig, [(1, 30, "a")])
    rig.settle()
    assert {v.next_offsets for v in rig.engine._views.values()} == {(2, 1)}  # the other went on
    rig.stop()
    rig.start()  # nobody decided, so it halts at the same place again
    for offset, decision in ((2, "apply"), (3, "side"), (4, "drop")):
        rig.settle()
        view = rig.engine._views["tumbling"]
        assert view.next_offsets == (offset, 1)
        assert f"event {offset} of partition 0 is late" in view.halt.reason
        report = rig.control.status().views["tumbling"]
        assert (report.state, report.detail) == ("halted", view.halt.reason)
        assert rig.control.standstill("tumbling") == ViewStatus("halted", view.halt.reason)
        assert told[-1] == rig.control.standstill("tumbling")  # who waits is told in time
        places, recorded = rig.control.resume("readings", decision)
        assert places == [(0, offset)]
        assert not recorded.done()
        assert rig.control.standstill("tumbling") is None  # it goes on from here
        rig.engine.decide_what_was_asked()
        assert recorded.done()
        assert rig.control.standstill("tumbling") is None
    rig.settle()
    found = rows_of(rig, "tumbling", "sensor")
    totals = rig.engine._views["tumbling"].totals
    assert rig.engine._views["tumbling"].next_offsets == (6, 1)
    assert (found[(0, "b")]["n"], found[(0, "b")]["revision"]) == (1, 1)
    assert not {(0, "c"), (0, "d")} & set(found)
    assert (totals.late, totals.sided, totals.dropped) == (1, 1, 1)
    assert sided(rig, "tumbling") == Counter({(0, 3, 0): 1})
    dropped = rig.store.late("readings", 10).dropped
    assert [(d.view, d.events, d.reason) for d in dropped if d.view == "tumbling"] == [
        ("tumbling", 1, "decided")
    ]
    rig.control.rebuild("tumbling")
    rig.engine.rebuild_what_was_asked()
    rig.settle()  # a replay honours the decisions
    assert rows_of(rig, "tumbling", "sensor") == found
    assert rig.engine._views["tumbling"].totals == totals


def test_a_heartbeat_alone_makes_windows_final(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + VIEWS)
    rig.recorder.views = frozenset(["closed"])
    rig.start()
    append(rig, [(0, 1, "a"), (1, 9, "a")])
    rig.settle()
    assert rows_of(rig, "closed") == {}
    held = rig.engine._views["closed"].held_back
    assert (held.partition, held.maximum) == (0, MICROSECONDS + SECOND)
    maximum = MICROSECONDS + 12 * SECOND
    for partition in (0, 1):
        advance = Advance("readings", partition, maximum, "heartbeat")
        rig.writer.append(Group(advances=(advance,)))
    tick = rig.store.last_tick()
    assert rig.engine.step().events == 0
    assert rig.store.last_tick() == tick + 1
    assert {key: row["final"] for key, row in rows_of(rig, "closed").items()} == {(0,): True}
    assert {k[0]: r["final"] for k, r in rows_of(rig, "tumbling", "sensor").items()} == {
        0: True,
        8: False,
    }
    (change,) = rig.recorder.changes
    assert change.before.num_rows == 0
    assert [row["n"] for row in change.after.to_pylist()] == [1]
    assert rig.engine.step() is None
    append(rig, [(0, 2, "a")])  # late now, by the heartbeat
    rig.settle()
    assert rows_of(rig, "closed")[(0,)]["revision"] == 1
