"""A compacted file: what is left of a partition's changes, in one Parquet file of the archive.

It stands in the archive as `START-END.parquet`, as other archived events do, but has holes: of the
offsets START ≤ offset < END those that were needed. So each event says its offset, its position and
the highest event time before it, in columns behind its own. There is one file for a partition: a
newer one covers all that the older covers, and is in its place from the instant it has its name.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.log.contract import LogBatch, clock_column, stored_schema
from headrace.log.embedded.needed import Needed
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError

__all__ = ["COMPACTED_FORMAT", "FORMAT", "CompactedFile", "write_compacted"]

FORMAT = b"headrace.format"
COMPACTED_FORMAT = 3
_UPTO = b"headrace.upto"
_NEEDED = b"headrace.needed"
_OFFSET, _POSITION, _MAXIMUM = "_offset", "_position", "_maximum_before"
_OWN = (_OFFSET, _POSITION, _MAXIMUM)
_ROWS_PER_GROUP = 65_536


class CompactedFile:
    """Open, it shows the same events for as long as it is open, whatever takes its place. Raises
    FileNotFoundError. `events` is how many it has; `needed` of them are before `upto`, and of what
    came before `upto` no others are left."""

    def __init__(self, file: Path, *, verify: bool = False) -> None:
        self.path = file
        self.start, self.end = (int(part) for part in file.stem.split("-"))
        try:
            self._file = pq.ParquetFile(file, page_checksum_verification=verify)
        except pa.ArrowInvalid as error:
            raise LogCorruptError(
                f"{file} cannot be read: {error}", hint="restore the file from a backup"
            ) from error
        metadata = self._file.schema_arrow.metadata or {}
        self.is_compacted = metadata.get(FORMAT) == str(COMPACTED_FORMAT).encode()
        self.upto = int(metadata.get(_UPTO, 0))
        self.needed = int(metadata.get(_NEEDED, 0))
        if self.is_compacted:
            self._read_groups()

    def _read_groups(self) -> None:
        footer = self._file.metadata
        self.events: int = footer.num_rows
        self._counts, self._firsts, self._lasts, self._positions = [0], [], [], []
        if not footer.num_row_groups:
            return
        group = footer.row_group(0)
        paths = [group.column(i).path_in_schema for i in range(group.num_columns)]
        offset, position = paths.index(_OFFSET), paths.index(_POSITION)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            self._firsts.append(group.column(offset).statistics.min)
            self._lasts.append(group.column(offset).statistics.max)
            self._positions.append(group.column(position).statistics.min)
            self._counts.append(self._counts[-1] + group.num_rows)

    def __enter__(self) -> CompactedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def rows_before(self, offset: int) -> int:
        """How many events come before the offset; reads the offsets of one row group at most."""
        group = bisect_left(self._lasts, offset)
        if group == len(self._lasts) or offset <= self._firsts[group]:
            return self._counts[group]
        return self._counts[group] + int(np.searchsorted(self._offsets_of(group), offset))

    def end_of(self, row: int) -> int:
        """The offset after the event with this number in the file."""
        group = bisect_left(self._counts, row + 1) - 1
        return int(self._offsets_of(group)[row - self._counts[group]]) + 1

    def end_at(self, position: int) -> int:
        """The offset after the last event whose position is not above this one: `end` if that is
        the last of all, `start` if all come later. Reads one row group at most."""
        group = bisect_right(self._positions, position) - 1 if self.events else -1
        if group < 0:
            return self.start if self.events else self.end
        found = self._file.read_row_group(group, [_OFFSET, _POSITION])
        row = int(np.searchsorted(found.column(_POSITION).to_numpy(), position, side="right"))
        if self._counts[group] + row == self.events:
            return self.end
        return int(found.column(_OFFSET)[row - 1].as_py()) + 1

    def maximum_before(self, offset: int) -> int | None:
        """The maximum before the first event at the offset or after it; None if there is none."""
        row = self.rows_before(offset)
        if row == self.events:
            return None
        group = bisect_left(self._counts, row + 1) - 1
        column = self._file.read_row_group(group, [_MAXIMUM]).column(_MAXIMUM)
        return int(column[row - self._counts[group]].as_py())

    def read(
        self, stream: Stream, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[LogBatch]:
        """The events start ≤ offset < end, with only the named columns of the stream."""
        first, last = bisect_left(self._lasts, start), bisect_left(self._firsts, end)
        schema = stored_schema(stream)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        stored = set(self._file.schema_arrow.names)
        clock = clock_column(stream)
        wanted = [name for name in dict.fromkeys([*schema.names, clock, *_OWN]) if name in stored]
        groups = list(range(first, last))
        if not groups:
            return
        try:
            for batch in self._file.iter_batches(_ROWS_PER_GROUP, groups, wanted):
                offsets = _numbers(batch, _OFFSET)
                low, high = (int(place) for place in np.searchsorted(offsets, (start, end)))
                if low < high:
                    yield _as_log_batch(batch.slice(low, high - low), schema, clock)
        except (pa.ArrowInvalid, OSError) as error:
            raise LogCorruptError(
                f"{self.path} cannot be read: {error}", hint="restore the file from a backup"
            ) from error

    def check(self) -> str:
        """Reads all of it; says what is wrong, or nothing."""
        reached, count, needed = self.start - 1, 0, 0
        try:
            for batch in self._file.iter_batches(_ROWS_PER_GROUP):
                offsets = _numbers(batch, _OFFSET)
                if offsets[0] <= reached or bool(np.any(np.diff(offsets) <= 0)):
                    return f"offsets after {reached} do not ascend"
                reached = int(offsets[-1])
                count += len(offsets)
                needed += int(np.searchsorted(offsets, self.upto))
        except (pa.ArrowInvalid, OSError) as error:
            return str(error)
        if reached >= self.end:
            return f"offset {reached} is not below {self.end}"
        if needed != self.needed:
            return f"it has {needed} events before offset {self.upto}, where {self.needed} belong"
        return ""

    def _offsets_of(self, group: int) -> npt.NDArray[np.int64]:
        numbers = self._file.read_row_group(group, [_OFFSET]).column(_OFFSET).to_numpy()
        return np.asarray(numbers)


def write_compacted(file: Path, stream: Stream, pieces: Iterable[LogBatch], needed: Needed) -> None:
    """Write those of the events that are needed, and all from `needed.upto` on; durable when it
    returns. Raises LogCorruptError if one that is needed is not among them."""
    schema = stored_schema(stream)
    for name in _OWN:
        schema = schema.append(pa.field(name, pa.int64(), nullable=False))
    schema = schema.with_metadata(
        {
            FORMAT: str(COMPACTED_FORMAT).encode(),
            _UPTO: str(needed.upto).encode(),
            _NEEDED: str(len(needed.offsets)).encode(),
        }
    )
    flat = [f.name for f in schema if not pa.types.is_nested(f.type) and f.name != _OFFSET]
    file.parent.mkdir(parents=True, exist_ok=True)
    found = 0
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=flat,
        column_encoding={_OFFSET: "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
    ) as writer:
        pending: list[pa.RecordBatch] = []
        rows = 0
        for piece in pieces:
            kept = _kept(piece, clock_column(stream), needed, schema)
            found += int(np.searchsorted(_numbers(kept, _OFFSET), needed.upto))
            pending.append(kept)
            rows += kept.num_rows
            while rows >= _ROWS_PER_GROUP:
                whole = pa.Table.from_batches(pending, schema)
                writer.write_table(whole.slice(0, _ROWS_PER_GROUP), _ROWS_PER_GROUP)
                pending = whole.slice(_ROWS_PER_GROUP).to_batches()
                rows -= _ROWS_PER_GROUP
        if rows:
            writer.write_table(pa.Table.from_batches(pending, schema), _ROWS_PER_GROUP)
    if found != len(needed.offsets):
        raise LogCorruptError(
            f"{len(needed.offsets)} changes of {stream.name} before offset {needed.upto} are "
            f"needed, but the log has only {found} of them: nothing is compacted",
            hint="verify the log; if it is whole, rebuild the table",
        )
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _kept(piece: LogBatch, clock: str, needed: Needed, schema: pa.Schema) -> pa.RecordBatch:
    offsets = piece.offsets
    low, high = np.searchsorted(needed.offsets, (offsets[0], offsets[-1] + 1))
    is_kept = np.isin(offsets, needed.offsets[low:high], assume_unique=True)
    is_kept |= offsets >= needed.upto
    maxima = piece.maxima_before(_times(piece.batch.column(clock)))
    own = [pa.array(numbers) for numbers in (offsets, piece.positions, maxima)]
    whole = pa.RecordBatch.from_arrays([*piece.batch.columns, *own], schema=schema)
    return whole if is_kept.all() else whole.filter(pa.array(is_kept))


def _as_log_batch(batch: pa.RecordBatch, schema: pa.Schema, clock: str) -> LogBatch:
    """Where an event that is gone had raised the maximum, it is as if an advance had."""
    offsets, maxima = _numbers(batch, _OFFSET), _numbers(batch, _MAXIMUM)
    positions = _numbers(batch, _POSITION)
    known = np.maximum(maxima[:-1], _times(batch.column(clock))[:-1])
    raised = np.flatnonzero(maxima[1:] > known) + 1
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)  # a column younger than the file
        for field in schema
    ]
    shown = pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else batch.select([])
    return LogBatch(
        _runs(offsets, np.diff(offsets) != 1),
        _runs(positions, np.diff(positions) != 0),
        int(maxima[0]),
        shown,
        tuple(zip(raised.tolist(), maxima[raised].tolist(), strict=True)),
    )


def _runs(numbers: npt.NDArray[np.int64], is_new: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    rows = np.concatenate(([0], np.flatnonzero(is_new) + 1))
    return np.column_stack((rows, numbers[rows]))


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(batch.column(name).to_numpy())


def _times(times: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(times.cast(pa.int64()).to_numpy(zero_copy_only=False))
