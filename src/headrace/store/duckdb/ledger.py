"""The store's own tables: catalog, ledger, progress of every view, dead letters.

Progress is append-only: each tick adds one row per view it moved, with the offsets reached, the
running totals and the rows it changed (see changes.py). The newest row of a view is its progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import Slot, arrow_table
from headrace.model.plan import BoundColumn, BoundView
from headrace.model.types import parse_type
from headrace.store.contract import (
    CatalogEntry,
    Counts,
    Freshness,
    StoreDeadLetter,
    StreamCounts,
    StreamProgress,
    TickWrite,
    ViewStatus,
)
from headrace.store.duckdb.deferred_rows import TICKS_MAX

__all__ = [
    "Ledger",
    "Moved",
    "StoredView",
    "decode_offsets",
    "encode_offsets",
    "read_dead_letters",
    "read_freshness",
    "read_ledger",
    "read_state_sizes",
]

LEDGER_TICKS_MAX = 100_000  # older ledger rows are dropped; progress never is
DEAD_LETTERS_MAX = 1_000_000  # the oldest are dropped; their number stays in the totals

TABLES = (
    "CREATE SCHEMA IF NOT EXISTS _headrace",
    "CREATE TABLE IF NOT EXISTS _headrace.numbers (name VARCHAR, value BIGINT)",
    "CREATE TABLE IF NOT EXISTS _headrace.views (number BIGINT, view VARCHAR, stream VARCHAR,"
    " fingerprint VARCHAR, sql VARCHAR, columns VARCHAR, hidden VARCHAR, distincts BIGINT,"
    " state VARCHAR, detail VARCHAR, created_tick BIGINT, start_offsets VARCHAR)",
    "CREATE TABLE IF NOT EXISTS _headrace.ledger (tick BIGINT, generation BIGINT,"
    " started_at TIMESTAMPTZ, committed_at TIMESTAMPTZ, events BIGINT, milliseconds DOUBLE,"
    " streams VARCHAR)",
    "CREATE TABLE IF NOT EXISTS _headrace.progress (tick BIGINT, number BIGINT, offsets VARCHAR,"
    " read BIGINT, applied BIGINT, filtered BIGINT, late BIGINT, sided BIGINT, dropped BIGINT,"
    " dead BIGINT, duplicate BIGINT, watermark BIGINT, change_rows BIGINT, before BLOB,"
    " after BLOB, state BLOB)",
    "CREATE TABLE IF NOT EXISTS _headrace.dead_letters (tick BIGINT, number BIGINT,"
    " stream VARCHAR, partition BIGINT, position BIGINT, reason VARCHAR, raw VARCHAR)",
)
_COUNTS = ", ".join(count.name for count in fields(Counts))
LEDGER_SCHEMA = pa.schema(
    [
        ("tick", pa.int64()),
        ("generation", pa.int64()),
        ("started_at", pa.timestamp("us", "UTC")),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("events", pa.int64()),
        ("milliseconds", pa.float64()),
        ("streams", pa.string()),
    ]
)
PROGRESS_SCHEMA = pa.schema(
    [
        ("tick", pa.int64()),
        ("number", pa.int64()),
        ("offsets", pa.string()),
        *((count.name, pa.int64()) for count in fields(Counts)),
        ("watermark", pa.int64()),
        ("change_rows", pa.int64()),
        ("before", pa.binary()),
        ("after", pa.binary()),
        ("state", pa.binary()),
    ]
)
DEAD_SCHEMA = pa.schema(
    [
        ("tick", pa.int64()),
        ("number", pa.int64()),
        ("stream", pa.string()),
        ("partition", pa.int64()),
        ("position", pa.int64()),
        ("reason", pa.string()),
        ("raw", pa.string()),
    ]
)


@dataclass(frozen=True)
class StoredView:
    """A catalog row. `columns` are the public (name, Spark type); `hidden` the paging keys."""

    number: int
    entry: CatalogEntry
    columns: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    distincts: int
    created_tick: int
    progress_tick: int

    @property
    def rows_sql(self) -> str:
        return f"_headrace.read_{self.number}"

    @property
    def public_schema(self) -> pa.Schema:
        return pa.schema([(name, parse_type(type_).arrow) for name, type_ in self.columns])


@dataclass(frozen=True)
class Moved:
    """One view's progress in one tick, with its changes already encoded."""

    number: int
    offsets: Mapping[int, int]
    totals: Counts
    watermark_microseconds: int | None
    change_rows: int = 0
    before: bytes | None = field(default=None, repr=False)
    after: bytes | None = field(default=None, repr=False)
    state: bytes | None = field(default=None, repr=False)


class Ledger:
    """Reads and writes the tables on the writing connection; the caller owns the transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        for statement in TABLES:
            connection.execute(statement)
        self._slots = {
            "ledger": Slot(LEDGER_SCHEMA),
            "progress": Slot(PROGRESS_SCHEMA),
            "dead_letters": Slot(DEAD_SCHEMA),
        }
        for table, slot in self._slots.items():
            connection.register(f"_{table}_rows", slot)
            connection.execute(
                f"PREPARE _insert_{table} AS INSERT INTO _headrace.{table} FROM _{table}_rows"
            )

    def _insert(self, table: str, columns: Mapping[str, Sequence[object]]) -> None:
        slot = self._slots[table]
        arrays = [pa.array(columns[f.name], f.type) for f in slot.schema]
        slot.fill(pa.Table.from_arrays(arrays, schema=slot.schema))
        try:
            self._connection.execute(f"EXECUTE _insert_{table}")
        finally:
            slot.clear()

    # Numbers: generation, the lowest tick of the change feed, the next view number

    def number(self, name: str) -> int:
        found = self._connection.execute(
            "SELECT value FROM _headrace.numbers WHERE name = ?", [name]
        ).fetchall()
        return int(found[0][0]) if found else 0

    def set_number(self, name: str, value: int) -> None:
        self.remove_number(name)
        self._connection.execute("INSERT INTO _headrace.numbers VALUES (?, ?)", [name, value])

    def remove_number(self, name: str) -> None:
        self._connection.execute("DELETE FROM _headrace.numbers WHERE name = ?", [name])

    # Ticks

    def add_tick(
        self, write: TickWrite, committed_at: int, streams: Mapping[str, StreamProgress]
    ) -> None:
        """`streams` are all streams, as they stand after the tick."""
        row: dict[str, list[object]] = {
            "tick": [write.tick],
            "generation": [write.generation],
            "started_at": [write.started_at_microseconds],
            "committed_at": [committed_at],
            "events": [sum(view.counts.read for view in write.views)],
            "milliseconds": [(committed_at - write.started_at_microseconds) / 1000],
            "streams": [_encode_streams(streams)],
        }
        self._insert("ledger", row)

    def set_streams(self, tick: int, streams: Mapping[str, StreamProgress]) -> None:
        """Correct what the newest tick says of all streams."""
        self._connection.execute(
            "UPDATE _headrace.ledger SET streams = ? WHERE tick = ?",
            [_encode_streams(streams), tick],
        )

    def stream_progress(self) -> dict[str, StreamProgress]:
        found = self._connection.execute(
            "SELECT streams FROM _headrace.ledger ORDER BY tick DESC LIMIT 1"
        ).fetchall()
        known = json.loads(found[0][0]) if found else {}
        return {
            name: StreamProgress(dict(map(tuple, offsets)), StreamCounts(*totals))
            for name, (offsets, totals) in known.items()
        }

    def add_progress(self, tick: int, moved: Sequence[Moved]) -> None:
        self._insert(
            "progress",
            {
                "tick": [tick] * len(moved),
                "number": [m.number for m in moved],
                "offsets": [encode_offsets(m.offsets) for m in moved],
                **{
                    count.name: [getattr(m.totals, count.name) for m in moved]
                    for count in fields(Counts)
                },
                "watermark": [m.watermark_microseconds for m in moved],
                "change_rows": [m.change_rows for m in moved],
                "before": [m.before for m in moved],
                "after": [m.after for m in moved],
                "state": [m.state for m in moved],
            },
        )

    def states(self, number: int) -> list[bytes]:
        """A view's rows that may not be in its table yet (behind.py), in the order of ticks."""
        found = self._connection.execute(
            f"SELECT state FROM _headrace.progress WHERE number = {number} AND state IS NOT NULL"
            f" ORDER BY tick DESC LIMIT {TICKS_MAX}"
        ).fetchall()
        return [row[0] for row in reversed(found)]

    def add_dead_letters(self, tick: int, letters: Sequence[tuple[int, StoreDeadLetter]]) -> None:
        self._insert(
            "dead_letters",
            {
                "tick": [tick] * len(letters),
                "number": [number for number, _ in letters],
                "stream": [letter.stream for _, letter in letters],
                "partition": [letter.partition for _, letter in letters],
                "position": [letter.offset for _, letter in letters],
                "reason": [letter.reason for _, letter in letters],
                "raw": [letter.raw for _, letter in letters],
            },
        )

    def prune(
        self, last_tick: int, lowest_change_tick: int, behind_since: int, open_views: Sequence[int]
    ) -> None:
        """Drop what is past its bound. The newest progress row of each view always stays, and so
        do those whose rows may not be in the view's table yet."""
        opened = ", ".join(map(str, open_views)) or "NULL"
        execute = self._connection.execute
        execute(f"DELETE FROM _headrace.ledger WHERE tick <= {last_tick - LEDGER_TICKS_MAX}")
        execute(
            f"DELETE FROM _headrace.progress WHERE tick < {lowest_change_tick} AND (number, tick)"
            " NOT IN (SELECT number, max(tick) FROM _headrace.progress GROUP BY number)"
            f" AND (state IS NULL OR (tick < {behind_since} AND number IN ({opened})))"
        )
        execute(
            "DELETE FROM _headrace.dead_letters WHERE rowid IN (SELECT rowid FROM"
            f" _headrace.dead_letters ORDER BY tick DESC OFFSET {DEAD_LETTERS_MAX})"
        )
        self.set_number("lowest_change_tick", lowest_change_tick)

    # Catalog

    def add_view(
        self,
        number: int,
        view: BoundView,
        public: Sequence[BoundColumn],
        hidden: tuple[str, ...],
        tick: int,
        starts: str,
    ) -> None:
        columns = json.dumps([[column.name, column.type.name] for column in public])
        self._connection.execute(
            "INSERT INTO _headrace.views VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'catching_up', '', ?, ?)",
            [
                number,
                view.name,
                view.plan.stream,
                view.plan.fingerprint,
                view.plan.sql,
                columns,
                json.dumps(hidden),
                len(view.distincts),
                tick,
                starts,
            ],
        )

    def set_status(self, number: int, status: ViewStatus) -> None:
        self._connection.execute(
            "UPDATE _headrace.views SET state = ?, detail = ? WHERE number = ?",
            [status.state, status.detail, number],
        )

    def remove_view(self, number: int) -> None:
        for table in ("views", "progress", "dead_letters"):
            self._connection.execute(f"DELETE FROM _headrace.{table} WHERE number = {number}")

    def stored_views(self) -> dict[str, StoredView]:
        rows = self._connection.execute(
            "SELECT v.number, v.view, v.stream, v.fingerprint, v.sql, v.columns, v.hidden,"
            " v.distincts, v.state, v.detail, v.created_tick, v.start_offsets, p.* FROM"
            " _headrace.views v LEFT JOIN (SELECT number, max_by(struct_pack(tick, offsets,"
            f" watermark, {_COUNTS}), tick) AS newest FROM _headrace.progress GROUP BY number) n"
            " ON n.number = v.number, LATERAL (SELECT newest.*) p ORDER BY v.number"
        ).fetchall()
        views = {}
        for row in rows:
            offsets = {**decode_offsets(row[11]), **decode_offsets(row[13] or "{}")}
            totals = Counts(*row[15:]) if row[12] is not None else Counts()
            status = ViewStatus(row[8], row[9])
            entry = CatalogEntry(row[1], row[2], row[3], row[4], status, offsets, row[14], totals)
            columns = tuple((name, type_) for name, type_ in json.loads(row[5]))
            views[row[1]] = StoredView(
                row[0], entry, columns, tuple(json.loads(row[6])), row[7], row[10], row[12] or 0
            )
        return views


def read_state_sizes(connection: duckdb.DuckDBPyConnection) -> dict[int, int]:
    """About how many rows each view's table holds, by view number."""
    sizes = connection.execute(
        "SELECT table_name, estimated_size FROM duckdb_tables()"
        " WHERE schema_name = '_headrace' AND table_name LIKE 'state_%'"
    ).fetchall()
    return {int(table.removeprefix("state_")): size for table, size in sizes}


def read_ledger(connection: duckdb.DuckDBPyConnection, limit: int) -> pa.Table:
    sql = f"SELECT * FROM _headrace.ledger ORDER BY tick DESC LIMIT {int(limit)}"
    return arrow_table(connection, sql).cast(LEDGER_SCHEMA)


def read_dead_letters(
    connection: duckdb.DuckDBPyConnection, number: int | None, limit: int
) -> list[StoreDeadLetter]:
    """The newest first."""
    where = "" if number is None else f" WHERE d.number = {number}"
    rows = connection.execute(
        "SELECT v.view, d.stream, d.partition, d.position, d.reason, d.raw"
        f" FROM _headrace.dead_letters d JOIN _headrace.views v USING (number){where}"
        f" ORDER BY d.tick DESC, d.partition, d.position LIMIT {int(limit)}"
    ).fetchall()
    return [StoreDeadLetter(*row) for row in rows]


def read_freshness(connection: duckdb.DuckDBPyConnection, known: int = 0) -> Freshness:
    """The newest tick that the connection's transaction sees; tick 0 before the first. It is not
    before `known`, which spares the reading of older ones. To sort the few that are left would
    take DuckDB longer to plan than all else here."""
    found = connection.execute(
        f"SELECT tick, epoch_us(committed_at) FROM _headrace.ledger WHERE tick >= {known}"
    ).fetchall()
    return Freshness(*max(found, default=(0, 0)))


def _encode_streams(streams: Mapping[str, StreamProgress]) -> str:
    return json.dumps(
        {
            name: [list(progress.next_offsets.items()), astuple(progress.totals)]
            for name, progress in streams.items()
        }
    )


def encode_offsets(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)})


def decode_offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}
