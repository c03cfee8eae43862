"""State rows that are durable but not yet in their table.

Replacing a few rows in every view's table is most of what a small tick would write. So the rows of
a view that nobody reads just now go into the tick's progress row as they are, and into the table
some ticks later, all at once. Whoever reads the view first has them written (see DuckStore), and a
store that opens writes what an earlier process left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.store.duckdb.changes import decode_rows, encode_rows

__all__ = ["ROWS_MAX", "TICKS_MAX", "Behind", "encode_state", "restore"]

ROWS_MAX = 512  # a tick that changes more of a view writes them at once
TICKS_MAX = 16  # after so many ticks a view's rows are written in any case
_ROWS, _GONE = "_restored_rows", "_restored_gone"
_WAS = "_was"  # the id of the row that a row replaces; null for a new key


def encode_state(rows: pa.Table, was: pa.ChunkedArray) -> bytes:
    """`rows` with their new ids, beside the ids they replace."""
    encoded = encode_rows(rows.append_column(_WAS, was))
    assert encoded is not None, "a merge that changed nothing is not kept"
    return encoded


@dataclass(frozen=True)
class Behind:
    """What the ticks since the last writing brought, in their order."""

    tables: tuple[pa.Table, ...] = ()
    replaced: tuple[pa.Array, ...] = field(default=(), repr=False)

    def plus(self, rows: pa.Table, replaced: pa.Array) -> Behind:
        return Behind((*self.tables, rows), (*self.replaced, replaced))

    @property
    def ticks(self) -> int:
        return len(self.tables)

    def resolved(self, id_column: str) -> tuple[pa.Table, pa.Array]:
        """The rows that are to be inserted, and the ids that are to be deleted before: those that
        the rows' own ticks replaced are in neither."""
        if self.ticks == 1:
            return self.tables[0], self.replaced[0]
        rows = pa.concat_tables(self.tables)
        replaced = pa.concat_arrays(list(self.replaced))
        ids = rows.column(id_column)
        left = rows.filter(pc.invert(pc.is_in(ids, value_set=replaced)))
        first = pc.min(ids).as_py()
        return left, replaced.filter(pc.less(replaced, first))


def restore(connection: duckdb.DuckDBPyConnection, number: int, states: Sequence[bytes]) -> bool:
    """Write what an earlier process left in progress rows, given in the order of their ticks, into
    the view's table. Rows whose ids the table has reached are in it. Hashes of keys are left out:
    they must be made anew when this returns True."""
    tables = [decode_rows(state, pa.schema([])) for state in states]
    if not tables:
        return False
    table, column = f"_headrace.state_{number}", tables[0].column_names[-2]
    following = connection.execute(f"SELECT coalesce(max({column}), -1) FROM {table}").fetchall()
    behind = Behind()
    for found in tables:
        if found.column(column)[0].as_py() > following[0][0]:
            replaced = found.column(_WAS).combine_chunks().drop_null()
            behind = behind.plus(found.drop_columns([_WAS]), replaced)
    if not behind.ticks:
        return False
    rows, gone = behind.resolved(column)
    connection.register(_ROWS, rows)
    connection.register(_GONE, pa.table({"id": gone}))
    connection.execute(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM {_GONE})")
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM {_ROWS}")
    connection.unregister(_ROWS)
    connection.unregister(_GONE)
    return True
