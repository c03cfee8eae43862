"""What is known about single events of a tick beyond what the log says of them.

Duplicates are left out by the source; other annotations are columns of small numbers that a plan
may mention: what an operator decided, how an event was judged that a first run could not judge.
They are few, so they travel beside the ranges as one file, which the tasks find through the job.
What the events found in tables is in a file of its own (looked_up.py), which this one names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.contract import LogBatch

__all__ = [
    "ANNOTATION",
    "DECISION",
    "EventAnnotations",
    "annotations_of",
    "lateness_column",
    "load_annotations",
    "merged",
]

ANNOTATION = "_annotation_"
DECISION = "_annotation_decision"  # what an operator decided about a late event, see `Decision`
_EXCLUDED = "excluded"
_LOOKED_UP = b"looked_up"
FILES_MAX = 64  # annotations that a worker remembers: one file for each stream of a tick

Offsets = npt.NDArray[np.int64]
Values = npt.NDArray[np.int8]


def lateness_column(view: str) -> str:
    """Whether the event is late for the view's window, where that takes more than the event itself
    to say; see `Lateness`."""
    return f"{ANNOTATION}lateness_{view.lower()}"


@dataclass(frozen=True)
class EventAnnotations:
    """`excluded` are the offsets that are not read, by partition, ascending; `columns` gives for a
    column and partition the offsets that have a value, ascending, and the values; `looked_up` is
    the file with what the events found in tables, "" without one."""

    excluded: Mapping[int, Offsets] = field(default_factory=dict)
    columns: Mapping[str, Mapping[int, tuple[Offsets, Values]]] = field(default_factory=dict)
    looked_up: str = ""

    @property
    def is_empty(self) -> bool:
        excludes = any(len(found) for found in self.excluded.values())
        return not excludes and not self.columns and not self.looked_up

    def excluded_in(self, partition: int, start: int, end: int) -> int:
        """How many events of the range are left out."""
        found = self.excluded.get(partition)
        if found is None:
            return 0
        low, high = np.searchsorted(found, [start, end])
        return int(high - low)

    def kept(self, partition: int, events: LogBatch) -> pa.Array | None:
        """Which of the events are read; None for all."""
        found = self.excluded.get(partition)
        if found is None:
            return None
        low, high = _within(found, events.offsets)
        if low == high:
            return None
        keep = np.ones(len(events.offsets), dtype=np.bool_)
        keep[np.searchsorted(events.offsets, found[low:high])] = False
        return pa.array(keep)

    def column(self, name: str, partition: int, events: LogBatch) -> pa.Array:
        """The column's values for the events; null where there is none."""
        rows = events.batch.num_rows
        known = self.columns.get(name, {}).get(partition)
        if known is None:
            return pa.nulls(rows, pa.int8())
        offsets, values = known
        low, high = _within(offsets, events.offsets)
        filled = np.zeros(rows, dtype=np.int8)
        absent = np.ones(rows, dtype=np.bool_)
        places = np.searchsorted(events.offsets, offsets[low:high])
        filled[places] = values[low:high]
        absent[places] = False
        return pa.array(filled, mask=absent)

    def at(self, name: str, partitions: Offsets, offsets: Offsets) -> pa.Array:
        """The column's values for these events; null where there is none."""
        filled = np.zeros(len(offsets), dtype=np.int8)
        absent = np.ones(len(offsets), dtype=np.bool_)
        for partition, (known, values) in self.columns.get(name, {}).items():
            rows = np.flatnonzero(partitions == partition)
            places = np.minimum(np.searchsorted(known, offsets[rows]), len(known) - 1)
            is_found = known[places] == offsets[rows]
            filled[rows[is_found]] = values[places[is_found]]
            absent[rows[is_found]] = False
        return pa.array(filled, mask=absent)

    def write(self, file: Path) -> None:
        names: list[str] = []
        partitions: list[int] = []
        offsets: list[Offsets] = []
        values: list[Values] = []
        for partition, found in self.excluded.items():
            names.append(_EXCLUDED)
            partitions.append(partition)
            offsets.append(found)
            values.append(np.zeros(len(found), dtype=np.int8))
        for name, by_partition in self.columns.items():
            for partition, (found, column_values) in by_partition.items():
                names.append(name)
                partitions.append(partition)
                offsets.append(found)
                values.append(column_values)
        table = pa.table(
            {
                "name": pa.array(names, pa.string()),
                "partition": pa.array(partitions, pa.int32()),
                "offsets": pa.array(offsets, pa.list_(pa.int64())),
                "values": pa.array(values, pa.list_(pa.int8())),
            }
        )
        table = table.replace_schema_metadata({_LOOKED_UP: self.looked_up})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def _within(places: Offsets, offsets: Offsets) -> tuple[int, int]:
    """From which to which of the places these ascending offsets of events have them."""
    low, high = np.searchsorted(places, offsets[0]), np.searchsorted(places, offsets[-1], "right")
    return int(low), int(high)


def annotations_of(
    column: str, places: Mapping[int, Sequence[tuple[int, int]]]
) -> EventAnnotations:
    """One column, from pairs of offset and value by partition, in any order."""
    columns = {}
    for partition, found in places.items():
        pairs = np.array(sorted(found), dtype=np.int64)
        columns[partition] = (pairs[:, 0].copy(), pairs[:, 1].astype(np.int8))
    return EventAnnotations({}, {column: columns})


def merged(first: EventAnnotations, second: EventAnnotations) -> EventAnnotations:
    """Both; what they say must not overlap."""
    return EventAnnotations(
        {**first.excluded, **second.excluded},
        {**first.columns, **second.columns},
        first.looked_up or second.looked_up,
    )


@lru_cache(maxsize=FILES_MAX)
def load_annotations(file: str) -> EventAnnotations:
    """Each tick's file has a name of its own, so a worker may remember what it read."""
    if not file:
        return EventAnnotations()
    with pa.memory_map(file) as source:
        table = pa.ipc.open_file(source).read_all()
    excluded: dict[int, Offsets] = {}
    columns: dict[str, dict[int, tuple[Offsets, Values]]] = {}
    for name, partition, offsets, values in zip(
        table.column("name").to_pylist(),
        table.column("partition").to_pylist(),
        _arrays(table.column("offsets"), np.int64),
        _arrays(table.column("values"), np.int8),
        strict=True,
    ):
        if name == _EXCLUDED:
            excluded[partition] = offsets
        else:
            columns.setdefault(name, {})[partition] = (offsets, values)
    return EventAnnotations(excluded, columns, table.schema.metadata[_LOOKED_UP].decode())


def _arrays(column: pa.ChunkedArray, kind: type) -> Sequence[npt.NDArray[Any]]:
    return [np.asarray(scalar.values, dtype=kind) for scalar in column]
