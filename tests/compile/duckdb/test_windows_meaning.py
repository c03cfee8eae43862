"""Windows in plain Spark SQL (`ViewPlan.sql`), against what they mean in a few lines of Python; and
sliding windows computed both ways."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

pytestmark = pytest.mark.spark

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DDL = """CREATE STREAM steps (k STRING, kind STRING, n INT, d DOUBLE, m DECIMAL(18, 2),
  at TIMESTAMP NOT NULL) WATERMARK at LATE REVISE"""
TIMEOUT = timedelta(seconds=10)
GROUP = "event_group(kind IN ('open', 'both'), kind IN ('close', 'both'), '10 seconds')"


def steps(seed: int, keys: int = 60) -> list[dict[str, Any]]:
    """Few events per key and few instants, so that ties, gaps and bounds all occur."""
    chance = random.Random(seed)
    rows = []
    for key in range(keys):
        rows += [
            {
                "k": f"k{key}" if key else None,
                "kind": chance.choice(["open", "close", "both", "step", None]),
                "n": chance.choice([None, *range(-3, 9)]),
                "d": chance.choice([None, 0.5, -1.25, 3.0, 1e6]),
                "at": EPOCH + timedelta(seconds=chance.randrange(0, 40, 5)),
            }
            for _ in range(chance.randrange(12))
        ]
    chance.shuffle(rows)
    return rows


def groups_of(events: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Of one key: the words of plan.EventGroup, event by event."""
    start: datetime | None = None
    members = 0
    for event in sorted(events, key=lambda event: (event["at"], event["offset"])):
        if start is not None and event["at"] >= start + TIMEOUT:
            yield start, start + TIMEOUT, members
            start, members = None, 0
        if start is None and event["kind"] in ("open", "both"):
            start = event["at"]
        if start is None:
            continue
        members += 1
        if event["kind"] in ("close", "both"):
            yield start, event["at"], members
            start, members = None, 0
    if start is not None:
        yield start, start + TIMEOUT, members


def by_key(rows: Sequence[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for offset, row in enumerate(rows):
        found.setdefault(row["k"], []).append({**row, "offset": offset})
    return found


def sorted_rows(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def test_event_groups(meaning: Any, seed: int) -> None:
    rows = steps(seed)
    found = meaning.oracle(
        "SELECT k, window.start AS a, window.end AS z, count(*) AS n FROM steps "
        f"GROUP BY {GROUP}, k",
        rows,
        DDL,
    )
    expected = [
        (key, *group) for key, events in by_key(rows).items() for group in groups_of(events)
    ]
    assert len(expected) > 50
    assert sorted_rows(found) == sorted_rows(expected)


def test_event_groups_over_all_keys_and_with_conditions(meaning: Any) -> None:
    rows = [row for row in steps(4) if row["k"] in ("k1", "k2", "k3")]
    found = meaning.oracle(
        "SELECT window.start AS a, window.end AS z, count(*) AS n FROM steps WHERE k <> 'k1' "
        f"GROUP BY {GROUP} HAVING n > 1",
        rows,
        DDL,
    )
    kept = [{**row, "offset": n} for n, row in enumerate(rows) if row["k"] != "k1"]
    expected = [group for group in groups_of(kept) if group[2] > 1]
    assert expected
    assert sorted_rows(found) == sorted_rows(expected)


def test_sessions(meaning: Any) -> None:
    rows = steps(5)
    found = meaning.oracle(
        "SELECT k, session_window.start AS a, window.end AS z, count(*) AS n, "
        "count(DISTINCT n) AS values, first(kind) AS first FROM steps "
        "GROUP BY session_window(at, '10 seconds'), k",
        rows,
        DDL,
    )
    expected = []
    for key, events in by_key(rows).items():
        session: list[dict[str, Any]] = []
        for event in sorted(events, key=lambda event: (event["at"], event["offset"])):
            if session and event["at"] - session[-1]["at"] > TIMEOUT:
                expected.append(session_row(key, session))
                session = []
            session.append(event)
        expected.append(session_row(key, session))
    assert sorted_rows(found) == sorted_rows(expected)


def session_row(key: Any, session: list[dict[str, Any]]) -> tuple[Any, ...]:
    values = {event["n"] for event in session} - {None}
    start, end = session[0]["at"], session[-1]["at"] + TIMEOUT
    return key, start, end, len(session), len(values), session[0]["kind"]


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "America/Sao_Paulo", "Atlantic/Azores", "Asia/Kathmandu", "Pacific/Apia"],
)
def test_calendar_windows(meaning: Any, zone: str) -> None:
    """Also where midnight comes twice or not at all, and where a whole day was left out."""
    chance = random.Random(zone)
    since = datetime(2010, 6, 1, tzinfo=UTC)
    times = [since + timedelta(minutes=chance.randrange(60 * 24 * 365 * 10)) for _ in range(400)]
    times += [datetime(2018, 11, 4, 3, tzinfo=UTC) + timedelta(minutes=n) for n in range(-90, 90)]
    rows = [{"k": "a", "at": time} for time in times]
    for unit in ("day", "week", "month", "quarter", "year"):
        found = meaning.oracle(
            "SELECT window.start AS a, window.end AS z, count(*) AS n FROM steps "
            f"GROUP BY calendar_window(at, '{unit}', '{zone}')",
            rows,
            DDL,
        )
        expected: dict[tuple[datetime, datetime], int] = {}
        for time in times:
            bounds = calendar_bounds(time, unit, ZoneInfo(zone))
            expected[bounds] = expected.get(bounds, 0) + 1
        wanted = [(*bounds, count) for bounds, count in expected.items()]
        assert sorted_rows(found) == sorted_rows(wanted), unit


def calendar_bounds(time: datetime, unit: str, zone: ZoneInfo) -> tuple[datetime, datetime]:
    day = time.astimezone(zone).replace(tzinfo=None, fold=0)
    day = day.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        start = day - timedelta(days=day.weekday())
        end = start + timedelta(days=7)
    elif unit == "day":
        start, end = day, day + timedelta(days=1)
    else:
        months = {"month": 1, "quarter": 3, "year": 12}[unit]
        first = (day.month - 1) // months * months
        start = day.replace(month=first + 1, day=1)
        end = start.replace(
            year=start.year + (first + months) // 12, month=(first + months) % 12 + 1
        )
    return tuple(  # type: ignore[return-value]
        bound.replace(tzinfo=zone).astimezone(UTC) for bound in (start, end)
    )


RANGE = "(PARTITION BY k ORDER BY at RANGE BETWEEN INTERVAL {} PRECEDING AND CURRENT ROW)"


def test_sliding_windows_are_sparks_own(meaning: Any, seed: int) -> None:
    rows = steps(seed, keys=12)
    short, long = RANGE.format("10 SECONDS"), RANGE.format("1 MINUTE")
    ever = "(PARTITION BY k ORDER BY at RANGE UNBOUNDED PRECEDING)"
    compared = meaning.compare(
        f"SELECT k, at, _offset AS place, n, count(*) OVER {short} AS c, sum(n) OVER {short} AS s, "
        f"avg(n) OVER {long} AS a, avg(d) OVER {ever} AS e, min(kind) OVER {short} AS low, "
        f"max(n) OVER {ever} AS high, first(kind) OVER {short} AS f, "
        f"last(n, true) OVER {long} AS l, max_by(kind, n) OVER {short} AS best, "
        f"stddev(d) OVER {short} AS deviation, var_pop(n) OVER {long} AS spread, "
        f"count_if(n > 3) OVER {short} AS many, bool_or(n > 7) OVER {ever} AS some, "
        f"CASE WHEN count(*) OVER {short} > 2 THEN n - max(n) OVER {short} ELSE n END AS below "
        "FROM steps WHERE kind IS NOT NULL",
        [rows[::2], rows[1::2]],
        DDL,
    )
    compared.check()


def test_sliding_windows_without_keys(meaning: Any) -> None:
    compared = meaning.compare(
        "SELECT k, at, _offset AS place, sum(m) OVER (ORDER BY at RANGE INTERVAL 5 SECONDS "
        "PRECEDING) AS s, avg(m) OVER (ORDER BY at RANGE UNBOUNDED PRECEDING) AS a FROM steps",
        [[{**row, "m": row["n"]} for row in steps(8, keys=4)]],
        DDL,
    )
    compared.check()
