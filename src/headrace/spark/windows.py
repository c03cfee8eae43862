"""Windows and lateness as Spark SQL over one event: its pane, and how many of its windows its
partition's watermark had passed before it.

What the event alone cannot say is NULL at first: LATE where other events decide which window it
belongs to (sessions, event groups), REJECTED_WINDOWS where an operator must decide (LATE HALT). The
tick finds that out and fills it in, or annotates the events and runs again (engine/computing.py).
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa
import pyarrow.compute as pc

from headrace.log.contract import NO_EVENT_TIME
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import (
    ASIDE,
    CLOSES,
    FIRST,
    LAST,
    LATE,
    OPENS,
    PANE,
    PANE_END,
    PASSED,
    POSITION,
    REJECTED_WINDOWS,
    CalendarWindow,
    EventGroup,
    Partial,
    SessionWindow,
    Sliding,
    ViewPlan,
    Window,
)
from headrace.spark.event_annotations import DECISION, lateness_column
from headrace.spark.leaf import EVENT_TIME, OFFSET, PARTITION, WATERMARK

__all__ = [
    "Decision",
    "Lateness",
    "late_keys",
    "pane_keys",
    "resolved_lateness",
    "sets_aside",
    "window_partials",
]

MICROSECONDS = f"unix_micros(`{EVENT_TIME}`)"


class Decision(IntEnum):
    """What an operator decided about a late event of a stream that halts; the values of the
    DECISION annotation and of the ledger."""

    APPLY = 1
    SIDE = 2
    DROP = 3


class Lateness(IntEnum):
    """What was found of an event that others had to judge; the values of `lateness_column`."""

    IN_TIME = 0
    LATE = 1
    BEYOND_HORIZON = 2  # late, and by more than the stream's horizon


def pane_keys(plan: ViewPlan) -> list[tuple[str, str]]:
    window = plan.window
    if isinstance(window, Window):
        return [(PANE, _floor(window.pane_microseconds, window.origin_microseconds))]
    if isinstance(window, CalendarWindow):
        start, end = _calendar(window)
        return [(PANE, start), (PANE_END, end)]
    if isinstance(window, SessionWindow):
        return [(PANE, _floor(window.gap_microseconds, 0))]
    if isinstance(window, Sliding):
        return [(PANE, MICROSECONDS)]
    if isinstance(window, EventGroup):
        return [
            (PANE, MICROSECONDS),
            (PASSED, f"`{WATERMARK}`"),
            (POSITION[0], f"`{PARTITION}`"),
            (POSITION[1], f"`{OFFSET}`"),
            (OPENS, f"coalesce(({window.open}), false)"),
            (CLOSES, f"coalesce(({window.close}), false)"),
        ]
    return []


def late_keys(plan: ViewPlan, stream: Stream) -> list[tuple[str, str]]:
    """LATE, and REJECTED_WINDOWS where it does not follow from LATE (see `with_beyond`)."""
    if plan.window is None:
        return []
    late = _late(plan, f"`{WATERMARK}`")
    keys = [(LATE, late)]
    if isinstance(plan.window, Sliding):
        keys += [(PASSED, f"`{WATERMARK}`"), (ASIDE, _lowered(stream))]
    if stream.late_policy is LatePolicy.HALT:
        decided = (
            f"CASE WHEN `{DECISION}` = {Decision.APPLY} THEN 0 "
            f"WHEN `{DECISION}` IS NOT NULL THEN {late} END"
        )
        keys.append((REJECTED_WINDOWS, f"CAST(IF({late} = 0, 0, {decided}) AS INT)"))
    elif stream.late_horizon_microseconds is not None:
        keys.append((REJECTED_WINDOWS, _late(plan, _lowered(stream), Lateness.BEYOND_HORIZON)))
    return keys


def resolved_lateness(
    stream: Stream, late: pa.Array, beyond: pa.Array, lateness: pa.Array, decided: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """LATE and REJECTED_WINDOWS of single events where they are NULL: what the expressions of
    `late_keys` give for events that are marked as judged."""
    late = pc.coalesce(late, pc.greater_equal(lateness, int(Lateness.LATE)).cast(pa.int32()))
    if stream.late_policy is LatePolicy.HALT:
        applied = pc.if_else(pc.equal(decided, int(Decision.APPLY)), pa.scalar(0, pa.int32()), late)
        found = pc.if_else(pc.equal(late, 0), pa.scalar(0, pa.int32()), applied)
    elif stream.late_horizon_microseconds is not None:
        found = pc.greater_equal(lateness, int(Lateness.BEYOND_HORIZON)).cast(pa.int32())
    else:
        found = late if sets_aside(stream) else pc.multiply(late, 0)
    return late, pc.coalesce(beyond, found)


def _lowered(stream: Stream) -> str:
    """The watermark less the horizon; what has no watermark yet stays so."""
    horizon = stream.late_horizon_microseconds or 0
    return f"(greatest(`{WATERMARK}`, {NO_EVENT_TIME + 1 + horizon}L) - {horizon}L)"


def sets_aside(stream: Stream) -> bool:
    """Whether some late events of the stream are not applied."""
    is_revised = stream.late_policy is LatePolicy.REVISE
    return not is_revised or stream.late_horizon_microseconds is not None


def window_partials(plan: ViewPlan) -> list[Partial]:
    """What the store needs to know of a pane beside its aggregates."""
    if not isinstance(plan.window, SessionWindow):
        return []
    return [
        Partial(FIRST, "min", MICROSECONDS, f"min({FIRST})"),
        Partial(LAST, "max", MICROSECONDS, f"max({LAST})"),
    ]


def _floor(length: int, origin: int) -> str:
    shifted = MICROSECONDS if not origin else f"{MICROSECONDS} - {origin}L"
    return f"{MICROSECONDS} - pmod({shifted}, {length}L)"


def _calendar(window: CalendarWindow) -> tuple[str, str]:
    zone = f"'{window.zone}'"
    unit = window.unit.upper()
    local = f"date_trunc('{unit}', from_utc_timestamp(`{EVENT_TIME}`, {zone}))"
    length = "INTERVAL '3' MONTH" if unit == "QUARTER" else f"INTERVAL '1' {unit}"
    length = "INTERVAL '7' DAY" if unit == "WEEK" else length
    return (
        f"unix_micros(to_utc_timestamp({local}, {zone}))",
        f"unix_micros(to_utc_timestamp({local} + {length}, {zone}))",
    )


def _late(plan: ViewPlan, watermark: str, least: Lateness = Lateness.LATE) -> str:
    """How many of the event's windows end at or before the watermark; where others judge that,
    whether it was found to be `least` at least."""
    window = plan.window
    if isinstance(window, Window):
        return _late_regular(window, watermark)
    if isinstance(window, CalendarWindow):
        return f"IF({_calendar(window)[1]} <= {watermark}, 1, 0)"
    if isinstance(window, Sliding):
        return _late_sliding(window, watermark)
    # What ends after the watermark by itself is not late; for the rest see engine/lateness.py.
    gap = window.gap_microseconds - 1 if isinstance(window, SessionWindow) else 0
    found = f"CAST(`{lateness_column(plan.view)}` >= {int(least)} AS INT)"
    return f"IF({MICROSECONDS} + {gap}L >= {watermark}, 0, {found})"


def _late_sliding(window: Sliding, watermark: str) -> str:
    """Its own row, and the last moment its range reaches; see `Sliding`."""
    reach = window.range_microseconds
    rest = "1" if reach is None else f"IF({MICROSECONDS} + {reach}L >= {watermark}, 1, 2)"
    return f"IF({MICROSECONDS} >= {watermark}, 0, {rest})"


def _late_regular(window: Window, watermark: str) -> str:
    """The first of an event's windows starts at the smallest s ≡ origin (mod slide) with
    s + size > event time."""
    size, slide = window.size_microseconds, window.slide_microseconds
    newest = f"({MICROSECONDS} - pmod({MICROSECONDS} - {window.origin_microseconds}L, {slide}L))"
    if size == slide:
        return f"IF({newest} + {size}L <= {watermark}, 1, 0)"
    # Windows over the event: starts newest, newest - slide, … while start + size > event time.
    windows = f"(({newest} + {size}L - {MICROSECONDS} - 1L) DIV {slide}L + 1L)"
    first_end = f"({newest} - ({windows} - 1L) * {slide}L + {size}L)"
    passed = f"(({watermark} - {first_end}) DIV {slide}L + 1L)"
    return f"CAST(IF({watermark} < {first_end}, 0L, least({windows}, {passed})) AS INT)"
