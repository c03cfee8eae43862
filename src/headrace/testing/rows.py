"""Rows as a test writes them beside rows as a view has them: which belong together, and what is
different in words."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa

from headrace.client.encode import encode_event
from headrace.formats.json_record import RecordDecoder, RecordError
from headrace.model.definitions import Column, Stream
from headrace.model.errors import ClientError, KitError
from headrace.model.types import DataType

__all__ = ["Comparison", "Row", "RowReader", "compare", "nearest", "told_row", "told_value"]

Row = Mapping[str, Any]

_PLAIN = (str, bool, int, float, Decimal, datetime, date, bytes, UUID, Enum, list, tuple, Mapping)
_ROW_BYTES_MAX = 64 * 1024 * 1024
_NESTING_MAX = 64
_SHOWN_MAX = 20  # rows of each sort that a message lists
_PAIRED_MAX = 100  # missing rows for which another one is looked for that may be meant
_LOOKED_UP = (str, int, Decimal, datetime, date, bytes)  # values that equal ones are found by
_VALUE_CHARACTERS_MAX = 200


class RowReader:
    """Reads expected rows by the types of a view's columns, as the gateway reads events: a decimal
    or a moment may be written as text. What is no value, such as `pytest.approx(0.1)`, is kept and
    compared by `==`."""

    def __init__(self, view: str, columns: Mapping[str, DataType]) -> None:
        self._view = view
        self._columns = columns
        stream = Stream(view, tuple(Column(name, type_) for name, type_ in columns.items()))
        self._decoder = RecordDecoder(
            stream, line_bytes_max=_ROW_BYTES_MAX, nesting_max=_NESTING_MAX
        )

    def read(self, given: Any) -> Row:
        """Raises KitError for what no row of the view could be."""
        if not isinstance(given, Mapping) or not given:
            raise KitError(
                f"an expected row is a mapping from column to value, not {given!r}",
                hint='{"column": value}; columns that it leaves out may have any value',
            )
        for name in given:
            if name not in self._columns:
                raise self._no_column(name)
        plain = {n: value for n, value in given.items() if value is None or _is_plain(value)}
        try:
            values = self._decoder.decode(encode_event(plain))
        except (RecordError, ClientError) as error:
            raise KitError(
                f"no row of view {self._view} could be expected so: {error}",
                hint=f"its columns are {self._told_columns()}",
            ) from None
        typed = dict(zip(self._columns, values, strict=True))
        read = {n: _as_stored(typed[n], self._columns[n]) for n in plain}
        return {name: read[name] if name in plain else value for name, value in given.items()}

    def _no_column(self, name: Any) -> KitError:
        near = get_close_matches(str(name), self._columns, n=1)
        return KitError(
            f"view {self._view} has no column {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"they are {self._told_columns()}",
        )

    def _told_columns(self) -> str:
        return ", ".join(f"{name} {type_}" for name, type_ in self._columns.items())


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or value is None


def _as_stored(value: Any, of_type: DataType) -> Any:
    """As a row that was read has it: of the column's precision, moments in UTC."""
    return pa.array([value], of_type.arrow).to_pylist()[0]


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float) and math.isnan(expected):
        return math.isnan(found)
    return bool(expected == found)


def _meets(expected: Row, found: Row) -> bool:
    return all(_same(value, found[name]) for name, value in expected.items())


@dataclass
class Comparison:
    """What is left when every expected row that is there was found: `differing` are pairs of rows
    (expected, found) that stand for the same thing."""

    differing: list[tuple[Row, Row]] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)
    unexpected: list[Row] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not (self.differing or self.missing or self.unexpected)

    @property
    def missing_at_all(self) -> bool:
        """Whether an expected row is not there as it was said."""
        return bool(self.differing or self.missing)

    def told(self) -> list[str]:
        lines = _listed(
            "differs", [_told_difference(expected, found) for expected, found in self.differing]
        )
        lines += _listed("missing", [[told_row(row)] for row in self.missing])
        return lines + _listed("unexpected", [[told_row(row)] for row in self.unexpected])


def compare(expected: Sequence[Row], found: Sequence[Row], keys: Iterable[str]) -> Comparison:
    """Each expected row takes one found row that has its values; the order does not count. Those
    left over are paired by the view's key columns, else by how much of them is equal."""
    missing, unexpected = _unmatched(expected, found)
    comparison = Comparison()
    for row in missing[:_PAIRED_MAX]:
        other = nearest(row, unexpected, keys)
        if other is None:
            comparison.missing.append(row)
        else:
            comparison.differing.append((row, other))
            unexpected = [one for one in unexpected if one is not other]
    comparison.missing += missing[_PAIRED_MAX:]
    comparison.unexpected = unexpected
    return comparison


def _unmatched(expected: Sequence[Row], found: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """What a largest matching leaves over: an expected row that names few columns gives way to one
    that needs the row it took, if there is another for it."""
    index = _Index(found)
    taken: dict[int, int] = {}  # the expected row that has it, by the found one
    takes: dict[int, int] = {}  # and the other way round

    def take(wanted: int) -> None:
        reached: dict[int, int] = {}  # the expected row that could take it, by the found one
        asking = deque([wanted])
        while asking:
            one = asking.popleft()
            for place in index.places_of(expected[one]):
                if place in reached:
                    continue
                reached[place] = one
                if place in taken:
                    asking.append(taken[place])
                    continue
                while True:  # each moves on to the row it has reached, up to the one that asked
                    mover = reached[place]
                    before = takes.get(mover, -1)
                    taken[place], takes[mover] = mover, place
                    if mover == wanted:
                        return
                    place = before

    for wanted in range(len(expected)):
        take(wanted)
    missing = [row for wanted, row in enumerate(expected) if wanted not in takes]
    return missing, [row for place, row in enumerate(found) if place not in taken]


class _Index:
    """Finds the rows that an expected one may mean, without comparing it with all of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._by_values: dict[tuple[str, ...], dict[tuple[Any, ...], list[int]]] = {}

    def places_of(self, expected: Row) -> list[int]:
        names = tuple(n for n, value in expected.items() if isinstance(value, _LOOKED_UP))
        if names not in self._by_values:
            places: dict[tuple[Any, ...], list[int]] = {}
            for place, row in enumerate(self._rows):
                places.setdefault(tuple(row[name] for name in names), []).append(place)
            self._by_values[names] = places
        alike = self._by_values[names].get(tuple(expected[name] for name in names), [])
        return [place for place in alike if _meets(expected, self._rows[place])]


def nearest(expected: Row, found: Sequence[Row], keys: Iterable[str]) -> Row | None:
    """The row that stands for the same thing: it has the same keys, where the expected row says
    what they are; else most of its values, one at least."""
    own = [name for name in keys if name in expected]
    if own:
        alike = [row for row in found if all(_same(expected[name], row[name]) for name in own)]
    else:
        alike = [row for row in found if _equal_values(expected, row)]
    return max(alike, key=lambda row: _equal_values(expected, row), default=None)


def _equal_values(expected: Row, found: Row) -> int:
    return sum(_same(value, found[name]) for name, value in expected.items())


def _told_difference(expected: Row, found: Row) -> list[str]:
    equal = {name: v for name, v in expected.items() if _same(v, found[name])}
    lines = [told_row(equal) if equal else told_row(found)]
    return lines + [
        f"    {name}: expected {told_value(value)}, is {told_value(found[name])}"
        for name, value in expected.items()
        if name not in equal
    ]


def _listed(sort: str, entries: Sequence[Sequence[str]]) -> list[str]:
    lines = []
    for first, *others in entries[:_SHOWN_MAX]:
        lines += [f"  {sort:10} {first}", *(f"  {'':10} {other}" for other in others)]
    if len(entries) > _SHOWN_MAX:
        lines.append(f"  {sort:10} and {len(entries) - _SHOWN_MAX} more")
    return lines


def told_row(row: Row) -> str:
    return ", ".join(f"{name}={told_value(value)}" for name, value in row.items())


def told_value(value: Any) -> str:
    if isinstance(value, datetime):
        text = value.isoformat().replace("+00:00", "Z")
    elif isinstance(value, Decimal | date):
        text = str(value)
    else:
        text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else f"{text[:_VALUE_CHARACTERS_MAX]}…"
