"""The query that proves a view: its definition in plain Spark SQL over all events at once, beside
it the keys by which rows are told apart and how many late events each row took in.

A window is a column of the events here: an event that is in several windows is there several
times, and whether a window had been passed is asked of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.dialect import canonical, parse_tokens, tokenize
from headrace.compile.faults import SourceText
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import ViewPlan, Window
from headrace.proof.events import WATERMARK

__all__ = ["REVISION", "WINDOW_END", "Oracle", "oracle"]

REVISION = "revision"
WINDOW_END = "window_end"
_WINDOWS = ("window",)


@dataclass(frozen=True)
class Oracle:
    """`sql` gives the outputs as e0, e1, …, the keys as k0, k1, … (the window's start the last of
    them), and with a window REVISION and WINDOW_END. `columns` are the stream's columns that it
    needs."""

    sql: str
    outputs: int
    keys: int
    columns: tuple[str, ...]


def oracle(plan: ViewPlan, stream: Stream) -> Oracle:
    source = SourceText("<view>", plan.sql)
    query = parse_tokens(tokenize(source), source)
    assert isinstance(query, exp.Select)
    chosen = [f"{canonical(item.this)} AS e{i}" for i, item in enumerate(query.expressions)]
    chosen += [f"{key.sql} AS k{i}" for i, key in enumerate(plan.keys)]
    group = [canonical(item) for item in query.args["group"].expressions] if _has(query) else []
    where = [f"({canonical(query.args['where'].this)})"] if query.args.get("where") else []
    events, keys = stream.name, len(plan.keys)
    if plan.window is not None:
        window = next(text for text in group if text.startswith(tuple(f"{w}(" for w in _WINDOWS)))
        group = ["window" if text == window else text for text in group]
        events = f"(SELECT *, {window} AS window FROM `{stream.name}`) AS `{stream.name}`"
        chosen += [
            f"window.start AS k{keys}",
            f"window.`end` AS {WINDOW_END}",
            f"count_if({_passed()}) AS {REVISION}",
        ]
        where += [taken] if (taken := _taken(plan, stream)) else []
        keys += 1
    parts = [f"SELECT {', '.join(chosen)} FROM {events}"]
    parts += [f"WHERE {' AND '.join(where)}"] if where else []
    parts += [f"GROUP BY {', '.join(group)}"] if group else []
    if query.args.get("having"):
        parts.append(f"HAVING {canonical(query.args['having'].this)}")
    mentioned = {node.name.lower() for node in query.find_all(exp.Identifier)}
    columns = tuple(c.name for c in stream.columns if c.name.lower() in mentioned)
    return Oracle(" ".join(parts), len(query.expressions), keys, columns)


def _has(query: exp.Select) -> bool:
    return query.args.get("group") is not None


def _passed(lowered_by: int = 0) -> str:
    """Whether the event's window had been passed before it, by more than so much."""
    watermark = f"{WATERMARK} - {lowered_by}L" if lowered_by else WATERMARK
    return f"coalesce(unix_micros(window.`end`) <= {watermark}, false)"


def _taken(plan: ViewPlan, stream: Stream) -> str | None:
    """What an event must meet to be applied to a window; None when every event is."""
    assert isinstance(plan.window, Window)
    if stream.late_policy is LatePolicy.REVISE:
        horizon = stream.late_horizon_microseconds
        return None if horizon is None else f"NOT {_passed(horizon)}"
    return f"NOT {_passed()}"
