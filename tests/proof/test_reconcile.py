"""Proofs of views by one batch query over the log: equal where the engine is right, and never equal
where a row was tampered with."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tampering import tamper

from headrace.cli.exits import exit_code
from headrace.log.contract import Advance, Group
from headrace.log.embedded.reader import EmbeddedReader
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.errors import ProofError
from headrace.model.settings import LogSettings
from headrace.proof.comparison import Compared
from headrace.proof.duplicates import find_duplicates, repeated
from headrace.proof.events import LogTable
from headrace.proof.lateness import judge_in_order
from headrace.proof.reconcile import reconcile, subject
from headrace.proof.sessions import Sessions
from headrace.proof.why import explain
from headrace.store.contract import StoredDecision

WITHIN = dt.timedelta(seconds=2)
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
STREAM = """
CREATE STREAM readings (
  sensor STRING, value DOUBLE, amount DECIMAL(12, 2), number INT, is_good BOOLEAN,
  at TIMESTAMP NOT NULL
)
WATERMARK at DELAY OF INTERVAL 2 SECONDS
{late}
INTO 2 PARTITIONS;
"""
VIEWS = {
    "tumbling": "SELECT window.start AS s, sensor, count(*) AS n, sum(amount) AS total"
    " FROM readings GROUP BY window(at, '3 seconds'), sensor",
    "hopping": "SELECT window.end AS e, avg(value) AS mean, count(DISTINCT sensor) AS sensors"
    " FROM readings WHERE number <> 3 GROUP BY window(at, '7 seconds', '3 seconds', '1 second')",
    "daily": "SELECT window.start AS s, sum(amount) AS total FROM readings"
    " GROUP BY calendar_window(at, 'day', 'Europe/Berlin')",
    "keyed": "SELECT upper(sensor) AS name, max(value) AS most, stddev(value) AS spread"
    " FROM readings GROUP BY upper(sensor) HAVING count(*) > 1",
    "unshown": "SELECT count(*) AS n FROM readings GROUP BY sensor, number",
    "overall": "SELECT count(*) AS n, sum(amount) AS total FROM readings",
    "good": "SELECT sensor, number FROM readings WHERE (is_good)",
    "each": "SELECT sensor, number + 1 AS next FROM readings WHERE value > 0",
    "first_of": "SELECT sensor, first(number) AS f, max_by(number, value) AS m FROM readings"
    " GROUP BY sensor",
}
TABLES = {
    "latest": "FROM readings KEY (sensor) SEQUENCE BY number APPLY AS DELETE WHEN value < 0"
    " COLUMNS * EXCEPT (at)",
    "entire": "FROM readings KEY (sensor, number) SEQUENCE BY at WITH HISTORY",
}


def definitions(*views: str, late: str = "LATE REVISE") -> str:
    made = "".join(f"CREATE MATERIALIZED VIEW {v} AS {VIEWS[v]};\n" for v in views if v in VIEWS)
    made += "".join(f"CREATE TABLE {v} {TABLES[v]};\n" for v in views if v in TABLES)
    return STREAM.format(late=late) + made


def events(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Out of order by up to 12 seconds, some of them far too late for their window."""
    chance = random.Random(seed)
    return [
        {
            "sensor": chance.choice(["a", "b", "ä", None]),
            "value": chance.uniform(-5, 5),
            "amount": Decimal(chance.randrange(-10_000, 10_000)) / 100,
            "number": chance.choice([1, 2, 3, None]),
            "is_good": i % 3 > 0,
            "at": EPOCH + dt.timedelta(milliseconds=i * 250 - chance.randrange(12_000)),
        }
        for i in range(count)
    ]


@pytest.fixture(autouse=True)
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    """A hundred events need no eight tasks for every exchange."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture
def proven(spark: SparkSession, tmp_path: Path) -> Callable[..., Compared]:
    def prove(rig: Any, view: str, limit: int = 10) -> Compared:
        file = tmp_path / "rows.parquet"
        snapshot = rig.store.snapshot(view, file, {})
        return reconcile(spark, subject(rig.settings, rig.project, snapshot, file), limit)

    return prove


def fill(rig: Any, made: list[dict[str, Any]], stride: int = 15) -> None:
    """In turns over the partitions, with ticks in between."""
    for start in range(0, len(made), stride):
        rig.append("readings", made[start : start + stride], partition=start // stride % 2)
        rig.engine.step()
    rig.settle()


def test_every_kind_of_view_is_equal_to_the_log(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    views = (*VIEWS, *TABLES)
    rig = make_rig(definitions(*views))
    rig.start()
    for view in views:
        assert proven(rig, view).is_equal, "before the first event"
    fill(rig, events(120))
    for view in views:
        found = proven(rig, view)
        assert found.is_equal, (view, found)
        assert found.rows > 0


@pytest.mark.parametrize(
    "late", ["LATE DROP", "LATE SIDE", "LATE REVISE WITHIN INTERVAL 4 SECONDS"]
)
def test_late_events_that_were_not_applied_are_not_expected(
    make_rig: Callable[..., Any], proven: Callable[..., Compared], late: str
) -> None:
    rig = make_rig(definitions("tumbling", "hopping", "daily", "overall", late=late))
    rig.start()
    fill(rig, events(90))
    for view in ("tumbling", "hopping", "daily", "overall"):
        found = proven(rig, view)
        assert found.is_equal, (view, found)
    totals = rig.store.catalog()["tumbling"].totals
    assert totals.sided + totals.dropped > 0


def test_heartbeats_move_the_watermark_of_the_proof_too(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions("tumbling", late="LATE DROP"))
    rig.start()
    made = events(30)
    rig.append("readings", made[:10])
    at = int((EPOCH + dt.timedelta(seconds=30)).timestamp() * 1_000_000)
    rig.writer.append(Group(advances=(Advance("readings", 0, at, "heartbeat"),)))
    rig.append("readings", made[10:20])
    rig.append("readings", made[20:], partition=1)
    rig.settle()
    assert rig.store.catalog()["tumbling"].totals.dropped >= 10
    assert proven(rig, "tumbling").is_equal


TAMPERED = {
    "tumbling": ("UPDATE {0} SET _rows = _rows + 1 WHERE k0 = 'a'", None),
    "hopping": ("DELETE FROM {0} WHERE p0 > 0", None),
    "unshown": ("UPDATE {0} SET _rows = 77 WHERE k0 = 'b' AND k1 = 1", 1),
    "overall": ("UPDATE {0} SET p0 = 7", 1),
    "each": ("DELETE FROM {0} WHERE k1 < 9", None),
    "keyed": ("UPDATE {0} SET p0 = p0 * (1 + 1e-7)", 4),
    "entire": ("UPDATE {0} SET _deleted = 1, _passes = false WHERE k2 = 'a'", None),
}


def test_a_row_that_was_tampered_with_is_found(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions(*TAMPERED))
    rig.start()
    fill(rig, events(80))
    for view, (change, counts) in TAMPERED.items():
        tamper(rig.store, view, change)
        found = proven(rig, view)
        wrong = found.missing + found.extra + found.different
        assert wrong == (wrong if counts is None else counts) > 0, (view, found)
        assert len(found.differences) == min(wrong, 10)
        for one in found.differences:
            assert one.stored != one.proven


def test_rows_that_no_event_gave_are_extra(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions("tumbling"))
    rig.start()
    fill(rig, events(40))
    tamper(rig.store, "tumbling", "UPDATE {0} SET k0 = 'nobody' WHERE k0 = 'a'")
    found = proven(rig, "tumbling", limit=1)
    assert found.missing == found.extra > 0
    assert found.different == 0
    assert len(found.differences) == 1


def test_a_view_is_proven_at_its_own_tick_while_the_log_goes_on(
    make_rig: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(definitions("tumbling"))
    rig.start()
    fill(rig, events(60))
    snapshot = rig.store.snapshot("tumbling", tmp_path / "rows.parquet", {})
    fill(rig, events(60, seed=2))
    what = subject(rig.settings, rig.project, snapshot, tmp_path / "rows.parquet")
    assert sum(what.ends.values()) == 60
    assert reconcile(spark, what, 5).is_equal


def test_dead_letters_of_the_view_are_left_out(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    text = definitions("tumbling") + (
        "CREATE MATERIALIZED VIEW inverse AS SELECT window.start AS s, sum(1 / number) AS i,"
        " count(*) AS n FROM readings GROUP BY window(at, '3 seconds');"
    )
    rig = make_rig(text)
    rig.start()
    made = events(30)
    made[7]["number"] = 0
    made[7]["at"] = EPOCH + dt.timedelta(seconds=300)  # it moves the watermark all the same
    fill(rig, made)
    assert len(rig.store.dead_letters("inverse", 10)) == 1
    assert proven(rig, "inverse").is_equal
    assert proven(rig, "tumbling").is_equal


def test_a_changed_definition_is_not_compared(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions("overall"))
    rig.start()
    fill(rig, events(10))
    rig.redefine(
        STREAM.format(late="LATE REVISE")
        + "CREATE MATERIALIZED VIEW overall AS SELECT count(*) AS n FROM readings;"
    )
    with pytest.raises(ProofError, match="changed"):
        proven(rig, "overall")
    rig.redefine(definitions("keyed"))
    with pytest.raises(ProofError, match="defines no view"):
        proven(rig, "overall")


def test_what_retention_deleted_cannot_be_proven(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    text = definitions("overall", "tumbling").replace(
        "INTO 2 PARTITIONS", "INTO 2 PARTITIONS RETAIN 1 DAYS"
    )
    rig = make_rig(text, log=LogSettings(segment_bytes_max=1))
    rig.start()
    fill(rig, events(60))
    rig.engine.close()
    freed = rig.writer.retain(time.time_ns() // 1000)
    assert freed["readings"] > 0
    with pytest.raises(ProofError, match="cannot be proven before offset") as failed:
        proven(rig, "overall")
    assert exit_code(failed.value) == 2
    rig.lose_store()
    rig.settings.store_file.unlink()
    rig.start()  # the views begin where the log does now
    made = events(20, seed=3)
    fill(rig, made)
    for view in ("overall", "tumbling"):
        found = proven(rig, view)
        assert found.is_equal, (view, found)


def test_a_table_is_proven_from_what_compaction_left(
    make_rig: Callable[..., Any],
    proven: Callable[..., Compared],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of before a compaction cannot be: the changes they rest on are gone."""
    rig = make_rig("CREATE TABLE customers (id STRING, name STRING, PRIMARY KEY (id));")
    rig.start()

    def change(name: str) -> None:
        rows = [{"_op": None, "id": f"k{key}", "name": name} for key in range(20)]
        rig.append("customers", rows)
        rig.settle()

    def compact() -> None:
        (end,) = rig.reader.ends("customers")
        needed = list(rig.store.needed_offsets("customers", 0, end))
        rig.reader.set_needed("customers", 0, end, np.concatenate(needed))
        rig.reader.set_retention_floor({"customers": (end,)})
        assert rig.writer.retain(0)["customers"] > 0

    for name in ("one", "two"):
        change(name)
    before = rig.store.snapshot("customers", tmp_path / "before.parquet", {})
    what = subject(rig.settings, rig.project, before, tmp_path / "before.parquet")
    change("three")
    compact()
    assert rig.reader.rows_of("customers", 0, 0, 60) == 20
    found = proven(rig, "customers")
    assert (found.is_equal, found.rows) == (True, 20)
    with pytest.raises(ProofError, match="was compacted while customers was being proven"):
        subject(rig.settings, rig.project, before, what.rows)
    file = tmp_path / "rows.parquet"
    now = rig.store.snapshot("customers", file, {})
    meanwhile = subject(rig.settings, rig.project, now, file)
    counted = [((60, 20),), ((80, 20),)]
    monkeypatch.setattr(EmbeddedReader, "compacted", lambda *_: counted.pop(0))
    with pytest.raises(ProofError, match="was compacted while customers was being proven"):
        reconcile(spark, meanwhile, 10)


@pytest.fixture
def explained(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    def why(rig: Any, view: str, limit: int = 100, **filters: str) -> Any:
        file = tmp_path / "row.parquet"
        snapshot = rig.store.snapshot(view, file, filters, with_ticks=True)
        return explain(spark, subject(rig.settings, rig.project, snapshot, file), limit)

    return why


def test_why_lists_the_events_of_a_row_and_its_revisions(
    make_rig: Callable[..., Any], explained: Callable[..., Any]
) -> None:
    rig = make_rig(definitions("tumbling"))
    rig.start()

    def at(second: float, sensor: str = "a") -> dict[str, Any]:
        time_ = EPOCH + dt.timedelta(seconds=second)
        return {"sensor": sensor, "value": 1.0, "amount": Decimal(1), "number": 1, "at": time_}

    clockless = {**at(0, "c"), "at": dt.datetime(1, 1, 1, tzinfo=dt.UTC)}
    for batch in ([clockless, at(0), at(1, "b"), at(2)], [at(30)], [at(0.5), at(31)], [at(2.9)]):
        rig.append("readings", batch)
        rig.engine.step()
    found = explained(rig, "tumbling", s="2026-01-01T00:00:00Z", sensor="a")
    assert [(e["offset"], e["fate"], e["tick"]) for e in found.events] == [
        (1, "applied", 1),
        (3, "applied", 1),
        (5, "late", 3),
        (7, "late", 4),
    ]
    assert [(r["revision"], r["tick"], r["offset"]) for r in found.revisions] == [
        (1, 3, 5),
        (2, 4, 7),
    ]
    assert "watermark was 2026-01-01T00:00:28.000000Z" in found.revisions[0]["cause"]
    assert found.events[0]["watermark"] == "0001-01-01T00:00:00.000000Z"  # or before
    event = found.events[2]
    assert event["event_time"] == event["occurred"] == "2026-01-01T00:00:00.500000Z"
    assert (event["quality"], event["sent"], event["skew_microseconds"]) == ("exact", None, None)
    assert event["event"]["sensor"] == "a"
    assert found.row["n"] == 4
    cut = explained(rig, "tumbling", limit=1, s="2026-01-01T00:00:00Z", sensor="a")
    assert cut.is_cut
    assert len(cut.events) == 1
    with pytest.raises(ProofError, match="2 rows of tumbling are meant"):
        explained(rig, "tumbling", s="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(("late", "fate"), [("LATE DROP", "dropped"), ("LATE SIDE", "sided")])
def test_why_shows_events_that_a_row_did_not_take(
    make_rig: Callable[..., Any], explained: Callable[..., Any], late: str, fate: str
) -> None:
    rig = make_rig(definitions("tumbling", late=late))
    rig.start()
    for second in (0, 30, 1):
        time_ = EPOCH + dt.timedelta(seconds=second)
        rig.append("readings", [{"sensor": "a", "at": time_}])
        rig.engine.step()
    found = explained(rig, "tumbling", s="2026-01-01T00:00:00Z")
    assert [(e["offset"], e["fate"]) for e in found.events] == [(0, "applied"), (2, fate)]
    assert found.revisions == ()


def test_repeats_are_judged_by_what_was_accepted() -> None:
    assert repeated([0, 10, 20, 30], [None] * 4, 10, 0) == [False, True, False, True]
    assert repeated([5, 5, -5, 16, 15], [None] * 5, 10, 0) == [False, True, True, False, True]
    assert repeated([], [], 1, 0) == []
    # The first is forgotten when the watermark is more than 20 past the highest time then.
    assert repeated([0, 0, 0], [None, 20, 20], 10, 5) == [False, True, True]
    assert repeated([0, 0, 0], [None, 21, 21], 10, 5) == [False, False, True]


def test_duplicates_are_found_again_in_the_log(
    make_rig: Callable[..., Any], spark: SparkSession, proven: Callable[..., Compared]
) -> None:
    """Against the rule followed by hand over the same events, and against the engine."""
    late = "LATE REVISE DEDUPLICATE BY (sensor, number) WITHIN INTERVAL 2 SECONDS"
    text = definitions("overall", late=late).replace("INTO 2", "PARTITION BY (sensor) INTO 2")
    rig = make_rig(text)
    made = events(120)
    for start in range(0, 120, 30):
        rig.append("readings", made[start : start + 30], partition=start // 30 % 2)
    stream = rig.project.stream("readings")
    table = LogTable(rig.reader.address, stream, ("sensor", "number"), {0: 0, 1: 0}, {0: 60, 1: 60})
    wanted: dict[int, list[int]] = {0: [], 1: []}
    accepted: list[tuple[int, Any, Any, dt.datetime]] = []
    for number, event in enumerate(made):
        partition, offset = number // 30 % 2, number // 60 * 30 + number % 30
        key = (partition, event["sensor"], event["number"])
        near = [t for *k, t in accepted if tuple(k) == key and abs(t - event["at"]) <= WITHIN]
        if near:
            wanted[partition].append(offset)
        else:
            accepted.append((*key, event["at"]))
    assert find_duplicates(spark, table, stream.deduplication) == wanted
    assert wanted[0]
    rig.start()
    rig.settle()
    assert rig.store.catalog()["overall"].totals.duplicate == sum(map(len, wanted.values()))
    assert proven(rig, "overall").is_equal


def test_sessions_are_judged_in_the_order_of_the_log() -> None:
    revise = Stream("s", (), late_policy=LatePolicy.REVISE)
    steps = [(0, None, None), (10, None, None), (21, 15, None), (35, 60, None), (5, 100, None)]
    assert judge_in_order(revise, Sessions(10), steps) == [
        (False, True),
        (False, True),
        (False, True),
        (True, True),
        (True, True),
    ]
    dropping = Stream("s", (), late_policy=LatePolicy.DROP)
    assert judge_in_order(
        dropping, Sessions(10), [(0, None, None), (100, 5, None), (9, 90, None)]
    ) == [
        (False, True),
        (False, True),
        (True, False),
    ]
    steps = [(0, None, None), (10, 50, None), (20, 25, None)]
    assert judge_in_order(dropping, Sessions(10), steps)[1:] == [(True, False), (False, True)]
    within = Stream("s", (), late_policy=LatePolicy.REVISE, late_horizon_microseconds=30)
    assert judge_in_order(within, Sessions(10), [(0, 20, None), (0, 40, None)]) == [
        (True, True),
        (True, False),
    ]


def test_what_operators_decided_is_judged_the_same(
    make_rig: Callable[..., Any], proven: Callable[..., Compared], explained: Callable[..., Any]
) -> None:
    rig = make_rig(definitions("tumbling", "hopping", late="LATE HALT"))
    rig.start()
    for offset, decision in ((2, "apply"), (4, "drop"), (5, "side")):
        rig.store.decide(StoredDecision("readings", 0, offset, decision))
    times = [0, 30, 1, 31, 2, 2.5, 33, 0.5]
    made = [{"sensor": "a", "at": EPOCH + dt.timedelta(seconds=time_)} for time_ in times]
    rig.append("readings", made)
    rig.settle()
    assert rig.store.catalog()["tumbling"].next_offsets[0] == 7, "nobody decided the last one"
    assert proven(rig, "tumbling").is_equal
    assert proven(rig, "hopping").is_equal
    found = explained(rig, "tumbling", s="2026-01-01T00:00:00Z")
    assert [(e["offset"], e["fate"]) for e in found.events] == [
        (0, "applied"),
        (2, "late"),
        (4, "dropped"),
        (5, "sided"),
    ]


def test_why_says_which_change_is_the_row_of_a_table(
    make_rig: Callable[..., Any], explained: Callable[..., Any]
) -> None:
    rig = make_rig(definitions("latest"))
    rig.start()
    change = {"value": 1.0, "amount": Decimal("1.00"), "at": EPOCH}
    sent = [("a", 3), ("b", 1), ("a", 5), ("a", 4)]
    rig.append("readings", [{**change, "sensor": s, "number": n} for s, n in sent])
    rig.settle()
    found = explained(rig, "latest", sensor="a")
    assert found.row["number"] == 5
    assert [(event["offset"], event["fate"]) for event in found.events] == [(2, "applied")]
