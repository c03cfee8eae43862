"""Definitions in Python give the same model as SQL, and their faults the line that said them."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.compile import define_project, load_project, parse_sql
from headrace.model.errors import DefinitionError, DefinitionErrors

SQL = """
CREATE STREAM transactions (
  id STRING NOT NULL, user_id STRING NOT NULL, amount DECIMAL(18, 2) NOT NULL, status STRING,
  created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS LATE REVISE
PARTITION BY (user_id) INTO 4 PARTITIONS RETAIN 7 DAYS UP TO 10 GB THEN ARCHIVE;

CREATE MATERIALIZED VIEW income_by_user AS
SELECT window.start AS window_start, window.end AS window_end, user_id,
       sum(amount) AS income, count(*) AS payments
FROM transactions WHERE status = 'paid' AND amount > 0
GROUP BY window(created_at, '3 seconds'), user_id HAVING income > 10;

CREATE MATERIALIZED VIEW hopping AS
SELECT window.start AS window_start, window.end AS window_end, upper(status) AS state,
       max(amount) AS most
FROM transactions GROUP BY window(created_at, INTERVAL 1 HOUR, '30 minutes'), upper(status);

CREATE MATERIALIZED VIEW overall AS SELECT count(*) AS n FROM transactions;

CREATE STREAM pings (host STRING);

CREATE STREAM readings (sensor STRING NOT NULL, at TIMESTAMP NOT NULL, sent_at TIMESTAMP, n INT,
  seq BIGINT NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS FUTURE UP TO INTERVAL 1 HOUR IDLE AFTER INTERVAL 30 SECONDS
LATE REVISE WITHIN INTERVAL 1 DAY SENT sent_at SKEW OVER INTERVAL 3 SECONDS CAP INTERVAL 2 DAYS
DEDUPLICATE BY (sensor, at) WITHIN INTERVAL 1 HOUR NUMBERED BY seq PER (sensor)
EXPECT EVERY INTERVAL 1 MINUTE PARTITION BY (sensor) INTO 4 PARTITIONS;

CREATE MATERIALIZED VIEW sessions AS
SELECT session_window.start AS window_start, session_window.end AS window_end, sensor,
       count(*) AS n
FROM readings GROUP BY session_window(at, INTERVAL 10 MINUTES), sensor EMIT ON WINDOW CLOSE;

CREATE MATERIALIZED VIEW monthly AS
SELECT window.start AS window_start, window.end AS window_end, sum(n) AS n
FROM readings GROUP BY calendar_window(_event_time, 'month', 'Europe/Berlin');

CREATE MATERIALIZED VIEW runs AS
SELECT window.start AS window_start, window.end AS window_end, sensor, count(*) AS n
FROM readings GROUP BY event_group(n = 1, N >= 9, '2 hours'), sensor;

CREATE MATERIALIZED VIEW slid AS
SELECT sensor, at, upper(sensor) AS name,
       avg(n) OVER (PARTITION BY sensor ORDER BY at
                    RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS hourly,
       max(n) OVER (PARTITION BY sensor ORDER BY at
                    RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS most,
       count(*) OVER (PARTITION BY sensor ORDER BY at RANGE UNBOUNDED PRECEDING) AS ever
FROM readings WHERE n > 0;

CREATE MATERIALIZED VIEW slid_all AS
SELECT min(n) OVER (ORDER BY at RANGE INTERVAL 90 MINUTES PRECEDING) AS least FROM readings;

CREATE STREAM aside (at TIMESTAMP NOT NULL) EVENT TIME at LATE SIDE;

CREATE TABLE prices (model STRING, region STRING, price DECIMAL(12, 6) NOT NULL, since TIMESTAMP,
  version INT, PRIMARY KEY (model, region))
SEQUENCE BY version TOMBSTONES FOR INTERVAL 30 DAYS INTO 4 PARTITIONS
WITH HISTORY VALID FROM since FOR INTERVAL 400 DAYS;

CREATE TABLE hosts (name STRING PRIMARY KEY) WITH HISTORY;

CREATE TABLE sensors FROM readings KEY (sensor) SEQUENCE BY at APPLY AS DELETE WHEN n < 0
COLUMNS * EXCEPT (seq, sent_at);

CREATE TABLE pinged FROM pings KEY (host);

CREATE MATERIALIZED VIEW priced AS
SELECT window.start AS window_start, window.end AS window_end, p.region, sum(p.price * n) AS cost
FROM readings
LEFT JOIN hosts FOR SYSTEM_TIME AS OF readings.at AS h ON h.name = sensor
JOIN prices p ON p.model = sensor AND p.region = h.name AND p.version > 1
WAIT UP TO INTERVAL 10 MINUTES ELSE DEAD LETTER
GROUP BY window(readings.at, '1 minute'), p.region;
"""
PYTHON = """
import headrace

transactions = headrace.stream(
    "transactions",
    columns={
        "id": "STRING NOT NULL",
        "user_id": "string not null",
        "amount": "DECIMAL(18, 2) NOT NULL",
        "status": "STRING",
        "created_at": "TIMESTAMP NOT NULL",
    },
    watermark=("created_at", "5 seconds"),
    late="revise",
    partition_by=["user_id"],
    partitions=4,
    retain={"age": "7 days", "size": "10 GB", "then": "archive"},
)
paid = transactions.where("status = 'paid'").where("AMOUNT > 0")
(
    paid.key_by("user_id")
    .window("3 seconds")
    .agg(income="sum(amount)", payments="count(*)")
    .having("income > 10")
    .view("income_by_user")
)
transactions.window("1 hour", slide="30 minutes").key_by(state="upper(status)").agg(
    most="max(amount)"
).view("hopping")
transactions.agg(n="count(*)").view("overall")
headrace.stream("pings", columns={"host": "STRING"})
readings = headrace.stream(
    "readings",
    columns={
        "sensor": "STRING NOT NULL",
        "at": "TIMESTAMP NOT NULL",
        "sent_at": "TIMESTAMP",
        "n": "INT",
        "seq": "BIGINT NOT NULL",
    },
    watermark=("at", "5 seconds"),
    future="1 hour",
    idle="30 seconds",
    late="revise within 1 day",
    sent="sent_at",
    skew="3 seconds",
    cap="2 days",
    numbered=("seq", ["sensor"]),
    deduplicate=(("sensor", "at"), "1 hour"),
    expect="1 minute",
    partition_by=["sensor"],
    partitions=4,
)
counted = readings.key_by("sensor").agg(n="count(*)")
counted.session("10 minutes").emit_on_close().view("sessions")
readings.calendar("month", "Europe/Berlin").agg(n="sum(n)").view("monthly")
counted.event_group(open="n = 1", close="n >= 9", timeout="2 hours").view("runs")
(
    readings.where("n > 0")
    .select("sensor", "at", name="upper(sensor)")
    .over("sensor", preceding="1 hour", hourly="avg(n)", most="max(n)")
    .over("sensor", preceding="unbounded", ever="count(*)")
    .view("slid")
)
readings.over(preceding="90 minutes", least="min(n)").view("slid_all")
headrace.stream(
    "aside", columns={"at": "TIMESTAMP NOT NULL"}, event_time="at", late="SIDE"
)
headrace.table(
    "prices",
    columns={
        "model": "STRING",
        "region": "STRING",
        "price": "DECIMAL(12, 6) NOT NULL",
        "since": "TIMESTAMP",
        "version": "INT",
    },
    key=["model", "region"],
    sequence_by="version",
    tombstones="30 days",
    partitions=4,
    history={"valid_from": "since", "for": "400 days"},
)
headrace.table("hosts", columns={"name": "STRING"}, key=["name"], history=True)
headrace.table(
    "sensors",
    source=readings,
    key=["sensor"],
    sequence_by="at",
    delete_when="n < 0",
    except_columns=["seq", "sent_at"],
)
headrace.table("pinged", source="pings", key=["host"])
(
    readings.left_join("hosts", "h.name = sensor", alias="h", as_of="readings.at")
    .join(
        "prices",
        "prices.model = sensor AND prices.region = h.name AND prices.version > 1",
        wait="10 minutes",
        else_dead_letter=True,
    )
    .window("1 minute")
    .key_by("prices.region")
    .agg(cost="sum(price * n)")
    .view("priced")
)
"""


def test_python_and_sql_give_equal_projects(tmp_path: Path, joins_run: None) -> None:
    for name, text in (("shop.sql", SQL), ("shop.py", PYTHON)):
        folder = tmp_path / name.split(".")[1]
        folder.mkdir()
        (folder / name).write_text(text)
    in_sql = load_project(tmp_path / "sql", "shop")
    in_python = load_project(tmp_path / "py", "shop")
    assert in_python == in_sql
    assert len(in_sql.views) == 13
    view = in_python.view("income_by_user")
    assert view is not None
    assert view.location is not None
    assert (view.location.file, view.location.line) == ("shop.py", 25)


FAULTY = """import headrace

events = headrace.stream(
    "events",
    columns={"id": "STRNG", "at": "TIMESTAMP NOT NULL"},
    watermark=("at", "5 moons"),
    late="revise",
    retain={"size": "much", "colour": "red"},
    idle="-1 second",
    skew="1 second",
    deduplicate=((), "1 hour"),
)
headrace.stream("later", columns={"at": "TIMESTAMP NOT NULL"}, late="revise after 1 day")
events.session("1 hour").calendar("day", "UTC").agg(n="count(*)").view("e")
events.event_group(open="id =", close="id = 'b'", timeout="1 hour").agg(n="count(*)").view("f")
events.calendar("day", "Mars/Olympus").agg(n="count(*)").view("g")
events.agg(n="count(*)").emit_on_close().view("h")
events.agg(n="count(*").view("a")
events.where("idd = 3").agg(n="count(*)").view("b")
events.key_by("upper(id)").agg(
    n="count(*)",
).view("c")
events.over("id =", preceding="1 hour", n="count(*)").view("i")
events.over(preceding="1 moon", n="count(*)").view("j")
events.over("id", preceding="1 hour", n="count(*)").over(preceding="1 hour", m="count(*)").view("k")
events.select("at").over(preceding="1 hour", n="rank()").view("l")
headrace.table("m", key=["id"])
headrace.table("n", key=["id"], columns={"id": "INT"}, source="later")
headrace.table("o", key=["id"], columns={"id": "INT"}, delete_when="id = 3")
headrace.table("p", key=["id"], columns={"id": "INT"}, except_columns=["id"], history={"to": "x"})
headrace.table("q", key=["at"], source=events.where("id = 'a'"), partitions=4)
headrace.table("r", key=["at"], source="later", delete_when="op =", tombstones="1 moon")
headrace.table("s", key=["att"], source="later", delete_when="op = 'd'", sequence_by="att")
headrace.table("t", key=["id"], columns={"id": "STRING"})
events.join("t", "t.id =", wait="1 moon").select("id").view("u")
events.join("t", "t.id = events.at", as_of="at", wait="1 hour").select("id").view("v")
raise ValueError("enough")
"""


def test_every_fault_of_a_python_file_has_its_line(folder: Path) -> None:
    (folder / "events.py").write_text(FAULTY)
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "more.sql").write_text("CREATE MATERIALIZED VIEW d AS SELECT x FROM events;")
    with pytest.raises(DefinitionErrors) as caught:
        load_project(folder)
    found = [
        f"{e.location.file}:{e.location.line}: {e.message}"
        for e in caught.value.errors
        if e.location is not None
    ]
    assert [line.split("; accepted")[0] for line in found] == [
        "broken.py:1: Python: invalid syntax",
        "events.py:3: stream events: DEDUPLICATE BY no column",
        "events.py:3: stream events: column id: 'STRNG' is not a column type",
        "events.py:3: stream events: idle: '-1 second' is negative",
        "events.py:3: stream events: retain: 'colour' is not known",
        "events.py:3: stream events: retain: 'much' is not a size",
        "events.py:3: stream events: skew or cap without sent",
        "events.py:3: stream events: watermark: 'moons' is not a unit of time",
        "events.py:13: stream later: late 'revise after 1 day' is not known",
        "events.py:14: two windows in one view",
        "events.py:15: in 'id =': near '=': an expression is missing",
        "events.py:16: view g: calendar_window(): 'Mars/Olympus' is not a time zone",
        "events.py:17: view h: EMIT ON WINDOW CLOSE without a window",
        "events.py:18: in 'count(*': near '*': expected )",
        "events.py:19: view b: column idd does not exist in stream events",
        "events.py:20: view c: upper(id) has no name",
        "events.py:23: in 'id =': near '=': an expression is missing",
        "events.py:24: over: preceding of n: 'moon' is not a unit of time",
        "events.py:25: view k: OVER (…) with another PARTITION BY than the first in this view",
        "events.py:26: view l: rank() OVER (…) cannot be kept exactly up to date",
        "events.py:27: table m: neither columns nor source",
        "events.py:28: table n: both columns and source",
        "events.py:29: table o: delete_when without source",
        "events.py:30: table p: except_columns without source",
        "events.py:30: table p: history: 'to' is not known",
        "events.py:31: table q: partitions with source",
        "events.py:31: table q: source is more than a stream",
        "events.py:32: in 'op =': near '=': an expression is missing",
        "events.py:32: table r: TOMBSTONES without SEQUENCE BY",
        "events.py:32: table r: tombstones: 'moon' is not a unit of time",
        "events.py:33: table s: KEY column att does not exist",
        "events.py:33: table s: SEQUENCE BY column att does not exist",
        "events.py:33: table s: column op does not exist in stream later",
        "events.py:35: in 't.id =': near '=': an expression is missing",
        "events.py:35: join t: wait: 'moon' is not a unit of time",
        "events.py:36: view v: FOR SYSTEM_TIME, and table t keeps no versions",
        "events.py:36: view v: t.id = events.at: events.at is TIMESTAMP, and t.id is STRING, which "
        "does not hold every value of it",
        "events.py:37: Python: ValueError: enough",
        "more.sql:1: view d: column x does not exist in stream events",
    ]


def test_a_function_defines_a_project() -> None:
    def define() -> None:
        orders = headrace.stream("orders", columns={"amount": "INT"})
        orders.agg(total="sum(amount)").view("income")

    assert define_project(define) == parse_sql(
        "CREATE STREAM orders (amount INT);"
        "CREATE MATERIALIZED VIEW income AS SELECT sum(amount) AS total FROM orders;"
    )


def test_every_fault_of_a_function_has_its_line() -> None:
    def define() -> None:
        orders = headrace.stream("orders", columns={"amount": "INT"})
        orders.agg(total="sum(amuont)").view("income")
        orders.agg(total="smu(amount)").view("order")

    first = define.__code__.co_firstlineno
    with pytest.raises(DefinitionErrors) as caught:
        define_project(define)
    places = [error.location for error in caught.value.errors]
    assert [(p.file, p.line - first) for p in places if p is not None] == [
        (__file__, 2),
        (__file__, 3),
    ]


def test_outside_a_project_a_fault_is_raised_where_it_is_said() -> None:
    with pytest.raises(DefinitionError) as caught:
        headrace.stream("s", columns={"id": "STRING"}, retain="some time")
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_every_public_name_exists() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError):
        headrace.nothing  # noqa: B018
