"""What the views must hold: a plain batch query in DuckDB over the same events.

The oracle knows nothing of Headrace or Spark. Sums and counts are exact; an average is their
quotient rounded half up to six places, which is what Spark gives for DECIMAL(18, 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.events import SCHEMA, Events, Workload, tables
from bench.shop import VIEWS, BenchView

__all__ = ["Difference", "Rows", "check_log", "check_views", "expected", "rows_of", "write_parquet"]

Row = tuple[Any, ...]
Rows = Mapping[Row, Row]  # from a row's keys to its aggregates
_EXACT = Context(prec=60)
_SIX_PLACES = Decimal("0.000001")


class Difference(Exception):  # noqa: N818
    """An output that is not what the oracle says: the figure does not count."""


def expected(events: Sequence[Path] | pa.Table) -> dict[str, Rows]:
    """Every view's rows over the events in these Parquet files, or in this table."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if isinstance(events, pa.Table):
            connection.register("events", events)
        else:
            names = ", ".join(f"'{file}'" for file in events)
            connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet([{names}])")
        return {view.name: _expected(connection, view) for view in VIEWS}


def _expected(connection: duckdb.DuckDBPyConnection, view: BenchView) -> Rows:
    where = f"WHERE {view.where}" if view.where else ""
    keys = list(view.keys)
    source = "events"
    if view.seconds:
        size, slide = view.seconds * 1_000_000, view.slide * 1_000_000
        # An event lies in size / slide windows: the last that began, and those before it.
        source = (
            f"(SELECT *, epoch_us(created_at) // {slide} * {slide} - step * {slide} AS start"
            f" FROM events, range({size // slide}) AS steps(step))"
        )
        keys = ["start", f"start + {size}", *keys]
    columns = [*keys, "sum(amount)", "count(*)", "min(amount)", "max(amount)"]
    found = connection.execute(
        f"SELECT {', '.join(columns)} FROM {source} {where}"
        f" GROUP BY {', '.join(str(number + 1) for number in range(len(keys)))}"
    ).fetchall()
    return {
        tuple(row[: len(keys)]): tuple(
            _aggregated(aggregate.function, *row[len(keys) :]) for aggregate in view.aggregates
        )
        for row in found
    }


def _aggregated(
    function: str, total: Decimal, count: int, least: Decimal, most: Decimal
) -> Decimal | int:
    if function == "avg":
        return _EXACT.divide(total, Decimal(count)).quantize(_SIX_PLACES, ROUND_HALF_UP, _EXACT)
    if function == "count":
        return count
    return {"sum": total, "min": least, "max": most}[function]


def rows_of(view: BenchView, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """A view's rows from wherever they were read: JSON texts or typed values, windows as times.
    Raises Difference when two rows have the same keys."""
    found: dict[Row, Row] = {}
    for row in rows:
        key = tuple(_comparable(row[name]) for name in view.key_names)
        if key in found:
            raise Difference(f"{view.name}: two rows for {key}")
        found[key] = tuple(
            int(row[a.name]) if a.function == "count" else Decimal(row[a.name])
            for a in view.aggregates
        )
    return found


def _comparable(value: Any) -> Any:
    """Times as microseconds: from RFC 3339 text, or a datetime (UTC where it says nothing)."""
    if isinstance(value, str) and value[10:11] == "T":
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        seconds = int(aware.replace(microsecond=0).timestamp())
        return seconds * 1_000_000 + aware.microsecond
    return value


def check_views(wanted: Mapping[str, Rows], found: Mapping[str, Rows]) -> None:
    """Raises Difference naming the first row that differs."""
    for name, rows in wanted.items():
        had = found[name]
        for key in sorted(rows.keys() | had.keys()):
            if rows.get(key) != had.get(key):
                raise Difference(
                    f"{name} {key}: expected {rows.get(key)}, found {had.get(key)}"
                    f" ({len(rows)} rows expected, {len(had)} found)"
                )


def check_log(workload: Workload, events: int, stored: Iterable[pa.RecordBatch]) -> None:
    """That the log holds exactly the workload's first `events` events, in any order. Raises
    Difference."""
    wanted = pa.RecordBatchReader.from_batches(SCHEMA, tables(workload, events))
    wanted_digest, found_digest = _digest(wanted), _digest(_reader(stored))
    if wanted_digest != found_digest:
        raise Difference(f"the log holds {found_digest}, but {wanted_digest} were acknowledged")


def _reader(stored: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    def chosen() -> Iterable[pa.RecordBatch]:
        for batch in stored:
            yield pa.RecordBatch.from_arrays(
                [batch.column(field.name).cast(field.type) for field in SCHEMA], schema=SCHEMA
            )

    return pa.RecordBatchReader.from_batches(SCHEMA, chosen())


def _digest(events: pa.RecordBatchReader) -> str:
    """The number of events, the sum of their amounts, and two sums over a hash of each row: the
    same for the same rows in any order."""
    with duckdb.connect() as connection:
        connection.register("events", events)
        row = connection.execute(
            "SELECT count(*), sum(amount), sum(h), bit_xor(h) FROM (SELECT amount,"
            " hash(id, user_id, amount, currency, status, epoch_us(created_at)) AS h FROM events)"
        ).fetchone()
    assert row is not None
    count, amount, summed, mixed = row
    return f"{count} events (amount {amount}, hashes {summed or 0} and {mixed or 0:x})"


def write_parquet(directory: Path, workload: Events, events: int) -> list[Path]:
    """The workload's first `events` events, a file per chunk, as Spark's file source takes them:
    in order of modification time."""
    import os

    directory.mkdir(parents=True)
    files = []
    for number, batch in enumerate(tables(workload, events)):
        file = directory / f"events-{number:05}.parquet"
        pq.write_table(pa.Table.from_batches([batch]), file)
        os.utime(file, (1_767_225_600 + number, 1_767_225_600 + number))
        files.append(file)
    return files
