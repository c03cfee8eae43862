"""Many JSON records to one Arrow batch: cut where they are all written alike, else parsed.

Records of all requests of a group are decoded together. decode_uniform.py takes lines of one shape
in half the time of pyarrow's parser, which takes any. pyarrow is lenient where decode_record.py
is not (several objects on a line, NaN, invalid UTF-8, decimals beyond their precision, years
outside 1 to 9999), so a block is checked before and after; a block that fails any check is halved
until the fault stands alone, and what is left is decided by RecordDecoder, record by record.

Why framing is safe: every line of a block starts with { and ends with }, and a raw newline cannot
be inside a JSON string. So no value can reach over a line's end, each line holds one object or
more, and as many rows as lines means exactly one each.

Why decimals are looked at before: with more than 38 digits after the point beyond the column's
own, pyarrow reads past its table of powers of ten and may give any value, zero included. So at
most 38 are let through: 38 as written, or 20 with an exponent down to -18.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.formats.changes import Changes
from headrace.formats.json_record import (
    TIMESTAMP_MAXIMUM,
    TIMESTAMP_MINIMUM,
    RecordDecoder,
    RecordError,
)
from headrace.formats.json_uniform import cut_columns, typed_column
from headrace.model.definitions import Stream
from headrace.model.types import DataType

__all__ = ["Decoded", "JsonDecoder", "typed_texts"]

RECORDS_ONE_BY_ONE_MAX = 8  # below this, starting pyarrow's parser costs more than it saves
LINES_CUT_MIN = 200  # with fewer, the parser is as fast
CUTS_LEFT_OUT = 16  # blocks that go to the parser at once after lines that were not alike
_BARE_NOT_FINITE = re.compile(rb"[:,\[\s-](?:NaN|Inf)")
_DEEP = rb"-(?<=[0-9.]%b-)0*(?:[1-9][0-9]{2,}|[2-9][0-9]|19)[\"\\\s,}\]]"  # no part of a UUID
_DEEP_DECIMALS = [  # each begins with letters of its own: that is what makes the search fast
    re.compile(rb"\.[0-9]{21}(?:[0-9]{18}|[0-9]*[eE]-)"),
    re.compile(b"e" + _DEEP % b"e"),
    re.compile(b"E" + _DEEP % b"E"),
    re.compile(rb"\\u00(?:2[dDeE]|3[0-9]|[46]5)"),  # a digit, point, minus or e as an escape
]
_NEWLINE, _OPEN, _CLOSE, _BRACKET = 10, 123, 125, 91


@dataclass(slots=True)
class Decoded:
    """`batches` hold the accepted records in order; `rejected` the others, by position."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rejected: list[tuple[int, str]] = field(default_factory=list)


class JsonDecoder:
    """Decodes records of one stream. One thread at a time."""

    def __init__(self, stream: Stream, *, line_bytes_max: int, nesting_max: int) -> None:
        self.records = RecordDecoder(stream, line_bytes_max=line_bytes_max, nesting_max=nesting_max)
        self._line_bytes_max = line_bytes_max
        self._nesting_max = nesting_max
        self._columns = stream.columns
        self._changes = Changes.of(stream)
        self._schema = pa.schema(
            [pa.field(c.name, c.type.arrow, nullable=c.nullable) for c in stream.columns]
        )
        self._carriers = {c.name: _carrier(c.type) for c in stream.columns}
        self._parse_options = pj.ParseOptions(
            explicit_schema=pa.schema(list(self._carriers.items())),
            unexpected_field_behavior="ignore",
        )
        self._has_decimals = any(_holds_decimals(c.type) for c in stream.columns)
        self._cuts_left_out = 0

    def decode(self, records: Sequence[bytes]) -> Decoded:
        """`records` hold no newline. Every record is either in a batch or rejected."""
        decoded = Decoded()
        if records:
            self._decode_range(records, 0, len(records), decoded)
        return decoded

    def decode_lines(self, lines: bytes, count: int) -> pa.RecordBatch | None:
        """All records of newline-separated `lines` (without a last newline) as one batch; None
        if it is not certain that each of the `count` lines is acceptable."""
        carried = self._cut(lines, count) or self._parsed(lines, count)
        if carried is None:
            return None
        arrays: list[pa.Array] = []
        for column, array in zip(self._columns, carried, strict=True):
            if array.null_count and not column.nullable:
                return None
            converted = _from_carrier(array, column.type)
            if converted is None:
                return None
            arrays.append(converted)
        if self._changes is not None:
            changes = self._changes.complete(arrays)
            if changes is None:
                return None
            return pa.RecordBatch.from_arrays(changes, schema=self._schema)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _cut(self, lines: bytes, count: int) -> Sequence[pa.Array] | None:
        """The columns as their carriers, if the lines are all written alike."""
        if count < LINES_CUT_MIN:
            return None
        if self._cuts_left_out:
            self._cuts_left_out -= 1
            return None
        newlines = np.flatnonzero(np.frombuffer(lines, dtype=np.uint8) == _NEWLINE)
        if len(newlines) != count - 1 or self._longest(lines, newlines) > self._line_bytes_max:
            return None
        if not lines.isascii() and not _is_utf8(lines):
            return None
        columns = cut_columns(lines, newlines, self._carriers)
        if columns is None:
            self._cuts_left_out = CUTS_LEFT_OUT
            return None
        return [
            columns[name] if name in columns else pa.nulls(count, carrier)
            for name, carrier in self._carriers.items()
        ]

    def _parsed(self, lines: bytes, count: int) -> Sequence[pa.Array] | None:
        """The same by pyarrow's parser, for lines of any shape."""
        if not self._is_framed(lines, count):
            return None
        if self._has_decimals and any(deep.search(lines) for deep in _DEEP_DECIMALS):
            return None
        try:
            parsed = pj.open_json(
                pa.py_buffer(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=self._parse_options,
            ).read_next_batch()
        except (pa.ArrowException, StopIteration):
            return None
        columns: Sequence[pa.Array] = parsed.columns
        return columns if parsed.num_rows == count else None

    def _decode_range(
        self, records: Sequence[bytes], start: int, end: int, decoded: Decoded
    ) -> None:
        count = end - start
        if count <= RECORDS_ONE_BY_ONE_MAX:
            self._decode_one_by_one(records, start, end, decoded)
            return
        batch = self.decode_lines(b"\n".join(records[start:end]), count)
        if batch is not None:
            decoded.batches.append(batch)
        else:
            middle = start + count // 2
            self._decode_range(records, start, middle, decoded)
            self._decode_range(records, middle, end, decoded)

    def _decode_one_by_one(
        self, records: Sequence[bytes], start: int, end: int, decoded: Decoded
    ) -> None:
        rows = []
        for position in range(start, end):
            try:
                rows.append(self.records.decode(records[position]))
            except RecordError as error:
                decoded.rejected.append((position, str(error)))
        if rows:
            arrays = [
                pa.array(values, type=arrow.type)
                for values, arrow in zip(zip(*rows, strict=True), self._schema, strict=True)
            ]
            decoded.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _is_framed(self, lines: bytes, count: int) -> bool:
        if not lines or lines[0] != _OPEN or lines[-1] != _CLOSE:
            return False
        if count == 1:
            if b"\n" in lines or len(lines) > self._line_bytes_max:
                return False
            if lines.count(b"{") + lines.count(b"[") > self._nesting_max:
                return False
        elif not self._are_lines_framed(lines, count):
            return False
        if not lines.isascii() and not _is_utf8(lines):
            return False
        return not (_may_hold_not_finite(lines) and _BARE_NOT_FINITE.search(lines))

    def _are_lines_framed(self, lines: bytes, count: int) -> bool:
        octets = np.frombuffer(lines, dtype=np.uint8)
        newlines = np.flatnonzero(octets == _NEWLINE)
        if len(newlines) != count - 1:
            return False
        if (octets[newlines + 1] != _OPEN).any() or (octets[newlines - 1] != _CLOSE).any():
            return False
        if self._longest(lines, newlines) > self._line_bytes_max:
            return False
        is_open = octets == _OPEN
        if np.count_nonzero(is_open) == count and b"[" not in lines:
            return True
        opens = np.flatnonzero(is_open | (octets == _BRACKET))
        edges = np.concatenate(([0], newlines, [len(lines)]))
        per_line = np.diff(np.searchsorted(opens, edges))
        return bool(per_line.max() <= self._nesting_max)

    def _longest(self, lines: bytes, newlines: npt.NDArray[np.int64]) -> int:
        return int(np.diff(np.concatenate(([-1], newlines, [len(lines)]))).max()) - 1


def typed_texts(texts: pa.StringArray, data_type: DataType) -> pa.Array | None:
    """A column whose values stand as texts, such as those of a CSV file: each as JSON would have
    it, a number without quotes. None unless it is certain that RecordDecoder takes every value. A
    time without a zone is UTC."""
    if data_type.element is not None or data_type.fields:
        return None
    texts = pa.concat_arrays([texts])  # whole, if it was a slice
    carrier = _carrier(data_type)
    is_quoted = data_type.is_decimal or not (
        data_type.is_integer or data_type.name in ("BOOLEAN", "FLOAT", "DOUBLE")
    )
    carried = typed_column(texts, carrier, is_quoted)
    if carried is None and data_type.name == "TIMESTAMP":
        carried = typed_column(texts, pa.timestamp("us"), is_quoted)
        carried = None if carried is None else carried.cast(carrier)
    return None if carried is None else _from_carrier(carried, data_type)


def _may_hold_not_finite(lines: bytes) -> bool:
    """Whether "Na" or "In" occurs anywhere: several times faster than searching for the words."""
    octets = np.frombuffer(lines, dtype=np.uint8)
    for first, second in (b"Na", b"In"):
        found = octets[:-1] == first
        if found.any() and (octets[np.flatnonzero(found) + 1] == second).any():
            return True
    return False


def _holds_decimals(data_type: DataType) -> bool:
    if data_type.element is not None:
        return _holds_decimals(data_type.element)
    return data_type.is_decimal or any(_holds_decimals(field) for _, field in data_type.fields)


def _is_utf8(octets: bytes) -> bool:
    offsets = pa.py_buffer(np.array([0, len(octets)], dtype=np.int64))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(octets)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _carrier(data_type: DataType) -> pa.DataType:
    """What pyarrow's parser reads the column as: dates and binary come as strings."""
    if data_type.name in ("DATE", "BINARY"):
        return pa.string()
    if data_type.element is not None:
        return pa.list_(_carrier(data_type.element))
    if data_type.fields:
        return pa.struct([(name, _carrier(field)) for name, field in data_type.fields])
    return data_type.arrow


def _from_carrier(array: pa.Array, data_type: DataType) -> pa.Array | None:
    """The column's own type, or None if any value is not one RecordDecoder accepts."""
    name = data_type.name
    if data_type.is_decimal:
        return array if _fits(array) else None
    if name == "TIMESTAMP":
        return array if _is_within_years(array) else None
    if name in ("FLOAT", "DOUBLE"):
        finite = pc.all(pc.is_finite(array)).as_py()
        return None if finite is False else array
    if name == "DATE":
        return _dates(array)
    if name == "BINARY":
        return _decoded_base64(array)
    if data_type.element is not None:
        values = _from_carrier(array.values, data_type.element)
        if values is None:
            return None
        offsets = array.offsets
        if array.null_count:
            return pa.Array.from_buffers(
                data_type.arrow, len(array), array.buffers()[:2], array.null_count, array.offset,
                [values],
            )  # fmt: skip
        return pa.ListArray.from_arrays(offsets, values, type=data_type.arrow)
    if data_type.fields:
        members = []
        for index, (_, field_type) in enumerate(data_type.fields):
            member = _from_carrier(array.field(index), field_type)
            if member is None:
                return None
            members.append(member)
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(members, fields=list(data_type.arrow), mask=mask)
    return array


def _is_within_years(timestamps: pa.Array) -> bool:
    """Whether all are in the years 1 to 9999. What lies under a NULL is zero, which is inside."""
    if not len(timestamps):
        return True
    numbers = np.frombuffer(timestamps.buffers()[1], dtype=np.int64)
    numbers = numbers[timestamps.offset : timestamps.offset + len(timestamps)]
    return bool(numbers.min() >= TIMESTAMP_MINIMUM and numbers.max() <= TIMESTAMP_MAXIMUM)


def _fits(decimals: pa.Array) -> bool:
    """Whether every value is within the type's precision, which the parser does not ensure."""
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _dates(texts: pa.Array) -> pa.Array | None:
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if lengths["min"] is None:
        return pa.nulls(len(texts), pa.date32())
    if lengths["min"] != 10 or lengths["max"] != 10:
        return None
    try:
        days = texts.cast(pa.date32())
    except pa.ArrowInvalid:
        return None
    first = pc.min_max(texts).as_py()["min"]
    return days if first >= "0001-01-01" else None


def _decoded_base64(texts: pa.Array) -> pa.Array | None:
    try:
        values = [
            None if text is None else base64.b64decode(text, validate=True)
            for text in texts.to_pylist()
        ]
    except (binascii.Error, ValueError):
        return None
    return pa.array(values, type=pa.binary())
