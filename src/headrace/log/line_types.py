"""What is kept of each line of numbers that events carry, and of each writer, as rows of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KEY", "LINE", "Lines", "Truths"]

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
