"""Proofs of views by one batch query over the log: equal where the engine is right, and never equal
where a row was tampered with."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.model.errors import ProofError
from headrace.proof.comparison import Compared
from headrace.proof.reconcile import reconcile, subject

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
STREAM = """
CREATE STREAM readings (
  sensor STRING, value DOUBLE, amount DECIMAL(12, 2), number INT, at TIMESTAMP NOT NULL
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
    "keyed": "SELECT upper(sensor) AS name, max(value) AS most, stddev(value) AS spread"
    " FROM readings GROUP BY upper(sensor) HAVING count(*) > 1",
    "unshown": "SELECT count(*) AS n FROM readings GROUP BY sensor, number",
    "overall": "SELECT count(*) AS n, sum(amount) AS total FROM readings",
    "each": "SELECT sensor, number + 1 AS next FROM readings WHERE value > 0",
    "first_of": "SELECT sensor, first(number) AS f, max_by(number, value) AS m FROM readings"
    " GROUP BY sensor",
}


def definitions(*views: str, late: str = "LATE REVISE") -> str:
    made = "".join(f"CREATE MATERIALIZED VIEW {v} AS {VIEWS[v]};\n" for v in views)
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
            "at": EPOCH + dt.timedelta(milliseconds=i * 250 - chance.randrange(12_000)),
        }
        for i in range(count)
    ]


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


def state_table(rig: Any, view: str) -> str:
    return f"_headrace.state_{rig.store._views.find(view).number}"


def tamper(rig: Any, view: str, change: str) -> None:
    """Change the state behind the engine's back, as a defect or a failing disk would."""
    rig.store._write_behind([view])
    rig.store._connection.execute(change.format(state=state_table(rig, view)))


def test_every_kind_of_view_is_equal_to_the_log(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions(*VIEWS))
    rig.start()
    for view in VIEWS:
        assert proven(rig, view).is_equal, "before the first event"
    fill(rig, events(120))
    for view in VIEWS:
        found = proven(rig, view)
        assert found.is_equal, (view, found)
        assert found.rows > 0


@pytest.mark.parametrize(
    ("view", "change", "counts"),
    [
        ("tumbling", "UPDATE {state} SET _rows = _rows + 1 WHERE sensor = 'a'", None),
        ("tumbling", "DELETE FROM {state} WHERE sensor IS NULL", None),
        ("unshown", "UPDATE {state} SET _rows = _rows + 1 WHERE sensor = 'b' AND number = 1", 1),
        ("overall", "UPDATE {state} SET _rows = 7", 1),
        ("each", "DELETE FROM {state} WHERE _offset = 4", None),
        ("keyed", 'UPDATE {state} SET "value__max" = "value__max" * (1 + 1e-7)', 4),
    ],
)
def test_a_row_that_was_tampered_with_is_found(
    make_rig: Callable[..., Any],
    proven: Callable[..., Compared],
    view: str,
    change: str,
    counts: int | None,
) -> None:
    rig = make_rig(definitions(view))
    rig.start()
    fill(rig, events(80))
    assert proven(rig, view).is_equal
    tamper(rig, view, change)
    found = proven(rig, view)
    wrong = found.missing + found.extra + found.different
    assert wrong == (wrong if counts is None else counts) > 0, found
    assert len(found.differences) == min(wrong, 10)
    for one in found.differences:
        assert one.stored != one.proven


def test_rows_that_no_event_gave_are_extra(
    make_rig: Callable[..., Any], proven: Callable[..., Compared]
) -> None:
    rig = make_rig(definitions("tumbling"))
    rig.start()
    fill(rig, events(40))
    tamper(rig, "tumbling", "UPDATE {state} SET sensor = 'nobody' WHERE sensor = 'a'")
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
