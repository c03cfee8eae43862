"""One table in memory: parts of rows that never change, and dictionaries to find rows by.

A row's place is its number among all rows ever put, which is its ROW; rows that go are only noted.
When more are gone than there are, the others are put together and get new numbers, so ROW is good
until the next commit, as the contract says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kinds.calculator import conformed
from headrace.model.errors import StoreError
from headrace.model.tables import HIGH, LOW, ROW, Fetch, TableDefinition, TableDelta

__all__ = ["Change", "KeptTable"]

PARTS_MAX = 8
GONE_MIN = 1_024  # fewer rows that are gone are left in their places
LOWEST, HIGHEST = -(2**63), 2**63 - 1

Key = tuple[Hashable, ...]
Places = npt.NDArray[np.int64]


class Change:
    """What a commit does to a table: worked out first, so that nothing of it may have happened."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.put: list[pa.Table] = []
        self.keys: dict[Key, int] = {}  # of the rows put that have not gone again


class KeptTable:
    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self._rows: pa.Table = definition.schema.empty_table()
        self._is_there = np.zeros(0, dtype=np.bool_)
        self._count = 0
        self._places: dict[Key, int] = {}  # by the table's key
        self._found_by: dict[tuple[str, ...], dict[Key, set[int]]] = {}
        self._shown: pa.Table | None = definition.schema.empty_table()

    @property
    def count(self) -> int:
        return self._count

    @property
    def shown(self) -> pa.Table:
        """The rows there are; the table that is given away never changes."""
        if self._shown is None:
            self._shown = self._rows.filter(pa.array(self._is_there))
        return self._shown

    def _schema(self, columns: Iterable[str]) -> pa.Schema:
        schema = self.definition.schema
        for name in columns:
            if schema.get_field_index(name) < 0:
                raise StoreError(f"table {self.definition.name} has no column {name}")
        return pa.schema([schema.field(name) for name in columns])

    # Reading

    def fetch(self, fetch: Fetch) -> pa.Table:
        schema = self.definition.schema
        names = schema.names if fetch.columns is None else fetch.columns
        answer = pa.schema([*self._schema(names), (ROW, pa.int64())])
        places = self._asked(fetch)
        wanted = pa.array(places, pa.int64())
        columns = [self._rows.column(name).take(wanted) for name in names]
        return pa.Table.from_arrays([*columns, wanted], schema=answer)

    def _asked(self, fetch: Fetch) -> Places:
        bounds = [] if fetch.time is None else [(LOW, pa.int64()), (HIGH, pa.int64())]
        wanted = pa.schema([*self._schema(fetch.on), *bounds])
        rows = conformed(fetch.rows, wanted) if len(wanted) else fetch.rows
        if rows.num_rows == 0:
            return np.zeros(0, dtype=np.int64)
        if fetch.time is None:
            if not fetch.on:
                return np.flatnonzero(self._is_there)
            return _sorted(self._equal(fetch.on, rows))
        self._schema([fetch.time])
        times, is_known = _microseconds(self._rows.column(fetch.time))
        is_known &= self._is_there
        lows = rows.column(LOW).fill_null(LOWEST).to_numpy()
        highs = rows.column(HIGH).fill_null(HIGHEST).to_numpy()
        if not fetch.on:
            is_within = np.zeros(len(times), dtype=np.bool_)
            for low, high in set(zip(lows.tolist(), highs.tolist(), strict=True)):
                is_within |= (times >= low) & (times <= high)
            return np.flatnonzero(is_within & is_known)
        index = self._index(fetch.on)
        found: set[int] = set()
        keys = _keys(rows, fetch.on)
        for key, low, high in zip(keys, lows.tolist(), highs.tolist(), strict=True):
            places = index.get(key, ())
            found.update(p for p in places if is_known[p] and low <= times[p] <= high)
        return _sorted(found)

    def _equal(self, on: Sequence[str], rows: pa.Table) -> set[int]:
        """The places of rows equal to one of these."""
        if tuple(on) == self.definition.key:
            places = self._places
            return {places[key] for key in _keys(rows, on) if key in places}
        index = self._index(tuple(on))
        return {place for key in _keys(rows, on) for place in index.get(key, ())}

    def _index(self, on: tuple[str, ...]) -> dict[Key, set[int]]:
        """Made when rows are first looked up by these columns, and kept up from then on."""
        if on not in self._found_by:
            index: dict[Key, set[int]] = {}
            there = np.flatnonzero(self._is_there)
            rows = self._rows.select(on).take(pa.array(there, pa.int64()))
            for key, place in zip(_keys(rows, on), there.tolist(), strict=True):
                index.setdefault(key, set()).add(place)
            self._found_by[on] = index
        return self._found_by[on]

    # Changing

    def plan(self, change: Change, delta: TableDelta) -> None:
        """Add to the change what the delta does. Raises StoreError where it does not fit."""
        if delta.gone is not None and delta.gone.num_rows:
            self._plan_gone(change, delta.gone)
        if delta.put is not None and delta.put.num_rows:
            self._plan_put(change, conformed(delta.put, self.definition.schema))

    def _plan_gone(self, change: Change, gone: pa.Table) -> None:
        names = gone.column_names
        if names == [ROW]:
            asked = conformed(gone, pa.schema([(ROW, pa.int64())])).column(ROW).to_pylist()
            change.gone |= {p for p in asked if p < len(self._is_there) and self._is_there[p]}
            return
        rows = conformed(gone, self._schema(names))
        change.gone |= self._equal(names, rows)
        if change.put:
            # Rows that an earlier delta of this commit put may go again.
            gone_keys = set(_keys(rows, names))
            kept = []
            for part in change.put:
                stays = [key not in gone_keys for key in _keys(part, names)]
                kept.append(part.filter(pa.array(stays, pa.bool_())))
            change.put, change.keys = [], {}
            for part in kept:
                self._plan_put(change, part)

    def _plan_put(self, change: Change, put: pa.Table) -> None:
        for key in _keys(put, self.definition.key):
            stored = self._places.get(key)
            if key in change.keys or (stored is not None and stored not in change.gone):
                raise StoreError(
                    f"table {self.definition.name} would have two rows with the key {key}"
                )
            change.keys[key] = len(change.keys)
        change.put.append(put)

    def apply(self, change: Change) -> None:
        """Nothing of it can fail but for memory."""
        if not change.gone and not change.put:
            return
        if change.gone:
            self._forget(_sorted(change.gone))
        for put in change.put:
            self._add(put)
        self._shown = None
        if len(self._is_there) - self._count > max(self._count, GONE_MIN):
            self._renumber()

    def _forget(self, places: Places) -> None:
        rows = self._rows.take(pa.array(places, pa.int64()))
        for key in _keys(rows, self.definition.key):
            del self._places[key]
        for on, index in self._found_by.items():
            for key, place in zip(_keys(rows, on), places.tolist(), strict=True):
                index[key].discard(place)
                if not index[key]:
                    del index[key]
        self._is_there[places] = False
        self._count -= len(places)

    def _add(self, put: pa.Table) -> None:
        first = len(self._is_there)
        for place, key in enumerate(_keys(put, self.definition.key), first):
            self._places[key] = place
        for on, index in self._found_by.items():
            for place, key in enumerate(_keys(put, on), first):
                index.setdefault(key, set()).add(place)
        rows = pa.concat_tables([self._rows, put])
        if rows.num_columns and rows.column(0).num_chunks > PARTS_MAX:
            rows = rows.combine_chunks()
        self._rows = rows
        self._is_there = np.append(self._is_there, np.ones(put.num_rows, dtype=np.bool_))
        self._count += put.num_rows

    def _renumber(self) -> None:
        rows = self.shown.combine_chunks()
        found_by = list(self._found_by)
        self._rows = self._shown = rows
        self._is_there = np.ones(rows.num_rows, dtype=np.bool_)
        keys = _keys(rows, self.definition.key)
        self._places = {key: place for place, key in enumerate(keys)}
        self._found_by = {}
        for on in found_by:
            self._index(on)


def _sorted(places: Iterable[int]) -> Places:
    found = np.fromiter(places, dtype=np.int64)
    found.sort()
    return found


def _microseconds(column: pa.ChunkedArray) -> tuple[Places, npt.NDArray[np.bool_]]:
    is_known = np.array(column.is_valid().to_numpy())
    return column.cast(pa.int64()).fill_null(0).to_numpy(), is_known


def _keys(rows: pa.Table, on: Sequence[str]) -> list[Key]:
    """Equal for two rows exactly where DuckDB takes them to be equal."""
    if not on:
        return [()] * rows.num_rows
    return list(zip(*(_values(rows.column(name)) for name in on), strict=True))


def _values(column: pa.ChunkedArray) -> list[Hashable]:
    type_ = column.type
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())  # Python's own end with the year 9999
    elif pa.types.is_date(type_):
        column = column.cast(pa.int32())
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(type_) or pa.types.is_nested(type_):
        return [_hashable(value) for value in values]
    return values


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "NaN"  # equal to itself, as no float of that name is
    if isinstance(value, dict):
        return tuple(_hashable(field) for field in value.values())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    found: Hashable = value
    return found
