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

from headrace.model.types import DataType

__all__ = [
    "BEYOND",
    "FIRST",
    "LAST",
    "LATE",
    "PANE",
    "ROWS",
    "BoundColumn",
    "BoundDistinct",
    "BoundView",
    "CalendarWindow",
    "Distinct",
    "EventGroup",
    "Expression",
    "Partial",
    "SessionWindow",
    "Sliding",
    "ViewPlan",
    "Window",
]

PANE = "_pane"  # BIGINT, start of the event's pane in microseconds; only in views with a window
LATE = "_late"  # INT, how many of the windows that hold the pane were already passed; likewise
# INT, in views with a window: of the windows already passed, how many (the first by their end) the
# event is not applied to. Negative: it is applied to the first -n windows alone, which is how an
# event that was set aside is applied later. NULL: nobody has decided yet.
BEYOND = "_beyond"
PANE_END = "_pane_end"  # BIGINT, only with a calendar window: where the pane ends, in microseconds
FIRST = "_first"  # BIGINT, only with a session window: the lowest event time of the partial row
LAST = "_last"  # BIGINT, likewise: the highest
ROWS = "_rows"  # BIGINT, how many events went into the row; in the partials of every view


@dataclass(frozen=True)
class Expression:
    """A named Spark SQL expression over the stream's columns (and `_partition`, `_offset`,
    `_event_time`, `_received_at`)."""

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
    giving this column's new value (e.g. `sum("total__sum")`); in a BoundView's plan it is cast to
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
    """Events of one key less than `gap_microseconds` apart are one session; it ends a gap after its
    last event. PANE is the event time in whole gaps (all events of one pane are in one session);
    each partial row has the lowest and highest event time in FIRST and LAST."""

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
class Sliding:
    """One `aggregate(…) OVER (PARTITION BY … ORDER BY event time RANGE BETWEEN INTERVAL …
    PRECEDING AND CURRENT ROW)`: `keys` are names of the plan's keys, `partials` names of its
    partials, which here are inputs by event (the store aggregates them over the range with their
    `combine`); `name` is the column under which `final`, Spark SQL over those partials, is read in
    finals. A range of None is unbounded."""

    name: str
    keys: tuple[str, ...]
    range_microseconds: int | None
    partials: tuple[str, ...]
    final: str


@dataclass(frozen=True)
class ViewPlan:
    """`keys` exclude the window. `where` already holds what the window needs (event time not
    NULL). `finals` and `having` are written in Spark SQL over state columns, window_start and
    window_end, ready to be bound. `fingerprint` changes whenever stored state would mean
    something else. `sql` is the whole query in plain Spark SQL: the oracle's text.
    `is_global` means no GROUP BY: the view has exactly one row, also with no event. Views with
    `slidings` have one row per event, with `_partition` and `_offset` among the keys."""

    view: str
    stream: str
    where: str | None
    keys: tuple[Expression, ...]
    window: Window | CalendarWindow | SessionWindow | EventGroup | None
    partials: tuple[Partial, ...]
    distincts: tuple[Distinct, ...]
    finals: tuple[Expression, ...]
    having: str | None
    is_global: bool
    fingerprint: str
    sql: str
    slidings: tuple[Sliding, ...] = ()
    emits_on_close: bool = False


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

    Partial tables handed to the store have the columns: keys, then PANE, LATE and BEYOND if
    windowed, PANE_END with a calendar window, then ROWS, then FIRST and LAST with a session window,
    then partials. State tables have: keys, then `window_start`, `window_end` (TIMESTAMP) and
    `revision` (BIGINT) if windowed, then ROWS, then partials, then one BIGINT per distinct.

    The public columns are the finals; a view with a window, or with slidings, has two more at the
    end: `revision` BIGINT and `final` BOOLEAN, which is window_end ≤ the view's watermark.
    """

    plan: ViewPlan
    keys: tuple[BoundColumn, ...]
    partials: tuple[BoundColumn, ...]
    distincts: tuple[BoundDistinct, ...]
    finals: tuple[tuple[BoundColumn, str], ...]
    having: str | None

    @property
    def name(self) -> str:
        return self.plan.view
