"""What a project is: streams and views, as plain values.

SQL files and Python definitions give equal objects: locations do not count in comparisons, and
every expression is canonical Spark SQL text (as `compile` prints it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.model.errors import Location
from headrace.model.types import DataType

__all__ = [
    "Column",
    "LatePolicy",
    "Output",
    "Project",
    "Retention",
    "RetentionAction",
    "Stream",
    "View",
]

PARTITIONS_MAX = 256
COLUMNS_MAX = 500


@dataclass(frozen=True)
class Column:
    name: str
    type: DataType
    nullable: bool = True
    location: Location | None = field(default=None, compare=False)


class LatePolicy(Enum):
    """What becomes of an event whose window its partition's watermark had already passed."""

    REVISE = "revise"
    SIDE = "side"
    DROP = "drop"
    HALT = "halt"


class RetentionAction(Enum):
    DELETE = "delete"
    ARCHIVE = "archive"


@dataclass(frozen=True)
class Retention:
    """Segments older than `age_microseconds`, or beyond `bytes_max` per stream, leave the log:
    deleted, or written as Parquet first. None means no limit of that kind."""

    age_microseconds: int | None = None
    bytes_max: int | None = None
    action: RetentionAction = RetentionAction.DELETE


@dataclass(frozen=True)
class Stream:
    """`event_time` names a TIMESTAMP NOT NULL column; None means the time the gateway received the
    event. `partition_by` empty means by producer, else by turns per request."""

    name: str
    columns: tuple[Column, ...]
    event_time: str | None = None
    delay_microseconds: int = 0
    late_policy: LatePolicy = LatePolicy.REVISE
    partition_by: tuple[str, ...] = ()
    partitions: int = 1
    retention: Retention = Retention()
    location: Location | None = field(default=None, compare=False)

    def column(self, name: str) -> Column | None:
        """Column names are matched as Spark does: case does not count."""
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        return None


@dataclass(frozen=True)
class Output:
    """One item of the SELECT list: its name and its expression."""

    name: str
    expression: str
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True)
class View:
    """A query kept up to date. `source` is the stream it reads, `keys` are the GROUP BY
    expressions (window() among them); no keys and no aggregate means one row per event."""

    name: str
    source: str
    outputs: tuple[Output, ...]
    where: str | None = None
    keys: tuple[str, ...] = ()
    having: str | None = None
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Project:
    """All definitions, each kind ordered by name. Names are unique over both kinds together."""

    name: str
    streams: tuple[Stream, ...] = ()
    views: tuple[View, ...] = ()

    def stream(self, name: str) -> Stream | None:
        return next((s for s in self.streams if s.name.lower() == name.lower()), None)

    def view(self, name: str) -> View | None:
        return next((v for v in self.views if v.name.lower() == name.lower()), None)
