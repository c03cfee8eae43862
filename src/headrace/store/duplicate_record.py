"""Which events of a stream were duplicates, so that every later reading leaves out the same ones.

A row holds the offsets of one partition that some ticks found, ascending, each as its distance
from the first. Short rows are joined now and then, so their number does not grow with the ticks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.plan import BoundColumn
from headrace.model.tables import HIGH, LOW, ROW, Fetch, TableDefinition, TableDelta
from headrace.model.types import DataType

__all__ = ["DUPLICATES", "DuplicateRecord"]

SHORT_BYTES = 65_536  # a longer row is left as it is
SHORT_ROWS_MAX = 256  # with more short rows of a stream they are joined
FORGET_TICKS = 64  # so often it is looked for what no offset that can be read needs

NUMBER, PARTITION = "number", "partition"
DUPLICATES = TableDefinition(
    "duplicates",
    (
        BoundColumn(NUMBER, DataType("BIGINT")),
        BoundColumn(PARTITION, DataType("INT")),
        BoundColumn("first", DataType("BIGINT")),
        BoundColumn("last", DataType("BIGINT")),
        BoundColumn("offsets", DataType("BINARY")),
    ),
    key=(NUMBER, PARTITION, "first"),
    indexes=((NUMBER,), (NUMBER, PARTITION)),
)

Offsets = npt.NDArray[np.int64]
Part = tuple[int, Offsets]  # a partition and offsets of it, ascending


class DuplicateRecord:
    """Of one stream, which has `number`. What it reads it asks for with fetches, and what it
    writes it gives back; `accept` follows once that is durable."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._short = self._short_then = 0  # rows put since they were joined
        self._ticks = 0
        self._parts: Sequence[Part] = ()
        self._is_joining = False

    def asks(
        self, duplicates: Mapping[int, Sequence[int] | Offsets], oldest: Mapping[int, int]
    ) -> Sequence[Fetch]:
        """What is to be fetched before `deltas`, which adds these, ascending by partition, and now
        and then forgets what says nothing about the offsets from `oldest` on."""
        self._parts = [
            (partition, np.asarray(offsets, dtype=np.int64))
            for partition, offsets in duplicates.items()
            if len(offsets)
        ]
        self._ticks += 1
        self._short_then = self._short + len(self._parts)
        self._is_joining = self._short_then > SHORT_ROWS_MAX
        is_forgetting = bool(oldest) and self._ticks % FORGET_TICKS == 0
        joined = [self._everything()] if self._is_joining else []
        return [*joined, *([self._older(oldest)] if is_forgetting else [])]

    def deltas(self, answers: Sequence[pa.Table]) -> Sequence[TableDelta]:
        parts, gone = self._parts, [answer.column(ROW) for answer in answers]
        if self._is_joining:
            short = _short_rows(answers[0])
            gone[0] = short.column(ROW)
            parts = _by_partition([*_parts(short), *parts])
            self._short_then = len(parts)
        rows = pa.chunked_array([chunk for some in gone for chunk in some.chunks], pa.int64())
        if not parts and not len(rows):
            return ()
        # A short row may be named by both.
        named = pa.table({ROW: rows.unique()}) if len(rows) else None
        put = _encoded(self._number, parts) if parts else None
        return (TableDelta(DUPLICATES.name, named, put),)

    def accept(self) -> None:
        self._short = self._short_then

    def clear(self) -> TableDelta:
        return TableDelta(DUPLICATES.name, gone=self._of_number())

    def places(self, partition: int, start: int) -> Fetch:
        """What is asked first by who reads from `start` on: rows without their offsets."""
        return Fetch(
            DUPLICATES.name,
            (NUMBER, PARTITION),
            self._bounded({partition: start}, {partition: None}),
            time="last",
            columns=(NUMBER, PARTITION, "first"),
        )

    def offsets(self, places: pa.Table, end: int) -> Fetch | None:
        """What is asked next: of those places, the offsets of the rows that begin before `end`."""
        wanted = places.filter(pc.less(places.column("first"), end))
        if not wanted.num_rows:
            return None
        return Fetch(
            DUPLICATES.name,
            (NUMBER, PARTITION, "first"),
            wanted.drop_columns([ROW]),
            columns=("first", "offsets"),
        )

    @staticmethod
    def within(rows: pa.Table, start: int, end: int) -> Offsets:
        """Those of the rows with start ≤ offset < end, ascending."""
        found = _joined([_decoded(row["first"], row["offsets"]) for row in rows.to_pylist()])
        low, high = np.searchsorted(found, [start, end])
        return found[low:high]

    def _of_number(self) -> pa.Table:
        return pa.table({NUMBER: pa.array([self._number], pa.int64())})

    def _everything(self) -> Fetch:
        columns = (PARTITION, "first", "offsets")
        return Fetch(DUPLICATES.name, (NUMBER,), self._of_number(), columns=columns)

    def _older(self, oldest: Mapping[int, int]) -> Fetch:
        return Fetch(
            DUPLICATES.name,
            (NUMBER, PARTITION),
            self._bounded(dict.fromkeys(oldest), {p: first - 1 for p, first in oldest.items()}),
            time="last",
            columns=(),
        )

    def _bounded(self, lows: Mapping[int, int | None], highs: Mapping[int, int | None]) -> pa.Table:
        return pa.table(
            {
                NUMBER: pa.array([self._number] * len(lows), pa.int64()),
                PARTITION: pa.array(list(lows), pa.int32()),
                LOW: pa.array(list(lows.values()), pa.int64()),
                HIGH: pa.array([highs[partition] for partition in lows], pa.int64()),
            }
        )


def _short_rows(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.less(pc.binary_length(rows.column("offsets")), SHORT_BYTES))


def _parts(rows: pa.Table) -> list[Part]:
    return [(r[PARTITION], _decoded(r["first"], r["offsets"])) for r in rows.to_pylist()]


def _by_partition(parts: Sequence[Part]) -> list[Part]:
    """Those of a partition become one. They follow each other without a long row between, or the
    long one is older: who reads does not care."""
    found: dict[int, list[Offsets]] = {}
    for partition, offsets in parts:
        found.setdefault(partition, []).append(offsets)
    return [(partition, _joined(some)) for partition, some in found.items()]


def _encoded(number: int, parts: Sequence[Part]) -> pa.Table:
    rows = []
    for partition, offsets in parts:
        first, last = int(offsets[0]), int(offsets[-1])
        distances = offsets - first
        kind = "<u4" if last - first < 2**32 else "<u8"
        stored = kind[2:].encode() + distances.astype(kind).tobytes()
        rows.append((number, partition, first, last, stored))
    names = DUPLICATES.schema.names
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], DUPLICATES.schema
    )


def _decoded(first: int, stored: bytes) -> Offsets:
    distances = np.frombuffer(stored, dtype=f"<u{stored[:1].decode()}", offset=1)
    return distances.astype(np.int64) + first


def _joined(parts: Sequence[Offsets]) -> Offsets:
    """Ascending, each once."""
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
