"""What the events of a tick found in tables: columns that a plan reads beside the events' own.

There is one Arrow file for each stream of a tick. Tasks find it through the annotations of the
events, and map it: of what it holds they touch what their own events need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.contract import LogBatch

__all__ = ["LookedUp", "load_looked_up", "write_looked_up"]

FILES_MAX = 8  # that a worker keeps mapped: those of the streams of a tick

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LookedUp:
    """Of each event, by partition and offset, one row of `table`; `offsets` are those of the
    events, ascending, and where in the table a partition's rows begin."""

    table: pa.Table
    offsets: Mapping[int, tuple[int, Offsets]]

    def rows(self, partition: int, events: LogBatch) -> slice | Offsets:
        """Where the rows of these events are: one after the other, or each in a place of its own,
        -1 for an event that was left out."""
        first, known = self.offsets.get(partition, (0, np.zeros(0, dtype=np.int64)))
        wanted = events.offsets
        low = int(np.searchsorted(known, wanted[0]))
        if np.array_equal(known[low : low + len(wanted)], wanted):
            return slice(first + low, first + low + len(wanted))
        if not len(known):
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[places] == wanted, first + places, -1)

    def column(self, name: str, rows: slice | Offsets, of_type: pa.DataType) -> pa.Array:
        """NULL where nothing was looked up: the views that want the column take no event then."""
        if name not in self.table.column_names:
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            return pa.nulls(count, of_type)
        column = self.table.column(name)
        if isinstance(rows, slice):
            found = column.slice(rows.start, rows.stop - rows.start)
        else:
            found = column.take(pa.array(rows, mask=rows < 0))
        return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def write_looked_up(file: Path, places: pa.Table, columns: Mapping[str, pa.ChunkedArray]) -> None:
    """`places` are partition and offset of the events, in this order, and ordered by them."""
    table = pa.table([*places.columns, *columns.values()], ["partition", "offset", *columns])
    table = table.combine_chunks()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@lru_cache(maxsize=FILES_MAX)
def load_looked_up(file: str) -> LookedUp:
    """Each tick's file has a name of its own, so a worker may remember what it mapped."""
    if not file:
        return LookedUp(pa.table({}), {})
    with pa.memory_map(file) as source:
        table = pa.ipc.open_file(source).read_all()
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    firsts = np.flatnonzero(np.diff(partitions, prepend=-1))
    ends = np.append(firsts, len(partitions))[1:]
    by_partition = {
        int(partitions[first]): (int(first), offsets[first:end])
        for first, end in zip(firsts, ends, strict=True)
    }
    return LookedUp(table, by_partition)
