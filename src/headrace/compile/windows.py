"""The windows of GROUP BY: read, checked, and written in one way only.

window(event_time, size[, slide[, start]]), session_window(event_time, gap),
calendar_window(event_time, unit, zone), event_group(open, close, timeout). Whatever the kind, the
window's bounds are `window.start` and `window.end`.
"""

from __future__ import annotations

from math import gcd

from sqlglot import expressions as exp

from headrace.compile.functions import function_name
from headrace.compile.sql.calendars import UNITS, zone_hint
from headrace.compile.sql.dialect import canonical, identifier
from headrace.compile.sql.intervals import IntervalError, format_interval, parse_interval_node
from headrace.model.definitions import Stream
from headrace.model.plan import CalendarWindow, EventGroup, SessionWindow, Window

__all__ = [
    "PANES_PER_WINDOW_MAX",
    "USAGE",
    "AnyWindow",
    "WindowError",
    "is_event_time",
    "read_window",
    "time_column",
    "window_node",
]

PANES_PER_WINDOW_MAX = 10_000
USAGE = {
    "window": "window(event_time, '1 minute'), or with a slide: window(event_time, '1 hour', "
    "'5 minutes')",
    "session_window": "session_window(event_time, '10 minutes')",
    "calendar_window": "calendar_window(event_time, 'month', 'Europe/Berlin')",
    "event_group": "event_group(status = 'picked_up', status = 'delivered', '2 hours')",
}
AnyWindow = Window | CalendarWindow | SessionWindow | EventGroup


class WindowError(ValueError):
    """What is wrong with a window, and `hint`: what to write instead."""

    def __init__(self, message: str, hint: str, node: exp.Expr) -> None:
        super().__init__(message)
        self.hint = hint
        self.node = node


def time_column(stream: Stream) -> str:
    """The column that holds the event time: where clocks are corrected, not the one sent."""
    if stream.clocks is not None:
        return "_event_time"
    return stream.event_time or "_received_at"


def is_event_time(node: exp.Expr, stream: Stream) -> bool:
    """Whether the node is what a user may call the stream's event time."""
    names = ("_event_time", (stream.event_time or "_received_at").lower())
    return isinstance(node, exp.Column) and node.name.lower() in names


def read_window(node: exp.Expr) -> AnyWindow:
    """Raises WindowError for lengths that are not fixed or do not fit together."""
    name = function_name(node) or ""
    arguments = node.expressions
    fewest, most = (2, 4) if name == "window" else (2, 2) if name == "session_window" else (3, 3)
    if not fewest <= len(arguments) <= most:
        takes = f"{fewest} to {most}" if fewest < most else str(fewest)
        raise WindowError(
            f"{name}() takes {takes} arguments, not {len(arguments)}", USAGE[name], node
        )
    if name == "session_window":
        return SessionWindow(_positive(node, arguments[1], "gap"))
    if name == "calendar_window":
        return _read_calendar(arguments)
    if name == "event_group":
        opens, closes = (canonical(argument) for argument in arguments[:2])
        return EventGroup(opens, closes, _positive(node, arguments[2], "timeout"))
    return _read_regular(node)


def _read_regular(node: exp.Expr) -> Window:
    arguments = node.expressions
    lengths = [_length(node, argument) for argument in arguments[1:]]
    size = lengths[0]
    slide = lengths[1] if len(lengths) > 1 else size
    start = lengths[2] if len(lengths) > 2 else 0
    if size <= 0 or slide <= 0:
        raise WindowError("a window's size and slide must be above 0", "'3 seconds'", arguments[1])
    if slide > size:
        raise WindowError(
            f"the slide ({format_interval(slide)}) is longer than the window "
            f"({format_interval(size)}): events between windows would be lost",
            "make the slide at most the size",
            arguments[2],
        )
    if not -slide < start < slide:
        raise WindowError(
            "the window's start offset must be shorter than its slide", "leave it out", arguments[3]
        )
    pane = gcd(size, slide)
    if size // pane > PANES_PER_WINDOW_MAX:
        raise WindowError(
            f"a window of {size // pane} panes (size and slide share only {format_interval(pane)})",
            f"make the slide divide the size; at most {PANES_PER_WINDOW_MAX} panes a window",
            arguments[2],
        )
    return Window(size, slide, start % slide, pane)


def _read_calendar(arguments: list[exp.Expr]) -> CalendarWindow:
    for argument in arguments[1:]:
        if not (isinstance(argument, exp.Literal) and argument.is_string):
            raise WindowError(
                "calendar_window(): unit and zone are texts", USAGE["calendar_window"], argument
            )
    unit, zone = (argument.name for argument in arguments[1:])
    if unit.lower() not in UNITS:
        raise WindowError(
            f"calendar_window(): {unit!r} is not a unit of the calendar",
            f"{', '.join(UNITS[:-1])} or {UNITS[-1]}",
            arguments[1],
        )
    hint = zone_hint(zone)
    if hint is not None:
        raise WindowError(f"calendar_window(): {zone!r} is not a time zone", hint, arguments[2])
    return CalendarWindow(unit.lower(), zone)


def _positive(node: exp.Expr, argument: exp.Expr, what: str) -> int:
    length = _length(node, argument)
    if length <= 0:
        raise WindowError(f"the {what} must be above 0", "'10 minutes'", argument)
    return length


def _length(node: exp.Expr, argument: exp.Expr) -> int:
    try:
        return parse_interval_node(argument)
    except IntervalError as error:
        name = function_name(node)
        hint = "use weeks, days, hours, minutes or seconds: '3 seconds'"
        if name == "window" and "fixed length" in str(error):
            hint += f"; for months and years {USAGE['calendar_window']}"
        raise WindowError(f"{name}(): {error}", hint, argument) from error


def window_node(node: exp.Expr, window: AnyWindow, stream: Stream) -> exp.Expr:
    """The call in its canonical spelling; an event group keeps its conditions."""
    over: list[exp.Expr] = [exp.Column(this=identifier(time_column(stream)))]
    if isinstance(window, CalendarWindow):
        texts = [window.unit, window.zone]
    elif isinstance(window, SessionWindow):
        texts = [format_interval(window.gap_microseconds)]
    elif isinstance(window, EventGroup):
        over = node.expressions[:2]
        texts = [format_interval(window.timeout_microseconds)]
    else:
        texts = [format_interval(length) for length in _lengths(window)]
    literals = [exp.Literal.string(text) for text in texts]
    return exp.Anonymous(this=function_name(node), expressions=[*over, *literals])


def _lengths(window: Window) -> list[int]:
    lengths = [window.size_microseconds]
    if window.slide_microseconds != window.size_microseconds or window.origin_microseconds:
        lengths.append(window.slide_microseconds)
    if window.origin_microseconds:
        lengths.append(window.origin_microseconds)
    return lengths
