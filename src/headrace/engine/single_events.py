"""Single events of a tick, read from the log again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.log.contract import LogReader
from headrace.model.definitions import Stream
from headrace.spark.leaf import OFFSET, PARTITION

__all__ = ["stored_events"]


def stored_events(log: LogReader, stream: Stream, places: pa.Table) -> pa.Table:
    """As they are stored, in the order of `places`, which are ordered."""
    tables = []
    partitions = places.column(PARTITION).to_numpy()
    offsets = places.column(OFFSET).to_numpy()
    for partition in np.unique(partitions):
        mine = offsets[partitions == partition]
        end = log.ends(stream.name)[partition]
        last = log.cut(stream.name, int(partition), int(mine[-1]), end, 1)
        found = log.read_history(stream.name, int(partition), int(mine[0]), last.end)
        pieces = list(found)
        whole = pa.Table.from_batches([piece.batch for piece in pieces])
        offsets_read = np.concatenate([piece.offsets for piece in pieces])
        tables.append(whole.take(pa.array(np.searchsorted(offsets_read, mine))))
    return pa.concat_tables(tables)
