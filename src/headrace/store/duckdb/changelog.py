"""From the rows of a merge to what readers are told: rows before and rows after."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.store.duckdb.finality import Passing, is_final, with_final
from headrace.store.duckdb.schema import ViewSchema

__all__ = ["published_rows"]


def published_rows(
    schema: ViewSchema, result: pa.Table, passing: Passing
) -> tuple[pa.Table, pa.Table]:
    """The changed rows of `ViewSchema.merge_sql` as they were shown and as they are. A view that
    emits on close shows final rows alone: a row comes when it is final by now, and goes when it
    was and no longer is, since its window's end has moved."""
    first, count = len(schema.written_schema), len(schema.finals)
    finals = pa.schema(list(schema.public_schema)[:count])
    changed, passed, passes = (
        result.column(name) for name in (schema.changed, schema.passed, schema.passes)
    )
    if schema.emits_on_close:
        was, ends = _ends(schema, result)
        passed = pc.and_(passed, is_final(was, passing.before))
        passes = pc.and_(passes, is_final(ends, passing.after))
        changed = pc.or_(changed, pc.not_equal(passed, passes))
    passed, passes = passed.filter(changed), passes.filter(changed)
    rows = filtered(result, changed)
    after = pa.Table.from_arrays(rows.columns[first : first + count], schema=finals)
    before = pa.Table.from_arrays(
        rows.columns[first + count + 1 : first + 1 + 2 * count], schema=finals
    )
    if schema.window is not None:
        was, ends = _ends(schema, rows)
        before = with_final(before, was, passing.before)
        after = with_final(after, ends, passing.after)
    return filtered(before, passed), filtered(after, passes)


def _ends(schema: ViewSchema, rows: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """From when on the rows were final as they were before, and are now."""
    ends = rows.column(schema.ends)
    if schema.was_ends is None:
        return ends, ends
    return pc.coalesce(rows.column(schema.was_ends), ends), ends


def filtered(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Mostly every row stays, and then nothing is copied."""
    return rows if pc.all(mask, min_count=0).as_py() else rows.filter(mask)
