"""A stream with everything a stream can say about its time, and a view of every kind on it: in SQL,
and as the model of event_model.py means it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from event_model import (
    SECOND,
    Event,
    Finder,
    Row,
    Span,
    event_groups,
    regular,
    sessions,
    sliding,
    unwindowed,
    windowed,
)
from gateway_feed import microseconds, moment

BERLIN = ZoneInfo("Europe/Berlin")
START = microseconds(dt.datetime(2026, 2, 28, 22, 59, 45, tzinfo=dt.UTC))  # a month ends in Berlin
POLICIES = {
    "revise": "REVISE",
    "within": "REVISE WITHIN INTERVAL 4 SECONDS",
    "side": "SIDE",
    "drop": "DROP",
    "halt": "HALT",
}
STREAM = """
CREATE STREAM readings (key STRING, at TIMESTAMP NOT NULL, sent_at TIMESTAMP, status STRING,
  number INT, amount DECIMAL(12, 2), value DOUBLE)
WATERMARK at DELAY OF INTERVAL 2 SECONDS
FUTURE UP TO INTERVAL 30 SECONDS
IDLE AFTER INTERVAL 10 SECONDS
LATE {policy}
SENT sent_at SKEW OVER INTERVAL 2 SECONDS CAP INTERVAL 5 MINUTES
DEDUPLICATE BY (key, number) WITHIN INTERVAL 3 SECONDS
PARTITION BY (key) INTO 3 PARTITIONS;
"""
BOUNDS = "window.start AS s, window.end AS e"
VALUES = """count(*) AS n, sum(amount) AS total, avg(value) AS mean,
  count(DISTINCT status) AS kinds, max(_event_time) AS newest,
  count_if(_quality = 'corrected') AS corrected"""
FRAME = (
    "OVER (PARTITION BY key ORDER BY at RANGE BETWEEN INTERVAL 4 SECONDS PRECEDING AND CURRENT ROW)"
)


def by_key(event: Event) -> Any:
    return event.columns["key"]


def together(event: Event) -> Any:
    return None


def is_status(status: str) -> Callable[[Event], bool]:
    return lambda event: event.columns["status"] == status


def months(time: int) -> Iterable[Span]:
    start = moment(time).astimezone(BERLIN).date().replace(day=1)
    end = (start + dt.timedelta(days=31)).replace(day=1)
    midnights = (dt.datetime.combine(day, dt.time(), BERLIN) for day in (start, end))
    yield tuple(microseconds(midnight) for midnight in midnights)  # type: ignore[misc]


@dataclass(frozen=True)
class View:
    """Its definition in SQL and in the model; with `where`, events that meet it are not taken."""

    sql: str
    find: Finder
    is_without_threes: bool = False
    emits_on_close: bool = False


VIEWS = {
    "total": View(f"SELECT key, {VALUES} FROM readings GROUP BY key", unwindowed(by_key)),
    "tumbling": View(
        f"SELECT {BOUNDS}, key, {VALUES} FROM readings WHERE number <> 3"
        " GROUP BY window(at, '4 seconds'), key",
        windowed(by_key, regular(4 * SECOND, 4 * SECOND)),
        is_without_threes=True,
    ),
    "hopping": View(
        f"SELECT {BOUNDS}, {VALUES} FROM readings GROUP BY window(at, '6 seconds', '2 seconds')",
        windowed(together, regular(6 * SECOND, 2 * SECOND)),
    ),
    "closed": View(
        f"SELECT {BOUNDS}, {VALUES} FROM readings GROUP BY window(at, '5 seconds')"
        " EMIT ON WINDOW CLOSE",
        windowed(together, regular(5 * SECOND, 5 * SECOND)),
        emits_on_close=True,
    ),
    "monthly": View(
        f"SELECT {BOUNDS}, key, {VALUES} FROM readings"
        " GROUP BY calendar_window(at, 'month', 'Europe/Berlin'), key",
        windowed(by_key, months),
    ),
    "visits": View(
        f"SELECT {BOUNDS}, key, {VALUES} FROM readings WHERE number <> 3"
        " GROUP BY session_window(at, '2 seconds'), key",
        sessions(by_key, 2 * SECOND),
        is_without_threes=True,
    ),
    "parcels": View(
        f"SELECT {BOUNDS}, key, {VALUES} FROM readings"
        " GROUP BY event_group(status = 'open', status = 'close', '6 seconds'), key",
        event_groups(by_key, is_status("open"), is_status("close"), 6 * SECOND),
    ),
    "recent": View(
        f"SELECT key, _event_time AS s, count(*) {FRAME} AS n, sum(amount) {FRAME} AS total,"
        f" avg(value) {FRAME} AS mean FROM readings WHERE number <> 3",
        sliding(by_key, 4 * SECOND),
        is_without_threes=True,
    ),
}


def shown(row: Row, watermark: int | None) -> dict[str, Any]:
    def column(name: str) -> list[Any]:
        found = (event.columns[name] for event in row.events)
        return [value for value in found if value is not None]

    values = column("value")
    return {
        "key": row.key,
        "s": moment(row.span[0]),
        "e": moment(row.span[1]),
        "n": len(row.events),
        "total": sum(column("amount")) if column("amount") else None,
        "mean": sum(values) / len(values) if values else None,
        "kinds": len(set(column("status"))),
        "newest": moment(max(event.time for event in row.events)),
        "corrected": column("quality").count("corrected"),
        "revision": row.revision,
        "final": watermark is not None and row.passed_at <= watermark,
    }


def definitions(word: str) -> str:
    views = "".join(f"CREATE MATERIALIZED VIEW {n} AS {v.sql};\n" for n, v in VIEWS.items())
    return STREAM.format(policy=POLICIES[word]) + views
