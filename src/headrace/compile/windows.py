"""window(event_time, size[, slide[, start]]): read, checked, and written in one way only."""

from __future__ import annotations

from math import gcd

from sqlglot import expressions as exp

from headrace.compile.dialect import identifier
from headrace.compile.intervals import IntervalError, format_interval, parse_interval_node
from headrace.model.plan import Window

__all__ = ["PANES_PER_WINDOW_MAX", "WindowError", "read_window", "window_node"]

PANES_PER_WINDOW_MAX = 10_000


class WindowError(ValueError):
    """What is wrong with a window() call, and `hint`: what to write instead."""

    def __init__(self, message: str, hint: str, node: exp.Expr) -> None:
        super().__init__(message)
        self.hint = hint
        self.node = node


def read_window(node: exp.Expr) -> Window:
    """Raises WindowError for sizes that are not fixed lengths or do not fit together."""
    arguments = node.expressions
    if not 2 <= len(arguments) <= 4:
        raise WindowError(
            f"window() takes 2 to 4 arguments, not {len(arguments)}",
            "window(event_time, '1 minute'), or with a slide: window(event_time, '1 hour', "
            "'5 minutes')",
            node,
        )
    lengths = [_length(argument) for argument in arguments[1:]]
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


def _length(node: exp.Expr) -> int:
    try:
        return parse_interval_node(node)
    except IntervalError as error:
        raise WindowError(
            f"window(): {error}", "use weeks, days, hours, minutes or seconds: '3 seconds'", node
        ) from error


def window_node(column: str, window: Window) -> exp.Expr:
    """The call in its canonical spelling."""
    lengths = [window.size_microseconds]
    if window.slide_microseconds != window.size_microseconds or window.origin_microseconds:
        lengths.append(window.slide_microseconds)
    if window.origin_microseconds:
        lengths.append(window.origin_microseconds)
    texts = [exp.Literal.string(format_interval(length)) for length in lengths]
    return exp.Anonymous(this="window", expressions=[exp.Column(this=identifier(column)), *texts])
