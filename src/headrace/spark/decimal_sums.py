"""Sums of decimal columns, computed as sums of whole numbers.

Spark keeps a sum of DECIMAL(18,2) as DECIMAL(28,2): an array of bytes that is unpacked into big
integers and packed again for every event. The log holds such a value as one 64-bit whole number
of cents, so the source hands that over as it is, and the pass sums its two halves (value DIV 10⁹
and value % 10⁹), which cannot overflow. Here the halves become the decimal again. Exact, and
measured in docs/ARCHITECTURE.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as exp

from headrace.model.definitions import Stream
from headrace.model.plan import Partial
from headrace.model.types import DataType
from headrace.spark.aggregations import Grouping
from headrace.spark.leaf import unscaled_column

__all__ = ["Narrowed", "narrow"]

_HALF = 10**9
_HIGH, _LOW = "__high", "__low"


@dataclass(frozen=True)
class Narrowed:
    """A grouping whose decimal sums are two whole-number sums; `widen` turns its result back."""

    grouping: Grouping
    sums: tuple[tuple[str, DataType], ...]  # partials that were split, with the column's type

    def widen(self, table: pa.Table) -> pa.Table:
        for name, of_type in self.sums:
            high = table.column(name + _HIGH).combine_chunks()
            low = table.column(name + _LOW).combine_chunks()
            place = table.schema.get_field_index(name + _HIGH)
            table = table.drop_columns([name + _HIGH, name + _LOW])
            table = table.add_column(place, name, _joined(high, low, of_type))
        return table


def _joined(high: pa.Array, low: pa.Array, of_type: DataType) -> pa.Array:
    whole = pc.add(
        pc.multiply(high.cast(pa.decimal128(19, 0)), pa.scalar(_HALF, pa.decimal128(10, 0))),
        low.cast(pa.decimal128(19, 0)),
    )
    # The same 128 bits, now read as a number with the column's scale, as wide as Spark's sum.
    sum_type = pa.decimal128(of_type.precision + 10, of_type.scale)
    return pa.Array.from_buffers(
        sum_type, len(whole), whole.buffers(), whole.null_count, whole.offset
    )


def narrow(grouping: Grouping, stream: Stream) -> Narrowed:
    """Sums and counts of plain decimal columns of at most 18 digits; all else stays, and so does a
    grouping that sums nothing."""
    if grouping.is_single:
        return Narrowed(grouping, ())
    partials: list[Partial] = []
    sums: list[tuple[str, DataType]] = []
    for partial in grouping.partials:
        column = _plain_column(partial.input)
        definition = stream.column(column) if column else None
        source = unscaled_column(definition) if definition is not None else None
        if definition is None or source is None or partial.function not in ("sum", "count"):
            partials.append(partial)
        elif partial.function == "count":
            partials.append(replace(partial, input=f"`{source}`"))
        else:
            high, low = f"`{source}` DIV {_HALF}L", f"`{source}` % {_HALF}L"
            partials.append(replace(partial, name=partial.name + _HIGH, input=high))
            partials.append(replace(partial, name=partial.name + _LOW, input=low))
            sums.append((partial.name, definition.type))
    return Narrowed(replace(grouping, partials=tuple(partials)), tuple(sums))


def _plain_column(text: str) -> str | None:
    parsed = sqlglot.parse_one(text, dialect="spark")
    return parsed.name if isinstance(parsed, exp.Column) and len(parsed.parts) == 1 else None
