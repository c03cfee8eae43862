"""What is kept of each line of numbers that events carry, and of each writer, as rows of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["KEY", "LINE", "Lines", "Truths", "extended", "writer_names"]

# `previous` is the writer's line before it started over, or -1; `started` the event time of that.
# The highest interval of the line stands here, the others apart.
LINE = np.dtype(
    [
        ("key", "<i4"),
        ("previous", "<i4"),
        ("epoch", "<i8"),
        ("started", "<i8"),
        ("lowest", "<i8"),
        ("top_first", "<i8"),
        ("top_end", "<i8"),
        ("top_noticed", "<i8"),
        ("present", "<i8"),
        ("accepted", "<i8"),
        ("late_fills", "<i8"),
        ("duplicates", "<i8"),
        ("newest", "<i8"),
        ("first_received", "<i8"),
        ("last_received", "<i8"),
    ]
)
KEY = np.dtype([("line", "<i4"), ("retired", "?"), ("heard", "<i8")])
Truths = npt.NDArray[np.bool_]
Lines = npt.NDArray[Any]  # of LINE


def extended(rows: npt.NDArray[Any], more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Both, one after the other, in the room behind `rows` if there is enough: rows that are added
    in small steps are not copied each time. `rows` must not be used after this."""
    count = len(rows) + len(more)
    room: Any = rows.base
    is_room = isinstance(room, np.ndarray) and room.dtype == rows.dtype and len(room) >= count
    if not is_room or room.ctypes.data != rows.ctypes.data:
        room = np.empty(max(2 * count, 64), dtype=rows.dtype)
        room[: len(rows)] = rows
    room[len(rows) : count] = more
    both: npt.NDArray[Any] = room[:count]
    return both


def writer_names(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """The writer of each row as text; of several columns with / between them."""
    texts = [batch.column(name).cast(pa.string()) for name in columns]
    if len(texts) == 1:
        return texts[0]
    escaped = [
        pc.replace_substring(pc.replace_substring(t, "\\", "\\\\"), "/", "\\/") for t in texts
    ]
    return pc.binary_join_element_wise(*escaped, "/")
