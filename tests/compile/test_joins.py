"""What a join with a table is, by its query in plain Spark SQL, against a model that goes through
the changes one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.compile import parse_sql, plan_view
from headrace.model.definitions import Project
from headrace.model.plan import ViewPlan, changes_name

MODELS = (*(f"m{number}" for number in range(10)), None)
_PLACES = {
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_position": pa.int64(),
    "_event_time": pa.timestamp("us", "UTC"),
    "_received_at": pa.timestamp("us", "UTC"),
}
_BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
Rows = Sequence[Mapping[str, Any]]
pytestmark = pytest.mark.usefixtures("joins_run")


def _at(hour: int, minute: int = 0) -> datetime:
    return _BEGIN + timedelta(hours=hour, minutes=minute)


@dataclass
class Joining:
    """A project with one view, and what Spark alone makes of it."""

    spark: SparkSession
    project: Project

    @property
    def plan(self) -> ViewPlan:
        view = next(view for view in self.project.views if view.table is None)
        return plan_view(self.project, view)

    def rows(self, events: Rows, changes: Mapping[str, Rows]) -> list[tuple[Any, ...]]:
        plan = self.plan
        assert plan.joined is not None
        self._show(plan.stream, plan.stream, events)
        for table, rows in changes.items():
            known = self.project.view(table)
            assert known is not None
            self._show(changes_name(table), known.source, rows)
        self.spark.sql(plan.joined).createOrReplaceTempView(plan.stream)
        found = self.spark.sql(plan.sql).toArrow().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def _show(self, name: str, stream: str, rows: Rows) -> None:
        known = self.project.stream(stream)
        assert known is not None
        types = {column.name: column.type.arrow for column in known.columns} | _PLACES
        columns = {n: pa.array([row.get(n) for row in rows], of) for n, of in types.items()}
        self.spark.createDataFrame(pa.table(columns)).createOrReplaceTempView(name)


PRICES = """
CREATE STREAM calls (id STRING, model STRING, at TIMESTAMP NOT NULL, paid BOOLEAN) EVENT TIME at
LATE REVISE;
CREATE TABLE prices (model STRING, price INT, active BOOLEAN, at TIMESTAMP, version INT,
  PRIMARY KEY (model)) WITH HISTORY VALID FROM at
"""


def joining(spark: SparkSession, select: str, clauses: str = "") -> Joining:
    sql = f"{PRICES} {clauses};\nCREATE MATERIALIZED VIEW v AS {select}"
    return Joining(spark, parse_sql(sql))


def _placed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With an offset of its own, where none is said."""
    return [{"_partition": 0, "_offset": offset, **row} for offset, row in enumerate(rows)]


CHANGES = _placed(
    [
        {"model": "m1", "price": 100, "at": _at(8), "_position": 1},
        {"model": "m1", "price": 200, "at": _at(12), "_position": 5},
        {"model": "m1", "price": 150, "at": _at(10), "_position": 9},
    ]
)
EVENTS = _placed(
    [
        {"id": "a", "model": "m1", "at": _at(9), "_position": 6, "_received_at": _at(13)},
        {"id": "b", "model": "m1", "at": _at(12), "_position": 6, "_received_at": _at(13)},
        {"id": "c", "model": "m1", "at": _at(11), "_position": 8, "_received_at": _at(13)},
        {"id": "d", "model": "m1", "at": _at(11), "_position": 9, "_received_at": _at(13)},
    ]
)


@pytest.mark.parametrize(
    ("join", "prices"),
    [
        ("JOIN prices p", (200, 200, 200, 150)),
        ("JOIN prices FOR SYSTEM_TIME AS OF c.at p", (100, 200, 100, 150)),
    ],
)
def test_a_correction_never_reaches_back(
    spark_alone: SparkSession, join: str, prices: tuple[int, ...]
) -> None:
    joined = joining(spark_alone, f"SELECT id, price FROM calls c {join} ON p.model = c.model")
    assert joined.rows(EVENTS, {"prices": CHANGES}) == list(zip("abcd", prices, strict=True))


def _seen(event: Mapping[str, Any], changes: Rows) -> list[Mapping[str, Any]]:
    """The changes of the event's key that it sees, in the order in which they apply."""
    found = [
        change
        for change in changes
        if event["model"] == change["model"] and change["_position"] <= event["_position"]
    ]
    return sorted(found, key=lambda c: (c["_position"], c["_partition"], c["_offset"]))


def _newest(changes: Rows, has_sequence: bool) -> Mapping[str, Any] | None:
    """Which row is left when these changes have been applied one by one."""
    newest: Mapping[str, Any] | None = None
    for change in changes:
        if newest is not None and has_sequence:
            mine, known = change["version"], newest["version"]
            if mine is None or (known is not None and mine <= known):
                continue
        newest = change
    return None if newest is None or newest["_op"] == "delete" else newest


def _as_of(
    event: Mapping[str, Any], changes: Rows, has_sequence: bool, bound: timedelta | None
) -> Mapping[str, Any] | None:
    if bound is not None and event["_received_at"] - event["at"] > bound:
        return None
    valid = [(change["at"] or change["_received_at"], change) for change in changes]
    valid = [(since, change) for since, change in valid if since <= event["at"]]
    if not valid:
        return None
    last = max(since for since, _ in valid)
    return _newest([change for since, change in valid if since == last], has_sequence)


def _random_rows(choose: random.Random, count: int) -> tuple[Rows, Rows]:
    """Many at each position, hour and version, so that much is equal."""
    positions, received = range(6), [_at(20 + hour) for hour in range(3)]
    events = [
        {
            "id": str(number),
            "model": choose.choice(MODELS),
            "at": _at(choose.randrange(12)),
            "paid": choose.choice((True, False, None)),
            "_partition": number % 2,
            "_position": choose.choice(positions),
            "_received_at": choose.choice(received),
        }
        for number in range(count)
    ]
    changes = [
        {
            "_op": choose.choice((None, "upsert", "upsert", "delete")),
            "model": choose.choice(MODELS[:8]),
            "price": number,
            "active": choose.choice((True, False, None)),
            "at": choose.choice((None, *map(_at, range(12)))),
            "version": choose.choice((None, *range(5))),
            "_partition": choose.randrange(2),
            "_position": choose.choice(positions),
            "_received_at": choose.choice((*received, *map(_at, range(4)))),
        }
        for number in range(count)
    ]
    choose.shuffle(changes)
    return _placed(events), _placed(changes)


@pytest.mark.parametrize("sequence", ["", "SEQUENCE BY version"])
@pytest.mark.parametrize("bound", [None, timedelta(hours=14)])
def test_look_ups_by_position_and_as_of_a_time(
    spark_alone: SparkSession, sequence: str, bound: timedelta | None
) -> None:
    choose = random.Random(f"{sequence} {bound}")
    events, changes = _random_rows(choose, 250)
    clauses = (f"FOR INTERVAL {bound.seconds // 3600} HOURS " if bound else "") + sequence
    joined = joining(
        spark_alone,
        "SELECT id, p.price, q.price AS then, r.price AS paid, r.active FROM calls c "
        "LEFT JOIN prices p ON p.model = c.model "
        "LEFT JOIN prices FOR SYSTEM_TIME AS OF c.at AS q ON q.model = c.model "
        "LEFT JOIN prices r ON r.model = c.model AND r.active AND c.paid",
        clauses,
    )
    wanted = []
    for event in events:
        seen = _seen(event, changes)
        newest = _newest(seen, bool(sequence))
        then = _as_of(event, seen, bool(sequence), bound)
        is_met = newest is not None and newest["active"] and event["paid"]
        wanted.append(
            (
                event["id"],
                newest and newest["price"],
                then and then["price"],
                newest["price"] if newest is not None and is_met else None,
                True if is_met else None,
            )
        )
    found = joined.rows(events, {"prices": changes})
    assert found == sorted(wanted, key=repr)
    assert len({row[1] for row in found}) > 6
    assert any(row[1] is not None and row[2] is None for row in found)
    assert len(joined.plan.joins) == 3
    assert joined.plan.joins[0].lookup == joined.plan.joins[2].lookup


def test_an_inner_join_leaves_out_events_whose_row_fails(spark_alone: SparkSession) -> None:
    events, changes = _random_rows(random.Random(7), 200)
    joined = joining(
        spark_alone,
        "SELECT c.id, price FROM calls c "
        "JOIN prices p ON p.model = c.model AND (active OR FALSE) WHERE p.price % 2 = 0",
    )
    wanted = []
    for event in events:
        row = _newest(_seen(event, changes), has_sequence=False)
        if row is not None and row["active"] and row["price"] % 2 == 0:
            wanted.append((event["id"], row["price"]))
    assert wanted
    assert joined.rows(events, {"prices": changes}) == sorted(wanted, key=repr)


def test_a_key_may_come_from_a_row_joined_before(spark_alone: SparkSession) -> None:
    project = parse_sql(
        "CREATE STREAM calls (id STRING, user_id STRING);"
        "CREATE TABLE users (id STRING, region SMALLINT, PRIMARY KEY (id));"
        "CREATE TABLE regions (zone STRING, code INT, title STRING, PRIMARY KEY (code, zone));"
        "CREATE MATERIALIZED VIEW v AS SELECT c.id, r.title FROM calls c "
        "JOIN users u ON u.id = c.user_id "
        "LEFT JOIN regions r ON r.code = u.region AND r.zone = upper(c.user_id)"
    )
    users = [
        {"id": "a", "region": 1, "_position": 1},
        {"id": "b", "region": 2, "_position": 1},
        {"id": "a", "region": 2, "_position": 3},
        {"id": "c", "region": None, "_position": 1},
    ]
    regions = [
        {"zone": "A", "code": 1, "title": "one", "_position": 2},
        {"zone": "A", "code": 2, "title": "two", "_position": 2},
        {"_op": "delete", "zone": "A", "code": 1, "_position": 4},
        {"zone": "C", "code": None, "title": "none", "_position": 1},
    ]
    events = [
        {"id": f"{user}{position}", "user_id": user, "_position": position}
        for user in ("a", "b", "c", "d", None)
        for position in (1, 2, 3)
    ]
    changes = {"users": _placed(users), "regions": _placed(regions)}
    assert Joining(spark_alone, project).rows(_placed(events), changes) == sorted(
        [("a1", None), ("a2", "one"), ("a3", "two")]
        + [(f"{user}{position}", None) for user in "bc" for position in (1, 2, 3)],
        key=repr,
    )


def test_what_is_looked_up_may_be_a_condition(spark_alone: SparkSession) -> None:
    project = parse_sql(
        "CREATE STREAM s (id INT, a BOOLEAN, b BOOLEAN);"
        "CREATE TABLE words (is_true BOOLEAN PRIMARY KEY, word STRING);"
        "CREATE MATERIALIZED VIEW v AS SELECT s.id, w.word FROM s "
        "JOIN words w ON w.is_true = (s.a OR s.b)"
    )
    words = [{"is_true": value, "word": str(value), "_position": 1} for value in (True, False)]
    events = [{"id": i, "a": i > 1, "b": i % 2 == 1, "_position": 1} for i in range(4)]
    events.append({"id": 4, "a": None, "b": False, "_position": 1})
    found = Joining(spark_alone, project).rows(_placed(events), {"words": _placed(words)})
    assert found == [(0, "False"), (1, "True"), (2, "True"), (3, "True")]


def test_a_grouped_view_reads_the_joined_events(spark_alone: SparkSession) -> None:
    joined = joining(
        spark_alone,
        "SELECT window.start AS begins, p.price, count(*) AS n FROM calls c "
        "JOIN prices p ON p.model = c.model GROUP BY window(c.at, '6 hours'), p.price",
    )
    found = joined.rows(EVENTS, {"prices": CHANGES})
    assert sorted(found) == [(_at(6), 150, 1), (_at(6), 200, 2), (_at(12), 200, 1)]


def test_an_event_of_a_tables_own_stream_sees_its_own_change(spark_alone: SparkSession) -> None:
    project = parse_sql(
        "CREATE STREAM changes (id STRING, name STRING, gone BOOLEAN);"
        "CREATE TABLE names FROM changes KEY (id) APPLY AS DELETE WHEN gone;"
        "CREATE MATERIALIZED VIEW v AS SELECT changes.name, n.name AS now FROM changes "
        "LEFT JOIN names n ON n.id = changes.id"
    )
    rows = _placed(
        [
            {"id": "a", "name": "x", "_position": 1},
            {"id": "a", "name": "y", "_position": 2},
            {"id": "a", "name": "z", "gone": True, "_position": 3},
            {"id": None, "name": "w", "_position": 3},
        ]
    )
    found = Joining(spark_alone, project).rows(rows, {"names": rows})
    assert found == [("w", None), ("x", "x"), ("y", "y"), ("z", None)]


@pytest.mark.parametrize(
    ("kind", "clauses"),
    [
        ("", "WAIT UP TO INTERVAL 1 HOUR ELSE DEAD LETTER"),
        ("", "ELSE DEAD LETTER"),
        ("", "WAIT UP TO INTERVAL 1 HOUR"),
        ("LEFT", "WAIT UP TO INTERVAL 1 HOUR"),
    ],
)
def test_only_events_that_want_a_row_wait_or_are_dead_letters(
    spark_alone: SparkSession, kind: str, clauses: str
) -> None:
    choose = random.Random(kind + clauses)
    events, changes = _random_rows(choose, 200)
    users = _placed([{"id": f"{number}", "_position": number % 6} for number in range(150)])
    sql = (
        f"{PRICES};CREATE TABLE users (id STRING PRIMARY KEY);"
        "CREATE TABLE days (id STRING PRIMARY KEY);"
        "CREATE MATERIALIZED VIEW v AS SELECT c.id, p.price FROM calls c "
        "JOIN users u ON u.id = c.id "
        f"{kind} JOIN prices p ON p.model = c.model AND p.active AND c.paid {clauses} "
        "LEFT JOIN days d ON d.id = c.id "
        "WHERE c.at < timestamp'2026-03-01 08:00:00' AND (d.id IS NULL OR u.id > '5')"
    )
    joined = Joining(spark_alone, parse_sql(sql))
    joined.rows(events, {"prices": changes, "users": users, "days": []})
    first, prices, days = joined.plan.joins
    assert [first.waits, first.dead, days.waits, days.dead] == [None] * 4
    missing, waiting = set(), set()
    for event in events:
        has_user = int(event["id"]) < 150 and int(event["id"]) % 6 <= event["_position"]
        row = _newest(_seen(event, changes), has_sequence=False)
        is_there = row is not None and row["active"]
        if has_user and event["at"] < _at(8) and event["paid"] and not is_there:
            missing.add(event["id"])
            if event["model"] is not None:
                waiting.add(event["id"])
    assert waiting
    assert missing > waiting
    expected = {
        prices.waits: waiting if "WAIT" in clauses else None,
        prices.dead: missing if "DEAD" in clauses else None,
    }
    for condition, ids in expected.items():
        assert (condition is None) == (ids is None)
        if condition is not None:
            found = spark_alone.sql(f"SELECT id FROM calls WHERE {condition}").toArrow()
            assert set(found["id"].to_pylist()) == ids


BASE = (
    "CREATE STREAM calls (id STRING, model STRING, at TIMESTAMP);"
    "CREATE TABLE prices (model STRING, price INT, other INT, valid_from TIMESTAMP, version INT, "
    "PRIMARY KEY (model)) SEQUENCE BY version WITH HISTORY;"
    "CREATE MATERIALIZED VIEW v AS SELECT c.id, p.price FROM calls c "
    "JOIN prices p ON p.model = c.model"
)


def _fingerprint(sql: str) -> str:
    project = parse_sql(sql)
    return plan_view(project, next(v for v in project.views if v.name == "v")).fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("price INT", "price BIGINT"),
        ("(model STRING, price", "(model BINARY, price"),
        ("SEQUENCE BY version", "SEQUENCE BY other"),
        ("SEQUENCE BY version", ""),
        ("version INT", "version BIGINT"),
        ("HISTORY", "HISTORY VALID FROM valid_from"),
        ("HISTORY", "HISTORY FOR INTERVAL 1 DAY"),
        ("WITH HISTORY", "TOMBSTONES FOR INTERVAL 1 DAY WITH HISTORY"),
        ("JOIN prices p", "JOIN prices FOR SYSTEM_TIME AS OF c.at p"),
        ("= c.model", "= c.id"),
        ("= c.model", "= c.model AND p.other > 1"),
        ("= c.model", "= c.model WAIT UP TO INTERVAL 1 MINUTE"),
        ("= c.model", "= c.model ELSE DEAD LETTER"),
        ("JOIN", "LEFT JOIN"),
    ],
)
def test_what_is_looked_up_is_part_of_a_views_meaning(old: str, new: str) -> None:
    changed = BASE.replace(old, new)
    if "BINARY" in new:
        changed = changed.replace(
            "calls (id STRING, model STRING", "calls (id STRING, model BINARY"
        )
    assert changed != BASE
    assert _fingerprint(changed) != _fingerprint(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("JOIN prices p ON p.model = c.model", "JOIN prices AS q ON (c.model = q.model)"),
        ("other INT", "other STRING"),
        ("version INT,", "version INT, more STRING,"),
    ],
)
def test_what_is_not_used_does_not_change_a_view(old: str, new: str) -> None:
    changed = BASE.replace(old, new)
    assert changed != BASE
    changed = changed.replace("p.price", "q.price") if " q " in changed else changed
    assert _fingerprint(changed) == _fingerprint(BASE)


def test_the_name_of_a_look_up_follows_from_what_it_looks_up() -> None:
    project = parse_sql(BASE)
    view = project.view("v")
    assert view is not None
    (join,) = view.joins
    assert join.lookup.name == "_lookup_442d3fb18ef5"
    again = parse_sql(BASE.replace("prices p", "PRICES x").replace("p.", "x.")).view("v")
    assert again is not None
    assert again == replace(view, location=None)
