"""From the rows of a merge to what readers are told: rows before and rows after."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.store.finality import FINAL, Passing, with_final
from headrace.store.schema import ViewSchema

__all__ = ["published_rows"]


def published_rows(
    schema: ViewSchema, result: pa.Table, passing: Passing
) -> tuple[pa.Table, pa.Table]:
    """The changed rows of `ViewSchema.merge_sql` as they were shown and as they are. Of a view
    that emits on close only what was final before: the rest is not shown yet, or only now."""
    first, count = len(schema.written_schema), len(schema.finals)
    finals = pa.schema(list(schema.public_schema)[:count])
    changed = filtered(result, result.column(schema.changed))
    after = pa.Table.from_arrays(changed.columns[first : first + count], schema=finals)
    before = pa.Table.from_arrays(
        changed.columns[first + count + 1 : first + 1 + 2 * count], schema=finals
    )
    passed, passes = changed.column(schema.passed), changed.column(schema.passes)
    if schema.window is not None:
        was = ends = changed.column(schema.ends)
        if schema.was_ends is not None:
            was = pc.coalesce(changed.column(schema.was_ends), ends)
        before = with_final(before, was, passing.before)
        after = with_final(after, ends, passing.after)
    if schema.emits_on_close:
        was_final = before.column(FINAL)
        passed, passes = pc.and_(passed, was_final), pc.and_(passes, was_final)
    return filtered(before, passed), filtered(after, passes)


def filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Mostly every row stays, and then nothing is copied."""
    return rows if pc.all(mask, min_count=0).as_py() else rows.filter(mask)
