"""What makes a record of a changelog a change: an upsert of a whole row, or a delete by its key.

`_op` says which: `delete`, or `upsert`, which is also meant where it is NULL or missing. An upsert
needs a value in every NOT NULL column of the table. A delete needs the key, and the column that the
table is sequenced by, if it is; it may say from when it is valid, if the table has such a column.
Whatever else it says is not looked at, and NULL is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        required = (name for name in changelog.required if name not in changelog.key)
        said = (changelog.sequence, changelog.valid_from)
        self.operation = names.index(OPERATION)
        self.key = tuple(map(names.index, changelog.key))
        self.required = tuple(map(names.index, required))
        self.sequence = None if changelog.sequence is None else names.index(changelog.sequence)
        self.of_deletes = tuple(
            place for place, name in enumerate(names) if name in (*changelog.key, *said, OPERATION)
        )
        self._of_upserts = [i for i in range(len(names)) if i not in self.of_deletes]

    @classmethod
    def of(cls, stream: Stream) -> Changes | None:
        """None for a stream that is no table's changelog."""
        if stream.changelog is None:
            return None
        return cls(stream.columns, stream.changelog)

    def why(self, place: int) -> str:
        """Why a change needs a value in this column."""
        is_always = place in self.key or place in self.required
        return "NOT NULL" if is_always else "SEQUENCE BY, needed by a delete"

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

    def of_deletes_only(
        self, arrays: Sequence[pa.Array], deletes: pa.BooleanArray | None
    ) -> Sequence[pa.Array]:
        """The columns with NULL for what does not belong to deletes."""
        if deletes is None:
            return arrays
        kept = list(arrays)
        for place in self._of_upserts:
            array = kept[place]
            if array.null_count < len(array):
                kept[place] = pc.if_else(deletes, pa.scalar(None, array.type), array)
        return kept

    def lacking(
        self, arrays: Sequence[pa.Array], deletes: pa.BooleanArray | None
    ) -> Iterator[tuple[int, pa.BooleanArray]]:
        """The columns, beside those of the key, that some changes need and lack, and which rows."""
        for place in self.required:
            array = arrays[place]
            if array.null_count:
                lacking = array.is_null()
                if deletes is not None and place != self.sequence:
                    lacking = pc.and_not(lacking, deletes)
                if lacking.true_count:
                    yield place, lacking
        if deletes is None or self.sequence is None or self.sequence in self.required:
            return
        lacking = pc.and_(arrays[self.sequence].is_null(), deletes)
        if lacking.true_count:
            yield self.sequence, lacking

    def complete(self, arrays: Sequence[pa.Array]) -> Sequence[pa.Array] | None:
        """The columns as they are stored; None if some row is no change."""
        operations = arrays[self.operation]
        if self.wrong(operations) is not None:
            return None
        deletes = self.deletes(operations)
        if any(True for _ in self.lacking(arrays, deletes)):
            return None
        return self.of_deletes_only(arrays, deletes)


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
