"""What a project is: streams, tables and views, as plain values.

SQL files and Python definitions give equal objects: locations do not count in comparisons, and
every expression is canonical Spark SQL text (as `compile` prints it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.model.errors import Location
from headrace.model.types import DataType

__all__ = [
    "LOOKUP",
    "OPERATION",
    "Changelog",
    "Clocks",
    "Column",
    "Deduplication",
    "History",
    "Join",
    "LatePolicy",
    "Lookup",
    "Numbering",
    "Output",
    "Project",
    "Retention",
    "RetentionAction",
    "Stream",
    "Table",
    "View",
]

PARTITIONS_MAX = 256
COLUMNS_MAX = 500
DAY = 86_400_000_000  # microseconds
# STRING, the first column of a changelog (a stream may get further columns at its end): `upsert`,
# which NULL means too, or `delete`.
OPERATION = "_op"
LOOKUP = "_lookup_"  # what the names of looked-up columns begin with


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


@dataclass(frozen=True)
class Clocks:
    """`sent` names the TIMESTAMP column with the device's clock at transmission. The skew of an
    event is received − sent. Beyond `threshold_microseconds` its event time is corrected by it;
    beyond `cap_microseconds` the device's clock is not believed, and the time it was received
    counts. Without a sent time there is no correction."""

    sent: str
    threshold_microseconds: int = 2_000_000
    cap_microseconds: int = DAY


@dataclass(frozen=True)
class Deduplication:
    """An event is a duplicate when one with the same `columns` was accepted earlier in its
    partition, and their event times are at most `within_microseconds` apart."""

    columns: tuple[str, ...]
    within_microseconds: int


@dataclass(frozen=True)
class Numbering:
    """Each writer numbers its events in the column `number`, one by one. A writer is known by the
    values of `columns`, and its events are all in one partition."""

    number: str
    columns: tuple[str, ...]


class RetentionAction(Enum):
    DELETE = "delete"
    ARCHIVE = "archive"
    COMPACT = "compact"


@dataclass(frozen=True)
class Retention:
    """Segments older than `age_microseconds`, or beyond `bytes_max` per stream, leave the log:
    deleted, or written as Parquet first. None means no limit of that kind. COMPACT is for
    changelogs: rows that their table no longer needs go, all others stay for ever."""

    age_microseconds: int | None = None
    bytes_max: int | None = None
    action: RetentionAction = RetentionAction.DELETE


@dataclass(frozen=True)
class Changelog:
    """What makes a stream the log of a table's changes, one row per change, in the order in which
    they apply. Its columns are OPERATION, then the table's. An upsert has a value in every column
    of `required`, the table's NOT NULL ones and its `key`. A delete says the `key`; where there is
    a `sequence` also the value of that column, without which it would be superseded by every row
    that has one; perhaps that of `valid_from`, which is otherwise when it was received; and nothing
    else."""

    key: tuple[str, ...]
    required: tuple[str, ...]
    sequence: str | None = None
    valid_from: str | None = None


@dataclass(frozen=True)
class Stream:
    """`event_time` names a TIMESTAMP NOT NULL column; None means the time the gateway received the
    event. `partition_by` empty means by producer, else by turns per request.

    `late_horizon_microseconds` belongs to REVISE: for windows that the watermark had passed by
    more than this it acts as SIDE. Events stamped more than `future_microseconds` after they were
    received are dead letters. A partition without events for `idle_microseconds` no longer holds
    the watermark back (None: it does for ever). Producers are expected to be heard from every
    `expect_microseconds` (None: nothing is expected)."""

    name: str
    columns: tuple[Column, ...]
    event_time: str | None = None
    delay_microseconds: int = 0
    late_policy: LatePolicy = LatePolicy.REVISE
    late_horizon_microseconds: int | None = None
    future_microseconds: int = DAY
    idle_microseconds: int | None = None
    expect_microseconds: int | None = None
    clocks: Clocks | None = None
    deduplication: Deduplication | None = None
    numbering: Numbering | None = None
    partition_by: tuple[str, ...] = ()
    partitions: int = 1
    retention: Retention = Retention()
    changelog: Changelog | None = None
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
class History:
    """Every change is a version, also one that is superseded, valid from the time in `valid_from`,
    a TIMESTAMP column of the source (None: from when it was received). An event whose event time
    lies more than `for_microseconds` before the time it was received finds none (None: no bound).
    """

    valid_from: str | None = None
    for_microseconds: int | None = None


@dataclass(frozen=True)
class Table:
    """What makes a view a table: of the rows of its source, which are changes, the newest of each
    `key` counts. `key` names columns of the table; `sequence` a column of the source: a change
    whose value there is not above that of the key's newest change is superseded, and NULL is above
    nothing. Rows that meet `delete_when`, a condition over the source's columns, delete. A delete
    supersedes what is received up to `tombstones_microseconds` after it."""

    key: tuple[str, ...]
    sequence: str | None = None
    delete_when: str | None = None
    tombstones_microseconds: int = 7 * DAY
    history: History | None = None


@dataclass(frozen=True)
class Lookup:
    """For each event the row of `table` whose key has the values of `keys`: pairs of a column of
    the table's key, in its order, and an expression over the event and the rows of look-ups before
    it. The row is that of the event's position, or with `as_of`, an expression that gives a
    TIMESTAMP, the version of that time. Where a key is NULL, or the time, there is none.

    The row is in further columns of the event: `found` says whether there is one, and `column`
    gives the names of the others, NULL where there is none. `name` follows from all the rest, so
    that equal look-ups of several views of a stream are one."""

    name: str
    table: str
    keys: tuple[tuple[str, str], ...]
    as_of: str | None = None

    @property
    def found(self) -> str:
        """BOOLEAN, never NULL. No column of a table has this name."""
        return f"{self.name}__found"

    def column(self, name: str) -> str:
        """Of the table's column of this name, of which case does not count."""
        return f"{self.name}_{name.lower()}"


@dataclass(frozen=True)
class Join:
    """A look-up as one view uses it. Where `condition`, the rest of ON, is not met, the row found
    counts as missing. With `is_outer` the event has NULLs then, and the view's expressions say so;
    else its `where` leaves the event out. An event without a row waits for one up to
    `wait_microseconds` (None: it does not), and is a dead letter at last with `has_dead_letters`.
    """

    lookup: Lookup
    is_outer: bool = False
    condition: str | None = None
    wait_microseconds: int | None = None
    has_dead_letters: bool = False


@dataclass(frozen=True)
class View:
    """A query kept up to date. `source` is the stream it reads, `keys` are the GROUP BY
    expressions (the window among them); no keys and no aggregate means one row per event, which
    OVER (…) may look around in. With `emits_on_close` a window is published once it is final.
    Of a view with `joins` all expressions are over the events with their looked-up columns."""

    name: str
    source: str
    outputs: tuple[Output, ...]
    where: str | None = None
    keys: tuple[str, ...] = ()
    having: str | None = None
    emits_on_close: bool = False
    table: Table | None = None
    joins: tuple[Join, ...] = ()
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Project:
    """All definitions, each kind ordered by name. Names are unique over both kinds together.

    A table is a view with `table`. One that changes are posted to reads a stream of its own name,
    with a changelog; these two are the only ones that share a name."""

    name: str
    streams: tuple[Stream, ...] = ()
    views: tuple[View, ...] = ()

    def stream(self, name: str) -> Stream | None:
        return next((s for s in self.streams if s.name.lower() == name.lower()), None)

    def view(self, name: str) -> View | None:
        """A view or a table."""
        return next((v for v in self.views if v.name.lower() == name.lower()), None)
