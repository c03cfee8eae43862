"""A kind and nothing else: its tables are lists of Python rows, looked through row by row.

Every tick checks what must hold of any kind: keys tell rows apart, what is put fits its table, no
fetched row is let go twice, and someone who takes every change holds what readers see.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table
from headrace.kinds.contract import FINAL, PROGRESS, TICK, Changes, Delta, Kind, KindInput
from headrace.kinds.inputs import BOUNDS, EVERYWHERE, SINCES, VIEWS, partials_schema, values_schemas
from headrace.model.plan import BoundView
from headrace.model.tables import HIGH, LOW, ROW, VIEW, Fetch, TableDefinition, TableDelta
from headrace.store.backend import SCHEMA

ROUNDS_MAX = 8

Row = dict[str, Any]
Rows = Counter[tuple[Any, ...]]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def frozen(value: Any) -> Any:
    """Hashable, with NaN and -0.0 as SQL groups them."""
    if isinstance(value, dict):
        return tuple((name, frozen(part)) for name, part in value.items())
    if isinstance(value, list):
        return tuple(frozen(part) for part in value)
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def microseconds(time: Any) -> Any:
    return (time - EPOCH) // dt.timedelta(microseconds=1) if isinstance(time, dt.datetime) else time


class PlainTables:
    """Tables of rows by their number. `fetch` and `apply` mean what model/tables.py says."""

    def __init__(self) -> None:
        self.definitions: dict[str, TableDefinition] = {}
        self.rows: dict[str, dict[int, Row]] = {}
        self._numbers = count()

    def create(self, definition: TableDefinition) -> None:
        assert definition.name not in self.definitions
        self.definitions[definition.name] = definition
        self.rows[definition.name] = {}

    def table(self, name: str) -> pa.Table:
        schema = self.definitions[name].schema
        return pa.Table.from_pylist(list(self.rows[name].values()), schema=schema)

    def fetch(self, fetch: Fetch) -> pa.Table:
        definition = self.definitions[fetch.table]
        wanted = [*fetch.on, *((LOW, HIGH) if fetch.time else ())]
        assert set(fetch.rows.column_names) == set(wanted), fetch
        bounds: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}
        for row in fetch.rows.to_pylist():
            key = tuple(frozen(row[name]) for name in fetch.on)
            bounds.setdefault(key, []).append((row.get(LOW), row.get(HIGH)))
        names = [c.name for c in definition.columns]
        columns = names if fetch.columns is None else list(fetch.columns)
        found = []
        for number, row in self.rows[fetch.table].items():
            spans = bounds.get(tuple(frozen(row[name]) for name in fetch.on), [])
            time = microseconds(row[fetch.time]) if fetch.time else None
            if any(_is_within(time, *span) for span in spans):
                found.append({**{name: row[name] for name in columns}, ROW: number})
        fields = [definition.schema.field(name) for name in columns]
        return pa.Table.from_pylist(found, schema=pa.schema([*fields, (ROW, pa.int64())]))

    def apply(self, delta: TableDelta) -> None:
        definition, rows = self.definitions[delta.table], self.rows[delta.table]
        if delta.gone is not None:
            if delta.gone.column_names == [ROW]:
                for number in delta.gone.column(ROW).to_pylist():
                    del rows[number]  # a row that is not there was never fetched, or went before
            else:
                names = delta.gone.column_names
                gone = {tuple(frozen(v) for v in r.values()) for r in delta.gone.to_pylist()}
                for number, row in list(rows.items()):
                    if tuple(frozen(row[name]) for name in names) in gone:
                        del rows[number]
        if delta.put is not None:
            assert delta.put.schema.equals(definition.schema), delta.table
            if delta.known is not None:
                putting = {
                    tuple(frozen(r[k]) for k in definition.key) for r in delta.put.to_pylist()
                }
                known = set(delta.known.column(ROW).to_pylist())
                for number, row in rows.items():
                    key = tuple(frozen(row[k]) for k in definition.key)
                    assert number in known or key not in putting, f"{delta.table}: {key}"
            for row in delta.put.to_pylist():
                rows[next(self._numbers)] = row
        keys = Counter(tuple(frozen(r[k]) for k in definition.key) for r in rows.values())
        assert not keys or max(keys.values()) == 1, f"{delta.table}: {keys.most_common(1)}"

    def snapshot(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        for name in self.definitions:
            connection.register("_rows_of_table", self.table(name))
            connection.execute(f"CREATE TABLE {SCHEMA}.{name} AS FROM _rows_of_table")
            connection.unregister("_rows_of_table")
        return connection


def _is_within(time: Any, low: Any, high: Any) -> bool:
    if low is None and high is None:
        return True
    return time is not None and (low is None or time >= low) and (high is None or time <= high)


class KindRunner:
    """For example, a tick that brings view 1 two partial rows and moves its watermark:

        runner = KindRunner(kind, view)
        runner.create(1)
        runner.tick(partials, watermarks={1: 3_000_000})
        assert runner.rows(1) == Counter({("ann", 2): 1})

    `view` is any view of the kind's shape: it says what the inputs look like.
    """

    def __init__(self, kind: Kind, view: BoundView) -> None:
        self.kind = kind
        self.tables = PlainTables()
        for definition in kind.tables:
            self.tables.create(definition)
        self._partials = partials_schema(view)
        self._values = values_schemas(view)
        self._ticks = count(1)
        self.watermarks: dict[int, int | None] = {}
        self.held: dict[int, Rows] = {}
        self._seen: dict[int, Rows] = {}
        self.rounds = 0  # of fetches, in the last tick

    def create(self, view: int) -> None:
        """Whoever takes changes begins with the rows that a view begins with."""
        self.watermarks[view] = None
        delta = self.kind.seed(view)
        assert delta.changes is None
        for change in delta.deltas:
            self.tables.apply(change)
        self._seen = self._look()
        self.held[view] = Counter(self._without_final(row) for row in self._seen[view].elements())

    def tick(
        self,
        partials: pa.Table | None = None,
        values: Sequence[pa.Table] = (),
        *,
        watermarks: Mapping[int, int | None] | None = None,
        bounds: Mapping[tuple[int, int], int] | None = None,
        everywhere: Mapping[int, int] | None = None,
        views: Sequence[int] | None = None,
        since: Mapping[int, int] | None = None,
    ) -> Changes | None:
        """`watermarks` are those after the tick, where they move. `views` are all that take part;
        left out, those with a partial row or a watermark. An error leaves everything as it was."""
        watermarks = watermarks or {}
        if views is None:
            fed = set(partials.column(VIEW).to_pylist()) if partials is not None else set()
            views = sorted(fed | set(watermarks))
        moves = [(v, self.watermarks[v], watermarks.get(v, self.watermarks[v])) for v in views]
        given = KindInput(
            tick=next(self._ticks),
            views=_table(VIEWS, moves),
            partials=self._partials.empty_table() if partials is None else partials,
            values=tuple(values) or tuple(schema.empty_table() for schema in self._values),
            bounds=_table(BOUNDS, [(v, p, b) for (v, p), b in (bounds or {}).items()]),
            everywhere=_table(EVERYWHERE, list((everywhere or {}).items())),
            since=_table(SINCES, list((since or {}).items())),
        )
        delta: Delta = self.run(self.kind.merge(given))
        self.watermarks.update(watermarks)
        return self._take(delta)

    def run(self, steps: Generator[Sequence[Fetch], Sequence[pa.Table], Any]) -> Any:
        """What the steps come to."""
        self.rounds = 0
        try:
            fetches = next(steps)
            while True:
                self.rounds += 1
                assert self.rounds <= ROUNDS_MAX
                fetches = steps.send([self.tables.fetch(fetch) for fetch in fetches])
        except StopIteration as stop:
            return stop.value

    def _take(self, delta: Delta) -> Changes | None:
        for change in delta.deltas:
            self.tables.apply(change)
        seen, self._seen = self._seen, self._look()
        if delta.changes is not None:
            self._hold(delta.changes, seen)
        for view, held in self.held.items():
            # A row becomes final without a change.
            shown = Counter(self._without_final(row) for row in self._seen[view].elements())
            assert +held == shown, f"view {view}: held {+held - shown}, shown {shown - held}"
        return delta.changes

    def _hold(self, changes: Changes, seen: Mapping[int, Rows]) -> None:
        assert changes.num_rows, "no change is None"
        names = [column.name for column in self.kind.public]
        assert changes.key.column_names == [column.name for column in self.kind.key]
        keys = zip(changes.views.to_pylist(), changes.key.to_pylist(), strict=True)
        assert max(Counter((view, frozen(key)) for view, key in keys).values()) == 1
        parts = (changes.before, changes.after)
        for table in parts:
            assert table.column_names == names
            assert table.schema.types == [column.type.arrow for column in self.kind.public]
        before, after = (_rows(table) for table in parts)
        for index, view in enumerate(changes.views.to_pylist()):
            was, now = changes.was_shown[index].as_py(), changes.is_shown[index].as_py()
            assert was or now, "what nobody sees is no change"
            assert not (was and now and before[index] == after[index]), "nothing has changed"
            if was:
                assert before[index] in seen[view], f"{before[index]} was not shown"
                self.held[view][self._without_final(before[index])] -= 1
            if now:
                assert after[index] in self._seen[view], f"{after[index]} is not shown"
                self.held[view][self._without_final(after[index])] += 1

    def _without_final(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        is_last = bool(self.kind.public) and self.kind.public[-1].name == FINAL
        return row[:-1] if is_last else row

    def rows(self, view: int) -> Rows:
        """What a reader of the view sees: its public columns, by `frozen`."""
        return self._seen[view]

    def _look(self) -> dict[int, Rows]:
        with self.tables.snapshot() as connection:
            connection.execute(f"CREATE TABLE {SCHEMA}.{PROGRESS} ({VIEW} INT, watermark BIGINT)")
            for row in self.watermarks.items():
                connection.execute(f"INSERT INTO {SCHEMA}.{PROGRESS} VALUES (?, ?)", row)
            return {view: self._shown(connection, view) for view in self.watermarks}

    def _shown(self, connection: duckdb.DuckDBPyConnection, view: int) -> Rows:
        names = [quoted_name(column.name) for column in self.kind.public]
        hidden = [f"_key_{index}" for index in range(len(self.kind.key))]
        select = self.kind.select_sql(view, names)
        connection.execute(f"CREATE VIEW main.of_{view} AS {select}")
        shown = arrow_table(connection, f"FROM of_{view}")
        keyed = arrow_table(connection, self.kind.keyed_select_sql(view, names, hidden))
        assert shown.column_names == names
        assert keyed.column_names == [*names, *hidden, *([TICK] if self.kind.feed_is_rows else [])]
        assert shown.schema.types == [column.type.arrow for column in self.kind.public]
        rows = Counter(_rows(shown))
        assert rows == Counter(_rows(keyed.select(names)))
        if hidden:
            assert len(set(_rows(keyed.select(hidden)))) == keyed.num_rows
        return rows


def quoted_name(name: str) -> str:
    """A name that a kind must quote."""
    return f'the "{name}"'


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(map(frozen, row.values())) for row in table.to_pylist()]


def _table(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
