"""The query that proves a view: its definition in plain Spark SQL over all events at once, beside
it the keys by which rows are told apart and how many late events each row took in.

A window is a column of the events here: an event that is in several windows is there several
times, and whether a window had been passed is asked of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import expressions as exp

from headrace.compile.faults import SourceText
from headrace.compile.sql.dialect import canonical, parse_tokens, tokenize
from headrace.log.contract import CLOCK_OFFSET, EVENT_TIME, QUALITY
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import EventGroup, SessionWindow, Sliding, ViewPlan, Window
from headrace.proof.events import APPLIED_TO, DECISION, WATERMARK

__all__ = ["LATE", "REVISION", "TAKEN", "WINDOW_END", "Oracle", "oracle"]

REVISION = "revision"
WINDOW_END = "window_end"
LATE = "_late"  # BOOLEAN: whether the event was late for its session, where that was to be judged
TAKEN = "_taken"  # BOOLEAN: whether it was taken in all the same


@dataclass(frozen=True)
class Oracle:
    """`sql` gives the outputs as e0, e1, …, the keys as k0, k1, … (after those of the definition
    the window's start; of an event group also the place of its first event; of a view of rows the
    event's partition and offset alone; of a table its key), and with a window
    REVISION and WINDOW_END, from which watermark on the row is final. `columns` are the stream's
    columns that it needs.

    The rest asks the same of single events: what to read them `events` from, which are in the view
    (`where`), their `key_texts`, whether an event's window had been `passed` before it, and whether
    it is `taken` in."""

    sql: str
    outputs: int
    keys: int
    columns: tuple[str, ...]
    events: str
    where: str
    key_texts: tuple[str, ...]
    passed: str = "false"
    taken: str = "true"


def oracle(plan: ViewPlan, stream: Stream) -> Oracle:
    source = SourceText("<view>", plan.sql)
    query = parse_tokens(tokenize(source), source)
    assert isinstance(query, exp.Select)
    chosen = [f"{canonical(item.this)} AS e{i}" for i, item in enumerate(query.expressions)]
    own = [key.sql for key in plan.keys]
    if plan.table is not None:
        texts = {key.name: key.sql for key in plan.keys}
        own = [texts[name] for name in plan.table.key]
    chosen += [f"{text} AS k{i}" for i, text in enumerate(own)]
    group = query.args.get("group")
    groups = [canonical(item) for item in group.expressions] if group else []
    where = [_operand(query.args["where"].this)] if query.args.get("where") else []
    events = canonical(query.args["from_"].this)
    keys, passed, taken = list(own), "false", None
    within = list(where)
    if isinstance(plan.window, Sliding):  # see sliding.py
        keys.append(EVENT_TIME)
    elif plan.window is not None:
        window = _window(plan)
        if isinstance(plan.window, Window):
            call = next(text for text in groups if text.startswith("window("))
            groups = [window if text == call else text for text in groups]
            events = f"(SELECT *, {call} AS window FROM {events}) AS {events}"
        if isinstance(plan.window, SessionWindow):
            passed, taken = f"coalesce({LATE}, false)", f"coalesce({TAKEN}, true)"
        elif isinstance(plan.window, EventGroup):
            passed, taken = f"coalesce({LATE}, false)", None
        else:
            passed, taken = _passed(window), _taken(window, stream)
        keys.append(f"{window}.start")
        if isinstance(plan.window, EventGroup):  # of a key two may begin at one time
            keys += ["_start.p", "_start.o"]
        chosen += [f"{keys[i]} AS k{i}" for i in range(len(own), len(keys))]
        chosen += [f"{_ends(plan, window)} AS {WINDOW_END}", f"count_if({passed}) AS {REVISION}"]
        where += [taken] if taken else []
    parts = [f"SELECT {', '.join(chosen)} FROM {events}"]
    parts += [f"WHERE {' AND '.join(where)}"] if where else []
    parts += [f"GROUP BY {', '.join(groups)}"] if groups else []
    if query.args.get("having"):
        parts.append(f"HAVING {canonical(query.args['having'].this)}")
    queries = [plan.sql] if plan.joined is None else [plan.sql, plan.joined]
    mentioned = {name for text in queries for name in _identifiers(text)}
    columns = [c.name for c in stream.columns if c.name.lower() in mentioned]
    clocks = [name for name in (CLOCK_OFFSET, QUALITY) if name in mentioned]
    return Oracle(
        sql=" ".join(parts),
        outputs=len(query.expressions),
        keys=2 if plan.is_rows and plan.table is None else len(keys),
        columns=(*columns, *clocks),
        events=events,
        where=" AND ".join(within) or "true",
        key_texts=tuple(keys),
        passed=passed,
        taken=taken or "true",
    )


def _operand(condition: exp.Expr) -> str:
    """To be joined with AND. Spark reads FROM events WHERE (x) as other names of events and its
    column, so a column stands alone."""
    text = canonical(condition)
    return text if isinstance(condition, exp.Column) else f"({text})"


def _identifiers(sql: str) -> set[str]:
    source = SourceText("<view>", sql)
    parsed = parse_tokens(tokenize(source), source)
    return {node.name.lower() for node in parsed.find_all(exp.Identifier)}


def _window(plan: ViewPlan) -> str:
    """The column with the event's window, as a struct."""
    if isinstance(plan.window, Window):
        return "window"
    return "session_window" if isinstance(plan.window, SessionWindow) else "_window"


def _ends(plan: ViewPlan, window: str) -> str:
    """From which watermark on a row is final. A group that an event closed takes further events of
    that very moment."""
    if not isinstance(plan.window, EventGroup):
        return f"{window}.`end`"
    return f"timestamp_micros(unix_micros({window}.`end`) + IF(bool_or(_closes), 1L, 0L))"


def _passed(window: str, lowered_by: int = 0) -> str:
    """Whether the event's window had been passed before it, by more than so much."""
    watermark = f"{WATERMARK} - {lowered_by}L" if lowered_by else WATERMARK
    return f"coalesce(unix_micros({window}.`end`) <= {watermark}, false)"


def _taken(window: str, stream: Stream) -> str | None:
    """What an event must meet to be applied to a window; None when every event is."""
    horizon = stream.late_horizon_microseconds
    if stream.late_policy is LatePolicy.REVISE:
        if horizon is None:
            return None
        ways = [f"NOT {_passed(window, horizon)}"]
    else:
        ways = [f"NOT {_passed(window)}"]
    if stream.late_policy is LatePolicy.HALT:
        ways.append(f"coalesce({DECISION} = 'apply', false)")
    applied = f"array_contains({APPLIED_TO}, unix_micros({window}.start))"
    ways.append(f"coalesce({applied}, false)")
    return f"({' OR '.join(ways)})"
