"""What each tick consumed and what became of it: the ledger's rows, how far streams came, dead
letters, and what of it is let go in time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table, text_literal
from headrace.model.tables import ROW, TableDefinition, TableDelta
from headrace.store.backend import SCHEMA, Backend
from headrace.store.books import (
    CATALOG,
    DEAD_LETTERS,
    FEED,
    LEDGER,
    STREAMS,
    decode_offsets,
    encode_offsets,
    gone,
    number_delta,
    older_rows,
    rows_of,
)
from headrace.store.catalog import StoredView
from headrace.store.changes import LOWEST_TICK
from headrace.store.contract import (
    COPY_PREFIX,
    Freshness,
    StoreDeadLetter,
    StreamCounts,
    StreamProgress,
    TickWrite,
)

__all__ = [
    "DEAD_LETTERS_MAX",
    "count_dead_letters",
    "dead_letters_delta",
    "ledger_delta",
    "move_of",
    "prune",
    "read_dead_letters",
    "read_freshness",
    "read_ledger",
    "read_streams",
    "stream_progress",
    "streams_delta",
]

LEDGER_TICKS_MAX = 100_000  # older rows of the ledger are dropped
DEAD_LETTERS_MAX = 1_000_000  # the oldest are dropped; their number stays in the totals
_COUNTS = tuple(count.name for count in fields(StreamCounts))


def ledger_delta(write: TickWrite, committed_at: int, moved: Sequence[StoredView]) -> TableDelta:
    row = {
        "tick": write.tick,
        "generation": write.generation,
        "started_at": write.started_at_microseconds,
        "committed_at": committed_at,
        "events": sum(view.counts.read for view in write.views),
        "milliseconds": (committed_at - write.started_at_microseconds) / 1000,
        "moves": _moves(moved),
    }
    rows = rows_of(LEDGER, {name: [value] for name, value in row.items()})
    return TableDelta(LEDGER.name, put=rows, are_keys_new=True)


def _moves(views: Sequence[StoredView]) -> str:
    """Views that came to the same offsets, as those of one stream mostly do, are one entry."""
    together: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for view in views:
        together.setdefault(tuple(view.entry.next_offsets.items()), []).append(view.number)
    return json.dumps(list(together.items()), separators=(",", ":"))


def move_of(moves: str, view: Sequence[int]) -> dict[int, int] | None:
    """Where a tick brought the view of these numbers; None where it was not moved."""
    for offsets, numbers in json.loads(moves):
        if not set(view).isdisjoint(numbers):
            return dict(offsets)
    return None


def read_ledger(connection: duckdb.DuckDBPyConnection, limit: int) -> pa.Table:
    """The newest first."""
    shown = LEDGER.schema.remove(LEDGER.schema.get_field_index("moves"))
    sql = (
        f"SELECT {', '.join(shown.names)} FROM {SCHEMA}.{LEDGER.name}"
        f" ORDER BY tick DESC LIMIT {int(limit)}"
    )
    return arrow_table(connection, sql).cast(shown)


def read_freshness(connection: duckdb.DuckDBPyConnection, known: int = 0) -> Freshness:
    """The newest tick that the snapshot shows; tick 0 before the first. It is not before `known`,
    which spares the reading of older ones. To sort the few that are left would take DuckDB longer
    to plan than all else here."""
    found = connection.execute(
        f"SELECT tick, epoch_us(committed_at) FROM {SCHEMA}.{LEDGER.name} WHERE tick >= {known}"
    ).fetchall()
    return Freshness(*max(found, default=(0, 0)))


# Streams


def stream_progress(
    write: TickWrite, streams: Mapping[str, StreamProgress]
) -> dict[str, StreamProgress]:
    """Of the streams that the tick brings further."""
    moved = {}
    for stream in write.streams:
        past = streams.get(stream.stream)
        totals = stream.counts if past is None else past.totals.plus(stream.counts)
        moved[stream.stream] = StreamProgress(dict(stream.next_offsets), totals)
    return moved


def streams_delta(streams: Mapping[str, StreamProgress]) -> list[TableDelta]:
    if not streams:
        return []
    names, moved = list(streams), list(streams.values())
    rows = {
        "stream": names,
        "offsets": [encode_offsets(progress.next_offsets) for progress in moved],
        **{name: [getattr(progress.totals, name) for progress in moved] for name in _COUNTS},
    }
    return [TableDelta(STREAMS.name, gone(STREAMS, stream=names), rows_of(STREAMS, rows), True)]


def read_streams(connection: duckdb.DuckDBPyConnection) -> dict[str, StreamProgress]:
    rows = connection.execute(
        f"SELECT stream, offsets, {', '.join(_COUNTS)} FROM {SCHEMA}.{STREAMS.name} ORDER BY stream"
    ).fetchall()
    return {
        name: StreamProgress(decode_offsets(offsets), StreamCounts(*counts))
        for name, offsets, *counts in rows
    }


# Dead letters


def dead_letters_delta(
    tick: int, letters: Sequence[tuple[int, StoreDeadLetter]]
) -> list[TableDelta]:
    """Each with its view's number."""
    if not letters:
        return []
    rows = {
        "tick": [tick] * len(letters),
        "ordinal": range(len(letters)),
        "number": [number for number, _ in letters],
        "stream": [letter.stream for _, letter in letters],
        "partition": [letter.partition for _, letter in letters],
        "offset": [letter.offset for _, letter in letters],
        "reason": [letter.reason for _, letter in letters],
        "raw": [letter.raw for _, letter in letters],
    }
    return [TableDelta(DEAD_LETTERS.name, put=rows_of(DEAD_LETTERS, rows), are_keys_new=True)]


def read_dead_letters(
    connection: duckdb.DuckDBPyConnection, number: int | None, limit: int
) -> list[StoreDeadLetter]:
    """The newest first, of all views where no number is given."""
    where = f"NOT starts_with(v.view, {text_literal(COPY_PREFIX)})"
    if number is not None:
        where = f"d.number = {number}"
    rows = connection.execute(
        'SELECT v.view, d.stream, d.partition, d."offset", d.reason, d.raw'
        f" FROM {SCHEMA}.{DEAD_LETTERS.name} d JOIN {SCHEMA}.{CATALOG.name} v USING (number)"
        f' WHERE {where} ORDER BY d.tick DESC, d.partition, d."offset" LIMIT {int(limit)}'
    ).fetchall()
    return [StoreDeadLetter(*row) for row in rows]


def count_dead_letters(connection: duckdb.DuckDBPyConnection) -> int:
    ((count,),) = connection.execute(
        f"SELECT count(*) FROM {SCHEMA}.{DEAD_LETTERS.name}"
    ).fetchall()
    return int(count)


# Upkeep


def prune(backend: Backend, last_tick: int, lowest_change_tick: int) -> list[TableDelta]:
    """What is past its bound goes."""
    bounds: list[tuple[TableDefinition, int]] = [
        (LEDGER, last_tick - LEDGER_TICKS_MAX),
        (FEED, lowest_change_tick - 1),
    ]
    with backend.snapshot() as connection:
        beyond = connection.execute(
            f"SELECT tick FROM {SCHEMA}.{DEAD_LETTERS.name}"
            f" ORDER BY tick DESC LIMIT 1 OFFSET {DEAD_LETTERS_MAX}"
        ).fetchall()
    if beyond:
        bounds.append((DEAD_LETTERS, int(beyond[0][0])))
    found = backend.fetch([older_rows(book, tick) for book, tick in bounds])
    deltas = [
        TableDelta(book.name, rows.select([ROW]))
        for (book, _), rows in zip(bounds, found, strict=True)
        if rows.num_rows
    ]
    return [*deltas, number_delta(**{LOWEST_TICK: lowest_change_tick})]
