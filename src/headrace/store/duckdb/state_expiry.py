"""What a view keeps beside its rows, and when that goes.

The rows of a view stay. Beside them are kept: the events of a view by event group, the values that
`count(DISTINCT …)` has seen, and of a sliding window the rows that are shown to nobody, since their
own event is set aside for them. They are there for the sake of events that are yet to come, and go
once no such event is applied to their window (`ViewWrite.settled`).

- Event groups: a group that has ended by then takes no event any more. None can begin before it
  and take it in either: that one would end with it, or a timeout after its own beginning. An event
  in no group goes a timeout later, when no group that reaches it can still begin.
- Values of windows go with the end of the window.
- Hidden rows of a sliding window go when no frame reaches them.
- Sessions: nothing goes. A session that is open may grow backwards without end, by events that are
  in time each, because the session they join is open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import duckdb
import numpy as np
import pyarrow as pa

from headrace.kinds.calculator import arrow_table, quoted
from headrace.kinds.event_group import find_groups
from headrace.model.plan import (
    ASIDE,
    CLOSES,
    OPENS,
    PANE,
    POSITION,
    CalendarWindow,
    Window,
)
from headrace.store.duckdb.group_schema import EventGroupSchema
from headrace.store.duckdb.schema import WINDOW_START, ViewSchema
from headrace.store.duckdb.sliding_schema import SlidingSchema

__all__ = ["forget_settled", "settled_events"]

_SLOT = "_settled_events"
_DAY = 86_400_000_000
# No calendar window is longer, whatever its zone does.
_DAYS_MAX = {"day": 3, "week": 9, "month": 33, "quarter": 94, "year": 368}

Settled = Mapping[int, int]


def forget_settled(
    connection: duckdb.DuckDBPyConnection,
    schema: ViewSchema,
    settled: Settled,
    partitions: Collection[int],
) -> None:
    """Within a transaction. `partitions` are all that feed the view: where keys are not bound to
    one, each of them must have settled."""
    if isinstance(schema, EventGroupSchema):
        _forget_events(connection, schema, settled)
        return
    if not all(partition in settled for partition in partitions):
        return
    everywhere = min(settled.values())
    if isinstance(schema, SlidingSchema):
        reach = schema.sliding.range_microseconds
        if reach is not None:
            connection.execute(
                f"DELETE FROM {schema.state_table} WHERE {ASIDE} > epoch_us({WINDOW_START}) "
                f"AND {WINDOW_START} < make_timestamptz({everywhere - reach}::BIGINT)"
            )
        return
    length = _length_max(schema)
    if length is None:
        return
    for index in range(len(schema.view.distincts)):
        connection.execute(
            f"DELETE FROM {schema.values_table(index)} "
            f"WHERE {WINDOW_START} <= make_timestamptz({everywhere - length}::BIGINT)"
        )


def _length_max(schema: ViewSchema) -> int | None:
    """How long a window is at most, where that is known beforehand."""
    if isinstance(schema.window, Window):
        return schema.window.size_microseconds
    if isinstance(schema.window, CalendarWindow):
        return _DAYS_MAX[schema.window.unit.lower()] * _DAY
    return None


def _forget_events(
    connection: duckdb.DuckDBPyConnection, schema: EventGroupSchema, settled: Settled
) -> None:
    order = ", ".join(quoted(column.name) for column in schema.keys)
    key = f"dense_rank() OVER (ORDER BY {order})" if order else "1::BIGINT"
    places = ", ".join((PANE, *POSITION))
    found = arrow_table(
        connection,
        f"SELECT {key} AS key, {places}, {OPENS}, {CLOSES} "
        f"FROM {schema.events_table} WHERE {PANE} < {max(settled.values())} "
        f"ORDER BY key, {places}",
    )
    gone = found.select(POSITION).filter(settled_events(found, settled, schema.timeout))
    if gone.num_rows == 0:
        return
    connection.register(_SLOT, gone)
    try:
        place = ", ".join(POSITION)
        connection.execute(
            f"DELETE FROM {schema.events_table} WHERE ({place}) IN (SELECT ({place}) FROM {_SLOT})"
        )
    finally:
        connection.unregister(_SLOT)


def settled_events(events: pa.Table, settled: Settled, timeout: int) -> pa.Array:
    """Which events may go. They are those before a time, by key, time and place, without the
    groups that are gone: so the first of a key that opens one does begin one."""
    keys, times = (events.column(name).to_numpy() for name in ("key", PANE))
    opens, closes = (events.column(name).to_numpy().astype(np.bool_) for name in (OPENS, CLOSES))
    partitions = events.column(POSITION[0]).to_numpy()
    bounds = np.full(events.num_rows, np.iinfo(np.int64).min)
    for partition, bound in settled.items():
        bounds[partitions == partition] = bound
    groups = find_groups(keys, times, opens, closes, timeout)
    ends = np.where(groups.is_closed, times[groups.ends - 1] + 1, times[groups.starts] + timeout)
    numbers = groups.numbers(events.num_rows)
    # What is in no group could be reached by one that begins up to a timeout before it.
    ends = np.append(ends, 0)[numbers]
    ends[numbers < 0] = times[numbers < 0] + timeout
    return pa.array(ends <= bounds)
