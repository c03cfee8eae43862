"""The state rows a merge keeps in memory: the newest, so that small ticks read no table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.store.duckdb.schema import WINDOW_START

__all__ = ["Recent", "starts"]


@dataclass(frozen=True)
class Recent:
    """Every state row whose window starts at `from_microseconds` or later (None: every row)."""

    rows: pa.Table
    from_microseconds: int | None


def starts(rows: pa.Table) -> pa.ChunkedArray:
    """Where the rows' windows start, in microseconds."""
    return rows.column(WINDOW_START).cast(pa.int64())
