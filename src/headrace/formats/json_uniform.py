"""Records that are all written alike, cut into columns without parsing each of them.

What one program writes has one shape: the same names in the same order, the same spaces. The first
line gives the shape as the text between the values; where every other line has the very same text
between its values, each value is what lies between. Only vector operations touch the lines.

Why that is exact: without a backslash in the block a quote begins or ends a string, always. Each
line has as many quotes as the first, and the texts between values, found by their first quote and
compared byte by byte, hold the same ones; so no value holds a quote. Values without quotes are
checked against JSON's grammar for their type. Everything else is left to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["cut_columns", "typed_column"]

Positions = npt.NDArray[np.int64]

_QUOTE = 34
_CONTROLS_END = 32
_WORD = 8
_DECIMAL_DIGITS = 38
_EXPONENT, _LOWER_CASE = ord("e"), 32
_MEMBER = re.compile(rb' *"([^"]+)" *: *(?:"([^"]*)"|([^\s",{}\[\]]+)) *([,}])')
_WHOLE_NUMBER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_BARE = rf"{_NUMBER}|^true$|^false$|^null$"


@dataclass(frozen=True)
class _Shape:
    """`gaps` are the texts before, between and after the values; `names` and `is_quoted` describe
    the values."""

    gaps: tuple[bytes, ...]
    names: tuple[str, ...]
    is_quoted: tuple[bool, ...]


def cut_columns(
    lines: bytes, newlines: Positions, types: Mapping[str, pa.DataType]
) -> dict[str, pa.Array] | None:
    """The columns of `lines`, one JSON object in each; `newlines` are where they are parted. Names
    that are not in `types` are left out. None where the lines are not all of one simple shape, or
    a value does not look like one of its type."""
    if b"\\" in lines:
        return None
    shape = _shape_of(lines[: newlines[0]] if len(newlines) else lines)
    if shape is None:
        return None
    padded = np.zeros(len(lines) + _WORD, dtype=np.uint8)
    padded[: len(lines)] = np.frombuffer(lines, dtype=np.uint8)
    if np.count_nonzero(padded[: len(lines)] < _CONTROLS_END) != len(newlines):
        return None
    spans = _spans(shape, padded, newlines, len(lines))
    if spans is None:
        return None
    columns: dict[str, pa.Array] = {}
    for name, is_quoted, (starts, ends) in zip(shape.names, shape.is_quoted, spans, strict=True):
        if is_quoted and name not in types:
            continue
        texts = _texts(lines, starts, ends)
        if name not in types:
            if pc.all(pc.match_substring_regex(texts, _BARE)).as_py() is False:
                return None
            continue
        column = typed_column(texts, types[name], is_quoted)
        if column is None:
            return None
        columns[name] = column
    return columns


def _shape_of(line: bytes) -> _Shape | None:
    gaps: list[bytes] = []
    names: list[str] = []
    is_quoted: list[bool] = []
    at, value_end = 1, 0
    if not line.startswith(b"{"):
        return None
    while True:
        member = _MEMBER.match(line, at)
        if member is None:
            return None
        quoted = member.group(2) is not None
        start, end = member.span(2 if quoted else 3)
        gaps.append(line[value_end:start])
        names.append(member.group(1).decode("utf-8", "replace"))
        is_quoted.append(quoted)
        at, value_end = member.end(), end
        if member.group(4) == b"}":
            break
    if at != len(line) or len(set(names)) != len(names):
        return None
    gaps.append(line[value_end:])
    return _Shape(tuple(gaps), tuple(names), tuple(is_quoted))


def _spans(
    shape: _Shape, padded: npt.NDArray[np.uint8], newlines: Positions, length: int
) -> list[tuple[Positions, Positions]] | None:
    """Where each value starts and ends in every line; None if a line is of another shape."""
    count = len(newlines) + 1
    found = np.flatnonzero(padded == _QUOTE)
    per_line = sum(gap.count(b'"') for gap in shape.gaps)
    if len(found) != count * per_line:
        return None
    quotes = found.reshape(count, per_line)
    line_starts = np.concatenate(([0], newlines + 1))
    line_ends = np.append(newlines, length)
    words = np.ndarray((length + 1,), dtype="<u8", buffer=padded, strides=(1,))
    spans: list[tuple[Positions, Positions]] = []
    before = line_starts
    turn = 0
    for number, gap in enumerate(shape.gaps):
        first = gap.find(b'"')
        starts = quotes[:, turn] - first if first >= 0 else line_ends - len(gap)
        turn += gap.count(b'"')
        if number == 0 and not np.array_equal(starts, line_starts):
            return None
        if number > 0:
            if (starts < before).any():
                return None
            spans.append((before, starts))
        if not _reads(words, starts, gap):
            return None
        before = starts + len(gap)
    return spans if np.array_equal(before, line_ends) else None


def _reads(words: npt.NDArray[np.uint64], starts: Positions, text: bytes) -> bool:
    """Whether `text` stands at each of the places."""
    if len(text) < _WORD:
        mask = np.uint64(256 ** len(text) - 1)
        wanted = np.uint64(int.from_bytes(text, "little"))
        return bool(((words[starts] & mask) == wanted).all())
    places = [*range(0, len(text) - _WORD, _WORD), len(text) - _WORD]
    return all(
        bool((words[starts + at] == np.frombuffer(text, "<u8", 1, at)[0]).all()) for at in places
    )


def _texts(lines: bytes, starts: Positions, ends: Positions) -> pa.StringArray:
    bounds = np.empty(2 * len(starts), dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    values_and_gaps = pa.StringArray.from_buffers(
        len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(lines)
    )
    return values_and_gaps.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


def typed_column(texts: pa.StringArray, data_type: pa.DataType, is_quoted: bool) -> pa.Array | None:
    """The values that JSON has written as these texts, in quotes or without; None if that is not
    certain of one of them. The texts must be a whole array, not a slice of one."""
    try:
        if is_quoted:
            return _from_quoted(texts, data_type)
        return _from_bare(texts, data_type)
    except pa.ArrowInvalid:
        return None


def _from_quoted(texts: pa.StringArray, data_type: pa.DataType) -> pa.Array | None:
    if pa.types.is_string(data_type):
        return texts
    if pa.types.is_decimal(data_type):
        return texts.cast(data_type) if _are_short_decimals(texts, data_type) else None
    return texts.cast(data_type) if pa.types.is_timestamp(data_type) else None


def _from_bare(texts: pa.StringArray, data_type: pa.DataType) -> pa.Array | None:
    nulls = pc.equal(texts, "null")
    if pc.any(nulls).as_py():
        texts = pc.if_else(nulls, None, texts)
    if pa.types.is_boolean(data_type):
        is_true = pc.equal(texts, "true")
        is_either = pc.or_(is_true, pc.equal(texts, "false"))
        return is_true if pc.all(is_either).as_py() is not False else None
    if pa.types.is_integer(data_type):
        grammar = _WHOLE_NUMBER
    elif pa.types.is_floating(data_type) or pa.types.is_decimal(data_type):
        grammar = _NUMBER
    else:
        return None
    if pc.all(pc.match_substring_regex(texts, grammar)).as_py() is False:
        return None
    if pa.types.is_decimal(data_type) and not _are_short_decimals(texts, data_type):
        return None
    return texts.cast(data_type)


def _are_short_decimals(texts: pa.StringArray, data_type: pa.DataType) -> bool:
    """Too short to leave 128 bits at the type's scale, which a cast does not notice."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32, count=len(texts) + 1)
    octets = np.frombuffer(data, dtype=np.uint8, count=int(bounds[-1])) | _LOWER_CASE
    longest = _DECIMAL_DIGITS - data_type.scale
    return bool(np.diff(bounds).max() <= longest and not (octets == _EXPONENT).any())
