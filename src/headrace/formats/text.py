"""Arrow columns as text, a column at a time: the cells of JSON, NDJSON and CSV answers.

The text of a value is exact: decimals keep their scale and never use an exponent, timestamps are
RFC 3339 in UTC with at least microseconds, floating-point numbers are the shortest text that reads
back as the same number.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["csv_line", "csv_rows", "json_rows"]

_ESCAPED = '["\\\\\\x00-\\x1f]'


def _datetime_text(value: datetime) -> str:
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    text = value.isoformat(timespec="microseconds")
    nanosecond = getattr(value, "nanosecond", 0)
    return f"{text}{nanosecond:03d}Z" if nanosecond and len(text) == 26 else f"{text}Z"


def _duration_text(value: Any) -> str:
    """ISO 8601, each part with its own sign (P1M-2DT-3H): a month has no fixed number of days."""
    if isinstance(value, timedelta):
        months, days, seconds = 0, 0, value // timedelta(microseconds=1) * 1_000
    else:
        months, days, seconds = value.months, value.days, value.nanoseconds
    parts = [*_parts(months, (12, "Y"), (1, "M")), *_parts(days, (1, "D"))]
    parts += ["T", *_parts(seconds, (3_600 * 10**9, "H"), (60 * 10**9, "M"))]
    whole, rest = divmod(abs(seconds) % (60 * 10**9), 10**9)
    if whole or rest:
        fraction = f".{rest:09d}".rstrip("0").rstrip(".")
        parts.append(f"{'-' if seconds < 0 else ''}{whole}{fraction}S")
    text = "P" + "".join(parts)
    return "PT0S" if text == "PT" else text.removesuffix("T")


def _parts(value: int, *units: tuple[int, str]) -> list[str]:
    found, left = [], abs(value)
    for size, letter in units:
        count, left = divmod(left, size)
        if count:
            found.append(f"{'-' if value < 0 else ''}{count}{letter}")
    return found


def _plain(column: pa.Array) -> pa.Array:
    """Without dictionaries and extension types, which only change how values are stored."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _decimal_text(column: pa.Array) -> pa.Array:
    text = pc.cast(column, pa.string())
    exponents = pc.match_substring(text, "E")
    if pc.any(exponents).as_py():
        values = [None if value is None else format(value, "f") for value in column.to_pylist()]
        return pa.array(values, pa.string())
    return text


def _float_text(column: pa.Array, *, quote_special: bool) -> pa.Array:
    text = pc.cast(column, pa.string())
    text = pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")
    special = pc.invert(pc.is_finite(column)).fill_null(False)
    if not pc.any(special).as_py():
        return text
    mark = '"' if quote_special else ""
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return pa.array(
        [None if v is None else f"{mark}{names[v]}{mark}" if v in names else v
         for v in text.to_pylist()],
        pa.string(),
    )  # fmt: skip


def _timestamp_column(column: pa.Array) -> pa.Array:
    unit = "ns" if column.type.unit == "ns" else "us"
    text = pc.cast(pc.cast(column, pa.timestamp(unit)), pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "Z", "")


def _binary_text(column: pa.Array) -> pa.Array:
    values = [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    return pa.array(values, pa.string())


def _unquoted(column: pa.Array) -> pa.Array | None:
    """The text of a column of simple values other than strings and numbers; None for others."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _decimal_text(column)
    if pa.types.is_timestamp(kind):
        return _timestamp_column(column)
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _binary_text(column)
    if pa.types.is_fixed_size_binary(kind):
        return _binary_text(column)
    if pa.types.is_interval(kind) or pa.types.is_duration(kind):
        values = [None if value is None else _duration_text(value) for value in column.to_pylist()]
        return pa.array(values, pa.string())
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _json_column(column: pa.Array) -> pa.Array:
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(column), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        text = pc.cast(column, pa.string())
    elif pa.types.is_floating(kind):
        text = _float_text(column, quote_special=True)
    elif _is_text(kind):
        column = pc.cast(column, pa.string())
        if pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py():
            encode = msgspec.json.encode
            values = [None if v is None else encode(v).decode() for v in column.to_pylist()]
            text = pa.array(values, pa.string())
        else:
            text = _quoted(column)
    elif (simple := _unquoted(column)) is not None:
        text = _quoted(simple)
    else:
        text = pa.array([msgspec.json.encode(v).decode() for v in _values(column)], pa.string())
    return text.fill_null("null")


def _csv_column(column: pa.Array) -> pa.Array:
    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.array([""] * len(column), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        text = pc.cast(column, pa.string())
    elif pa.types.is_floating(kind):
        text = _float_text(column, quote_special=False)
    elif (simple := _unquoted(column)) is not None:
        text = simple
    else:
        if not _is_text(kind):
            values = [
                None if v is None else msgspec.json.encode(v).decode() for v in _values(column)
            ]
            column = pa.array(values, pa.string())
        text = _quoted(pc.replace_substring(pc.cast(column, pa.string()), '"', '""'))
    return text.fill_null("")


def _values(column: pa.Array) -> list[Any]:
    return [_json_value(value, column.type) for value in column.to_pylist()]


def _json_value(value: Any, kind: pa.DataType) -> Any:
    """A nested or rare value as what JSON has: numbers, texts, lists and objects. A map becomes a
    list of {"key", "value"}, since its keys need not be texts."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return _datetime_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta | pa.MonthDayNano):
        return _duration_text(value)
    if isinstance(value, dict):
        return {name: _json_value(item, kind.field(name).type) for name, item in value.items()}
    if pa.types.is_map(kind):
        return [
            {"key": _json_value(key, kind.key_type), "value": _json_value(item, kind.item_type)}
            for key, item in value
        ]
    if isinstance(value, list):
        return [_json_value(item, kind.value_type) for item in value]
    return str(value)


def json_rows(batch: pa.RecordBatch, separator: str) -> bytes:
    """The rows as JSON objects with `separator` between them; empty for no rows."""
    if not batch.num_rows:
        return b""
    if not batch.num_columns:
        return separator.join(["{}"] * batch.num_rows).encode()
    parts: list[Any] = []
    for position, name in enumerate(batch.schema.names):
        start = "{" if position == 0 else ","
        parts.append(f"{start}{msgspec.json.encode(name).decode()}:")
        parts.append(_json_column(batch.column(position)))
    return _joined(pc.binary_join_element_wise(*parts, "}", ""), separator)


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """RFC 4180 lines. Texts are always quoted and NULL is an empty field without quotes, so that an
    empty text (`""`) and NULL stay apart."""
    if not batch.num_rows or not batch.num_columns:
        return b"\r\n" * int(batch.num_rows)
    columns = [_csv_column(batch.column(position)) for position in range(batch.num_columns)]
    lines = pc.binary_join_element_wise(*columns, ",")
    return _joined(lines, "\r\n") + b"\r\n"


def csv_line(names: Sequence[str]) -> bytes:
    fields = [
        '"' + name.replace('"', '""') + '"' if any(c in name for c in '",\r\n') else name
        for name in names
    ]
    return (",".join(fields) + "\r\n").encode()


def _joined(rows: pa.Array, separator: str) -> bytes:
    offsets = pa.array([0, len(rows)], pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, rows), separator)
    return bytes(joined[0].as_buffer())
