"""Late events that were not applied, and what operators decided about them.

_headrace.sided_N     the events of stream N that are set aside: one row per event, view and
                      window it missed, with the event's own columns
main.STREAM_late      the same for everybody
_headrace.dropped     how many events were dropped, by view, window and reason
_headrace.decisions   what was decided about the late events of streams that halt
_headrace.replays     events set aside that had been applied to views since rebuilt, and how far the
                      view had come in their partition by then
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import quoted, store_type
from headrace.model.definitions import Stream
from headrace.model.errors import StoreError
from headrace.model.types import DataType
from headrace.store.contract import LATE_SUFFIX, StoredDecision, ViewWrite
from headrace.store.late_counts import (
    DecisionTaken,
    DroppedCount,
    LateCounts,
    SidedCount,
    late_column,
)

__all__ = ["Late"]

TABLES = (
    "CREATE TABLE IF NOT EXISTS _headrace.late_streams (number BIGINT, stream VARCHAR)",
    "CREATE TABLE IF NOT EXISTS _headrace.dropped (tick BIGINT, view VARCHAR, stream VARCHAR,"
    " window_start TIMESTAMPTZ, window_end TIMESTAMPTZ, events BIGINT, reason VARCHAR)",
    "CREATE TABLE IF NOT EXISTS _headrace.decisions (stream VARCHAR, partition BIGINT,"
    " position BIGINT, decision VARCHAR, decided_at TIMESTAMPTZ)",
    "CREATE TABLE IF NOT EXISTS _headrace.replays (stream VARCHAR, view VARCHAR,"
    " partition BIGINT, position BIGINT, come BIGINT)",
)
_OWN = (
    ("view", "VARCHAR"),
    ("window_start", "TIMESTAMPTZ"),
    ("window_end", "TIMESTAMPTZ"),
    ("watermark", "TIMESTAMPTZ"),
    ("_partition", "INTEGER"),
    ("_offset", "BIGINT"),
    ("_set_aside_in_tick", "BIGINT"),
    ("_applied_in_tick", "BIGINT"),
    ("_applied_at_offset", "BIGINT"),
)
_CLOCKS = (("_event_time", "TIMESTAMP"), ("_skew", "BIGINT"), ("_quality", "STRING"))
_SLOT = "_sided_rows"


class Late:
    """Called by the one that writes; `names` is replaced as a whole, so that readers need no
    lock."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._transaction = transaction
        for statement in TABLES:
            connection.execute(statement)
        found = connection.execute("SELECT stream, number FROM _headrace.late_streams").fetchall()
        self._numbers: dict[str, int] = {stream: int(number) for stream, number in found}
        self._decisions: dict[str, list[StoredDecision]] | None = None

    @property
    def names(self) -> Mapping[str, str]:
        """The public views of late events, each with its stream."""
        return {stream + LATE_SUFFIX: stream for stream in self._numbers}

    def declare(self, stream: Stream) -> None:
        """Make the table and the public view of the stream's late events, or add the columns it
        has gained."""
        if stream.name not in self._numbers:
            number = max(self._numbers.values(), default=-1) + 1
            with self._transaction():
                own = ", ".join(f"{quoted(name)} {kind}" for name, kind in _OWN)
                self._connection.execute(f"CREATE TABLE {_table(number)} ({own})")
                self._connection.execute(
                    "INSERT INTO _headrace.late_streams VALUES (?, ?)", [number, stream.name]
                )
            self._numbers = {**self._numbers, stream.name: number}
        table = _table(self._numbers[stream.name])
        columns = [(late_column(c.name), c.type) for c in stream.columns]
        columns.append(("_received_at", DataType("TIMESTAMP")))
        if stream.clocks is not None:
            columns += [(name, DataType(kind)) for name, kind in _CLOCKS]
        with self._transaction():
            for name, of_type in columns:
                self._connection.execute(
                    f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {quoted(name)}"
                    f" {store_type(of_type)}"
                )
            self._connection.execute(
                f"CREATE OR REPLACE VIEW {quoted(stream.name + LATE_SUFFIX)} AS"
                f" SELECT * FROM {table}"
            )

    def add(self, tick: int, stream: str, write: ViewWrite) -> None:
        """Within the tick's transaction."""
        if write.sided is not None:
            if stream not in self._numbers:
                raise StoreError(f"the late events of stream {stream} have no table")
            count = write.sided.num_rows
            rows = write.sided.append_column("view", pa.array([write.view] * count, pa.string()))
            rows = rows.append_column("_set_aside_in_tick", pa.array([tick] * count, pa.int64()))
            self._connection.register(_SLOT, rows)
            self._connection.execute(
                f"INSERT INTO {_table(self._numbers[stream])} BY NAME SELECT * FROM {_SLOT}"
            )
            self._connection.unregister(_SLOT)
        if write.applied:
            self._mark_applied(tick, stream, write)
        if write.dropped:
            self._count_dropped(tick, stream, write)

    def _count_dropped(self, tick: int, stream: str, write: ViewWrite) -> None:
        """At once: one event alone may have missed thousands of windows."""
        starts, ends, events = (pa.array(column) for column in zip(*write.dropped, strict=True))
        self._connection.register(_SLOT, pa.table({"s": starts, "e": ends, "n": events}))
        self._connection.execute(
            "INSERT INTO _headrace.dropped SELECT ?::BIGINT, ?, ?, make_timestamptz(s),"
            f" make_timestamptz(e), n, ? FROM {_SLOT}",
            [tick, write.view, stream, write.dropped_for],
        )
        self._connection.unregister(_SLOT)

    def _mark_applied(self, tick: int, stream: str, write: ViewWrite) -> None:
        """With how far the view had come in the event's partition: events after that were judged
        with this one among those applied."""
        partitions, offsets = zip(*write.applied, strict=True)
        come = [write.next_offsets[partition] for partition in partitions]
        places = {"p": pa.array(partitions), "o": pa.array(offsets), "come": pa.array(come)}
        self._connection.register(_SLOT, pa.table(places))
        self._connection.execute(
            f"UPDATE {_table(self._numbers[stream])} SET _applied_in_tick = {int(tick)},"
            f" _applied_at_offset = _places.come FROM {_SLOT} _places WHERE view = ?"
            " AND _partition = _places.p AND _offset = _places.o AND _applied_in_tick IS NULL",
            [write.view],
        )
        self._connection.unregister(_SLOT)

    def sided(self, stream: str, view: str, limit: int) -> list[tuple[int, int]]:
        if stream not in self._numbers:
            return []
        found = self._connection.execute(
            f"SELECT DISTINCT _partition, _offset FROM {_table(self._numbers[stream])}"
            " WHERE view = ? AND _applied_in_tick IS NULL ORDER BY ALL LIMIT ?",
            [view, limit],
        ).fetchall()
        return [(int(partition), int(offset)) for partition, offset in found]

    def replays(self, stream: str, view: str) -> list[tuple[int, int, int]]:
        number = self._numbers.get(stream)
        if number is None:
            return []
        found = self._connection.execute(
            "SELECT partition, position, come FROM _headrace.replays r"
            " WHERE stream = ? AND view = ?"
            f" AND NOT EXISTS (SELECT 1 FROM {_table(number)} s WHERE s.view = r.view"
            " AND s._partition = r.partition AND s._offset = r.position"
            " AND s._applied_in_tick IS NOT NULL) ORDER BY ALL",
            [stream, view],
        ).fetchall()
        return [(int(partition), int(offset), int(come)) for partition, offset, come in found]

    def forget(self, view: str) -> None:
        """The view begins anew: what was set aside for it is found again, and what was applied
        after that is to be applied at the same place. Within a transaction."""
        for stream, number in self._numbers.items():
            self._connection.execute(
                "INSERT INTO _headrace.replays SELECT DISTINCT ?, view, _partition, _offset,"
                f" _applied_at_offset FROM {_table(number)} s WHERE view = ?"
                " AND _applied_in_tick IS NOT NULL AND NOT EXISTS (SELECT 1 FROM"
                " _headrace.replays r WHERE r.stream = ? AND r.view = s.view"
                " AND r.partition = s._partition AND r.position = s._offset)",
                [stream, view, stream],
            )
            self._connection.execute(f"DELETE FROM {_table(number)} WHERE view = ?", [view])
        self._connection.execute("DELETE FROM _headrace.dropped WHERE view = ?", [view])

    def decide(self, decision: StoredDecision) -> None:
        known = self.decisions(decision.stream)
        place = (decision.partition, decision.offset)
        if any((d.partition, d.offset) == place for d in known):
            raise StoreError(
                f"event {decision.offset} of partition {decision.partition} was decided before"
            )
        with self._transaction():
            self._connection.execute(
                "INSERT INTO _headrace.decisions VALUES (?, ?, ?, ?, make_timestamptz(?))",
                [
                    decision.stream,
                    decision.partition,
                    decision.offset,
                    decision.decision,
                    time.time_ns() // 1000,
                ],
            )
        self._decisions = None

    def decisions(self, stream: str) -> Sequence[StoredDecision]:
        if self._decisions is None:
            rows = self._connection.execute(
                "SELECT stream, partition, position, decision FROM _headrace.decisions"
                " ORDER BY partition, position"
            ).fetchall()
            self._decisions = {}
            for row in rows:
                self._decisions.setdefault(row[0], []).append(StoredDecision(*row))
        return self._decisions.get(stream, [])

    def counts(self, cursor: duckdb.DuckDBPyConnection, stream: str, limit: int) -> LateCounts:
        """Reads with the cursor given, from any thread."""
        dropped = cursor.execute(
            "SELECT view, epoch_us(window_start), epoch_us(window_end), sum(events)::BIGINT, reason"
            " FROM _headrace.dropped WHERE stream = ? GROUP BY ALL"
            " ORDER BY 3 DESC, 2 DESC, view LIMIT ?",
            [stream, limit + 1],
        ).fetchall()
        decisions = cursor.execute(
            "SELECT partition, position, decision, epoch_us(decided_at) FROM _headrace.decisions"
            " WHERE stream = ? ORDER BY decided_at DESC, partition, position LIMIT ?",
            [stream, limit + 1],
        ).fetchall()
        return LateCounts(
            sided=self._sided_counts(cursor, stream),
            dropped=tuple(DroppedCount(*row) for row in dropped[:limit]),
            decisions=tuple(DecisionTaken(*row) for row in decisions[:limit]),
            is_cut=max(len(dropped), len(decisions)) > limit,
        )

    def _sided_counts(
        self, cursor: duckdb.DuckDBPyConnection, stream: str
    ) -> tuple[SidedCount, ...]:
        number = self._numbers.get(stream)
        if number is None:
            return ()
        rows = cursor.execute(
            "SELECT view, count(*) FILTER (missing > 0), count(*) FILTER (missing = 0) FROM ("
            " SELECT view, count(*) - count(_applied_in_tick) AS missing"
            f" FROM {_table(number)} GROUP BY view, _partition, _offset)"
            " GROUP BY view ORDER BY view"
        ).fetchall()
        return tuple(SidedCount(*row) for row in rows)


def _table(number: int) -> str:
    return f"_headrace.sided_{number}"
