"""A copy of a view takes its place: what is different for readers, and what becomes of the feed.

Both are read in one snapshot, in which the copy has come as far as the view. Rows are paired by
their keys; the pairs that differ are the changes of the tick of the swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kinds.calculator import arrow_table, conformed, quoted
from headrace.kinds.contract import TICK, Changes, Kind
from headrace.kinds.table import COMPLETE, VERSIONS_COMPLETE, totals_of
from headrace.model.tables import ROW, VIEW, Fetch, TableDelta
from headrace.store.backend import Backend
from headrace.store.catalog import StoredView
from headrace.store.contract import ViewStatus

__all__ = ["Difference", "compare", "in_place_of", "known_since", "move_ticks", "without_ticks"]

FORMERS_MAX = 64  # a view that took the place of so many others begins its change feed anew
_WAS, _NOW = "was", "now"


@dataclass(frozen=True)
class Difference:
    """`changes` None: they are more than may be kept, or there is no telling which row became
    which. `is_followed` says whether the view's earlier changes can be read on after the swap.
    `added_in` has, for a copy whose rows are its feed, the keys of those that the view has had
    since ticks that are kept, and in TICK which ticks."""

    changes: Changes | None
    is_followed: bool
    added_in: pa.Table | None = None


def compare(
    connection: duckdb.DuckDBPyConnection,
    view: StoredView,
    copy: StoredView,
    rows_max: int,
    lowest_tick: int,
) -> Difference:
    """`rows_max` bounds the rows before and after, `lowest_tick` is the first that is kept."""
    had, has = _columns_of(connection, view), _columns_of(connection, copy)
    count, keys = len(copy.columns), len(copy.hidden)
    if view.columns != copy.columns or had[: count + keys] != has[: count + keys]:
        return Difference(None, False)
    changes = _changes(connection, view, copy, rows_max)
    is_followed = changes is not None and len(view.formers) < FORMERS_MAX
    if len(had) == count + keys:
        return Difference(changes, is_followed)
    if not is_followed or view.shape != copy.shape:
        return Difference(changes, False)
    added_in = _added_in(connection, view, copy, lowest_tick)
    return Difference(changes, added_in is not None, added_in)


def _columns_of(connection: duckdb.DuckDBPyConnection, view: StoredView) -> list[tuple[str, str]]:
    """The types of what `rows_sql` gives, beside the place of each: public columns, keys, and TICK
    where the rows are the feed."""
    found = connection.execute(f"DESCRIBE SELECT * FROM {view.rows_sql}").fetchall()
    return [(str(place), row[1]) for place, row in enumerate(found)]


def _rows(view: StoredView, *more: str) -> str:
    """The view's rows as c0, c1, … and its keys as k0, k1, …, then `more`."""
    names = [f"c{i}" for i in range(len(view.columns))]
    names += [*(f"k{i}" for i in range(len(view.hidden))), *more]
    return f"(SELECT *, true AS is_there FROM {view.rows_sql} AS rows({', '.join(names)}))"


def _paired(copy: StoredView) -> str:
    pairs = [f"{_WAS}.k{i} IS NOT DISTINCT FROM {_NOW}.k{i}" for i in range(len(copy.hidden))]
    return " AND ".join(pairs) or f"{_WAS}.is_there = {_NOW}.is_there"


def _is_same(copy: StoredView) -> str:
    same = [f"{_WAS}.c{i} IS NOT DISTINCT FROM {_NOW}.c{i}" for i in range(len(copy.columns))]
    return " AND ".join([f"{_WAS}.is_there", f"{_NOW}.is_there", *same])


def _changes(
    connection: duckdb.DuckDBPyConnection, view: StoredView, copy: StoredView, rows_max: int
) -> Changes | None:
    count, keys = len(copy.columns), len(copy.hidden)
    chosen = [f"coalesce({_NOW}.k{i}, {_WAS}.k{i}) AS k{i}" for i in range(keys)]
    for side in (_WAS, _NOW):
        chosen += [f"{side}.c{i} AS {side}_{i}" for i in range(count)]
        chosen.append(f"coalesce({side}.is_there, false) AS {side}")
    found = arrow_table(
        connection,
        f"SELECT {', '.join(chosen)} FROM {_rows(view)} {_WAS} FULL JOIN {_rows(copy)} {_NOW}"
        f" ON {_paired(copy)} WHERE ({_is_same(copy)}) IS NOT TRUE LIMIT {rows_max + 1}",
    )
    was, now = (found.column(side).combine_chunks() for side in (_WAS, _NOW))
    if (pc.sum(was).as_py() or 0) + (pc.sum(now).as_py() or 0) > rows_max:
        return None
    before, after = (
        conformed(
            found.select([f"{side}_{i}" for i in range(count)]).rename_columns(
                copy.public_schema.names
            ),
            copy.public_schema,
        )
        for side in (_WAS, _NOW)
    )
    views = pa.repeat(pa.scalar(copy.number, pa.int32()), found.num_rows)
    return Changes(views, found.select([f"k{i}" for i in range(keys)]), before, after, was, now)


def _added_in(
    connection: duckdb.DuckDBPyConnection, view: StoredView, copy: StoredView, lowest_tick: int
) -> pa.Table | None:
    """None where the copy lacks one of these rows, or has another in its place."""
    keys = [f"k{i}" for i in range(len(copy.hidden))]
    found = arrow_table(
        connection,
        f"SELECT {', '.join(f'{_WAS}.{key}' for key in keys)}, {_WAS}.{quoted(TICK)},"
        f" ({_is_same(copy)}) IS TRUE AS is_same"
        f" FROM {_rows(view, quoted(TICK))} {_WAS} LEFT JOIN {_rows(copy, quoted(TICK))} {_NOW}"
        f" ON {_paired(copy)} WHERE {_WAS}.{quoted(TICK)} >= {lowest_tick}",
    )
    is_same = found.column("is_same")
    return found.drop_columns("is_same") if pc.all(is_same).as_py() is not False else None


def in_place_of(view: StoredView, copy: StoredView, tick: int, is_followed: bool) -> StoredView:
    """The copy from the swap on."""
    entry = replace(copy.entry, view=view.entry.view, status=ViewStatus("live"))
    taken = replace(copy, entry=entry, created_tick=view.created_tick)
    if not is_followed:
        return replace(taken, feed_from=tick + 1)
    formers = (*view.formers, (view.number, view.shape))
    return replace(taken, formers=formers, feed_from=view.feed_from)


def without_ticks(kind: Kind, delta: TableDelta, copies: Sequence[int]) -> TableDelta:
    """Rows of copies are no feed: their TICK is 0 until the copy takes its view's place."""
    is_feed = kind.feed_is_rows and delta.table == kind.tables[0].name
    if not copies or not is_feed or delta.put is None:
        return delta
    is_copy = pc.is_in(delta.put.column(VIEW), pa.array(copies, pa.int32()))
    ticks = pc.if_else(is_copy, pa.scalar(0, pa.int64()), delta.put.column(TICK))
    place = delta.put.column_names.index(TICK)
    return replace(delta, put=delta.put.set_column(place, TICK, ticks))


def move_ticks(backend: Backend, kind: Kind, copy: StoredView, added_in: pa.Table) -> TableDelta:
    """The copy's rows of these keys are said to have been added when the view's were."""
    table, names = kind.tables[0], [column.name for column in kind.key]
    ticks = added_in.rename_columns([*names, TICK])
    wanted = conformed(
        ticks.append_column(VIEW, pa.array([copy.number] * ticks.num_rows, pa.int32())),
        pa.schema([table.schema.field(name) for name in (VIEW, *names)]),
    )
    (rows,) = backend.fetch([Fetch(table.name, tuple(wanted.column_names), wanted)])
    put = rows.drop_columns([ROW, TICK]).join(ticks, names)
    return TableDelta(table.name, rows.select([ROW]), conformed(put, table.schema))


def known_since(backend: Backend, view: StoredView, copy: StoredView) -> Sequence[TableDelta]:
    """A table whose changes are posted to it was filled again from a log that may have been
    compacted: the copy knows no more of earlier positions than the view did."""
    is_posted = copy.entry.is_table and copy.entry.stream == view.entry.view
    tables = backend.definitions()
    totals = [tables[totals_of(one.shape)] for one in (view, copy) if is_posted]
    if any(COMPLETE not in table.schema.names for table in totals) or not totals:
        return ()
    wanted = [pa.table({VIEW: pa.array([one.number], pa.int32())}) for one in (view, copy)]
    had, has = backend.fetch(
        [Fetch(t.name, (VIEW,), rows) for t, rows in zip(totals, wanted, strict=True)]
    )
    if not had.num_rows or not has.num_rows:
        return ()
    ((before,), (row,)) = had.to_pylist(), has.to_pylist()
    row |= {name: max(row[name], before[name]) for name in (COMPLETE, VERSIONS_COMPLETE)}
    put = pa.Table.from_pylist([row], schema=totals[1].schema)
    return (TableDelta(totals[1].name, wanted[1], put),)
