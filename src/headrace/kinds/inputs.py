"""What a tick brings to a kind, as columns: see BoundView for what they mean."""

from __future__ import annotations

import pyarrow as pa

from headrace.kinds.contract import AFTER, BEFORE, BOUND, PARTITION, SINCE
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
    ROWS,
    BoundView,
    CalendarWindow,
    EventGroup,
    SessionWindow,
    Sliding,
)
from headrace.model.tables import VIEW

__all__ = [
    "BOUNDS",
    "EVERYWHERE",
    "SINCES",
    "VALUE",
    "VIEWS",
    "partials_schema",
    "values_schemas",
]

VALUE = "value"
VIEWS = pa.schema([(VIEW, pa.int32()), (BEFORE, pa.int64()), (AFTER, pa.int64())])
BOUNDS = pa.schema([(VIEW, pa.int32()), (PARTITION, pa.int32()), (BOUND, pa.int64())])
EVERYWHERE = pa.schema([(VIEW, pa.int32()), (BOUND, pa.int64())])
SINCES = pa.schema([(VIEW, pa.int32()), (SINCE, pa.int64())])

_LATENESS = ((PANE, pa.int64()), (LATE, pa.int32()), (REJECTED_WINDOWS, pa.int32()))


def partials_schema(view: BoundView) -> pa.Schema:
    """Of KindInput.partials."""
    window = view.plan.window
    times: tuple[tuple[str, pa.DataType], ...] = _LATENESS if window is not None else ()
    bounds: tuple[tuple[str, pa.DataType], ...] = ()
    values: list[tuple[str, pa.DataType]] = []
    if isinstance(window, CalendarWindow):
        times += ((PANE_END, pa.int64()),)
    elif isinstance(window, SessionWindow):
        bounds = ((FIRST, pa.int64()), (LAST, pa.int64()))
    elif isinstance(window, Sliding):
        times += ((PASSED, pa.int64()), (ASIDE, pa.int64()))
    elif isinstance(window, EventGroup):
        places = zip(POSITION, (pa.int32(), pa.int64()), strict=True)
        times += ((PASSED, pa.int64()), *places, (OPENS, pa.bool_()), (CLOSES, pa.bool_()))
        values = [(distinct.name, distinct.type.arrow) for distinct in view.distincts]
    keys = [(column.name, column.type.arrow) for column in view.keys]
    partials = [(column.name, column.type.arrow) for column in view.partials]
    numbered = [(VIEW, pa.int32()), *keys, *times, (ROWS, pa.int64()), *bounds]
    return pa.schema([*numbered, *partials, *values])


def values_schemas(view: BoundView) -> tuple[pa.Schema, ...]:
    """Of KindInput.values; none where values are columns of the partials."""
    window = view.plan.window
    if isinstance(window, (EventGroup, Sliding)):
        return ()
    keys = [(column.name, column.type.arrow) for column in view.keys]
    times = _LATENESS if window is not None else ()
    return tuple(
        pa.schema([(VIEW, pa.int32()), *keys, *times, (VALUE, distinct.type.arrow)])
        for distinct in view.distincts
    )
