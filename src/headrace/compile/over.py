"""aggregate(…) OVER (PARTITION BY … ORDER BY event time RANGE BETWEEN … PRECEDING AND CURRENT ROW):
read, checked, and written in one way only."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.functions import function_name, kind_of
from headrace.compile.planning.aggregates import Call, find_aggregate, read_call
from headrace.compile.sql.dialect import canonical, identifier
from headrace.compile.sql.intervals import IntervalError, interval_node, parse_interval_node
from headrace.compile.windows import WindowError, is_event_time, time_column
from headrace.model.definitions import Stream

__all__ = ["Over", "check_over", "over_node", "read_over"]

_FRAME = "RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW"
_UNBOUNDED = "UNBOUNDED"


@dataclass(frozen=True)
class Over:
    """A range of None reaches back to the first event."""

    call: Call
    keys: tuple[exp.Expr, ...]
    range_microseconds: int | None


def read_over(node: exp.Window) -> Over:
    """Of a node that `check_over` has accepted, or its canonical text."""
    call = read_call(node.this)
    assert call is not None
    start = node.args["spec"].args["start"]
    length = None if start == _UNBOUNDED else parse_interval_node(start)
    return Over(call, tuple(node.args.get("partition_by") or ()), length)


def over_node(
    aggregate: exp.Expr, keys: list[exp.Expr], event_time: str, range_microseconds: int | None
) -> exp.Window:
    """What `aggregate OVER (…)` is in SQL; nothing of it is checked."""
    start = _UNBOUNDED if range_microseconds is None else interval_node(range_microseconds)
    ordered = exp.Ordered(this=exp.Column(this=identifier(event_time)), nulls_first=True)
    return exp.Window(
        this=aggregate,
        partition_by=keys,
        order=exp.Order(expressions=[ordered]),
        spec=exp.WindowSpec(kind="RANGE", start=start, start_side="PRECEDING", end="CURRENT ROW"),
    )


def check_over(node: exp.Window, stream: Stream) -> None:
    """Brings the node into its canonical spelling. Raises WindowError for all that cannot be kept
    exactly up to date event by event."""
    _check_call(node)
    if node.args.get("alias") is not None:
        raise WindowError(
            "OVER with a named window is not in this version", f"OVER (… {_FRAME})", node
        )
    for key in node.args.get("partition_by") or ():
        if any(read_call(part) is not None for part in key.walk()):
            raise WindowError(
                "an aggregate in PARTITION BY", "partition by columns of the event", key
            )
    _check_order(node, stream)
    _check_frame(node)


def _check_call(node: exp.Window) -> None:
    name = function_name(node.this)
    if name is not None and kind_of(name) == "window":
        raise WindowError(
            f"{name}() OVER (…) cannot be kept exactly up to date",
            "use count, sum, avg, min, max, first, last … OVER (…), or rank when querying",
            node.this,
        )
    call = read_call(node.this)
    if call is None:
        raise WindowError(
            f"{canonical(node.this)} is not an aggregate",
            "only aggregates stand before OVER (…)",
            node.this,
        )
    if call.condition is not None:
        raise WindowError(
            "FILTER with OVER (…) is not Spark SQL",
            f"{call.name}(CASE WHEN condition THEN x END) OVER (…)",
            node.this,
        )
    known = find_aggregate(call.name)
    if call.is_distinct and known is not None:
        raise WindowError(
            f"{call.name}(DISTINCT …) OVER (…) is not in this version",
            "leave out DISTINCT, or group by window(event_time, '…')",
            node.this,
        )


def _check_order(node: exp.Window, stream: Stream) -> None:
    event_time = stream.event_time or "_received_at"
    order = node.args.get("order")
    ordered = list(order.expressions) if order is not None else []
    is_right = (
        len(ordered) == 1
        and is_event_time(ordered[0].this, stream)
        and not ordered[0].args.get("desc")
        and ordered[0].args.get("nulls_first") is not False
    )
    if not is_right:
        raise WindowError(
            f"OVER (…) is ordered by {event_time}, the event time of stream {stream.name}, "
            "and by nothing else",
            f"OVER (PARTITION BY … ORDER BY {event_time} {_FRAME})",
            ordered[0] if ordered else node,
        )
    column = exp.Column(this=identifier(time_column(stream)))
    column.this.meta.update(ordered[0].this.this.meta)
    ordered[0].set("this", column)


def _check_frame(node: exp.Window) -> None:
    spec = node.args.get("spec")
    if spec is None:
        raise WindowError("OVER (…) does not say how far back it reaches", _FRAME, node)
    kind, start, end = (spec.args.get(name) for name in ("kind", "start", "end"))
    if kind != "RANGE" or spec.args.get("exclude"):
        raise WindowError(f"{kind} is not in this version: it counts rows, not time", _FRAME, node)
    if end not in (None, "CURRENT ROW") or spec.args.get("start_side") != "PRECEDING":
        raise WindowError("OVER (…) looks back from an event, not ahead", _FRAME, node)
    if start != _UNBOUNDED:
        try:
            length = parse_interval_node(start)
        except IntervalError as error:
            raise WindowError(f"OVER (…): {error}", _FRAME, node) from error
        if length < 0:
            raise WindowError("OVER (…): the range is negative", _FRAME, node)
        start = interval_node(length)
    spec.set("start", start)
    spec.set("end", "CURRENT ROW")
