"""That no two rows have one key, shown from what a tick has fetched, without reading the table.

A statement for it took ten times as long as counting in Arrow does: 1.4 ms against 0.15 for a
thousand rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["are_keys_free"]

_COUNT = "count"


def are_keys_free(put: pa.Table, staying: pa.Table, asked: pa.Table | None) -> bool:
    """Whether the keys of `put` differ from each other and from those of the rows `staying`, and
    are all among `asked`, if that is given: no other stored row then has one of these and stays.
    The tables have the columns of the key. False says nothing: Arrow tells some values apart that
    are one key."""
    if any(pa.types.is_floating(t) or pa.types.is_nested(t) for t in put.schema.types):
        return False
    parts = (put, staying, put.slice(0, 0) if asked is None else asked)
    counts = np.repeat(np.array([1, 1, 0], np.int8), [part.num_rows for part in parts])
    keys = pa.concat_tables(parts)
    names = [str(place) for place in range(keys.num_columns)]
    held = pa.Table.from_arrays([*keys.columns, pa.array(counts)], names=[*names, _COUNT])
    groups = held.group_by(names, use_threads=False).aggregate([(_COUNT, "sum"), (_COUNT, "min")])
    summed, least = groups.columns[-2:]
    are_asked = asked is None or pc.max(least).as_py() == 0
    return bool(are_asked and pc.max(summed).as_py() <= 1)
