"""Late events under every policy, against a model of a few lines: rows, revisions, counts and what
is set aside are the same for any tick boundaries, also after a crash and a rebuild."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.log.contract import Advance, Group
from headrace.model.settings import EngineSettings

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


@dataclass
class Model:
    """What the definitions say, event by event in log order."""

    size: int
    slide: int
    policy: str
    horizon: int | None = None
    rows: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)
    revisions: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    aside: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    applied: int = 0
    late: int = 0
    set_aside: int = 0
    high: dict[int, int] = field(default_factory=dict)

    def take(self, partition: int, offset: int, second: int, key: tuple[Any, ...]) -> None:
        watermark = self.high[partition] - DELAY if partition in self.high else None
        self.high[partition] = max(second, self.high.get(partition, second))
        first = second - second % self.slide
        starts = [
            s for s in range(first - self.size, first + 1, self.slide) if s + self.size > second
        ]
        is_applied = is_late = False
        for start in sorted(starts):
            end = start + self.size
            late = watermark is not None and end <= watermark
            beyond = late and (
                self.policy in ("side", "drop")
                or (self.horizon is not None and end <= watermark - self.horizon)
            )
            is_late = is_late or late
            if beyond:
                self.aside[(partition, offset, start)] += 1
                continue
            is_applied = True
            self.rows.setdefault((start, *key), []).append(key[0] if key else "")
            self.revisions[(start, *key)] += late
        self.applied += is_applied
        self.late += is_applied and is_late
        self.set_aside += not is_applied


def rows_of(rig: Any, view: str, *columns: str) -> dict[tuple[Any, ...], Any]:
    return {
        (int((row["s"] - EPOCH).total_seconds()), *(row[c] for c in columns)): row
        for row in rig.rows(view)
    }


def append(rig: Any, events: list[tuple[int, int, str]]) -> None:
    for partition, second, sensor in events:
        at = EPOCH + dt.timedelta(seconds=second)
        rig.append("readings", [{"sensor": sensor, "at": at}], partition)


EVENTS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.sampled_from(["a", "b", "broken"])),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    events=EVENTS,
    policy=st.sampled_from(["revise", "side", "drop", "revise within interval 3 seconds"]),
    data=st.data(),
)
def test_policies_equal_the_model(
    make_rig: Callable[..., Any],
    events: list[tuple[int, int, str]],
    policy: str,
    data: st.DataObject,
) -> None:
    rows_max = data.draw(st.integers(1, 9), label="rows per tick")
    sql = STREAM.format(policy=policy) + VIEWS
    rig = make_rig(sql, EngineSettings(tick_rows_max=rows_max, tick_growth_max=1, cores=1))
    rig.start()
    append(rig, events)
    if data.draw(st.booleans(), label="crash"):
        rig.engine.step()
        rig.lose_store()
        rig.start()
    rig.settle()
    check(rig, events, policy)
    if data.draw(st.booleans(), label="rebuild"):
        for view in ("tumbling", "hopping", "closed", "total"):
            rig.control.rebuild(view)
        rig.engine.rebuild_what_was_asked()
        rig.settle()
        check(rig, events, policy)
    rig.stop()


def check(rig: Any, events: list[tuple[int, int, str]], policy: str) -> None:
    word, horizon = policy.split()[0], 3 if "within" in policy else None
    models = {
        "tumbling": Model(4, 4, word, horizon),
        "hopping": Model(6, 2, word, horizon),
        "closed": Model(4, 4, word, horizon),
    }
    offsets: Counter[int] = Counter()
    filtered = 0
    for partition, second, sensor in events:
        offset = offsets[partition]
        offsets[partition] += 1
        for name, model in models.items():
            if name == "tumbling" and sensor == "broken":
                filtered += 1
                model.high[partition] = max(second, model.high.get(partition, second))
                continue
            model.take(partition, offset, second, (sensor,) if name == "tumbling" else ())
    watermark = min(models["closed"].high.values()) - DELAY
    for name, model in models.items():
        found = rows_of(rig, name, *(("sensor",) if name == "tumbling" else ()))
        wanted = set(model.rows)
        if name == "closed":
            wanted = {key for key in wanted if key[0] + 4 <= watermark}
        assert set(found) == wanted, name
        for key, row in found.items():
            assert row["n"] == len(model.rows[key])
            assert row["revision"] == model.revisions[key]
            assert row["final"] == (key[0] + model.size <= watermark)
        totals = rig.engine._views[name].totals
        read = len(events)
        assert (totals.read, totals.applied, totals.late) == (read, model.applied, model.late)
        aside = totals.dropped if word == "drop" else totals.sided
        assert aside == model.set_aside
        assert totals.filtered == (filtered if name == "tumbling" else 0)
        assert totals.is_conserved
        if word != "drop" and policy != "revise":
            assert sided(rig, name) == model.aside
    assert rig.rows("total") == [{"n": len(events)}]
    progress = rig.store.streams()["readings"]
    assert progress.totals.advanced == progress.totals.accepted == len(events)


def sided(rig: Any, view: str) -> Counter[tuple[int, int, int]]:
    sql = (
        "SELECT _partition, _offset, epoch(window_start)::BIGINT AS s FROM readings_late"
        f" WHERE view = '{view}' AND _applied_in_tick IS NULL"
    )
    rows = [row for batch in rig.store.query(sql).batches for row in batch.to_pylist()]
    start = int(EPOCH.timestamp())
    return Counter((row["_partition"], row["_offset"], row["s"] - start) for row in rows)


def test_what_was_set_aside_can_be_applied_later(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="side") + VIEWS)
    rig.start()
    events = [(0, 0, "a"), (0, 20, "a"), (0, 1, "b"), (0, 1, "a"), (0, 17, "c")]
    append(rig, events)
    rig.settle()
    assert sided(rig, "tumbling") == Counter({(0, 2, 0): 1, (0, 3, 0): 1})
    assert rows_of(rig, "tumbling", "sensor")[(0, "a")]["n"] == 1
    rig.control.apply_late("readings", None)
    rig.engine.decide_what_was_asked()
    assert not sided(rig, "tumbling")
    assert not sided(rig, "hopping")
    model = Model(6, 2, "revise")
    for offset, (partition, second, _) in enumerate(events):
        model.take(partition, offset, second, ())
    found = rows_of(rig, "hopping")
    assert {key: row["n"] for key, row in found.items()} == {
        key: len(members) for key, members in model.rows.items()
    }
    assert {key: row["revision"] for key, row in found.items()} == {
        key: model.revisions[key] for key in model.rows
    }
    assert found[(0,)]["sensors"] == 2
    row = rows_of(rig, "tumbling", "sensor")[(0, "a")]
    assert (row["n"], row["revision"]) == (2, 1)
    totals = rig.engine._views["tumbling"].totals
    assert (totals.read, totals.applied, totals.sided) == (5, 5, 0)
    rig.control.apply_late("readings", "tumbling")  # there is nothing left to apply
    tick = rig.store.last_tick()
    rig.engine.decide_what_was_asked()
    assert rig.store.last_tick() == tick


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


@pytest.mark.parametrize("decision", ["apply", "side", "drop"])
def test_a_stream_that_halts_waits_for_a_decision(
    make_rig: Callable[..., Any], decision: str
) -> None:
    rig = make_rig(STREAM.format(policy="halt") + VIEWS)
    rig.start()
    append(rig, [(0, 0, "a"), (0, 20, "a"), (0, 1, "b"), (0, 21, "a"), (1, 30, "a")])
    rig.settle()
    view = rig.engine._views["tumbling"]
    assert view.next_offsets == (2, 1)  # the other partition went on
    assert "event 2 of partition 0 is late" in view.halt.reason
    report = rig.control.status().views["tumbling"]
    assert report.state == "halted"
    assert "event 2 of partition 0" in report.detail
    assert {v.next_offsets for v in rig.engine._views.values()} == {(2, 1)}
    rig.stop()
    rig.start()  # nobody decided, so it halts at the same place again
    rig.settle()
    assert rig.control.resume("readings", decision) == [(0, 2)]
    rig.engine.decide_what_was_asked()
    rig.settle()
    found = rows_of(rig, "tumbling", "sensor")
    totals = rig.engine._views["tumbling"].totals
    assert rig.engine._views["tumbling"].next_offsets == (4, 1)
    if decision == "apply":
        assert (found[(0, "b")]["n"], found[(0, "b")]["revision"]) == (1, 1)
        assert totals.late == 1
    else:
        assert (0, "b") not in found
        assert (totals.sided, totals.dropped) == ((1, 0) if decision == "side" else (0, 1))
    assert bool(sided(rig, "tumbling")) == (decision == "side")
    dropped = rig.store.late("readings", 10).dropped
    assert [(d.view, d.events, d.reason) for d in dropped if d.view == "tumbling"] == (
        [("tumbling", 1, "decided")] if decision == "drop" else []
    )
    rig.control.rebuild("tumbling")
    rig.engine.rebuild_what_was_asked()
    rig.settle()  # a replay honours the decision
    assert rows_of(rig, "tumbling", "sensor") == found
    assert rig.engine._views["tumbling"].totals == totals


def test_a_heartbeat_alone_makes_windows_final(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(STREAM.format(policy="revise") + VIEWS)
    rig.recorder.views = frozenset(["closed"])
    rig.start()
    append(rig, [(0, 1, "a"), (1, 9, "a")])
    rig.settle()
    assert rows_of(rig, "closed") == {}
    assert rig.engine._views["closed"].held_back_by == "partition 0"
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
