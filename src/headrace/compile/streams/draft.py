"""A stream as written, before it is checked, and what it shares with a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.compile.faults import Faults, closest
from headrace.model.definitions import Column, Retention
from headrace.model.errors import Location
from headrace.model.types import DataType

__all__ = ["UNKNOWN", "Named", "StreamDraft", "Within", "WrittenColumn", "choose_columns"]

UNKNOWN = DataType("UNKNOWN")  # of a column whose type could not be read
Named = tuple[str, Location]
Within = tuple[int, Location]  # microseconds
WrittenColumn = tuple[str, str, bool, Location]  # name, type as spelled, whether it may be NULL


@dataclass
class StreamDraft:
    """Texts are checked together, so that every fault is reported. None means: not said."""

    name: str
    location: Location
    columns: list[WrittenColumn] = field(default_factory=list)
    event_time: Named | None = None
    delay_microseconds: int = 0
    late: Named | None = None
    late_within: Within | None = None
    future: Within | None = None
    idle: Within | None = None
    expect: Within | None = None
    sent: Named | None = None
    skew: Within | None = None
    cap: Within | None = None
    deduplicate_by: list[Named] = field(default_factory=list)
    deduplicate_within: Within | None = None
    numbered_by: Named | None = None
    numbered_per: list[Named] = field(default_factory=list)
    partition_by: list[Named] = field(default_factory=list)
    partitions: int = 1
    partitions_location: Location | None = None
    retention: Retention = field(default_factory=Retention)


def choose_columns(
    what: str,
    chosen: Sequence[Named],
    by_name: Mapping[str, Column],
    faults: Faults,
    *,
    of_any_type: bool = False,
) -> tuple[str, ...]:
    """Columns of a simple type (or `of_any_type`), each once, in their own spelling."""
    names: list[str] = []
    for name, location in chosen:
        column = by_name.get(name.lower())
        if column is None:
            faults.add(
                f"{what} column {name} does not exist",
                closest(name, by_name)
                or f"columns are {', '.join(c.name for c in by_name.values())}",
                location,
            )
        elif column.type.is_nested and not of_any_type:
            faults.add(
                f"{what} column {name} is {column.type}",
                "name columns of a simple type",
                location,
            )
        elif column.name in names:
            faults.add(f"{what} names {name} twice", "name it once", location)
        else:
            names.append(column.name)
    return tuple(names)
