"""A view as one plain Spark SQL query over a table of all events: what it means.

The table has the stream's columns and the position columns (`_partition`, `_offset`, `_position`,
`_event_time`, `_received_at`, `_skew`, `_quality`). Where Spark leaves the choice among events
open (first, last), the query makes it; windows that Spark does not have are spelled out.
"""

from __future__ import annotations

from sqlglot import expressions as exp

from headrace.compile.planning.aggregates import read_call
from headrace.compile.planning.resolved import (
    ResolvedView,
    has_aggregate,
    has_over,
    is_window_key,
    window_part,
)
from headrace.compile.planning.state import State
from headrace.compile.sql.dialect import canonical, identifier, parse_expression
from headrace.compile.windows import AnyWindow
from headrace.model.plan import CalendarWindow, EventGroup, SessionWindow, Sliding

__all__ = ["oracle"]

_WINDOW = "_window"
_ORDER = "_event_time, _partition, _offset"


def oracle(view: ResolvedView, state: State, window: AnyWindow | Sliding | None) -> str:
    bounds = {SessionWindow: "session_window", CalendarWindow: _WINDOW, EventGroup: _WINDOW}
    name = bounds.get(type(window), "window")
    outputs = tuple(_text(node, view, state, name) for _, node in view.outputs)
    having = _text(view.having, view, state, name) if view.having is not None else None
    if not isinstance(window, (CalendarWindow, EventGroup)):
        return view.query(outputs, having)
    keys = [canonical(key) for key in view.keys if not is_window_key(key)]
    source = canonical(identifier(view.stream.name))
    events = f"SELECT * FROM {source}"
    if view.where is not None:
        events += f" WHERE {canonical(view.where)}"
    if isinstance(window, CalendarWindow):
        spelled = f"SELECT *, {_calendar(window)} AS {_WINDOW} FROM ({events})"
        grouped = [_WINDOW, *keys]
    else:
        spelled = _event_groups(events, keys, window)
        grouped = [_WINDOW, "_start", *keys]
    sql = f"SELECT {view.select(outputs)} FROM ({spelled}) GROUP BY {', '.join(grouped)}"
    return sql if having is None else f"{sql} HAVING {having}"


def _text(node: exp.Expr, view: ResolvedView, state: State, window: str) -> str:
    def exact(part: exp.Expr) -> exp.Expr:
        call = read_call(part)
        text = state.oracle(call) if call is not None else None
        if text is not None:
            return parse_expression(text)
        bound = window_part(part, view.has_window)
        if bound is not None:
            return _bound(window, bound)
        return part

    if not has_aggregate(node) and not has_over(node) and not view.has_window:
        return canonical(node)
    return canonical(node.copy().transform(exact, copy=False))


def _bound(window: str, part: str) -> exp.Column:
    if not part:
        return exp.Column(this=identifier(window))
    return exp.Column(this=identifier(part), table=identifier(window))


def _calendar(window: CalendarWindow) -> str:
    """The bounds in the zone's own time, and back."""
    zone = f"'{window.zone}'"
    local = f"date_trunc('{window.unit.upper()}', from_utc_timestamp(_event_time, {zone}))"
    lengths = {"quarter": "INTERVAL '3' MONTH", "week": "INTERVAL '7' DAY"}
    length = lengths.get(window.unit, f"INTERVAL '1' {window.unit.upper()}")
    return (
        f"named_struct('start', to_utc_timestamp({local}, {zone}), "
        f"'end', to_utc_timestamp({local} + {length}, {zone}))"
    )


def _event_groups(events: str, keys: list[str], group: EventGroup) -> str:
    """Each event that is in a group, with `_start` (the group's first event) and the window.

    After an event that closes, and after a silence of the timeout, no group is open whatever came
    before: these places cut a key's events into parts, of which only the last event can close. In
    a part a group begins with the first event that opens, and with each further one that comes the
    timeout or more after the beginning of the group before.
    """
    timeout = f"{group.timeout_microseconds}L"
    named = {f"_key{number}": key for number, key in enumerate(keys or ["0"])}
    by = ", ".join(named)
    computed = "".join(f", {key} AS {name}" for name, key in named.items())
    in_key = f"OVER (PARTITION BY {by} ORDER BY {_ORDER})"
    place = "named_struct('at', _at, 'p', _partition, 'o', _offset)"
    judged = (
        f"SELECT *{computed}, coalesce({group.open}, FALSE) AS _opens, "
        f"coalesce({group.close}, FALSE) AS _closes, unix_micros(_event_time) AS _at "
        f"FROM ({events})"
    )
    cut = (
        f"SELECT *, IF(lag(_closes, 1, TRUE) {in_key} "
        f"OR _at - lag(_at) {in_key} >= {timeout}, 1, 0) AS _cut FROM ({judged})"
    )
    parts = f"SELECT *, sum(_cut) {in_key} AS _part FROM ({cut})"
    first = (
        f"aggregate(array_sort(collect_list({place})), "
        "CAST(array() AS ARRAY<STRUCT<at: BIGINT, p: INT, o: BIGINT>>), (found, next) -> "
        f"IF(size(found) = 0 OR next.at >= element_at(found, -1).at + {timeout}, "
        "array_append(found, next), found))"
    )
    starts = (
        f"SELECT inline({first}) AS (_start_at, _start_partition, _start_offset) "
        f"FROM _parts WHERE _opens GROUP BY {by}, _part"
    )
    within = f"PARTITION BY {by}, _part ORDER BY {_ORDER} ROWS UNBOUNDED PRECEDING"
    joined = (
        f"SELECT events.*, max(IF(_start_at IS NULL, NULL, {place})) OVER ({within}) AS _start "
        "FROM _parts AS events LEFT JOIN _starts "
        "ON _partition = _start_partition AND _offset = _start_offset"
    )
    closed = f"max(IF(_closes, _at, NULL)) OVER (PARTITION BY {by}, _part, _start)"
    return (
        f"WITH _parts AS ({parts}), _starts AS ({starts}) "
        "SELECT *, named_struct('start', timestamp_micros(_start.at), 'end', "
        f"timestamp_micros(coalesce({closed}, _start.at + {timeout}))) AS {_WINDOW} "
        f"FROM ({joined}) WHERE _at < _start.at + {timeout}"
    )
