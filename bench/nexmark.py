"""Nexmark's queries over bids alone, together and each by itself.

The bids go over HTTP in bodies of 5,000, durable, and the clock runs until every view has read the
last of them. The first ones, an eighth of all, are not counted: compiled code is measured. Then
every view is compared, row by row, with a batch query over the same bids.

q5 counts per auction and window, without the join that picks the most; q16 is per channel and day.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.batch import Query
from bench.bids import BIDS_SQL, Bids
from bench.results import Figure
from bench.run import Run
from bench.taken_in import Project, measured

__all__ = ["QUERIES", "nexmark_alone", "nexmark_bids", "project"]

EVENTS, QUICK_EVENTS = 4_000_000, 400_000
ALONE_EVENTS = 1_600_000
COUNT = "bare_count"
BIDS = Bids(seed=31)

_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")
_COUNTS = ", ".join(
    [
        "count(*) AS total_bids",
        *(
            f"count(*) FILTER (WHERE {rank}) AS rank{number}_bids"
            for number, rank in enumerate(_RANKS, 1)
        ),
    ]
)
_DISTINCT = ", ".join(
    part
    for column, name in (("bidder", "bidders"), ("auction", "auctions"))
    for part in (
        f"count(DISTINCT {column}) AS total_{name}",
        *(
            f"count(DISTINCT {column}) FILTER (WHERE {rank}) AS rank{number}_{name}"
            for number, rank in enumerate(_RANKS, 1)
        ),
    )
)
_PRICES = "min(price) AS min_price, max(price) AS max_price"
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_Q14 = """SELECT auction, bidder, 0.908 * price AS price,
  CASE WHEN hour(date_time) >= 8 AND hour(date_time) <= 18 THEN 'dayTime'
       WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
       ELSE 'otherTime' END AS bid_time_type,
  date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bids WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000"""
_Q21 = f"""SELECT auction, bidder, price, channel,
  CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
       WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
       ELSE {_CHANNEL_ID} END AS channel_id
FROM bids WHERE {_CHANNEL_ID} <> '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"""
_Q22 = """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
  split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bids"""


def _windows(seconds: int, slide: int, columns: str) -> str:
    """The same bids once for each window that they lie in."""
    return f"""SELECT {columns}, make_timestamptz(start) AS window_start,
      make_timestamptz(start + {seconds * 1_000_000}) AS window_end, * FROM (
      SELECT *, epoch_us(date_time) // {slide * 1_000_000} * {slide * 1_000_000}
        - step * {slide * 1_000_000} AS start
      FROM bids, range({seconds // slide}) AS steps(step))"""


# The definition, and what DuckDB is asked where it says that otherwise.
QUERIES: Mapping[str, Query] = {
    "q1": Query(
        "SELECT auction, bidder, 0.908 * price AS price, date_time, extra FROM bids",
    ),
    "q2": Query("SELECT auction, price FROM bids WHERE auction % 123 = 0"),
    "q5": Query(
        "SELECT auction, window.start AS window_start, window.end AS window_end, count(*) AS bids"
        " FROM bids GROUP BY window(date_time, '10 seconds', '2 seconds'), auction",
        f"SELECT auction, window_start, window_end, count(*) AS bids"
        f" FROM ({_windows(10, 2, 'auction')}) GROUP BY ALL",
    ),
    "q7": Query(
        "SELECT window.start AS window_start, window.end AS window_end, max(price) AS max_price"
        " FROM bids GROUP BY window(date_time, '10 seconds')",
        f"SELECT window_start, window_end, max(price) AS max_price"
        f" FROM ({_windows(10, 10, 'price')}) GROUP BY ALL",
    ),
    "q11": Query(
        "SELECT bidder, window.start AS window_start, window.end AS window_end, count(*) AS bids"
        " FROM bids GROUP BY session_window(date_time, '10 seconds'), bidder",
        """SELECT bidder, min(date_time) AS window_start,
          max(date_time) + INTERVAL 10 SECONDS AS window_end, count(*) AS bids FROM (
          SELECT *, sum(begins::INT) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM (
            SELECT *, coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder
              ORDER BY date_time) > INTERVAL 10 SECONDS, true) AS begins FROM bids))
        GROUP BY bidder, session""",
    ),
    "q14": Query(_Q14),
    "q15": Query(
        f"SELECT date_format(date_time, 'yyyy-MM-dd') AS day, {_COUNTS}, {_DISTINCT}"
        " FROM bids GROUP BY date_format(date_time, 'yyyy-MM-dd')",
        f"SELECT strftime(date_time, '%Y-%m-%d') AS day, {_COUNTS}, {_DISTINCT}"
        " FROM bids GROUP BY day",
    ),
    "q16": Query(
        "SELECT channel, date_format(date_time, 'yyyy-MM-dd') AS day,"
        f" max(date_format(date_time, 'HH:mm')) AS minute, {_COUNTS}, {_DISTINCT}"
        " FROM bids GROUP BY channel, date_format(date_time, 'yyyy-MM-dd')",
        "SELECT channel, strftime(date_time, '%Y-%m-%d') AS day,"
        f" max(strftime(date_time, '%H:%M')) AS minute, {_COUNTS}, {_DISTINCT}"
        " FROM bids GROUP BY channel, day",
    ),
    "q17": Query(
        f"SELECT auction, date_format(date_time, 'yyyy-MM-dd') AS day, {_COUNTS}, {_PRICES},"
        " avg(price) AS avg_price, sum(price) AS sum_price"
        " FROM bids GROUP BY auction, date_format(date_time, 'yyyy-MM-dd')",
        f"SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, {_COUNTS}, {_PRICES},"
        " sum(price)::DOUBLE / count(*) AS avg_price, sum(price) AS sum_price"
        " FROM bids GROUP BY auction, day",
    ),
    "q21": Query(_Q21),
    "q22": Query(_Q22),
}
_ALONE: Mapping[str, Query] = {COUNT: Query("SELECT count(*) AS bids FROM bids"), **QUERIES}


def nexmark_bids(work: Path, run: Run) -> Iterator[Figure]:
    events = run.events_or(EVENTS, QUICK_EVENTS)
    taken, memory = measured(work, run, project(QUERIES), BIDS, events)
    details = {
        **taken.details,
        "cpu_s_per_million": taken.cpu_s_per_million,
        "memory_mib": memory.mebibytes_max,
    }
    yield Figure("nexmark_bids", taken.rate, details)
    yield Figure("nexmark_memory", memory.mebibytes_max, memory.details)


def nexmark_alone(work: Path, run: Run) -> Iterator[Figure]:
    """Each query in a project of its own, above a project that counts the bids."""
    events = run.events_or(ALONE_EVENTS, QUICK_EVENTS)
    found = {
        name: measured(work, run, project({name: query}), BIDS, events)[0].cpu_s_per_million
        for name, query in _ALONE.items()
    }
    bare = found.pop(COUNT)
    above = {name: cost - bare for name, cost in found.items()}
    yield Figure(
        "nexmark_alone", statistics.fmean(above.values()), {**above, COUNT: bare, "events": events}
    )


def project(queries: Mapping[str, Query]) -> Project:
    name = "-".join(["nexmark", *(queries if len(queries) == 1 else ())])
    return Project(name, BIDS_SQL, queries)
