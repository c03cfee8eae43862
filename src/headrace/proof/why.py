"""The events behind one row of a view, what became of each, and the tick of every revision."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from headrace.log.contract import EVENT_TIME, QUALITY, RECEIVED_AT, SKEW
from headrace.model.definitions import LatePolicy
from headrace.model.errors import ProofError
from headrace.model.plan import EventGroup, SessionWindow, Sliding
from headrace.proof.events import DECISION, OFFSET, PARTITION, WATERMARK
from headrace.proof.oracle import Oracle, oracle
from headrace.proof.reconcile import Subject, declare_events, told
from headrace.proof.sessions import declare_judged
from headrace.proof.text import plain, plain_row
from headrace.store.contract import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Explained", "explain", "the_row"]

_ROW, _KEY = "_why", "_why_key"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Explained:
    """`events` in the order of the log; more than asked for are left out, and `is_cut` says so.
    `revisions` are those of `events` that were late and taken in, in the order of their ticks."""

    row: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    is_cut: bool
    revisions: tuple[Mapping[str, Any], ...]
    dead: tuple[Mapping[str, Any], ...]
    repairs: tuple[Mapping[str, int], ...]


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
    if isinstance(what.plan.window, Sliding | EventGroup):
        raise ProofError(
            f"the events behind a row of {what.plan.view} cannot be listed",
            hint=f"headrace reconcile {what.plan.view} proves its rows",
        )
    question = oracle(what.plan, what.stream)
    keys = ["1 AS _why_one", *(f"k{i} AS {_KEY}{i}" for i in range(question.keys))]
    spark.read.parquet(str(what.rows)).selectExpr(*keys).createOrReplaceTempView(_ROW)
    with told(what):
        columns = [column.name for column in what.stream.columns]
        is_session = isinstance(what.plan.window, SessionWindow)  # duplicates would join them
        repeated = declare_events(
            spark, what, [*columns, SKEW, QUALITY], with_duplicates=not is_session
        )
        if isinstance(what.plan.window, SessionWindow):
            declare_judged(spark, what.stream, question, what.plan.window.gap_microseconds)
        found = spark.sql(_events_sql(what, question, limit + 1)).toArrow().to_pylist()
        if isinstance(what.plan.window, SessionWindow):
            found = _of_one_session(found, what.plan.window.gap_microseconds)
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
        repairs=tuple({"tick": tick, "rows": rows} for tick, rows in what.snapshot.repairs),
    )


def _events_sql(what: Subject, question: Oracle, limit: int) -> str:
    same = [f"({text}) <=> {_ROW}.{_KEY}{i}" for i, text in enumerate(question.key_texts)]
    windowed, order = what.plan.window is not None, f"{PARTITION}, {OFFSET}"
    if isinstance(what.plan.window, SessionWindow):
        # Where it ends is for `_of_one_session` to find.
        same[-1], order = f"{EVENT_TIME} >= {_ROW}.{_KEY}{len(same) - 1}", EVENT_TIME
    chosen = [
        *(f"`{column.name}`" for column in what.stream.columns),
        *(PARTITION, OFFSET, EVENT_TIME, RECEIVED_AT, SKEW, QUALITY, DECISION),
        f"{WATERMARK if windowed else 'CAST(NULL AS BIGINT)'} AS {WATERMARK}",
        f"{question.passed} AS _passed",
        f"{question.taken} AS _taken",
    ]
    return (
        f"SELECT {', '.join(chosen)} FROM {question.events} CROSS JOIN {_ROW} "
        f"WHERE {' AND '.join([question.where, *same])} "
        f"ORDER BY {order} LIMIT {limit}"
    )


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
    afterwards = [tick for p, o, _, tick in snapshot.applied if (p, o) == place]
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
        "skew_microseconds": found[SKEW],
        "quality": found[QUALITY],
        "watermark": None if found[WATERMARK] is None else _time(found[WATERMARK]),
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


def _time(microseconds: int) -> str:
    import datetime as dt

    return str(
        plain(dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds))
    )
