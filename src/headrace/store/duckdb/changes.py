"""The change feed: per tick and view, the public rows before and after, as Arrow IPC bytes.

They are stored with the tick's progress row (ledger.py), one insert for all views, whatever the
views' columns are. Kept are at most `ticks_max` ticks and `rows_max` rows over all views.
"""

from __future__ import annotations

from collections import deque

import duckdb
import pyarrow as pa

from headrace.model.errors import ChangesExpiredError
from headrace.store.contract import ViewChange

__all__ = ["Retention", "decode_rows", "encode_rows", "read_changes"]

COMPRESSED_ROWS_MIN = 64
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
_PLAIN = pa.ipc.IpcWriteOptions()


def encode_rows(rows: pa.Table) -> bytes | None:
    """The rows without their schema, which is the view's; None for no rows."""
    if rows.num_rows == 0:
        return None
    batches = rows.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    options = _LZ4 if rows.num_rows >= COMPRESSED_ROWS_MIN else _PLAIN
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_rows(stored: bytes | None, schema: pa.Schema) -> pa.Table:
    if stored is None:
        return schema.empty_table()
    return pa.ipc.open_stream(stored).read_all()


class Retention:
    """Which ticks the feed still holds. `lowest_tick` and later are kept whole."""

    def __init__(self, ticks_max: int, rows_max: int, lowest_tick: int) -> None:
        self._ticks_max = ticks_max
        self._rows_max = rows_max
        self._kept: deque[tuple[int, int]] = deque()
        self._rows = 0
        self.lowest_tick = lowest_tick

    def load(self, connection: duckdb.DuckDBPyConnection) -> None:
        kept = connection.execute(
            "SELECT tick, sum(change_rows)::BIGINT FROM _headrace.progress"
            f" WHERE tick >= {self.lowest_tick} GROUP BY tick ORDER BY tick"
        ).fetchall()
        self._kept = deque((int(tick), int(rows)) for tick, rows in kept)
        self._rows = sum(rows for _, rows in self._kept)

    def add(self, tick: int, rows: int) -> None:
        self._kept.append((tick, rows))
        self._rows += rows

    @property
    def is_exceeded(self) -> bool:
        """By more than an eighth, so that pruning is rare."""
        return (
            len(self._kept) > self._ticks_max + self._ticks_max // 8
            or self._rows > self._rows_max + self._rows_max // 8
        )

    def shrunk_lowest_tick(self) -> int:
        """The lowest tick that may stay, by both bounds; does not change what is recorded."""
        ticks, rows, lowest = len(self._kept), self._rows, self.lowest_tick
        for tick, tick_rows in self._kept:
            if ticks <= self._ticks_max and rows <= self._rows_max:
                break
            ticks, rows, lowest = ticks - 1, rows - tick_rows, tick + 1
        return lowest

    def shrink(self, lowest_tick: int) -> None:
        while self._kept and self._kept[0][0] < lowest_tick:
            self._rows -= self._kept.popleft()[1]
        self.lowest_tick = lowest_tick


def read_changes(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    number: int,
    schema: pa.Schema,
    created_tick: int,
    after_tick: int,
    limit_ticks: int,
) -> list[ViewChange]:
    """Runs in the connection's transaction, so that pruning cannot come in between.

    `after_tick` 0 asks from the view's creation on. A tick before the creation names rows of
    an earlier build of the view, which the feed cannot continue.
    """
    found = connection.execute(
        "SELECT value FROM _headrace.numbers WHERE name = 'lowest_change_tick'"
    ).fetchall()
    lowest = int(found[0][0]) if found else 0
    first = max(after_tick, created_tick) + 1
    if first < lowest or 0 < after_tick < created_tick:
        reason = "is no longer kept" if first < lowest else "is older than the view's rebuild"
        raise ChangesExpiredError(
            f"the change feed of {view} after tick {after_tick} {reason}",
            hint="read the view anew and go on from the tick of that answer",
        )
    rows = connection.execute(
        "SELECT tick, before, after FROM _headrace.progress"
        f" WHERE number = {number} AND tick > {after_tick} AND change_rows > 0"
        f" ORDER BY tick LIMIT {int(limit_ticks)}"
    ).fetchall()
    return [
        ViewChange(view, tick, decode_rows(before, schema), decode_rows(after, schema))
        for tick, before, after in rows
    ]
