"""When a row is final, and what that means for readers.

A row is final when the view's watermark has passed its window's end. That is derived, never
stored: rows become final without being written. A view that emits on close shows final rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["FINAL", "Passing", "final_sql", "is_final", "with_final"]

FINAL = "final"


@dataclass(frozen=True)
class Passing:
    """The view's watermark before a tick and after it, in microseconds."""

    before: int | None = None
    after: int | None = None

    @property
    def has_moved(self) -> bool:
        return self.before != self.after

    def sql(self, end: str) -> str:
        """Whether a window's end lies within."""
        after = f"epoch_us({end}) > {self.before} AND " if self.before is not None else ""
        return f"{after}epoch_us({end}) <= {self.after}"


def final_sql(number: int, end: str) -> str:
    """Whether the row's window is passed, in the reader's snapshot."""
    watermark = f"SELECT arg_max(watermark, tick) FROM _headrace.progress WHERE number = {number}"
    return f"coalesce(epoch_us({end}) <= ({watermark}), false)"


def is_final(ends: pa.ChunkedArray, watermark: int | None) -> pa.ChunkedArray:
    """`ends` are window ends."""
    passed = -(2**63) if watermark is None else watermark
    return pc.less_equal(ends.cast(pa.int64()), pa.scalar(passed, pa.int64()))


def with_final(rows: pa.Table, ends: pa.ChunkedArray, watermark: int | None) -> pa.Table:
    return rows.append_column(pa.field(FINAL, pa.bool_()), is_final(ends, watermark))
