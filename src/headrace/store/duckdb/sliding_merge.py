"""Merging a tick's events into a view with OVER (… RANGE …), see sliding.py.

There are no recent rows here: what a tick reads is bounded by time, and DuckDB holds the newest
rows in memory itself. Its one statement is planned anew in every tick.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import arrow_table
from headrace.model.plan import ASIDE, BEYOND, PANE
from headrace.store.contract import ViewWrite
from headrace.store.duckdb.merge import Merged, ViewMerge
from headrace.store.duckdb.sliding_schema import SlidingSchema, Span

__all__ = ["SlidingMerge", "spans_of"]

SPANS_MAX = 16  # each is a part of the statement; further ones are read as one


class SlidingMerge(ViewMerge):
    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        computing: duckdb.DuckDBPyConnection,
        schema: SlidingSchema,
    ) -> None:
        self._sliding = schema
        self._sets_aside: bool | None = None
        super().__init__(connection, computing, schema)

    def _prepare_merge(self) -> None:
        """Its statement reads the state table, and bounds that are the tick's."""

    def _forget_merge(self) -> None:
        """Nothing was prepared."""

    def compute(self, write: ViewWrite) -> pa.Table | None:
        if write.partials is None or write.partials.num_rows == 0:
            return None
        self._stage.fill(write.partials)
        self._recent_known()
        beyond = self._stage.table.column(BEYOND)
        sql = self._sliding.sliding_merge_sql(
            self._stage_name,
            self._spans(),
            sets_aside=self._has_aside() or _any(pc.greater(beyond, 0)),
            is_again=_any(pc.less(beyond, 0)),
        )
        result = arrow_table(self._connection, sql)
        return result if result.num_rows else None

    def _spans(self) -> Sequence[Span]:
        reach = self._sliding.sliding.range_microseconds
        if reach is None:
            return []
        times = self._stage.table.column(PANE).to_numpy()
        return spans_of(times, reach)

    def _has_aside(self) -> bool:
        if self._sets_aside is None:
            sql = f"SELECT 1 FROM {self.schema.state_table} WHERE {ASIDE} IS NOT NULL LIMIT 1"
            self._sets_aside = bool(self._connection.execute(sql).fetchall())
        return self._sets_aside

    def accept(self, merged: Merged) -> None:
        if self._sets_aside is False and merged.rows.column(ASIDE).null_count < len(merged.rows):
            self._sets_aside = True
        super().accept(merged)

    def forget(self) -> None:
        self._sets_aside = None
        super().forget()

    def recount(self) -> None:
        """Rows were deleted beside a merge."""
        self._recent_is_known = False

    def _load_recent(self) -> None:
        self._count_rows()


def spans_of(times: npt.NDArray[np.int64], reach: int) -> list[Span]:
    """The stretches of time that hold all `times` with the reach on both sides, ascending and
    apart; where they are too many, the widest gaps are kept open."""
    ordered = np.unique(times)
    gaps = np.diff(ordered)
    wide = np.flatnonzero(gaps > 2 * reach)
    if len(wide) >= SPANS_MAX:
        wide = np.sort(wide[np.argsort(gaps[wide])[-(SPANS_MAX - 1) :]])
    lows = ordered[np.concatenate(([0], wide + 1))] - reach
    highs = ordered[np.concatenate((wide, [len(ordered) - 1]))] + reach
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def _any(mask: pa.ChunkedArray) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())
