"""Arrow IPC streams to events. The bytes are a stranger's: nothing in them is believed before it is
checked, and no buffer they can describe is larger than the body itself.

Compressed buffers, dictionaries, views and run-end encoding can all name far more bytes than the
body holds, so they are refused; send the body with Content-Encoding instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.changes import WRONG_OPERATION, Changes, with_deletes
from headrace.formats.json_batch import Decoded
from headrace.formats.json_record import TIMESTAMP_MAXIMUM, TIMESTAMP_MINIMUM
from headrace.model.definitions import Column, Stream
from headrace.model.errors import RequestError
from headrace.model.types import DataType

__all__ = ["ArrowDecoder"]

_HEADER_RECORD_BATCH = 3
_SHOWN_CHARACTERS_MAX = 60


class ArrowDecoder:
    """Decodes Arrow IPC stream bodies of one stream."""

    def __init__(self, stream: Stream) -> None:
        self._columns = stream.columns
        self._changes = Changes.of(stream)
        self._schema = pa.schema(
            [pa.field(c.name, c.type.arrow, nullable=c.nullable) for c in stream.columns]
        )

    def decode(
        self, body: bytes, records_max: int, *, deletes: bool = False
    ) -> tuple[Decoded, int, dict[int, bytes]]:
        """Accepted rows and rejections, the number of records, and the raw bytes (as JSON) of
        each rejected one. With `deletes`, rows that do not say their operation are deletes. Raises
        RequestError if the body as a whole cannot be read."""
        decoded = Decoded()
        raws: dict[int, bytes] = {}
        count = 0
        for batch in self._read(body):
            if count + batch.num_rows > records_max:
                raise RequestError(
                    413,
                    "too-many-records",
                    f"more than {records_max} records in one request",
                    hint="send smaller batches; the bound is gateway.request_records_max",
                )
            if deletes:
                batch = with_deletes(batch)
            reasons = self._decode_batch(batch, decoded)
            for row, reason in sorted(reasons.items()):
                decoded.rejected.append((count + row, reason))
                raws[count + row] = row_as_json(batch, row)
            count += batch.num_rows
        return decoded, count, raws

    def _read(self, body: bytes) -> Iterator[pa.RecordBatch]:
        try:
            _refuse_compression(body)
            with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
                for field in reader.schema:
                    _refuse_inflating(field)
                for batch in reader:
                    batch.validate(full=True)
                    yield batch
        except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError) as error:
            raise RequestError(
                400,
                "bad-framing",
                f"the Arrow IPC stream cannot be read: {str(error)[:200]}",
                hint="send an Arrow IPC stream (not a file) with plain columns",
            ) from None

    def _decode_batch(self, batch: pa.RecordBatch, decoded: Decoded) -> dict[int, str]:
        reasons: dict[int, str] = {}
        given = [_given(batch, column) for column in self._columns]
        if self._changes is None:
            arrays = [_cast(a, c, reasons) for a, c in zip(given, self._columns, strict=True)]
        else:
            arrays = self._cast_changes(given, self._changes, reasons)
        if not reasons:
            if batch.num_rows:
                decoded.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            return reasons
        good = pa.array([row not in reasons for row in range(batch.num_rows)], type=pa.bool_())
        kept = [array.filter(good) for array in arrays]
        if len(kept[0]):
            decoded.batches.append(pa.RecordBatch.from_arrays(kept, schema=self._schema))
        return reasons

    def _cast_changes(
        self, given: Sequence[pa.Array], changes: Changes, reasons: dict[int, str]
    ) -> list[pa.Array]:
        columns = self._columns
        operations = _cast(given[changes.operation], columns[changes.operation], reasons)
        wrong = changes.wrong(operations)
        for row in _rows_of(wrong):
            label = f"column {columns[changes.operation].name} STRING"
            reasons[row] = f"{label}: {WRONG_OPERATION}, got {_shown(operations, row)}"
        deletes = changes.deletes(operations)
        given = changes.of_deletes_only(given, deletes)
        arrays = [_cast(a, c, reasons) for a, c in zip(given, columns, strict=True)]
        for place, lacking in changes.lacking(arrays, deletes):
            for row in _rows_of(lacking):
                reasons.setdefault(row, _absent(columns[place], changes.why(place)))
        return arrays


def _given(batch: pa.RecordBatch, column: Column) -> pa.Array:
    indices = batch.schema.get_all_field_indices(column.name)
    if len(indices) > 1:
        raise RequestError(
            422, "bad-schema", f"column {column.name} is given twice", hint="name it once"
        )
    return batch.column(indices[0]) if indices else pa.nulls(batch.num_rows)


def _rows_of(chosen: pa.BooleanArray | None) -> list[int]:
    if chosen is None:
        return []
    rows: list[int] = np.flatnonzero(chosen.to_numpy(zero_copy_only=False)).tolist()
    return rows


def _absent(column: Column, why: str = "NOT NULL") -> str:
    return f"column {column.name} {column.type} {why}: is null or missing"


def _cast(given: pa.Array, column: Column, reasons: dict[int, str]) -> pa.Array:
    """The column in its own type; rows that cannot be, or are NULL where they must not be, get a
    reason and hold NULL."""
    label = f"column {column.name} {column.type}"
    array = _cast_rows(given, column.type, label, reasons)
    if not column.nullable and array.null_count:
        for row in _rows_of(array.is_null()):
            reasons.setdefault(row, _absent(column))
    return array


def _cast_rows(
    given: pa.Array, data_type: DataType, label: str, reasons: dict[int, str]
) -> pa.Array:
    target = data_type.arrow
    if not _is_castable(given.type, data_type):
        raise RequestError(
            422,
            "bad-schema",
            f"{label}: an Arrow column of type {str(given.type)[:100]} does not fit",
            hint="use the column's own type",
        )
    try:
        whole = _checked(given.cast(target, safe=True), data_type)
        if whole is not None:
            return whole
    except pa.ArrowException:
        pass  # some row does not fit: the rows are tried one by one
    values: list[Any] = []
    for row in range(len(given)):
        try:
            one = _checked(given.slice(row, 1).cast(target, safe=True), data_type)
        except pa.ArrowException:
            one = None
        if one is None:
            reasons.setdefault(row, f"{label}: {_shown(given, row)} does not fit")
        values.append(pa.nulls(1, target) if one is None else one)
    return pa.concat_arrays(values)


def _checked(array: pa.Array, data_type: DataType) -> pa.Array | None:
    """None if some value is one that JSON could not have brought in either."""
    if data_type.is_decimal:
        array.validate(full=True)
    if data_type.name == "TIMESTAMP" and len(array):
        numbers = pc.min_max(array.view(pa.int64())).as_py()
        if numbers["min"] is not None and not (
            numbers["min"] >= TIMESTAMP_MINIMUM and numbers["max"] <= TIMESTAMP_MAXIMUM
        ):
            return None
    return array


def _is_castable(given: pa.DataType, data_type: DataType) -> bool:
    """Casts that keep the value: among numbers, among texts, to the same kind of thing."""
    target = data_type.arrow
    types = pa.types
    if types.is_null(given) or given == target:
        return True
    if data_type.is_integer:
        return bool(types.is_integer(given))
    if data_type.is_decimal:
        return bool(types.is_integer(given) or types.is_decimal(given))
    if data_type.name in ("FLOAT", "DOUBLE"):
        return bool(types.is_floating(given) or types.is_integer(given))
    if data_type.name == "STRING":
        return bool(types.is_string(given) or types.is_large_string(given))
    if data_type.name == "BINARY":
        return bool(types.is_binary(given) or types.is_large_binary(given))
    if data_type.name == "TIMESTAMP":
        return bool(types.is_timestamp(given))
    if data_type.name == "DATE":
        return bool(types.is_date(given))
    if data_type.element is not None:
        is_list = types.is_list(given) or types.is_large_list(given)
        return is_list and _is_castable(given.value_type, data_type.element)
    if data_type.fields:
        members = {field.name: field.type for field in given} if types.is_struct(given) else {}
        return len(members) == len(data_type.fields) and all(
            name in members and _is_castable(members[name], member)
            for name, member in data_type.fields
        )
    return False


def _refuse_inflating(field: pa.Field) -> None:
    kind = field.type
    types = pa.types
    if (
        types.is_dictionary(kind)
        or types.is_run_end_encoded(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or types.is_union(kind)
        or isinstance(kind, pa.BaseExtensionType)
    ):
        raise RequestError(
            422,
            "bad-schema",
            f"column {field.name[:60]}: Arrow type {str(kind)[:100]} is not accepted",
            hint="send plain columns, and Content-Encoding: zstd for size",
        )
    for index in range(kind.num_fields):
        _refuse_inflating(kind.field(index))


def _refuse_compression(body: bytes) -> None:
    """Buffers compressed inside the stream name their own inflated size, which nothing bounds."""
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if _has_compression(message.metadata.to_pybytes()):
            raise RequestError(
                415,
                "unsupported-encoding",
                "the Arrow stream has compressed buffers",
                hint="write it without compression and send Content-Encoding: zstd",
            )


def _has_compression(metadata: bytes) -> bool:
    """Whether a Message flatbuffer holds a record batch with the `compression` field set.

    Raises ValueError for offsets outside the metadata."""

    def number(at: int, size: int, signed: bool = False) -> int:
        if not 0 <= at <= len(metadata) - size:
            raise ValueError("metadata out of bounds")
        return int.from_bytes(metadata[at : at + size], "little", signed=signed)

    def field_at(table: int, index: int) -> int | None:
        """Where field number `index` of a flatbuffer table lies; None if it is not set."""
        vtable = table - number(table, 4, signed=True)
        slot = 4 + 2 * index
        if slot + 2 > number(vtable, 2):
            return None
        offset = number(vtable + slot, 2)
        return table + offset if offset else None

    message = number(0, 4)
    header_type = field_at(message, 1)
    header = field_at(message, 2)
    if header_type is None or header is None or number(header_type, 1) != _HEADER_RECORD_BATCH:
        return False
    return field_at(header + number(header, 4), 3) is not None


def _shown(array: pa.Array, row: int) -> str:
    text = _value(array, row)
    text = text if isinstance(text, str) else str(text)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def _value(array: pa.Array, row: int) -> Any:
    """As Python value; as Arrow prints it if Python has none, such as a time in the year 10000."""
    try:
        return array[row].as_py()
    except (ValueError, OverflowError):
        return str(array.slice(row, 1)).strip("[] \n")


def row_as_json(batch: pa.RecordBatch, row: int) -> bytes:
    """The row as a JSON record, so that it can be repaired and re-submitted like any other."""
    names = batch.schema.names
    members = {name: _value(column, row) for name, column in zip(names, batch.columns, strict=True)}
    text = json.dumps(members, default=str, allow_nan=True)
    return text.encode("utf-8", "backslashreplace")
