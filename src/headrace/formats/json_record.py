"""One JSON record to one event, by the book: the forms each column type accepts.

This is the meaning. The fast path (decode_json.py) may only accept what this accepts, with equal
values; whatever it will not take comes here, and a record that fails here is quarantined with the
reason given.

| type               | accepted JSON                                                            |
|--------------------|--------------------------------------------------------------------------|
| BOOLEAN            | true, false                                                              |
| TINYINT … BIGINT   | a number without fraction or exponent, within the type's range           |
| FLOAT, DOUBLE      | a number within range; "NaN", "Infinity", "-Infinity" as strings         |
| DECIMAL(p,s)       | a number or a string holding one: never through a float, never rounded   |
| STRING             | a string of valid Unicode                                                |
| BINARY             | a string in base64 (RFC 4648, padded)                                    |
| DATE               | a string YYYY-MM-DD                                                      |
| TIMESTAMP          | a string in RFC 3339, never an epoch number; without offset it is UTC;   |
|                    | time, minutes or seconds may be left out; the 7th to 9th digit of the    |
|                    | second is cut off                                                        |
| ARRAY<T>           | an array of what T accepts, or null                                      |
| STRUCT<…>          | an object; fields as for columns; unknown ones are ignored               |

null and a missing field are NULL. Field names are matched exactly. A declared field given twice
fails the record; unknown fields are ignored. NaN and Infinity as bare words are not JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.formats.changes import DELETE, UPSERT, WRONG_OPERATION, Changes
from headrace.model.definitions import OPERATION, Stream
from headrace.model.types import DataType

__all__ = ["NUMBER", "RecordDecoder", "RecordError", "nesting_depth", "read_timestamp"]

_SHOWN_CHARACTERS_MAX = 60
_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # as JSON has it
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[ Tt]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?"
    r"(?:([Zz])|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all arithmetic here is in UTC without a zone
_MICROSECOND = timedelta(microseconds=1)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RecordError(ValueError):
    """Why a record cannot become an event; str(error) is the dead letter's reason."""


class _Number(str):
    """The text of a JSON number, kept as written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The members of a JSON object in order, duplicates included."""

    __slots__ = ()


def _refuse_constant(name: str) -> Any:
    raise RecordError(f"not JSON: {name} is no JSON value")


_parse = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_float=_Number,
    parse_int=_Number,
    parse_constant=_refuse_constant,
).decode


def nesting_depth(raw: bytes) -> int:
    """How deep arrays and objects are nested; an upper bound if `raw` is not JSON."""
    if raw.count(b"[") + raw.count(b"{") <= 1:
        return raw.count(b"[") + raw.count(b"{")
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(raw):
        token = raw[match.start()]
        if token in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in b"]}":
            depth -= 1
    return deepest


class RecordDecoder:
    """Decodes records of one stream, one by one."""

    def __init__(self, stream: Stream, *, line_bytes_max: int, nesting_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._nesting_max = nesting_max
        self._members = {
            column.name: (index, _converter(column.type))
            for index, column in enumerate(stream.columns)
        }
        self._types = [column.type.name for column in stream.columns]
        self._required = [
            (index, column.name, "NOT NULL")
            for index, column in enumerate(stream.columns)
            if not column.nullable
        ]
        self._width = len(stream.columns)
        self._of_deletes = (self._members, self._required)
        changes = Changes.of(stream)
        self._is_changelog = changes is not None
        if changes is not None:
            self._members[OPERATION] = (changes.operation, _operation)

            def needed(*places: int) -> list[tuple[int, str, str]]:
                return [(i, stream.columns[i].name, changes.why(i)) for i in places]

            sequence = () if changes.sequence is None else (changes.sequence,)
            names = [stream.columns[place].name for place in changes.of_deletes]
            members = {name: self._members[name] for name in names}
            self._of_deletes = (members, needed(*changes.key, *sequence))
            self._required = needed(*changes.key, *changes.required)

    def decode(self, raw: bytes) -> list[Any]:
        """The column values in order, ready for pyarrow.array. Raises RecordError."""
        return self._values(self._object(raw))

    def unknown_fields(self, raw: bytes) -> int:
        """How many of the record's top-level fields the stream does not declare."""
        return sum(name not in self._members for name, _ in self._object(raw))

    def _object(self, raw: bytes) -> _Object:
        if len(raw) > self._line_bytes_max:
            raise RecordError(f"record of {len(raw)} bytes; at most {self._line_bytes_max}")
        if nesting_depth(raw) > self._nesting_max:
            raise RecordError(f"nested deeper than {self._nesting_max}")
        try:
            parsed = _parse(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(f"not UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise RecordError(
                f"not JSON: {error.msg} at character {error.pos}{_why_extra(error)}"
            ) from None
        if not isinstance(parsed, _Object):
            raise RecordError(f"expected a JSON object, got {_shown(parsed)}")
        return parsed

    def _values(self, parsed: _Object) -> list[Any]:
        values: list[Any] = [None] * self._width
        seen: set[int] = set()
        members, required = self._members, self._required
        if self._is_changelog and (OPERATION, DELETE) in parsed:
            members, required = self._of_deletes
        for name, value in parsed:
            member = members.get(name)
            if member is None:
                continue
            index, convert = member
            if index in seen:
                raise RecordError(f"column {name}: given twice")
            seen.add(index)
            if value is not None:
                try:
                    values[index] = convert(value)
                except RecordError as error:
                    raise RecordError(f"column {name} {self._types[index]}: {error}") from None
        for index, name, why in required:
            if values[index] is None:
                given = "is null" if index in seen else f"is missing{_spelled(name, parsed)}"
                raise RecordError(f"column {name} {self._types[index]} {why}: {given}")
        return values


def _why_extra(error: json.JSONDecodeError) -> str:
    if not error.msg.startswith("Extra data") or not error.doc.startswith("{", error.pos):
        return ""
    return ": a second object on the line; curl -d joins lines, --data-binary keeps them"


def _spelled(name: str, parsed: _Object) -> str:
    for given, _ in parsed:
        if given.lower() == name.lower():
            return f"; there is a field {given}: names are matched exactly"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value) if isinstance(value, _Number) else f'"{value}"'
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) > _SHOWN_CHARACTERS_MAX:
        return text[:_SHOWN_CHARACTERS_MAX] + "…"
    return text


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise RecordError(f"expected true or false, got {_shown(value)}")
    return value


def _string(value: Any) -> str:
    if not _is_text(value):
        raise RecordError(f"expected a string, got {_shown(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError(f"half of a surrogate pair in {_shown(value)}") from None
    return str(value)


def _operation(value: Any) -> str:
    if not _is_text(value) or value not in (UPSERT, DELETE):
        raise RecordError(f"{WRONG_OPERATION}, got {_shown(value)}")
    return str(value)


def _binary(value: Any) -> bytes:
    if not _is_text(value):
        raise RecordError(f"expected a string in base64, got {_shown(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise RecordError(f"expected base64, got {_shown(value)}") from None


def _decimal(data_type: DataType) -> Callable[[Any], Decimal]:
    precision, scale = data_type.precision, data_type.scale

    def convert(value: Any) -> Decimal:
        if not isinstance(value, str):
            raise RecordError(f"expected a number or a string holding one, got {_shown(value)}")
        if _DECIMAL.fullmatch(value) is None:
            raise RecordError(f"expected a decimal number, got {_shown(value)}")
        exact = Decimal(value)
        if not exact:
            return Decimal(0)
        if exact.adjusted() >= precision - scale:
            raise RecordError(f"{_shown(value)} has more than {precision - scale} digits before "
                              "the point")  # fmt: skip
        sign, digits, exponent = exact.as_tuple()
        excess = -scale - int(exponent)
        if excess <= 0:
            return exact
        if any(digits[-excess:]):
            raise RecordError(f"{_shown(value)} has more than {scale} digits after the point")
        return Decimal((sign, digits[:-excess], -scale))  # pyarrow cannot cut many zeros itself

    return convert


def _integer(bits: int) -> Callable[[Any], int]:
    smallest, largest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if not isinstance(value, _Number) or not value.lstrip("-").isdigit():
            raise RecordError(f"expected a whole number, got {_shown(value)}")
        if len(value) > 20 or not smallest <= (number := int(value)) <= largest:
            raise RecordError(f"{_shown(value)} is outside {smallest} to {largest}")
        return number

    return convert


def _float(arrow: pa.DataType) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if _is_text(value) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if not isinstance(value, _Number):
            raise RecordError(f"expected a number, got {_shown(value)}")
        number: float = pa.scalar(str(value)).cast(arrow).as_py()
        if not math.isfinite(number):
            raise RecordError(f"{_shown(value)} is too large")
        return number

    return convert


def _date(value: Any) -> date:
    match = _DATE.fullmatch(value) if _is_text(value) else None
    if match is None:
        raise RecordError(f"expected a date such as 2026-01-31, got {_shown(value)}")
    try:
        return date(*(int(part) for part in match.groups()))
    except ValueError as error:
        raise RecordError(f"{_shown(value)}: {error}") from None


def read_timestamp(value: Any) -> int:
    """Microseconds since the epoch. Raises RecordError for what is not RFC 3339."""
    if isinstance(value, _Number):
        raise RecordError(
            f"expected RFC 3339 such as 2026-01-31T12:00:00Z, got the number {_shown(value)}: "
            "an epoch does not say its unit"
        )
    match = _TIMESTAMP.fullmatch(value) if _is_text(value) else None
    if match is None:
        raise RecordError(f"expected RFC 3339 such as 2026-01-31T12:00:00Z, got {_shown(value)}")
    year, month, day, hour, minute, second, fraction, _, sign, off_hours, off_minutes = (
        match.groups()
    )
    try:
        moment = datetime(  # noqa: DTZ001 - the offset is applied below
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0)
        )
    except ValueError as error:
        raise RecordError(f"{_shown(value)}: {error}") from None
    microseconds = (moment - _EPOCH) // _MICROSECOND + int(((fraction or "") + "000000")[:6])
    if sign:
        if int(off_hours) > 23 or int(off_minutes or 0) > 59:
            raise RecordError(f"{_shown(value)}: the offset must be below 24:00")
        offset = (int(off_hours) * 60 + int(off_minutes or 0)) * 60_000_000
        microseconds += offset if sign == "-" else -offset
    if not TIMESTAMP_MINIMUM <= microseconds <= TIMESTAMP_MAXIMUM:
        raise RecordError(f"{_shown(value)} is outside the years 0001 to 9999 in UTC")
    return microseconds


TIMESTAMP_MINIMUM = (datetime(1, 1, 1) - _EPOCH) // _MICROSECOND  # noqa: DTZ001
TIMESTAMP_MAXIMUM = TIMESTAMP_MINIMUM + 3_652_059 * 86_400_000_000 - 1  # the end of 9999


def _array(element: DataType) -> Callable[[Any], list[Any]]:
    convert_element = _converter(element)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list) or isinstance(value, _Object):
            raise RecordError(f"expected an array, got {_shown(value)}")
        return [None if item is None else convert_element(item) for item in value]

    return convert


def _struct(fields: tuple[tuple[str, DataType], ...]) -> Callable[[Any], dict[str, Any]]:
    converters = {name: _converter(field) for name, field in fields}

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, _Object):
            raise RecordError(f"expected an object, got {_shown(value)}")
        members: dict[str, Any] = {}
        for name, item in value:
            convert_field = converters.get(name)
            if convert_field is None:
                continue
            if name in members:
                raise RecordError(f"field {name}: given twice")
            members[name] = None if item is None else convert_field(item)
        return {name: members.get(name) for name in converters}

    return convert


def _converter(data_type: DataType) -> Callable[[Any], Any]:
    if data_type.is_decimal:
        return _decimal(data_type)
    if data_type.is_integer:
        return _integer(_INTEGER_BITS[data_type.name])
    if data_type.name in ("FLOAT", "DOUBLE"):
        return _float(data_type.arrow)
    if data_type.element is not None:
        return _array(data_type.element)
    if data_type.fields:
        return _struct(data_type.fields)
    return {
        "BOOLEAN": _boolean,
        "STRING": _string,
        "BINARY": _binary,
        "DATE": _date,
        "TIMESTAMP": read_timestamp,
    }[data_type.name]
