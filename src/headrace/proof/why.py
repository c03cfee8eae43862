"""The events behind one row of a view, what became of each, and the tick of every revision."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headrace.log.contract import CLOCK_OFFSET, EVENT_TIME, QUALITY, RECEIVED_AT
from headrace.model.definitions import LatePolicy
from headrace.model.errors import ProofError
from headrace.model.moments import moment, moment_text
from headrace.model.plan import EventGroup, SessionWindow, Sliding
from headrace.proof.events import DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.groups import UNTAKEN, declare_grouped
from headrace.proof.oracle import Oracle, oracle
from headrace.proof.reconcile import Subject, declare_events, told
from headrace.proof.sessions import declare_judged
from headrace.proof.sliding import bound_sql
from headrace.proof.text import plain, plain_row
from headrace.store.contract import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Explained", "explain", "the_row"]

_ROW, _KEY, _END, _CLOSED = "_why", "_why_key", "_why_end", "_why_closed"


@dataclass(frozen=True)
class Explained:
    """`events` in the order of the log; more than asked for are left out, and `is_cut` says so.
    `revisions` are those of `events` that were late and taken in, in the order of their ticks."""

    row: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    is_cut: bool
    revisions: tuple[Mapping[str, Any], ...]
    dead: tuple[Mapping[str, Any], ...]


def the_row(what: Subject) -> dict[str, Any]:
    """The one row that the snapshot holds, by public column. Raises ProofError for more."""
    table = pq.read_table(what.rows)
    names = what.snapshot.columns
    if table.num_rows != 1:
        shown = [
            ", ".join(f"{name}={plain(row[f'c{i}'])}" for i, name in enumerate(names))
            for row in table.slice(0, 3).to_pylist()
        ]
        raise ProofError(
            f"{table.num_rows} rows of {what.plan.view} are meant: {'; '.join(shown)}; …",
            hint="name more columns, as in window_start=2026-01-01T00:00:00Z",
        )
    found = table.to_pylist()[0]
    return {name: found[f"c{i}"] for i, name in enumerate(names)}


def explain(spark: SparkSession, what: Subject, limit: int) -> Explained:
    row = the_row(what)
    question = oracle(what.plan, what.stream)
    keys = ["1 AS _why_one", *(f"k{i} AS {_KEY}{i}" for i in range(question.keys))]
    spark.read.parquet(str(what.rows)).selectExpr(*keys).createOrReplaceTempView(_ROW)
    with told(what):
        columns = [column.name for column in what.stream.columns]
        # Duplicates would join sessions, and open and close groups.
        joins = isinstance(what.plan.window, SessionWindow | EventGroup)
        repeated = declare_events(
            spark, what, [*columns, CLOCK_OFFSET, QUALITY], with_duplicates=not joins
        )
        found = _found(spark, what, question, limit + 1)
    places = {(partition, offset) for partition in repeated for offset in repeated[partition]}
    events = [_event(what, one, places) for one in found[:limit]]
    late = [event for event in events if event["fate"] == "late"]
    late.sort(key=lambda event: (event["tick"] or 0, event["partition"], event["offset"]))
    revisions = [
        {
            "revision": number,
            "tick": event["tick"],
            "or_before": event["or_before"],
            "partition": event["partition"],
            "offset": event["offset"],
            "cause": f"an event of {event['event_time']} came when the watermark was "
            f"{event['watermark']}",
        }
        for number, event in enumerate(late, 1)
    ]
    dead = [
        {"partition": partition, "offset": offset, "fate": "dead"}
        for partition, offset in what.snapshot.dead
    ]
    return Explained(
        row=plain_row(row) or {},
        events=tuple(events),
        is_cut=len(found) > limit,
        revisions=tuple(revisions),
        dead=tuple(dead[:limit]),
    )


def _found(
    spark: SparkSession, what: Subject, question: Oracle, limit: int
) -> Sequence[Mapping[str, Any]]:
    """The row's events in the order of the log."""
    window = what.plan.window
    if isinstance(window, SessionWindow):
        declare_judged(spark, what.stream, question, window.gap_microseconds)
        found = _rows(spark, _events_sql(what, question, limit))
        return _of_one_session(found, window.gap_microseconds)
    if isinstance(window, EventGroup):
        declare_grouped(spark, what.plan, what.stream)
        found = _rows(spark, _events_sql(what, question, limit))
        return _with_untaken(spark, what, question, found, limit)
    if isinstance(window, Sliding):
        return _rows(spark, _frame_sql(what, window, question, limit))
    return _rows(spark, _events_sql(what, question, limit))


def _rows(spark: SparkSession, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spark.sql(sql).toArrow().to_pylist()
    return found


def _chosen(what: Subject, passed: str, taken: str) -> list[str]:
    windowed = what.plan.window is not None
    return [
        *(f"`{column.name}`" for column in what.stream.columns),
        *(PARTITION, OFFSET, EVENT_TIME, RECEIVED_AT, CLOCK_OFFSET, QUALITY, DECISION),
        f"{WATERMARK if windowed else 'CAST(NULL AS BIGINT)'} AS {WATERMARK}",
        f"{passed} AS _passed",
        f"{taken} AS _taken",
    ]


def _same(texts: Sequence[str]) -> list[str]:
    return [f"({text}) <=> {_ROW}.{_KEY}{i}" for i, text in enumerate(texts)]


def _events_sql(what: Subject, question: Oracle, limit: int) -> str:
    same, order = _same(question.key_texts), f"{PARTITION}, {OFFSET}"
    chosen = _chosen(what, question.passed, question.taken)
    if isinstance(what.plan.window, SessionWindow):
        # Where it ends is for `_of_one_session` to find.
        same[-1], order = f"{EVENT_TIME} >= {_ROW}.{_KEY}{len(same) - 1}", EVENT_TIME
    if isinstance(what.plan.window, EventGroup):
        chosen += [f"_window.`end` AS {_END}", f"bool_or(_closes) OVER () AS {_CLOSED}"]
    return (
        f"SELECT {', '.join(chosen)} FROM {question.events} CROSS JOIN {_ROW} "
        f"WHERE {' AND '.join([question.where, *same])} "
        f"ORDER BY {order} LIMIT {limit}"
    )


def _frame_sql(what: Subject, window: Sliding, question: Oracle, limit: int) -> str:
    """The events of the same keys in the widest frame of a row, the row's own among them."""
    texts = {key.name: (i, key.sql) for i, key in enumerate(what.plan.keys)}
    same = [f"({sql}) <=> {_ROW}.{_KEY}{i}" for i, sql in (texts[name] for name in window.keys)]
    at = f"unix_micros({EVENT_TIME})"
    row_at = f"unix_micros({_ROW}.{_KEY}{question.keys - 1})"
    same.append(f"{at} <= {row_at}")
    if window.range_microseconds is not None:
        same.append(f"{at} >= {row_at} - {window.range_microseconds}L")
    passed = f"coalesce({WATERMARK} > {row_at}, false)"
    taken = f"NOT coalesce({bound_sql(what.stream)} > {row_at}, false)"
    return (
        f"SELECT {', '.join(_chosen(what, passed, taken))} FROM {question.events} "
        f"CROSS JOIN {_ROW} WHERE {' AND '.join([question.where, *same])} "
        f"ORDER BY {PARTITION}, {OFFSET} LIMIT {limit}"
    )


def _with_untaken(
    spark: SparkSession,
    what: Subject,
    question: Oracle,
    found: Sequence[dict[str, Any]],
    limit: int,
) -> Sequence[Mapping[str, Any]]:
    """The events of a group, and those of its key and time that were not taken in."""
    if not found:
        return []
    until = "<=" if found[0][_CLOSED] else "<"
    ends = int((found[0][_END] - moment(0)) / dt.timedelta(microseconds=1))
    start = f"{_ROW}.{_KEY}{len(what.plan.keys)}"
    within = [f"{EVENT_TIME} >= {start}", f"unix_micros({EVENT_TIME}) {until} {ends}L"]
    where = [f"({what.plan.where or 'true'})", *_same([k.sql for k in what.plan.keys]), *within]
    others = _rows(
        spark,
        f"SELECT {', '.join(_chosen(what, 'true', 'false'))} FROM {UNTAKEN} CROSS JOIN {_ROW} "
        f"WHERE {' AND '.join(where)} ORDER BY {PARTITION}, {OFFSET} LIMIT {limit}",
    )
    return sorted([*found, *others], key=lambda event: (event[PARTITION], event[OFFSET]))[:limit]


def _of_one_session(
    events: Sequence[Mapping[str, Any]], gap_microseconds: int
) -> list[Mapping[str, Any]]:
    """Of a key's events in the order of time, those up to where more than a gap lies between."""
    gap, last = dt.timedelta(microseconds=gap_microseconds), None
    kept = []
    for event in events:
        if last is not None and event[EVENT_TIME] > last + gap:
            break
        kept.append(event)
        last = event[EVENT_TIME] if event["_taken"] or last is None else last
    return sorted(kept, key=lambda event: (event[PARTITION], event[OFFSET]))


def _event(
    what: Subject, found: Mapping[str, Any], repeated: set[tuple[int, int]]
) -> dict[str, Any]:
    stream, snapshot = what.stream, what.snapshot
    place = (found[PARTITION], found[OFFSET])
    afterwards = [tick for p, o, _, tick, _ in snapshot.applied if (p, o) == place]
    tick, or_before = taken_in(snapshot, *place)
    if found["_taken"] and found["_passed"] and afterwards:
        tick, or_before = max(afterwards), False
    clocks = stream.clocks
    return {
        "partition": place[0],
        "offset": place[1],
        "fate": "duplicate" if place in repeated else _fate(stream.late_policy, found),
        "tick": tick,
        "or_before": or_before,
        "event_time": plain(found[EVENT_TIME]),
        "occurred": plain(found[stream.event_time]) if stream.event_time else None,
        "sent": plain(found[clocks.sent]) if clocks else None,
        "received": plain(found[RECEIVED_AT]),
        "skew_microseconds": found[CLOCK_OFFSET],
        "quality": found[QUALITY],
        "watermark": None if found[WATERMARK] is None else moment_text(found[WATERMARK]),
        "event": {column.name: plain(found[column.name]) for column in stream.columns},
    }


def _fate(policy: LatePolicy, found: Mapping[str, Any]) -> str:
    if found["_taken"]:
        return "late" if found["_passed"] else "applied"
    if policy is LatePolicy.HALT:
        return "dropped" if found[DECISION] == "drop" else "sided"
    return "dropped" if policy is LatePolicy.DROP else "sided"


def taken_in(snapshot: Snapshot, partition: int, offset: int) -> tuple[int | None, bool]:
    """The tick that took the event in, and whether it may have been an earlier one that the ledger
    no longer has."""
    kept: Sequence[tuple[int, Mapping[int, int]]] = snapshot.ticks
    for place, (tick, offsets) in enumerate(kept):
        if offsets.get(partition, 0) > offset:
            is_first = place == 0 or kept[place - 1][0] < snapshot.ticks_from
            return tick, is_first and snapshot.ticks_from > snapshot.created_tick + 1
    return None, False
