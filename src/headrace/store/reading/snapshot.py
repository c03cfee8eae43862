"""A view as it stood at one tick, written to a file, with all that the ledger knows of it.

Rows are streamed: no view is too large. Columns are named by their place, c0, c1, … for the public
ones and k0, k1, … for the keys that tell rows apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.kinds.calculator import arrow_reader, quoted
from headrace.model.tables import VIEW
from headrace.model.types import parse_type
from headrace.store.backend import SCHEMA
from headrace.store.books import DEAD_LETTERS, LEDGER, PROGRESS_BOOK, decode_offsets
from headrace.store.catalog import StoredView
from headrace.store.contract import Freshness, Snapshot
from headrace.store.late import read_applied, read_decisions
from headrace.store.ledger import move_of
from headrace.store.reading.paging import conditions_sql

__all__ = ["write_snapshot"]

DEAD_MAX = 1_000_000
TICKS_MAX = 20_000
ROWS_PER_GROUP = 100_000


def write_snapshot(
    connection: duckdb.DuckDBPyConnection,
    stored: StoredView,
    freshness: Freshness,
    file: Path,
    filters: Mapping[str, str],
    with_ticks: bool,
) -> Snapshot:
    """In a reader's snapshot. Raises QueryError for filters as Store.read_view does."""
    number = stored.number
    offsets, watermark = _progress(connection, number)
    rows = _write_rows(connection, stored, file, conditions_sql(stored, filters))
    dead = connection.execute(
        f'SELECT DISTINCT partition, "offset" FROM {SCHEMA}.{DEAD_LETTERS.name}'
        f" WHERE number = {number} ORDER BY ALL LIMIT {DEAD_MAX}"
    ).fetchall()
    return Snapshot(
        view=stored.entry.view,
        stream=stored.entry.stream,
        fingerprint=stored.entry.fingerprint,
        tick=freshness.tick,
        created_tick=stored.created_tick,
        rows=rows,
        columns=tuple(name for name, _ in stored.columns),
        keys=len(stored.hidden),
        start_offsets=dict(stored.entry.start_offsets),
        next_offsets=offsets,
        watermark_microseconds=watermark,
        dead=tuple((partition, offset) for partition, offset in dead),
        decisions=read_decisions(connection, stored.entry.stream),
        applied=read_applied(connection, stored),
        ticks_from=max(stored.created_tick + 1, _lowest_tick(connection) + 1, stored.feed_from),
        ticks=_ticks(connection, stored.numbers) if with_ticks else (),
    )


def _progress(
    connection: duckdb.DuckDBPyConnection, number: int
) -> tuple[dict[int, int], int | None]:
    ((offsets, watermark),) = connection.execute(
        f"SELECT offsets, watermark FROM {SCHEMA}.{PROGRESS_BOOK.name} WHERE {VIEW} = {number}"
    ).fetchall()
    return decode_offsets(offsets), watermark


def _lowest_tick(connection: duckdb.DuckDBPyConnection) -> int:
    """The last tick that is no longer in the ledger."""
    ((lowest,),) = connection.execute(
        f"SELECT min(tick) - 1 FROM {SCHEMA}.{LEDGER.name}"
    ).fetchall()
    return lowest or 0


def _ticks(
    connection: duckdb.DuckDBPyConnection, numbers: Sequence[int]
) -> tuple[tuple[int, dict[int, int]], ...]:
    """The newest that moved the view."""
    found = connection.execute(
        f"SELECT tick, moves FROM {SCHEMA}.{LEDGER.name} ORDER BY tick DESC LIMIT {TICKS_MAX}"
    ).fetchall()
    moves = ((tick, move_of(text, numbers)) for tick, text in reversed(found))
    return tuple((tick, offsets) for tick, offsets in moves if offsets is not None)


def _write_rows(
    connection: duckdb.DuckDBPyConnection, stored: StoredView, file: Path, where: str
) -> int:
    public = [f"{quoted(name)} AS c{i}" for i, (name, _) in enumerate(stored.columns)]
    keys = [f"{quoted(name)} AS k{i}" for i, name in enumerate(stored.hidden)]
    table = stored.rows_sql
    chosen = ", ".join([*public, *keys])
    reader = arrow_reader(connection, f"SELECT {chosen} FROM {table}{where}")
    types = [parse_type(type_).arrow for _, type_ in stored.columns]
    fields = [pa.field(f"c{i}", type_) for i, type_ in enumerate(types)]
    schema = pa.schema([*fields, *list(reader.schema)[len(fields) :]])
    rows = 0
    with pq.ParquetWriter(file, schema, compression="lz4") as writer:
        pending: list[pa.RecordBatch] = []
        held = 0
        for batch in reader:
            pending.append(batch)
            held += batch.num_rows
            if held >= ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(pending).cast(schema))
                rows, pending, held = rows + held, [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending).cast(schema))
    return rows + held
