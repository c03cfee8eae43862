"""One page of a view: filters, order, limit and a keyset cursor.

The order is the user's columns, then the hidden keys of the view, which are unique: so a page
starts right after the last row of the one before, whatever was written in between. NULL counts as
the greatest value: last ascending, first descending. A page whose last row has too long a key for
a cursor ends at an earlier row.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Protocol

import duckdb
import pyarrow as pa

from headrace.kinds.calculator import arrow_table, quoted, store_type, text_literal
from headrace.model.errors import QueryError
from headrace.model.types import DataType, parse_type
from headrace.store.contract import CatalogEntry

__all__ = ["conditions_sql", "read_page"]


class ReadableView(Protocol):
    """`columns` are the public (name, Spark type); `rows_sql` is a table or a SELECT in parentheses
    that has these, then the keys that tell rows apart, named `hidden`."""

    @property
    def numbers(self) -> tuple[int, ...]: ...
    @property
    def entry(self) -> CatalogEntry: ...
    @property
    def columns(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def hidden(self) -> tuple[str, ...]: ...
    @property
    def rows_sql(self) -> str: ...


CURSOR_CHARACTERS_MAX = 16 * 1024  # fits into an address beside filters and order
_INTEGER = re.compile(r"[+-]?[0-9]+")


def read_page(
    connection: duckdb.DuckDBPyConnection,
    view: ReadableView,
    filters: Mapping[str, str],
    order_by: Sequence[tuple[str, bool]],
    limit: int,
    rows_max: int,
    cursor: str | None,
) -> tuple[pa.Table, str | None]:
    """Raises QueryError as Store.read_view says."""
    if not 1 <= limit <= rows_max:
        raise QueryError(f"limit is {limit}", hint=f"a limit is 1 to {rows_max}")
    types = {name: parse_type(type_) for name, type_ in view.columns}
    wanted = [(_column(view, name), text) for name, text in filters.items()]
    order = [(_column(view, name), descending) for name, descending in order_by]
    sorts = [(quoted(name), descending) for name, descending in order]
    sorts += [(quoted(name), False) for name in view.hidden]
    digest = _digest(view, wanted, order)
    conditions = [f"{quoted(name)} = {_literal(name, types[name], text)}" for name, text in wanted]
    table = view.rows_sql
    if cursor is not None:
        values = _decoded(cursor, digest, len(sorts))
        conditions.append(_after(sorts, values))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    ordering = ", ".join(
        f"{column} {'DESC NULLS FIRST' if descending else 'ASC NULLS LAST'}"
        for column, descending in sorts
    )
    by = f" ORDER BY {ordering}" if ordering else ""
    public = [quoted(name) for name, _ in view.columns]
    places = [f"CAST({column} AS VARCHAR)" for column, _ in sorts]
    inner = f"SELECT * FROM {table}{where}{by} LIMIT {limit + 1}"
    try:
        found = arrow_table(
            connection, f"SELECT {', '.join([*public, *places])} FROM ({inner}){by}"
        )
    except duckdb.Error:
        _check_values(connection, [(name, types[name], text) for name, text in wanted])
        raise
    rows = pa.Table.from_arrays(
        found.columns[: len(public)], names=[name for name, _ in view.columns]
    ).cast(pa.schema([(name, types[name].arrow) for name, _ in view.columns]))
    if found.num_rows <= limit:
        return rows, None
    count, following = _continued(found.columns[len(public) :], limit, digest)
    return rows.slice(0, count), following


def _check_values(
    connection: duckdb.DuckDBPyConnection, wanted: Sequence[tuple[str, DataType, str]]
) -> None:
    """Raises QueryError for the first text that is no value of its column's type."""
    cursor = connection.cursor()  # the other's transaction has failed
    for name, type_, text in wanted:
        sql = f"SELECT TRY_CAST({text_literal(text)} AS {store_type(type_)}) IS NULL"
        if cursor.execute(sql).fetchall()[0][0]:
            raise _no_value(name, type_, text)


def _no_value(name: str, type_: DataType, text: str) -> QueryError:
    return QueryError(
        f"{text!r} is not a value of column {name}", hint=f"the column's type is {type_}"
    )


def _continued(places: Sequence[pa.ChunkedArray], limit: int, digest: str) -> tuple[int, str]:
    """How many rows the page has, and the cursor behind the last of them."""
    longest = 0
    for position in reversed(range(limit)):
        cursor = _encoded(digest, [column[position].as_py() for column in places])
        if len(cursor) <= CURSOR_CHARACTERS_MAX:
            return position + 1, cursor
        longest = max(longest, len(cursor))
    raise QueryError(
        f"no row of this page has a key short enough to continue from: a cursor would have"
        f" {longest} characters, at most {CURSOR_CHARACTERS_MAX} are possible",
        hint="raise the limit, filter, or use SQL with LIMIT and OFFSET",
        status=413,
    )


def conditions_sql(view: ReadableView, filters: Mapping[str, str]) -> str:
    """A WHERE with a space before it, or nothing. Raises QueryError as Store.read_view says."""
    types = {name: parse_type(type_) for name, type_ in view.columns}
    conditions = []
    for name, text in filters.items():
        column = _column(view, name)
        conditions.append(f"{quoted(column)} = {_literal(column, types[column], text)}")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _column(view: ReadableView, name: str) -> str:
    names = [column for column, _ in view.columns]
    if name in names:
        return name
    alike = [column for column in names if column.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    raise QueryError(
        f"view {view.entry.view} has no column {name!r}", hint=f"columns are {', '.join(names)}"
    )


def _literal(name: str, type_: DataType, text: str) -> str:
    """Casts as strictly as JSON would: DuckDB alone takes 2.5 for the integer 3."""
    wrong = _no_value(name, type_, text)
    if "\x00" in text and type_.name != "STRING":
        raise wrong
    if type_.is_nested:
        raise QueryError(f"column {name} is nested", hint="filter by other columns")
    if type_.is_integer and not _INTEGER.fullmatch(text):
        raise wrong
    if type_.is_decimal:
        try:
            exponent = Decimal(text).normalize().as_tuple().exponent
        except InvalidOperation:
            raise wrong from None
        if not isinstance(exponent, int) or -exponent > type_.scale:
            raise wrong
    if type_.name == "BINARY":
        try:
            checked = base64.b64encode(base64.b64decode(text, validate=True)).decode()
        except (binascii.Error, ValueError):
            raise wrong from None
        return f"from_base64({text_literal(checked)})"
    return f"CAST({text_literal(text)} AS {store_type(type_)})"


def _after(sorts: Sequence[tuple[str, bool]], values: Sequence[str | None]) -> str:
    """Rows strictly behind the given place in the order."""
    ways = []
    equal: list[str] = []
    for (column, descending), value in zip(sorts, values, strict=True):
        if value is None:
            behind = f"{column} IS NOT NULL" if descending else "false"
            same = f"{column} IS NULL"
        else:
            place = f"cast_to_type({text_literal(value)}, {column})"
            behind = (
                f"{column} < {place}" if descending else f"({column} > {place} OR {column} IS NULL)"
            )
            same = f"{column} = {place}"
        ways.append(" AND ".join([*equal, behind]))
        equal.append(same)
    return f"({' OR '.join(f'({way})' for way in ways)})" if ways else "false"


def _digest(
    view: ReadableView, filters: Sequence[tuple[str, str]], order: Sequence[tuple[str, bool]]
) -> str:
    query = json.dumps([min(view.numbers), sorted(filters), order])
    return hashlib.sha256(query.encode()).hexdigest()[:16]


def _encoded(digest: str, values: Sequence[str | None]) -> str:
    text = json.dumps([digest, *values], ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(cursor: str, digest: str, count: int) -> list[str | None]:
    wrong = QueryError(
        "the cursor is not of this query", hint="keep filters and order the same, or start anew"
    )
    if len(cursor) > CURSOR_CHARACTERS_MAX:
        raise wrong
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        parts = json.loads(text)
    except (ValueError, UnicodeError, RecursionError):
        raise wrong from None
    if not isinstance(parts, list) or len(parts) != count + 1 or parts[0] != digest:
        raise wrong
    if not all(part is None or isinstance(part, str) for part in parts):
        raise wrong
    return parts[1:]
