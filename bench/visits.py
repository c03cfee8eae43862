"""Visits of a hundred thousand users in sessions, by the million, and the sessions they form.

Each of 10,000 slots has ten users, who take turns: one visits for twenty seconds of event time,
about once a second, and comes back when the other nine have. One visit in ten comes up to three
seconds after its time, one in a hundred up to ten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

__all__ = ["SQL", "USERS", "VIEW", "Sessions", "expected", "kept", "visits"]

CHUNK_EVENTS = 100_000
RATE = 10_000  # events of one second of event time
SLOTS, TURNS = 10_000, 10
USERS = SLOTS * TURNS
TURN_EVENTS = 20 * RATE
GAP_SECONDS = 10
START_MICROSECONDS = 1_767_225_600_000_000
STREAM, VIEW = "visits", "sessions"
SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("amount", pa.int64(), nullable=False),
    ]
)
SQL = f"""\
CREATE STREAM {STREAM} (user_id STRING NOT NULL, at TIMESTAMP NOT NULL, amount BIGINT NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (user_id) INTO 4 PARTITIONS;

CREATE MATERIALIZED VIEW {VIEW} AS
SELECT user_id, session_window.start AS window_start, session_window.end AS window_end,
       count(*) AS visits, sum(amount) AS amount, max(amount) AS largest
FROM {STREAM} GROUP BY session_window(at, '{GAP_SECONDS} seconds'), user_id;
"""
_COLUMNS = "user_id, epoch_us(window_start), epoch_us(window_end), visits, amount, largest"

Sessions = list[tuple[str, int, int, int, int, int]]


def visits(seed: int, events: int) -> Iterator[pa.RecordBatch]:
    """The first `events` events, chunk by chunk; the same for the same seed."""
    names = pa.array([f"user-{number:06}" for number in range(USERS)])
    for chunk in range(-(-events // CHUNK_EVENTS)):
        random = np.random.default_rng([seed, chunk])
        numbers = np.arange(chunk * CHUNK_EVENTS, (chunk + 1) * CHUNK_EVENTS)
        slot = random.integers(0, SLOTS, CHUNK_EVENTS)
        turn = (numbers + slot * (TURN_EVENTS // SLOTS)) // TURN_EVENTS % TURNS
        kind = random.random(CHUNK_EVENTS)
        most = np.where(kind < 0.9, 0.2, np.where(kind < 0.99, 3.0, 10.0))
        behind = (random.random(CHUNK_EVENTS) * most * 1_000_000).astype(np.int64)
        times = numbers * (1_000_000 // RATE) - behind + START_MICROSECONDS
        yield pa.RecordBatch.from_arrays(
            [
                names.take(pa.array(slot * TURNS + turn)),
                pa.array(times).cast(pa.timestamp("us", "UTC")),
                pa.array(random.integers(1, 1_000, CHUNK_EVENTS)),
            ],
            schema=SCHEMA,
        ).slice(0, min(CHUNK_EVENTS, events - chunk * CHUNK_EVENTS))


def expected(events: pa.Table) -> Sessions:
    """By plain SQL over all events at once: a session begins where more than the gap lies before
    a visit."""
    with duckdb.connect() as connection:
        connection.register("events", events)
        return connection.execute(
            f"""
            WITH cut AS (
              SELECT *, coalesce(
                "at" - lag("at") OVER by_time > INTERVAL {GAP_SECONDS} SECONDS, true)
                AS begins FROM events WINDOW by_time AS (PARTITION BY user_id ORDER BY "at")),
            numbered AS (
              SELECT *, sum(begins::INT) OVER (PARTITION BY user_id ORDER BY "at") AS session
              FROM cut)
            SELECT user_id, epoch_us(min("at")), epoch_us(max("at")) + {GAP_SECONDS} * 1000000,
              count(*), sum(amount)::BIGINT, max(amount)
            FROM numbered GROUP BY user_id, session ORDER BY ALL
            """
        ).fetchall()


def kept(store_file: Path) -> Sessions:
    """What the view shows in the store that the engine's process left."""
    with duckdb.connect(str(store_file), read_only=True) as connection:
        return connection.execute(f"SELECT {_COLUMNS} FROM {VIEW} ORDER BY ALL").fetchall()
