"""What `compile` makes of a view: the contract between compiler, engine and store.

A view is computed in three steps, each written down here as SQL text:
  partial   Spark SQL, over the events of one tick, one row per group;
  combine   store SQL aggregate functions, over old state rows and partial rows of the same key;
  final     store SQL, a row expression over the state columns.

`ViewPlan` is made offline, from text alone. `BoundView` adds the types Spark gave to keys and
partials, and is what the store needs to make tables and merge.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.definitions import Column, Lookup
from headrace.model.types import DataType

__all__ = [
    "ASIDE",
    "CLOSES",
    "FIRST",
    "FRAME",
    "LAST",
    "LATE",
    "OPENS",
    "PANE",
    "PASSED",
    "POSITION",
    "REJECTED_WINDOWS",
    "ROWS",
    "BoundColumn",
    "BoundDistinct",
    "BoundView",
    "CalendarWindow",
    "Distinct",
    "EventGroup",
    "Expression",
    "JoinPlan",
    "Partial",
    "SessionWindow",
    "Sliding",
    "SlidingColumn",
    "TablePlan",
    "ViewPlan",
    "Window",
    "changes_name",
]

PANE = "_pane"  # BIGINT, start of the event's pane in microseconds; only in views with a window
LATE = "_late"  # INT, how many of the windows that hold the pane were already passed; likewise
# INT, in views with a window: of the windows already passed, how many (the first by their end) the
# event is not applied to. Negative: it is applied to the first -n windows alone, which is how an
# event that was set aside is applied later. NULL: nobody has decided yet.
REJECTED_WINDOWS = "_beyond"
PANE_END = "_pane_end"  # BIGINT, only with a calendar window: where the pane ends, in microseconds
FIRST = "_first"  # BIGINT, only with a session window: the lowest event time of the partial row
LAST = "_last"  # BIGINT, likewise: the highest
PASSED = "_passed"  # BIGINT, with a sliding window or an event group: the watermark before it
# BIGINT, only with a sliding window: where REJECTED_WINDOWS is 1 or more, rows before this time do
# not take the event.
ASIDE = "_aside"
OPENS = "_opens"  # BOOLEAN, only with an event group: whether the event meets `open`
CLOSES = "_closes"  # BOOLEAN, likewise `close`
# INT and BIGINT, likewise: where the event stands in the log.
POSITION = ("_event_partition", "_event_offset")
FRAME = "_frame"  # the name of the window in a SlidingColumn's `combine`
ROWS = "_rows"  # BIGINT, how many events went into the row; in the partials of every view


@dataclass(frozen=True)
class Expression:
    """A named Spark SQL expression over the stream's columns (and `_partition`, `_offset`,
    `_position`, `_event_time`, `_received_at`)."""

    name: str
    sql: str


@dataclass(frozen=True)
class Partial:
    """One state column. The engine computes `function(input)` per group of the tick.

    `function` is one of sum, count, min, max, avg, m2 (sum of squared deviations from the mean),
    min_by, max_by. For min_by and max_by, `input` is the value and `order` holds exactly one
    Spark SQL expression, compared as it is (`min_by(input, order)`, not wrapped in a struct):
    events where it is NULL take no part, and if none does the value is NULL. `combine` is a store
    SQL aggregate expression over state columns of the view (ROWS and other partials among them),
    giving this column's new value (e.g. `sum("p0")`); in a BoundView's plan it is cast to
    the column's type, so that a merge that no longer fits raises.
    """

    name: str
    function: str
    input: str
    combine: str
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distinct:
    """count(DISTINCT input): the values seen are state of their own, one row per key and value;
    the number of them per key is readable in finals as the state column `name`. NULLs do not
    count: the engine leaves them out."""

    name: str
    input: str


@dataclass(frozen=True)
class Window:
    """Windows [start, start + size) for every start ≡ origin (mod slide). A pane is the greatest
    common divisor of size and slide: each pane lies wholly inside or outside a window."""

    size_microseconds: int
    slide_microseconds: int
    origin_microseconds: int
    pane_microseconds: int


@dataclass(frozen=True)
class CalendarWindow:
    """Each day, week (from Monday), month, quarter or year as `zone` counts them. PANE is where it
    starts, PANE_END where it ends."""

    unit: str
    zone: str


@dataclass(frozen=True)
class SessionWindow:
    """Events of one key at most `gap_microseconds` apart are one session (Spark's rule: exactly the
    gap apart is still together); it ends a gap after its last event. PANE is the event time in
    whole gaps (all events of one pane are in one session); each partial row has the lowest and
    highest event time in FIRST and LAST."""

    gap_microseconds: int


@dataclass(frozen=True)
class EventGroup:
    """Per key, in the order of event time, partition and offset: an event that meets `open` begins
    a group when none is open; it and all events after it belong to it, up to and with the first
    that meets `close`, or up to those `timeout_microseconds` or more after the first. Both
    conditions are Spark SQL. Events in no group are in no row."""

    open: str
    close: str
    timeout_microseconds: int


@dataclass(frozen=True)
class SlidingColumn:
    """One state column of a view with OVER (…). `combine` is store SQL over the partials (which
    here are inputs by event) and ROWS, in which every aggregate is followed by `OVER _frame` (see
    FRAME): the store makes _frame the events of the same keys from `range_microseconds` before
    the row's time up to it, those at that very time included. A range of None is unbounded. Its
    type is that of `partial`, one of the plan's partials or ROWS."""

    name: str
    partial: str
    range_microseconds: int | None
    combine: str


@dataclass(frozen=True)
class Sliding:
    """`aggregate(…) OVER (PARTITION BY … ORDER BY event time RANGE BETWEEN INTERVAL … PRECEDING
    AND CURRENT ROW)`: one row per event, so the plan's keys hold `_partition`, `_offset` and what
    the SELECT list says of the event alone. `keys` are those of the plan's keys that stand under
    PARTITION BY, the same for all columns of a view. Finals read the names of `columns` as those
    of state columns.

    PANE is the event's time. The window of a row is its own instant: window_start is the event's
    time, window_end a microsecond later. For lateness an event has two windows: its own row
    (passed when the watermark is after it), and the last moment that its range reaches; so LATE
    and REJECTED_WINDOWS are 2 where no row can take it any more."""

    keys: tuple[str, ...]
    columns: tuple[SlidingColumn, ...]

    @property
    def range_microseconds(self) -> int | None:
        """The widest."""
        ranges = [column.range_microseconds for column in self.columns]
        known = [r for r in ranges if r is not None]
        return max(known, default=0) if len(known) == len(ranges) else None


@dataclass(frozen=True)
class TablePlan:
    """Of a table. Its source's rows are changes, each a row of partials; all names are those of
    keys of the plan. `key` tells the table's rows apart. A change that `deletes` (BOOLEAN, never
    NULL; None: no change does) leaves no row. `sequence` None means that the changes of a key are
    all in one partition and apply in the order of their offsets. `position` (BIGINT) is the
    change's place in the one order of the log, `received` (TIMESTAMP) when it came. A delete counts
    against what is received up to `tombstones_microseconds` after it.

    With `keeps_history` every change is a version, valid from `valid_from` (TIMESTAMP), kept for
    `history_microseconds` (None: for ever)."""

    key: tuple[str, ...]
    deletes: str | None
    sequence: str | None
    position: str
    received: str
    tombstones_microseconds: int
    keeps_history: bool = False
    valid_from: str | None = None
    history_microseconds: int | None = None


@dataclass(frozen=True)
class JoinPlan:
    """A look-up that a view needs. `columns` are those it uses, by their names among the event's
    columns; `key_types` those of the table's key, which the look-up's key expressions have too.

    `waits` and `dead` are conditions over the event with the columns of all look-ups; both may be
    NULL, which is no. An event that meets `waits` waits for a row, up to `wait_microseconds`: the
    view wants one and there is none, though there may be. An event that meets `dead` and does not
    wait, or no longer, is a dead letter. Neither holds for events that WHERE or ON leave out
    anyway, by what they say of the event and of the rows of look-ups before this one. Without
    `has_condition` an event that has found a row meets neither."""

    lookup: Lookup
    columns: tuple[Column, ...]
    key_types: tuple[DataType, ...]
    wait_microseconds: int | None = None
    waits: str | None = None
    dead: str | None = None
    has_condition: bool = False


@dataclass(frozen=True)
class ViewPlan:
    """`keys` exclude the window. `where` already holds what the window needs (event time not
    NULL). `finals` and `having` are written in Spark SQL over state columns, window_start and
    window_end, ready to be bound. `fingerprint` changes whenever stored state would mean
    something else. `sql` is the whole query in plain Spark SQL: the oracle's text.
    `is_global` means no GROUP BY: the view has exactly one row, also with no event. `is_rows` means
    neither GROUP BY nor aggregates: each event is a row, which never changes; the first two keys
    are its partition and offset, and every final is a key. With `table` the rows are changes of a
    table, and the finals its columns.

    `joins` are the look-ups, each after those that its keys rest on. With them all texts are over
    the stream's events with the looked-up columns, `sql` too: `joined` is the query, in plain Spark
    SQL, that gives these events. It reads the stream by its name, and the changes of each table,
    with the columns of the stream they come from, from a relation named by `changes_name`."""

    view: str
    stream: str
    where: str | None
    keys: tuple[Expression, ...]
    window: Window | CalendarWindow | SessionWindow | EventGroup | Sliding | None
    partials: tuple[Partial, ...]
    distincts: tuple[Distinct, ...]
    finals: tuple[Expression, ...]
    having: str | None
    is_global: bool
    fingerprint: str
    sql: str
    emits_on_close: bool = False
    is_rows: bool = False
    table: TablePlan | None = None
    joins: tuple[JoinPlan, ...] = ()
    joined: str | None = None


def changes_name(table: str) -> str:
    """What `ViewPlan.joined` calls the changes of a table."""
    return f"_changes_of_{table}"


@dataclass(frozen=True)
class BoundColumn:
    name: str
    type: DataType


@dataclass(frozen=True)
class BoundDistinct:
    name: str
    type: DataType


@dataclass(frozen=True)
class BoundView:
    """A view plan with types: `keys` and `partials` as Spark reports them for the tick's pass,
    `finals` as (column, store SQL) with Spark's type of the whole query's column.

    Partial tables handed to the store have the columns: keys, then PANE, LATE and REJECTED_WINDOWS
    if windowed, PANE_END with a calendar window, PASSED and ASIDE with a sliding one, PASSED,
    POSITION, OPENS and CLOSES with an event group, then ROWS, then FIRST and LAST with a session
    window, then partials. With a sliding window or an event group each row is one event, PANE its
    time; the values of distincts are columns of it, by their names.

    State tables have: keys, then `window_start`, `window_end` (TIMESTAMP) and `revision` (BIGINT)
    if windowed, then ROWS, then partials, then one BIGINT per distinct; what a sliding window adds
    is in `slidings`, in the order of its columns (see store/duckdb/sliding_schema.py).

    The public columns are the finals; a view with a window has two more at the end: `revision`
    BIGINT and `final` BOOLEAN, which is window_end ≤ the view's watermark.
    """

    plan: ViewPlan
    keys: tuple[BoundColumn, ...]
    partials: tuple[BoundColumn, ...]
    distincts: tuple[BoundDistinct, ...]
    finals: tuple[tuple[BoundColumn, str], ...]
    having: str | None
    slidings: tuple[BoundColumn, ...] = ()

    @property
    def name(self) -> str:
        return self.plan.view
