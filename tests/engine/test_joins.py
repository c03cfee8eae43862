"""Views that join their stream with tables, in a running engine: each event finds the rows of its
own position, whatever ticks, failures, crashes and rebuilds do."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from engine_fixtures import Rig
from join_cases import Known, Row, at
from pyspark.sql import SparkSession

from headrace.engine.loop import Engine
from headrace.log.contract import Group, PartitionBatch, stored_schema
from headrace.model.errors import LookUpError, RequestError
from headrace.model.settings import EngineSettings
from headrace.proof.comparison import Compared
from headrace.proof.reconcile import reconcile, subject
from headrace.store.contract import Counts
from headrace.store.store import ViewStore

SQL = """
CREATE STREAM calls (id INT, user_id INT, model STRING, units INT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE PARTITION BY (user_id) INTO 2 PARTITIONS;

CREATE TABLE prices (model STRING, price DECIMAL(12, 6), valid_from TIMESTAMP, version INT,
  PRIMARY KEY (model))
SEQUENCE BY version WITH HISTORY VALID FROM valid_from FOR INTERVAL 400 DAYS;

CREATE TABLE users (id BIGINT, name STRING, region STRING, PRIMARY KEY (id));

CREATE STREAM region_changes (Code STRING, title STRING, gone BOOLEAN) PARTITION BY (Code)
INTO 2 PARTITIONS;
CREATE TABLE regions FROM region_changes KEY (Code) APPLY AS DELETE WHEN gone
COLUMNS * EXCEPT (gone);

CREATE MATERIALIZED VIEW plain AS SELECT id, units FROM calls;

CREATE MATERIALIZED VIEW priced AS
SELECT c.id, p.price FROM calls c JOIN prices p ON p.model = c.model;

CREATE MATERIALIZED VIEW as_of AS
SELECT c.id, p.price FROM calls c
LEFT JOIN prices FOR SYSTEM_TIME AS OF c.at AS p ON p.model = c.model;

CREATE MATERIALIZED VIEW chained AS
SELECT c.id, u.name, r.title FROM calls c
LEFT JOIN users u ON u.id = c.user_id AND u.name <> 'u0'
LEFT JOIN regions r ON r.code = u.region;

CREATE MATERIALIZED VIEW computed AS
SELECT c.id, u.name FROM calls c
JOIN users u ON u.id = CAST(c.user_id % 3 AS BIGINT) AND c.units > 2;

CREATE MATERIALIZED VIEW strict AS
SELECT c.id, u.name FROM calls c
JOIN users u ON u.id = c.user_id AND u.name <> 'u1' ELSE DEAD LETTER
WHERE c.units > 1;

CREATE MATERIALIZED VIEW visits AS
SELECT session_window.start AS began, u.region, count(*) AS calls
FROM calls c LEFT JOIN users u ON u.id = c.user_id
GROUP BY session_window(c.at, '5 seconds'), c.user_id, u.region;

CREATE MATERIALIZED VIEW costs AS
SELECT window.start AS minute, u.region, sum(c.units * p.price) AS cost, count(*) AS calls,
       count(DISTINCT u.name) AS names
FROM calls c LEFT JOIN users u ON u.id = c.user_id JOIN prices p ON p.model = c.model
GROUP BY window(c.at, '1 minute'), u.region;
"""
MODELS = ("m0", "m1", "m2", None)
Rigs = Callable[..., Rig]
Prove = Callable[[Rig, str], Compared]


@pytest.fixture
def proven(spark: SparkSession, tmp_path: Path) -> Prove:
    def prove(rig: Rig, view: str) -> Compared:
        assert rig.store is not None
        file = tmp_path / "rows.parquet"
        snapshot = rig.store.snapshot(view, file, {})
        return reconcile(own, subject(rig.settings, rig.project, snapshot, file), 3)

    own = spark.newSession()  # the engine's has tables of the same names
    own.conf.set("spark.sql.shuffle.partitions", "1")  # a hundred events need no eight tasks
    return prove


class World:
    """What was sent, and what the views should be."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.calls: list[Row] = []
        days = dt.timedelta(days=400)
        self.tables = {
            "prices": Known(("model",), "version", "valid_from", days),
            "users": Known(("id",)),
            "regions": Known(("Code",)),
        }

    def send(self, stream: str, parts: Mapping[int, Sequence[Row]]) -> None:
        """One group commit."""
        ends = self.rig.reader.ends(stream)
        parts = {p: [{"_received_at": at(20), **row} for row in rows] for p, rows in parts.items()}
        position = self.rig.append_parts(stream, parts)
        table = {"region_changes": "regions"}.get(stream, stream)
        known = self.calls if stream == "calls" else self.tables[table].changes
        for partition, rows in parts.items():
            for number, row in enumerate(rows):
                place = (position, partition, ends[partition] + number)
                operation = {"_op": "delete"} if row.get("gone") else {}
                known.append({**row, **operation, "position": position, "place": place})

    def look(self, table: str, key: Sequence[Any], call: Row, time: Any = None) -> Row | None:
        known = self.tables[table]
        return known.row_at(key, call["position"], time, call["_received_at"])

    def users_of(self, call: Row) -> Row | None:
        return self.look("users", [call["user_id"]], call)

    def priced(self) -> list[tuple[Any, ...]]:
        found = [(c["id"], self.look("prices", [c["model"]], c)) for c in self.calls]
        return [(id_, row["price"]) for id_, row in found if row is not None]

    def as_of(self) -> list[tuple[Any, ...]]:
        found = [(c["id"], self.look("prices", [c["model"]], c, c["at"])) for c in self.calls]
        return [(id_, row["price"] if row else None) for id_, row in found]

    def chained(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for call in self.calls:
            user = self.users_of(call)
            user = user if user is not None and user["name"] not in ("u0", None) else None
            region = self.look("regions", [user["region"]], call) if user is not None else None
            rows.append((call["id"], user and user["name"], region and region["title"]))
        return rows

    def computed(self) -> list[tuple[Any, ...]]:
        rows = []
        for call in (c for c in self.calls if c["user_id"] is not None and c["units"] > 2):
            user = self.look("users", [call["user_id"] % 3], call)
            rows += [(call["id"], user["name"])] if user is not None else []
        return rows

    def strict(self) -> list[tuple[Any, ...]]:
        found = [(c["id"], self.users_of(c)) for c in self.calls if c["units"] > 1]
        return [(id_, user["name"]) for id_, user in found if user and user["name"] != "u1"]

    def costs(self) -> list[tuple[Any, ...]]:
        groups: dict[Any, list[Any]] = {}
        for call in self.calls:
            price, user = self.look("prices", [call["model"]], call), self.users_of(call)
            if price is not None:
                key = call["at"].replace(second=0), user and user["region"]
                names = {user["name"]} if user is not None else set()
                groups.setdefault(key, []).append((call["units"] * price["price"], names))
        return [
            (*key, sum(cost for cost, _ in of), len(of), len(set().union(*(n for _, n in of))))
            for key, of in groups.items()
        ]

    def assert_views(self) -> None:
        for view in ("priced", "as_of", "chained", "computed", "strict", "costs"):
            wanted = sorted(getattr(self, view)(), key=repr)
            names = len(wanted[0]) if wanted else 0
            found = [tuple(row.values())[:names] for row in self.rig.rows(view)]
            assert sorted(found, key=repr) == wanted, view
        self.assert_conserved("priced", len(self.priced()))
        self.assert_conserved("chained", len(self.calls))
        wanted = len([call for call in self.calls if call["units"] > 1])
        self.assert_conserved("strict", applied := len(self.strict()), dead=wanted - applied)

    def assert_conserved(self, view: str, applied: int, dead: int = 0) -> None:
        """A call that finds no row is filtered, or a dead letter where the view says so."""
        assert self.rig.store is not None
        counts = self.rig.store.catalog()[view].totals
        read = len(self.calls)
        filtered = read - applied - dead
        assert counts == Counts(read=read, applied=applied, filtered=filtered, dead=dead)
        letters = self.rig.store.dead_letters(view, 1_000)
        assert len({(letter.partition, letter.offset) for letter in letters}) == dead

    def send_some(self, rng: random.Random) -> None:
        some = rng.randrange(1, 6)
        stream = rng.choice(["calls", "calls", "prices", "users", "region_changes"])
        if stream == "calls":
            rows = [self._call(rng, len(self.calls) + n) for n in range(some)]
            parts = {p: [row for row in rows if (row["user_id"] or 0) % 2 == p] for p in (0, 1)}
            self.send(stream, {p: part for p, part in parts.items() if part})
        elif stream == "region_changes":
            codes = [rng.choice(["r0", "r1"]) for _ in range(some)]
            rows = [
                {"Code": c, "title": f"{c} {rng.randrange(9)}", "gone": rng.random() < 0.3}
                for c in codes
            ]
            parts = {p: [row for row in rows if row["Code"] == f"r{p}"] for p in (0, 1)}
            self.send(stream, {p: part for p, part in parts.items() if part})
        else:
            make = self._price if stream == "prices" else self._user
            self.send(stream, {0: [make(rng) for _ in range(some)]})

    def _call(self, rng: random.Random, number: int) -> Row:
        time = at(9, rng.randrange(4), rng.randrange(60))
        user = rng.choice([0, 1, 2, 3, 4, None])
        model = rng.choice(MODELS)
        return {
            "id": number,
            "user_id": user,
            "model": model,
            "units": rng.randrange(6),
            "at": time,
        }

    def _price(self, rng: random.Random) -> Row:
        operation = "delete" if rng.random() < 0.2 else None
        valid = rng.choice([None, at(8), at(9, rng.randrange(4))])
        row = {"_op": operation, "model": rng.choice(MODELS[:3]), "valid_from": valid}
        price = Decimal(rng.randrange(1, 900)).scaleb(-2).quantize(Decimal("0.000001"))
        known = self.tables["prices"].changes
        version = max(0, len(known) + rng.randrange(-4, 2))
        return {**row, "version": version, "price": None if operation else price}

    def _user(self, rng: random.Random) -> Row:
        row: dict[str, Any] = {"id": rng.randrange(4)}
        if rng.random() < 0.2:
            return {**row, "_op": "delete"}
        return {**row, "name": f"u{rng.randrange(3)}", "region": rng.choice(["r0", "r1", None])}


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("rows_max", [3, 1_000])
def test_an_event_finds_the_rows_of_its_position(
    make_rig: Rigs, seed: int, rows_max: int, proven: Prove
) -> None:
    rng = random.Random(seed + rows_max)
    rig = make_rig(SQL, engine=EngineSettings(tick_rows_max=rows_max))
    world = World(rig)
    engine = rig.start()
    for number in range(45):
        world.send_some(rng)
        if rng.random() < 0.3:
            engine.step()
        if number in (15, 30):
            rig.lose_store()
            engine = rig.start()
    rig.settle()
    world.assert_views()
    assert rig.control is not None
    for view in ("priced", "chained", "costs"):
        rig.control.rebuild(view)
    engine.rebuild_what_was_asked()
    world.send_some(rng)
    rig.settle()
    for view in ("priced", "chained", "costs"):
        report = rig.control.rebuilt(view)
        assert report is not None
        assert report.state == "done"
    world.assert_views()
    if rows_max == 3:
        for view in ("as_of", "chained", "strict", "visits", "costs"):
            assert proven(rig, view).is_equal, view


EXAMPLES = """
CREATE STREAM calls (id STRING, model STRING, code STRING, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 0 SECONDS LATE SIDE;
CREATE TABLE prices (model STRING, price INT, valid_from TIMESTAMP, PRIMARY KEY (model))
WITH HISTORY VALID FROM valid_from;
CREATE STREAM changes (id INT, name STRING, op STRING);
CREATE TABLE users FROM changes KEY (id) APPLY AS DELETE WHEN CAST(op AS INT) = 1
COLUMNS * EXCEPT (op);

CREATE MATERIALIZED VIEW by_position AS
SELECT c.id, p.price FROM calls c JOIN prices p ON p.model = c.model;
CREATE MATERIALIZED VIEW as_of AS
SELECT c.id, p.price FROM calls c
JOIN prices FOR SYSTEM_TIME AS OF c.at AS p ON p.model = c.model;
CREATE MATERIALIZED VIEW cheap AS
SELECT c.id, p.price FROM calls c LEFT JOIN prices p ON p.model = c.model AND p.price < 200;
CREATE MATERIALIZED VIEW named AS
SELECT c.id, u.name FROM calls c LEFT JOIN users u ON u.id = CAST(c.code AS INT);
CREATE MATERIALIZED VIEW spent AS
SELECT window.start AS hour, sum(p.price) AS spent FROM calls c JOIN prices p ON p.model = c.model
GROUP BY window(c.at, '1 hour');
"""


def call(id_: str, time: dt.datetime, model: str | None = "m1", code: str = "7") -> Row:
    return {"id": id_, "model": model, "code": code, "at": time, "_received_at": at(13)}


def price(model: str, cents: int, valid_from: dt.datetime) -> Row:
    row = {"model": model, "price": cents, "valid_from": valid_from}
    return {"_op": None, **row, "_received_at": at(13)}


def append(rig: Rig, **rows: Sequence[Row]) -> None:
    """One group commit with rows of several streams."""
    batches = []
    for stream, some in rows.items():
        definition = rig.project.stream(stream)
        assert definition is not None
        batch = pa.RecordBatch.from_pylist(list(some), schema=stored_schema(definition))
        batches.append(PartitionBatch(stream, 0, batch))
    rig.writer.append(Group(tuple(batches)))


def found(rig: Rig, view: str) -> dict[str, Any]:
    return {row["id"]: list(row.values())[1] for row in rig.rows(view)}


def test_a_correction_never_reaches_back(make_rig: Rigs) -> None:
    """The example of docs/explanation/joins.md: d comes in the same group as the correction."""
    rig = make_rig(EXAMPLES)
    engine = rig.start()
    append(rig, calls=[call("before", at(9))])
    append(rig, prices=[price("m1", 100, at(8))])
    append(rig, prices=[price("m1", 200, at(12))])
    append(rig, calls=[call("a", at(9)), call("b", at(12)), call("none", at(12), None)])
    engine.step()
    append(rig, calls=[call("c", at(11))])
    append(rig, calls=[call("d", at(11))], prices=[price("m1", 150, at(10))])
    append(rig, calls=[call("m2", at(11), "m2")])
    rig.settle()
    assert found(rig, "by_position") == {"a": 200, "b": 200, "c": 200, "d": 150}
    assert found(rig, "as_of") == {"a": 100, "b": 200, "c": 100, "d": 150}
    none = dict.fromkeys(("before", "a", "b", "c", "none", "m2"))
    assert found(rig, "cheap") == {**none, "d": 150}
    assert rig.store is not None
    counts = rig.store.catalog()["by_position"].totals
    assert counts == Counts(read=7, applied=4, filtered=3)


def test_a_late_event_that_is_applied_afterwards_finds_the_rows_of_its_position(
    make_rig: Rigs,
) -> None:
    rig = make_rig(EXAMPLES)
    engine = rig.start()
    append(rig, prices=[price("m1", 1, at(8))])
    append(rig, calls=[call("first", at(9)), call("second", at(11))])
    append(rig, calls=[call("late", at(9, 30))])
    append(rig, prices=[price("m1", 10, at(8))])
    append(rig, calls=[call("third", at(11))])
    rig.settle()
    spent = {row["hour"]: row["spent"] for row in rig.rows("spent")}
    assert spent == {at(9): 1, at(11): 11}
    assert rig.control is not None
    rig.control.apply_late("calls", "spent")
    engine.decide_what_was_asked()
    for _ in range(2):
        rig.settle()
        spent = {row["hour"]: row["spent"] for row in rig.rows("spent")}
        assert spent == {at(9): 2, at(11): 11}
        rig.control.rebuild("spent")
        engine.rebuild_what_was_asked()
    rig.settle()
    report = rig.control.rebuilt("spent")
    assert report is not None
    assert report.state == "done"


def test_a_key_that_cannot_be_computed_is_a_dead_letter_of_its_view_alone(make_rig: Rigs) -> None:
    rig = make_rig(EXAMPLES)
    rig.start()
    append(rig, changes=[{"id": 7, "name": "Ann", "op": "0", "_received_at": at(13)}])
    append(rig, prices=[price("m1", 1, at(8))])
    append(rig, calls=[call("a", at(9)), call("b", at(9), code="x"), call("c", at(9))])
    rig.settle()
    assert found(rig, "named") == {"a": "Ann", "c": "Ann"}
    assert found(rig, "by_position") == {"a": 1, "b": 1, "c": 1}
    assert rig.store is not None
    (letter,) = rig.store.dead_letters("named", 10)
    assert letter.offset == 1


def test_a_table_that_stands_still_holds_back_those_who_join_it(make_rig: Rigs) -> None:
    rig = make_rig(EXAMPLES, engine=EngineSettings(dead_letters_in_a_row_max=1))
    rig.start()
    append(rig, changes=[{"id": 7, "name": "Ann", "op": "0", "_received_at": at(13)}])
    append(rig, prices=[price("m1", 1, at(8))], calls=[call("a", at(9))])
    append(rig, changes=[{"id": 7, "name": "Bob", "op": "x", "_received_at": at(13)}])
    append(rig, calls=[call("b", at(9))])
    append(rig, changes=[{"id": 7, "name": "Cid", "op": "0", "_received_at": at(13)}])
    append(rig, calls=[call("c", at(9))])
    rig.settle()
    assert found(rig, "by_position") == {"a": 1, "b": 1, "c": 1}
    assert found(rig, "named") == {"a": "Ann"} | found(rig, "named")
    assert "c" not in found(rig, "named")
    assert rig.control is not None
    reports = rig.control.status().views
    assert reports["users"].state == "failed"
    assert (reports["named"].state, reports["named"].detail) == (
        "catching_up",
        "waits for table users",
    )
    assert reports["by_position"].state == "live"
    rig.lose_store()
    rig.settings = replace(rig.settings, engine=EngineSettings())
    engine = rig.start()
    rig.control.rebuild("users")
    engine.rebuild_what_was_asked()
    rig.settle()
    assert found(rig, "named") == {"a": "Ann", "b": "Ann", "c": "Cid"}
    assert rig.control.status().views["named"].detail == ""


JOIN = """
CREATE MATERIALIZED VIEW v AS SELECT c.id, p.price FROM calls c JOIN prices p ON p.model = c.model;
"""
NO_JOINS = EXAMPLES[: EXAMPLES.index("CREATE MATERIALIZED VIEW")]


def restarted(rig: Rig, sql: str) -> Engine:
    rig.stop()
    rig.redefine(sql)
    return rig.start()


def test_a_view_begins_where_its_tables_know_all_rows(make_rig: Rigs) -> None:
    rig = make_rig(NO_JOINS)
    rig.start()
    append(rig, prices=[price("m1", 1, at(8))], calls=[call("a", at(9))])
    append(rig, prices=[price("m1", 2, at(8))])
    rig.settle()
    restarted(rig, NO_JOINS + JOIN)
    append(rig, calls=[call("b", at(9))])
    append(rig, prices=[price("m1", 3, at(8))])
    rig.settle()
    assert found(rig, "v") == {"b": 2}
    assert rig.control is not None
    assert "begins at offsets [1]: the rows that earlier events find in prices" in (
        rig.control.status().views["v"].detail
    )
    restarted(rig, NO_JOINS)
    append(rig, calls=[call("c", at(9))])
    append(rig, prices=[price("m1", 4, at(8))])
    rig.settle()
    engine = restarted(rig, NO_JOINS + JOIN)
    report = rig.control.status().views["v"]
    assert report.state == "failed"
    assert "what events find in prices is known from [3] on" in report.detail
    with pytest.raises(RequestError, match=r"partition 0 from offset 3 on, and the view begins at"):
        rig.control.rebuild("v")
    rig.control.rebuild("v", from_oldest=True)
    engine.rebuild_what_was_asked()
    append(rig, calls=[call("d", at(9))])
    rig.settle()
    assert found(rig, "v") == {"d": 4}


def test_a_view_that_asks_for_rows_that_are_gone_stops_alone(
    make_rig: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(EXAMPLES)
    rig.start()
    look_up = ViewStore.look_up

    def gone(self: ViewStore, table: str, *asked: Any) -> pa.Table:
        if table == "users":
            raise LookUpError("users knows no such rows", hint="rebuild it")
        return look_up(self, table, *asked)

    monkeypatch.setattr(ViewStore, "look_up", gone)
    append(rig, prices=[price("m1", 1, at(8))], calls=[call("a", at(9))])
    rig.settle()
    assert found(rig, "by_position") == {"a": 1}
    assert rig.control is not None
    report = rig.control.status().views["named"]
    assert (report.state, report.detail) == ("failed", "users knows no such rows; rebuild it")


def test_a_project_without_joins_takes_no_cut_of_the_log(
    make_rig: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(NO_JOINS + "CREATE MATERIALIZED VIEW v AS SELECT id, model FROM calls;")
    rig.start()
    append(rig, prices=[price("m1", 1, at(8))], calls=[call("a", at(9))])

    def refuse(*_: Any) -> None:
        raise AssertionError("nobody needs this")

    monkeypatch.setattr(rig.reader, "position", refuse)
    monkeypatch.setattr(rig.reader, "cut_at", refuse)
    monkeypatch.setattr(ViewStore, "look_up", refuse)
    rig.settle()
    assert found(rig, "v") == {"a": "m1"}


WINDOWS = """
CREATE STREAM calls (id INT, user_id INT, model STRING, step STRING, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS LATE SIDE
DEDUPLICATE BY (id, user_id) WITHIN INTERVAL 60 SECONDS PARTITION BY (user_id) INTO 2 PARTITIONS;
CREATE TABLE prices (model STRING, price INT, PRIMARY KEY (model));

CREATE MATERIALIZED VIEW visits AS
SELECT session_window.start AS began, c.user_id, p.price, count(*) AS calls, sum(c.id) AS ids
FROM calls c LEFT JOIN prices p ON p.model = c.model
GROUP BY session_window(c.at, '3 seconds'), c.user_id, p.price;
CREATE MATERIALIZED VIEW looking_back AS
SELECT c.id, p.price, sum(p.price) OVER (PARTITION BY c.user_id, p.price ORDER BY c.at
  RANGE BETWEEN INTERVAL 4 SECONDS PRECEDING AND CURRENT ROW) AS spent
FROM calls c JOIN prices p ON p.model = c.model;
CREATE MATERIALIZED VIEW rounds AS
SELECT c.user_id, p.price, count(*) AS calls
FROM calls c JOIN prices p ON p.model = lower(c.model)
GROUP BY event_group(c.step = 'up', p.price > 4, '5 seconds'), c.user_id, p.price;
CREATE MATERIALIZED VIEW counted AS
SELECT window.start AS began, p.price, count(*) AS calls, count(DISTINCT c.user_id) AS users
FROM calls c JOIN prices p ON p.model = c.model GROUP BY window(c.at, '4 seconds'), p.price;
"""


@pytest.mark.usefixtures("both_ways")
def test_windows_duplicates_and_late_events_of_joined_views_are_proven(
    make_rig: Rigs, seed: int, proven: Prove
) -> None:
    rng = random.Random(seed)
    rig = make_rig(WINDOWS, engine=EngineSettings(tick_rows_max=11))
    engine = rig.start()
    for number in range(60):
        if number % 4 == 0:
            row = {"_op": None, "model": f"m{rng.randrange(2)}", "price": rng.randrange(7)}
            rig.append("prices", [{**row, "_received_at": at(10)}])
        calls: dict[int, list[Row]] = {}
        for _ in range(3):
            user = rng.randrange(3)
            row = {"id": max(0, number + rng.randrange(-2, 3)), "user_id": user}
            row |= {"model": f"m{rng.randrange(3)}", "step": rng.choice(["up", "on"])}
            time = at(9, 0, 20) + dt.timedelta(seconds=number // 2 - rng.choice([0, 0, 1, 8]))
            calls.setdefault(user % 2, []).append({**row, "at": time, "_received_at": at(10)})
        rig.append_parts("calls", calls)
        if rng.random() < 0.3:
            engine.step()
    rig.settle()
    views = ("visits", "looking_back", "rounds", "counted")
    assert rig.store is not None
    assert rig.control is not None
    for view in views:
        counts = rig.store.catalog()[view].totals
        assert counts.duplicate
        assert counts.sided
        assert proven(rig, view).is_equal, view
    rig.control.apply_late("calls", None)
    engine.decide_what_was_asked()
    for view in views:
        rig.control.rebuild(view)
    engine.rebuild_what_was_asked()
    rig.settle()
    for view in views:
        report = rig.control.rebuilt(view)
        assert report is not None
        assert report.state == "done", report
        assert proven(rig, view).is_equal, view
