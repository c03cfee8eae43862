"""Tables as plain Python rows: what a backend is compared with."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.model.plan import BoundColumn
from headrace.model.tables import HIGH, LOW, ROW, TableDefinition
from headrace.model.types import parse_type

__all__ = ["TableModel", "counted", "definition", "plain", "rows_table"]

Row = dict[str, Any]


def definition(
    name: str,
    columns: Mapping[str, str],
    key: Sequence[str],
    *indexes: Sequence[str],
) -> TableDefinition:
    return TableDefinition(
        name,
        tuple(BoundColumn(column, parse_type(type_)) for column, type_ in columns.items()),
        tuple(key),
        tuple(map(tuple, indexes)),
    )


def rows_table(
    table: TableDefinition,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str] | None = None,
    with_bounds: bool = False,
) -> pa.Table:
    """Of some columns of the table; `with_bounds`, also what a fetch by time needs."""
    names = table.schema.names if columns is None else columns
    schema = pa.schema([table.schema.field(name) for name in names])
    if with_bounds:
        schema = pa.schema([*schema, (LOW, pa.int64()), (HIGH, pa.int64())])
    return pa.Table.from_pylist([{n: row[n] for n in schema.names} for row in rows], schema)


def plain(value: Any) -> Hashable:
    """Equal for what a table takes to be equal."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return tuple(plain(field) for field in value.values())
    if isinstance(value, list):
        return tuple(plain(element) for element in value)
    found: Hashable = value
    return found


def counted(table: pa.Table) -> Counter[Hashable]:
    """The rows without ROW, however often each is there."""
    names = [name for name in table.column_names if name != ROW]
    return Counter(tuple(plain(row[n]) for n in names) for row in table.to_pylist())


def microseconds(value: Any) -> int | None:
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
            microseconds=1
        )
    return value if value is None else int(value)


class TableModel:
    def __init__(self, table: TableDefinition) -> None:
        self.table = table
        self.rows: list[Row] = []

    def fetch(
        self, on: Sequence[str], asked: Sequence[Mapping[str, Any]], time: str | None = None
    ) -> list[Row]:
        return [row for row in self.rows if any(self._meets(row, on, a, time) for a in asked)]

    def _meets(
        self, row: Row, on: Sequence[str], asked: Mapping[str, Any], time: str | None
    ) -> bool:
        if any(plain(row[name]) != plain(asked[name]) for name in on):
            return False
        if time is None:
            return True
        at = microseconds(row[time])
        low, high = asked[LOW], asked[HIGH]
        return at is not None and (low is None or low <= at) and (high is None or at <= high)

    def remove(self, on: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        gone = {tuple(plain(row[name]) for name in on) for row in rows}
        self.rows = [r for r in self.rows if tuple(plain(r[n]) for n in on) not in gone]

    def key(self, row: Mapping[str, Any]) -> Hashable:
        return tuple(plain(row[name]) for name in self.table.key)

    def counted(self) -> Counter[Hashable]:
        return Counter(
            tuple(plain(row[name]) for name in self.table.schema.names) for row in self.rows
        )
