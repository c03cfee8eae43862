"""Which events of a stream were duplicates, so that every later reading leaves out the same ones.

A row holds the offsets of one partition that some ticks found, ascending, each as its distance
from the first. Short rows are joined now and then, so their number does not grow with the ticks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import numpy as np
import numpy.typing as npt

__all__ = ["DuplicateRecord"]

TABLE = (
    "CREATE TABLE IF NOT EXISTS _headrace.duplicates (number BIGINT, partition INTEGER,"
    " first BIGINT, last BIGINT, offsets BLOB)"
)
SHORT_BYTES = 65_536  # a longer row is left as it is
SHORT_ROWS_MAX = 256  # with more short rows in a partition they are joined

Offsets = npt.NDArray[np.int64]


class DuplicateRecord:
    """Of one stream, which has `number`. The caller owns the transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._short = 0  # at least as many as any partition has; exact after a joining
        connection.execute(TABLE)

    def add(self, duplicates: Mapping[int, Sequence[int] | Offsets]) -> None:
        rows = [
            (self._number, partition, *_encoded(np.asarray(offsets, dtype=np.int64)))
            for partition, offsets in duplicates.items()
            if len(offsets)
        ]
        if not rows:
            return
        self._insert(rows)
        self._short += 1
        if self._short > SHORT_ROWS_MAX:
            self._join()

    def read(self, partition: int, start: int, end: int) -> Offsets:
        """Those with start ≤ offset < end, ascending."""
        rows = self._connection.execute(
            "SELECT first, offsets FROM _headrace.duplicates WHERE number = ? AND partition = ?"
            " AND last >= ? AND first < ? ORDER BY first",
            [self._number, partition, start, end],
        ).fetchall()
        found = _joined([_decoded(*row) for row in rows])
        low, high = np.searchsorted(found, [start, end])
        return found[low:high]

    def forget(self, oldest: Mapping[int, int]) -> None:
        """Drop what says nothing about the offsets from `oldest` on."""
        self._connection.executemany(
            "DELETE FROM _headrace.duplicates WHERE number = ? AND partition = ? AND last < ?",
            [(self._number, partition, offset) for partition, offset in oldest.items()],
        )

    def clear(self) -> None:
        self._connection.execute(f"DELETE FROM _headrace.duplicates WHERE number = {self._number}")

    def _join(self) -> None:
        """All short rows of a partition become one. They follow each other without a long one
        between, or the long one is older: `read` does not care."""
        short = f"number = {self._number} AND octet_length(offsets) < {SHORT_BYTES}"
        rows = self._connection.execute(
            f"SELECT partition, first, offsets FROM _headrace.duplicates WHERE {short}"
            " ORDER BY partition, first"
        ).fetchall()
        parts: dict[int, list[Offsets]] = {}
        for partition, first, offsets in rows:
            parts.setdefault(partition, []).append(_decoded(first, offsets))
        self._connection.execute(f"DELETE FROM _headrace.duplicates WHERE {short}")
        self._insert(
            [
                (self._number, partition, *_encoded(_joined(found)))
                for partition, found in parts.items()
            ]
        )
        self._short = 1

    def _insert(self, rows: Sequence[tuple[int, int, int, int, bytes]]) -> None:
        self._connection.executemany(
            "INSERT INTO _headrace.duplicates VALUES (?, ?, ?, ?, ?)", list(rows)
        )


def _encoded(offsets: Offsets) -> tuple[int, int, bytes]:
    first = int(offsets[0])
    distances = offsets - first
    kind = "<u4" if int(distances[-1]) < 2**32 else "<u8"
    return first, int(offsets[-1]), kind[2:].encode() + distances.astype(kind).tobytes()


def _decoded(first: int, stored: bytes) -> Offsets:
    distances = np.frombuffer(stored, dtype=f"<u{stored[:1].decode()}", offset=1)
    return distances.astype(np.int64) + first


def _joined(parts: Sequence[Offsets]) -> Offsets:
    """Ascending, each once."""
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
