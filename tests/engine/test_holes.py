"""An engine over a log whose offsets have holes does what it does over one without.

Both logs hold the same events. Whatever the engine, Spark's tasks or the store computed from an
offset would differ: how many events a tick takes and where it is cut, what is late, repeated, dead
or set aside, what is counted, and where views go on after a restart.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holes
import pytest

from headrace.model.settings import EngineSettings
from headrace.spark import prepared_plan

pytestmark = pytest.mark.usefixtures("both_ways")  # event by event, and grouped in lanes

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DEFINITIONS = """
CREATE STREAM readings (name STRING, level BIGINT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS LATE SIDE
DEDUPLICATE BY (name, level) WITHIN INTERVAL 6 SECONDS
PARTITION BY (name) INTO 2 PARTITIONS;

CREATE STREAM orders (name STRING, level BIGINT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 9 SECONDS LATE HALT
PARTITION BY (name) INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW tumbling AS
SELECT window.start AS s, name, count(*) AS n, sum(level) AS total FROM readings
GROUP BY window(at, '4 seconds'), name;

CREATE MATERIALIZED VIEW sessions AS
SELECT session_window.start AS s, name, count(*) AS n FROM readings
GROUP BY session_window(at, '3 seconds'), name;

CREATE MATERIALIZED VIEW risky AS SELECT name, sum(100 DIV level) AS shares FROM readings
GROUP BY name;

CREATE MATERIALIZED VIEW hourly AS
SELECT window.start AS s, count(*) AS n, sum(level) AS total FROM orders
GROUP BY window(at, '5 seconds');
"""
STREAMS = {"readings": ("tumbling", "sessions", "risky"), "orders": ("hourly",)}


def test_an_engine_over_a_log_with_holes_does_the_same(
    make_rig: Callable[..., Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_plan, "LANE_ROWS_MIN", 5)
    rigs = [make_rig(DEFINITIONS, engine=EngineSettings(tick_rows_max=20)) for _ in range(2)]
    rigs[0].spark.sparkContext.addPyFile(str(Path(holes.__file__)))  # for Spark's workers
    rigs[1].reader = holes.HolesReader(rigs[1].reader)
    dense, sparse = (_run(rig, random.Random(seed)) for rig in rigs)
    assert dense["dead"], "no event failed: the test shows less than it should"
    assert dense["late"], "no event was set aside"
    assert dense["halts"], "the stream never halted"
    assert dense["counts"]["sessions"].duplicate
    for places in ("dead", "late", "halts"):
        dense[places] = [(*names, p, holes.sparse(o)) for *names, p, o in dense[places]]
    assert sparse == dense


def _run(rig: Any, source: random.Random) -> dict[str, Any]:
    halts: list[tuple[int, int]] = []
    second = 0
    rig.start()
    for step in range(3):
        for stream in STREAMS:
            for partition in (0, 1):
                events = []
                for number in range(source.randrange(8, 24)):
                    second += source.randrange(2)
                    at = EPOCH + dt.timedelta(
                        seconds=second - source.choice((0, 1, 2, 2, 0, 1, 2, 12))
                    )
                    is_risky = (step, partition, number) == (1, 1, 5)
                    level = 0 if is_risky else source.randrange(1, 4)
                    name = f"{source.choice('ab')}{partition}"
                    events.append({"name": name, "level": level, "at": at})
                rig.append(stream, events, partition)
        _settle(rig, halts, source)
        if step == 0:
            rig.stop()
            rig.start()
        if step == 1:
            rig.control.rebuild("tumbling")
            rig.engine.rebuild_what_was_asked()
            _settle(rig, halts, source)
        if step == 2:
            rig.control.apply_late("readings", "tumbling")
            rig.engine.decide_what_was_asked()
    views = [view for names in STREAMS.values() for view in names]
    late = "SELECT view, _partition, _offset FROM readings_late ORDER BY ALL"
    return {
        "rows": {view: sorted(map(str, rig.rows(view))) for view in views},
        "counts": {view: rig.engine._views[view].totals for view in views},
        "pending": [rig.control.pending(view) for view in views],
        "held": [rig.control.status().streams[stream].events for stream in STREAMS],
        "dead": sorted((x.view, x.partition, x.offset) for x in rig.store.dead_letters(None, 99)),
        "late": [
            tuple(row.values())
            for batch in rig.store.query(late).batches
            for row in batch.to_pylist()
        ],
        "halts": halts,
        "violations": rig.control.violations,
        "ticks": rig.store.last_tick(),
    }


def _settle(rig: Any, halts: list[tuple[int, int]], source: random.Random) -> None:
    """Until all is taken in, with an answer for every event that the stream halts on."""
    for _ in range(200):
        rig.settle()
        halt = rig.engine._views["hourly"].halt
        if halt is None:
            return
        halts.append((halt.partition, halt.offset))
        rig.control.resume("orders", source.choice(("apply", "side", "drop")))
        rig.engine.decide_what_was_asked()
    raise AssertionError("the stream halts again and again")
