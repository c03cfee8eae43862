"""Rows of a file to the body of one request: an Arrow stream, where every value of theirs surely is
one of the table's type; else JSON, so that the gateway judges each row and says what is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.encode import encode_event
from headrace.formats.json_batch import typed_texts
from headrace.formats.json_record import NUMBER
from headrace.loading.files import Piece
from headrace.model.definitions import Stream
from headrace.model.types import DataType

__all__ = ["ARROW", "NDJSON", "Body", "body_of"]

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")


@dataclass(frozen=True)
class Body:
    content: bytes
    content_type: str


def body_of(piece: Piece, table: Stream) -> Body:
    records = piece.records
    if not isinstance(records, pa.RecordBatch):
        return Body(b"\n".join(records), NDJSON)
    types = {column.name: column.type for column in table.columns}
    batch = _with_booleans(records, types)
    typed = _typed(batch, types)
    if typed is None:
        return Body(_lines(batch, types), NDJSON)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, typed.schema) as writer:
        writer.write_batch(typed)
    return Body(sink.getvalue(), ARROW)


def _is_text_of(array: pa.Array, data_type: DataType) -> bool:
    """Whether the values stand as texts and are to be something else."""
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    return is_text and data_type.name != "STRING"


def _with_booleans(batch: pa.RecordBatch, types: dict[str, DataType]) -> pa.RecordBatch:
    """Booleans as JSON writes them, from what databases and spreadsheets write."""
    arrays = list(batch.columns)
    for place, (name, array) in enumerate(zip(batch.schema.names, arrays, strict=True)):
        if types[name].name == "BOOLEAN" and _is_text_of(array, types[name]):
            lower = pc.utf8_lower(array)
            written = pc.if_else(pc.is_in(lower, pa.array(_FALSE, lower.type)), "false", array)
            arrays[place] = pc.if_else(
                pc.is_in(lower, pa.array(_TRUE, lower.type)), "true", written
            )
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _typed(batch: pa.RecordBatch, types: dict[str, DataType]) -> pa.RecordBatch | None:
    arrays = []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if _is_text_of(array, types[name]):
            array = typed_texts(array.cast(pa.string()), types[name])
            if array is None:
                return None
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _lines(batch: pa.RecordBatch, types: dict[str, DataType]) -> bytes:
    bare: dict[str, Callable[[str], Any]] = {
        name: _writer(types[name])
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
        if _is_text_of(array, types[name])
    }
    lines = []
    for row in batch.to_pylist():
        for name, write in bare.items():
            if row[name] is not None:
                row[name] = write(row[name])
        lines.append(encode_event(row))
    return b"\n".join(lines)


def _writer(data_type: DataType) -> Callable[[str], Any]:
    """How a text stands in JSON: without quotes where that is JSON, else as the text it is."""
    if data_type.is_integer or data_type.name in ("FLOAT", "DOUBLE"):
        return _as_number
    if data_type.name == "BOOLEAN" or data_type.element is not None or data_type.fields:
        return _as_json
    return lambda text: text


def _as_number(text: str) -> Any:
    return msgspec.Raw(text.encode()) if text == "null" or NUMBER.fullmatch(text) else text


def _as_json(text: str) -> Any:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return msgspec.Raw(text.encode().replace(b"\n", b" "))
