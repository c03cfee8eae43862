"""A view as it stood at one tick, written to a file, with all that the ledger knows of it.

Rows are streamed: no view is too large. Columns are named by their place, c0, c1, … for the public
ones and k0, k1, … for the keys that tell rows apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.kinds.calculator import arrow_reader, quoted
from headrace.model.types import parse_type
from headrace.store.contract import Freshness, Snapshot
from headrace.store.duckdb.ledger import StoredView, decode_offsets
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
    """In the connection's transaction, which sees the view whole. Raises QueryError for filters as
    Store.read_view does."""
    number = stored.number
    starts, progress = _progress(connection, number)
    rows = _write_rows(connection, stored, file, conditions_sql(stored, filters))
    dead = connection.execute(
        "SELECT DISTINCT partition, position FROM _headrace.dead_letters"
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
        start_offsets=starts,
        next_offsets={**starts, **(progress[0] if progress else {})},
        watermark_microseconds=progress[1] if progress else None,
        dead=tuple((partition, offset) for partition, offset in dead),
        decisions=_decisions(connection, stored.entry.stream),
        applied=_applied(connection, stored),
        ticks_from=max(stored.created_tick + 1, _lowest_tick(connection)),
        ticks=_ticks(connection, number) if with_ticks else (),
    )


def _progress(
    connection: duckdb.DuckDBPyConnection, number: int
) -> tuple[dict[int, int], tuple[dict[int, int], int | None] | None]:
    ((starts,),) = connection.execute(
        f"SELECT start_offsets FROM _headrace.views WHERE number = {number}"
    ).fetchall()
    newest = connection.execute(
        f"SELECT offsets, watermark FROM _headrace.progress WHERE number = {number}"
        " ORDER BY tick DESC LIMIT 1"
    ).fetchall()
    come = (decode_offsets(newest[0][0]), newest[0][1]) if newest else None
    return decode_offsets(starts), come


def _decisions(
    connection: duckdb.DuckDBPyConnection, stream: str
) -> tuple[tuple[int, int, str], ...]:
    found = connection.execute(
        "SELECT partition, position, decision FROM _headrace.decisions WHERE stream = ?", [stream]
    ).fetchall()
    return tuple((partition, offset, decision) for partition, offset, decision in found)


def _applied(
    connection: duckdb.DuckDBPyConnection, stored: StoredView
) -> tuple[tuple[int, int, int, int, int], ...]:
    """The stream's table of late events is there once it has had a policy that sets some aside."""
    number = connection.execute(
        "SELECT number FROM _headrace.late_streams WHERE stream = ?", [stored.entry.stream]
    ).fetchall()
    if not number:
        return ()
    found = connection.execute(
        "SELECT _partition, _offset, epoch_us(window_start), _applied_in_tick, _applied_at_offset"
        f" FROM _headrace.sided_{number[0][0]} WHERE view = ? AND _applied_in_tick IS NOT NULL",
        [stored.entry.view],
    ).fetchall()
    return tuple((place, offset, start, tick, at) for place, offset, start, tick, at in found)


def _lowest_tick(connection: duckdb.DuckDBPyConnection) -> int:
    found = connection.execute(
        "SELECT value FROM _headrace.numbers WHERE name = 'lowest_change_tick'"
    ).fetchall()
    return int(found[0][0]) if found else 0


def _ticks(
    connection: duckdb.DuckDBPyConnection, number: int
) -> tuple[tuple[int, dict[int, int]], ...]:
    found = connection.execute(
        f"SELECT tick, offsets FROM _headrace.progress WHERE number = {number}"
        f" ORDER BY tick DESC LIMIT {TICKS_MAX}"
    ).fetchall()
    return tuple((tick, decode_offsets(offsets)) for tick, offsets in reversed(found))


def _write_rows(
    connection: duckdb.DuckDBPyConnection, stored: StoredView, file: Path, where: str
) -> int:
    public = [f"{quoted(name)} AS c{i}" for i, (name, _) in enumerate(stored.columns)]
    keys = [f"{quoted(name)} AS k{i}" for i, name in enumerate(stored.hidden)]
    table = f"_headrace.read_{stored.number}"
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
