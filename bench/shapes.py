"""Views of twelve shapes and four kinds, for projects that have many views.

Every shape is made for a stream and a variant: variants of one shape differ in a bound or in a
length of time, so that no two views of a project are the same. Each comes with the batch query that
gives its rows in DuckDB, and with the query by which it is read while it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.batch import Query

__all__ = ["SHAPES", "Shape", "shaped", "windows"]

ROWS = 20  # of the answers that are asked for
ONE_SENSOR = "&sensor=7"


class Shape(NamedTuple):
    """`make` takes the stream and the variant; `asked` is what its fixed query has beside the
    limit."""

    name: str
    make: Callable[[str, int], Query]
    asked: str = ""


def windows(stream: str, time: str, seconds: int, slide: int) -> str:
    """The rows of a stream, in DuckDB's SQL, once for each window that they lie in."""
    size, step = seconds * 1_000_000, slide * 1_000_000
    return f"""(SELECT make_timestamptz(start) AS window_start,
      make_timestamptz(start + {size}) AS window_end, * FROM (
      SELECT *, epoch_us({time}) // {step} * {step} - step * {step} AS start
      FROM {stream}, range({seconds // slide}) AS steps(step)))"""


_BOUNDS = "window.start AS window_start, window.end AS window_end"


def _windowed(
    stream: str, where: str, keys: str, aggregates: str, seconds: int, slide: int, close: str = ""
) -> Query:
    lengths = f"'{seconds} seconds'" + (f", '{slide} seconds'" if slide != seconds else "")
    return Query(
        f"SELECT {_BOUNDS}, {keys}, {aggregates} FROM {stream}{where}"
        f" GROUP BY window(read_at, {lengths}), {keys}{close}",
        f"SELECT window_start, window_end, {keys}, {aggregates}"
        f" FROM {windows(stream, 'read_at', seconds, slide)}{where} GROUP BY ALL",
    )


def _totals(stream: str, variant: int) -> Query:
    return Query(
        f"SELECT count(*) AS events, sum(level + {variant}) AS levels,"
        f" max(read_at) AS newest FROM {stream}"
    )


def _by_sensor(stream: str, variant: int) -> Query:
    return Query(
        "SELECT sensor, count(*) AS events, sum(amount) AS total, max(level) AS most"
        f" FROM {stream} WHERE level >= {10 * variant} GROUP BY sensor"
    )


def _texts(stream: str, variant: int) -> Query:
    return Query(
        "SELECT sensor, room, min(status) AS least, max(note) AS most, count(*) AS events"
        f" FROM {stream} WHERE level <> {variant} GROUP BY sensor, room"
    )


def _by_room(stream: str, variant: int) -> Query:
    return _windowed(
        stream,
        "",
        "room",
        "count(*) AS events, sum(amount) AS total, min(level) AS least",
        10 + variant,
        10 + variant,
    )


def _closed(stream: str, variant: int) -> Query:
    return _windowed(
        stream,
        "",
        "sensor",
        "count(*) AS events, sum(level) AS levels",
        5 + variant,
        5 + variant,
        "\nEMIT ON WINDOW CLOSE",
    )


def _hopping(stream: str, variant: int) -> Query:
    aggregates = "count(*) AS events, max(amount) AS most"
    return _windowed(stream, "", "status", aggregates, 20 + 5 * variant, 5)


def _by_day(stream: str, variant: int) -> Query:
    aggregates = "count(DISTINCT sensor) AS sensors, count(*) AS events"
    return Query(
        f"SELECT {_BOUNDS}, room, {aggregates} FROM {stream} WHERE level >= {variant}"
        " GROUP BY calendar_window(read_at, 'day', 'UTC'), room",
        "SELECT date_trunc('day', read_at) AS window_start,"
        " date_trunc('day', read_at) + INTERVAL 1 DAY AS window_end,"
        f" room, {aggregates} FROM {stream} WHERE level >= {variant} GROUP BY ALL",
    )


def _sessions(stream: str, variant: int) -> Query:
    gap = 3 + variant
    return Query(
        f"SELECT sensor, {_BOUNDS}, count(*) AS events, sum(level) AS levels FROM {stream}"
        f" GROUP BY session_window(read_at, '{gap} seconds'), sensor",
        f"""SELECT sensor, min(read_at) AS window_start,
          max(read_at) + INTERVAL {gap} SECONDS AS window_end, count(*) AS events,
          sum(level) AS levels FROM (
          SELECT *, sum(begins::INT) OVER (PARTITION BY sensor ORDER BY read_at) AS session FROM (
            SELECT *, coalesce(read_at - lag(read_at) OVER (PARTITION BY sensor
              ORDER BY read_at) > INTERVAL {gap} SECONDS, true) AS begins FROM {stream}))
        GROUP BY sensor, session""",
    )


def _sliding(stream: str, variant: int) -> Query:
    over = (
        "OVER (PARTITION BY sensor ORDER BY read_at RANGE BETWEEN"
        f" INTERVAL {5 + variant} SECONDS PRECEDING AND CURRENT ROW)"
    )
    return Query(
        f"SELECT id, sensor, read_at, level, sum(level) {over} AS total, max(level) {over} AS most"
        f" FROM {stream}"
    )


def _rows(stream: str, variant: int) -> Query:
    return Query(
        "SELECT id, sensor, upper(room) AS place, level * 2 AS doubled, amount, read_at"
        f" FROM {stream} WHERE level < {100 + variant}"
    )


def _distinct(stream: str, variant: int) -> Query:
    return Query(
        "SELECT status, count(DISTINCT sensor) AS sensors, count(DISTINCT sensor)"
        f" FILTER (WHERE level < {100 + variant}) AS low, count(DISTINCT room) AS rooms"
        f" FROM {stream} GROUP BY status"
    )


def _having(stream: str, variant: int) -> Query:
    chosen = f"FROM {stream} GROUP BY room, status HAVING count(*) > {5 + variant}"
    outputs = "room, status, sum(amount) * 2 AS doubled"
    return Query(
        f"SELECT {outputs}, avg(level) AS average {chosen}",
        f"SELECT {outputs}, sum(level)::DOUBLE / count(*) AS average {chosen}",
    )


SHAPES: Sequence[Shape] = (
    Shape("totals", _totals),
    Shape("by_sensor", _by_sensor, ONE_SENSOR),
    Shape("by_room", _by_room),
    Shape("sessions", _sessions, ONE_SENSOR),
    Shape("hopping", _hopping),
    Shape("rows", _rows, ONE_SENSOR),
    Shape("texts", _texts, ONE_SENSOR),
    Shape("closed", _closed, ONE_SENSOR),
    Shape("distinct", _distinct),
    Shape("sliding", _sliding, ONE_SENSOR),
    Shape("having", _having),
    Shape("by_day", _by_day),
)


def shaped(stream: str, number: int) -> tuple[Shape, Query]:
    """The view number `number` of a project, over this stream; shapes go by turns."""
    variant, place = divmod(number, len(SHAPES))
    return SHAPES[place], SHAPES[place].make(stream, variant)
