"""What makes a record of a changelog a change: an upsert of a whole row, or a delete by its key.

`_op` says which: `delete`, or `upsert`, which is also meant where it is NULL or missing. An upsert
needs a value in every NOT NULL column of the table. Of a delete only the key counts: whatever else
it says is not looked at, and NULL is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.definitions import OPERATION, Changelog, Column, Stream

__all__ = ["DELETE", "UPSERT", "WRONG_OPERATION", "Changes", "as_delete", "with_deletes"]

UPSERT, DELETE = "upsert", "delete"
WRONG_OPERATION = f"expected {UPSERT} or {DELETE}"
_DELETING = msgspec.json.encode({OPERATION: DELETE})[:-1]
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Changes:
    """The rules of one changelog, for whole columns. Numbers are places among its columns."""

    def __init__(self, columns: Sequence[Column], changelog: Changelog) -> None:
        names = [column.name for column in columns]
        self.operation = names.index(OPERATION)
        self.key = tuple(names.index(name) for name in changelog.key)
        self.required = tuple(
            names.index(name) for name in changelog.required if name not in changelog.key
        )
        self._values = [i for i in range(len(names)) if i != self.operation and i not in self.key]

    @classmethod
    def of(cls, stream: Stream) -> Changes | None:
        """None for a stream that is no table's changelog."""
        if stream.changelog is None:
            return None
        return cls(stream.columns, stream.changelog)

    def deletes(self, operations: pa.Array) -> pa.BooleanArray | None:
        """Which rows are deletes; None for none."""
        if operations.null_count == len(operations):
            return None
        deletes = pc.fill_null(pc.equal(operations, DELETE), False)
        return deletes if deletes.true_count else None

    def wrong(self, operations: pa.Array) -> pa.BooleanArray | None:
        """The rows whose operation is none; None where there are no such."""
        if operations.null_count == len(operations):
            return None
        known = pc.is_in(operations, pa.array([UPSERT, DELETE, None], operations.type))
        return None if known.true_count == len(known) else pc.invert(known)

    def keys_only(
        self, arrays: Sequence[pa.Array], deletes: pa.BooleanArray | None
    ) -> Sequence[pa.Array]:
        """The columns with NULL for what deletes say beside their key."""
        if deletes is None:
            return arrays
        kept = list(arrays)
        for place in self._values:
            array = kept[place]
            if array.null_count < len(array):
                kept[place] = pc.if_else(deletes, pa.scalar(None, array.type), array)
        return kept

    def lacking(self, array: pa.Array, deletes: pa.BooleanArray | None) -> pa.BooleanArray | None:
        """The upserts without a value in this required column; None where there are no such."""
        if not array.null_count:
            return None
        lacking = array.is_null()
        if deletes is not None:
            lacking = pc.and_not(lacking, deletes)
        return lacking if lacking.true_count else None

    def complete(self, arrays: Sequence[pa.Array]) -> Sequence[pa.Array] | None:
        """The columns as they are stored; None if some row is no change."""
        operations = arrays[self.operation]
        if self.wrong(operations) is not None:
            return None
        deletes = self.deletes(operations)
        if any(self.lacking(arrays[place], deletes) is not None for place in self.required):
            return None
        return self.keys_only(arrays, deletes)


def as_delete(record: bytes) -> bytes:
    """The JSON record with `_op` set to `delete`, if it says none of its own."""
    try:
        members = _members.decode(record)
    except (msgspec.DecodeError, RecursionError):
        return record  # not an object: the decoder says why
    if OPERATION not in members:
        separator = b"," if members else b""
        return _DELETING + separator + record.strip()[1:]
    if bytes(members[OPERATION]) != b"null":
        return record
    return msgspec.json.encode({**members, OPERATION: DELETE})


def with_deletes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same for the rows of an Arrow batch."""
    places = batch.schema.get_all_field_indices(OPERATION)
    if not places:
        operations = pa.array([DELETE] * batch.num_rows, pa.string())
        return batch.append_column(OPERATION, operations)
    given = batch.column(places[0])
    kind = given.type
    if len(places) > 1 or not (
        pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        return batch  # the decoder says why
    return batch.set_column(places[0], OPERATION, pc.fill_null(given.cast(pa.string()), DELETE))
