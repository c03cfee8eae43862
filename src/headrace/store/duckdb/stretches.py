"""Replacing whole stretches of a view's state that a proof found wrong, for windows that look
around: sessions, event groups, sliding ones.

Their rows rest on each other's events. A stretch is all rows of some keys, or, of a sliding view,
those of some keys from one time to another. It is replaced when no row that shares an event with it
was written since the proof: each written row has a higher id than those before it, and none goes
without another that takes in its events. Event groups keep events that are in no row, too: these
are known by their place in the log, or by the tick that applied them.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table, conformed, quoted
from headrace.model.plan import POSITION, BoundColumn
from headrace.store.contract import Repair
from headrace.store.duckdb.group_schema import EventGroupSchema
from headrace.store.duckdb.ledger import StoredView, decode_offsets
from headrace.store.duckdb.repair import Replaced, named
from headrace.store.duckdb.schema import WINDOW_START, ViewSchema
from headrace.store.duckdb.sliding_schema import SlidingSchema
from headrace.store.reading.snapshot import applied_since

__all__ = ["replace_stretches"]

_ASKED, _ACCEPTED, _ROWS = "_repair_asked", "_repair", "_repair_rows"
_VALUES, _EVENTS, _BEFORE, _AFTER = "_repair_values", "_repair_events", "_was", "_is"


def replace_stretches(
    connection: duckdb.DuckDBPyConnection, schema: ViewSchema, stored: StoredView, repair: Repair
) -> Replaced:
    """Within the open transaction. Raises duckdb.Error, and StoreError for rows that are not of
    this view."""
    assert repair.stretches is not None
    tables = {_ASKED: _stretches(schema, repair.stretches)}
    tables[_ROWS] = named(repair.rows, _state_schema(schema))
    try:
        for name, table in tables.items():
            connection.register(name, table)
        moved = [_written_since_sql(schema, repair.last_id)]
        if isinstance(schema, EventGroupSchema):
            moved.append(_events_since_sql(connection, schema, stored, repair.tick))
        unmoved = " AND ".join(f"NOT EXISTS ({sql})" for sql in moved)
        accepted = arrow_table(connection, f"SELECT a.* FROM {_ASKED} a WHERE {unmoved}")
        tables[_ACCEPTED] = accepted
        connection.register(_ACCEPTED, accepted)
        before = _public_rows(connection, schema, stored)
        if accepted.num_rows:
            _replace_state(connection, schema)
            _replace_kept(connection, schema, repair, tables)
        after = _public_rows(connection, schema, stored)
        tables.update({_BEFORE: before, _AFTER: after})
        connection.register(_BEFORE, before)
        connection.register(_AFTER, after)
        gone = arrow_table(connection, f"FROM {_BEFORE} EXCEPT ALL FROM {_AFTER}")
        come = arrow_table(connection, f"FROM {_AFTER} EXCEPT ALL FROM {_BEFORE}")
    finally:
        for name in tables:
            connection.unregister(name)
    return Replaced(
        conformed(gone, stored.public_schema),
        conformed(come, stored.public_schema),
        max(gone.num_rows, come.num_rows),
        tables[_ASKED].num_rows - accepted.num_rows,
        is_any=accepted.num_rows > 0,
    )


def _keys(schema: ViewSchema) -> tuple[BoundColumn, ...]:
    """The keys whose rows depend on each other."""
    if isinstance(schema, SlidingSchema):
        names = schema.sliding.keys
        return tuple(column for name in names for column in schema.keys if column.name == name)
    return schema.keys


def _stretches(schema: ViewSchema, asked: pa.Table) -> pa.Table:
    keys = [(column.name, column.type.arrow) for column in _keys(schema)]
    bounds = [(name, pa.int64()) for name in _bounds(schema)]
    return named(asked, pa.schema([*keys, *bounds]))


def _bounds(schema: ViewSchema) -> tuple[str, str]:
    return f"{schema.prefix}low", f"{schema.prefix}high"


def _state_schema(schema: ViewSchema) -> pa.Schema:
    return pa.schema([(column.name, column.type.arrow) for column in schema.state])


def _same(left: Sequence[str], schema: ViewSchema) -> list[str]:
    return [
        f"{name} IS NOT DISTINCT FROM a.{quoted(column.name)}"
        for name, column in zip(left, _keys(schema), strict=True)
    ]


def _own_keys(schema: ViewSchema, of: str) -> list[str]:
    return [f"{of}.{quoted(column.name)}" for column in _keys(schema)]


def _within(keys: Sequence[str], time: str, schema: ViewSchema, more: str = "0") -> str:
    """Whether a row is in a stretch, or at most so much after it."""
    same, (low, high) = _same(keys, schema), _bounds(schema)
    return " AND ".join(
        [
            *same,
            f"coalesce({time} >= a.{low}, true)",
            f"coalesce({time} <= a.{high} + {more}, true)",
        ]
    )


def _written_since_sql(schema: ViewSchema, last_id: int) -> str:
    """Rows after a stretch that have an event of it in their frame count as well."""
    more = "0"
    if isinstance(schema, SlidingSchema):
        reach = schema.sliding.range_microseconds
        more = "NULL" if reach is None else str(reach)
    near = _within(_own_keys(schema, "s"), f"epoch_us(s.{WINDOW_START})", schema, more)
    return f"SELECT 1 FROM {schema.state_table} s WHERE s.{schema.id} > {int(last_id)} AND {near}"


def _events_since_sql(
    connection: duckdb.DuckDBPyConnection, schema: EventGroupSchema, stored: StoredView, tick: int
) -> str:
    """The events of a stretch's keys that came after the proof's tick, or were applied since."""
    found = connection.execute(
        f"SELECT offsets FROM _headrace.progress WHERE number = {stored.number}"
        f" AND tick <= {int(tick)} ORDER BY tick DESC LIMIT 1"
    ).fetchall()
    come = decode_offsets(found[0][0]) if found else {}
    places = [f"WHEN {int(p)} THEN e.{POSITION[1]} >= {int(o)}" for p, o in come.items()]
    is_after = f"CASE e.{POSITION[0]} {' '.join(places)} ELSE true END" if places else "true"
    since = applied_since(connection, stored, tick)
    pairs = ", ".join(f"({partition}, {offset})" for partition, offset in since)
    if since:
        is_after = f"({is_after} OR (e.{POSITION[0]}, e.{POSITION[1]}) IN ({pairs}))"
    same = _same(_own_keys(schema, "e"), schema)
    return f"SELECT 1 FROM {schema.events_table} e WHERE {' AND '.join([is_after, *same])}"


def _public_rows(
    connection: duckdb.DuckDBPyConnection, schema: ViewSchema, stored: StoredView
) -> pa.Table:
    names = ", ".join(quoted(name) for name, _ in stored.columns)
    hidden = {
        column.name: quoted(name) for column, name in zip(schema.group, schema.hidden, strict=True)
    }
    keys = [f"r.{hidden[column.name]}" for column in _keys(schema)]
    within = _within(keys, f"epoch_us(r.{hidden[WINDOW_START]})", schema)
    found = arrow_table(
        connection,
        f"SELECT {names} FROM {schema.read_view} r"
        f" WHERE EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {within})",
    )
    return conformed(found, stored.public_schema)


def _replace_state(connection: duckdb.DuckDBPyConnection, schema: ViewSchema) -> None:
    table = schema.state_table
    ((last,),) = connection.execute(
        f"SELECT coalesce(max({schema.id}), -1) FROM {table}"
    ).fetchall()

    def own(of: str) -> str:
        within = _within(_own_keys(schema, of), f"epoch_us({of}.{WINDOW_START})", schema)
        return f"EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {within})"

    connection.execute(f"DELETE FROM {table} s WHERE {own('s')}")
    connection.execute(
        f"INSERT INTO {table} SELECT n.*, {last} + row_number() OVER () AS {schema.id}"
        f" FROM {_ROWS} n WHERE {own('n')}"
    )


def _replace_kept(
    connection: duckdb.DuckDBPyConnection,
    schema: ViewSchema,
    repair: Repair,
    tables: dict[str, pa.Table],
) -> None:
    """What sessions keep of distinct values, and event groups of their events."""
    kept = {
        schema.values_table(index): (_VALUES, named(values, schema.value_schema(index)))
        for index, values in enumerate(repair.values)
    }
    if isinstance(schema, EventGroupSchema) and repair.events is not None:
        columns = pa.schema([(c.name, c.type.arrow) for c in schema.events])
        kept[schema.events_table] = (_EVENTS, named(repair.events, columns))
    for table, (slot, rows) in kept.items():
        tables[slot] = rows
        connection.register(slot, rows)
        for statement, of in (("DELETE", "t"), ("INSERT", "n")):
            same = " AND ".join(_same(_own_keys(schema, of), schema)) or "true"
            own = f"EXISTS (SELECT 1 FROM {_ACCEPTED} a WHERE {same})"
            if statement == "DELETE":
                connection.execute(f"DELETE FROM {table} t WHERE {own}")
            else:
                connection.execute(f"INSERT INTO {table} SELECT n.* FROM {slot} n WHERE {own}")
