"""The late events of a tick, one by one. Partials only say how many there are; who they are is
asked of Spark again, unless each row is one event already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.late_windows import JoinedWindows, missed_windows
from headrace.engine.single_events import stored_events
from headrace.log.contract import QUALITIES, QUALITY, LogReader, Range
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.plan import (
    LATE,
    PANE,
    PANE_END,
    REJECTED_WINDOWS,
    ROWS,
    EventGroup,
    SessionWindow,
    ViewPlan,
)
from headrace.spark.aggregations import groupings_of, with_beyond
from headrace.spark.event_annotations import DECISION
from headrace.spark.event_query import EventQuery
from headrace.spark.leaf import OFFSET, PARTITION, WATERMARK
from headrace.spark.windows import Decision
from headrace.store.late_counts import late_column

__all__ = ["OWN_COLUMNS", "LateFinder", "decided_to_drop", "dropped_windows"]

OWN_COLUMNS = (PANE, PANE_END, LATE, REJECTED_WINDOWS)


class LateFinder:
    """Looks for late events of a range; used by the tick's thread alone."""

    def __init__(self, event_query: EventQuery, reader: LogReader) -> None:
        self._event_query = event_query
        self._reader = reader

    def find(
        self, plan: ViewPlan, stream: Stream, ranges: Sequence[Range], annotations_file: str
    ) -> pa.Table:
        """Place, time, watermark, decision and pane of every event that is late for the view and
        not applied to all its windows, or not decided yet; ordered by place."""
        main = groupings_of(plan, stream)[0]
        own = [(name, sql) for name, sql in main.keys if name in OWN_COLUMNS]
        beyond = dict(own).get(REJECTED_WINDOWS, dict(own)[LATE])
        is_aside = f"coalesce({beyond}, 1) <> 0"
        looked_up = [column for join in plan.joins for column in join.columns]
        found = self._event_query.ask(
            stream, main, is_aside, own, ranges, annotations_file, looked_up
        )
        return with_beyond(found, stream)

    def late_side_output(
        self, plan: ViewPlan, stream: Stream, late: pa.Table, joined: JoinedWindows
    ) -> pa.Table | None:
        """What is kept of the late events that are set aside: the event, and each window it
        missed."""
        if stream.late_policy is LatePolicy.HALT:
            decisions = late.column(DECISION).to_numpy(zero_copy_only=False)
            late = late.filter(pa.array(decisions == Decision.SIDE))
        if late.num_rows == 0:
            return None
        rows, starts, ends = missed_windows(plan, late, joined)
        events = stored_events(self._reader, stream, late).take(pa.array(rows))
        places = late.take(pa.array(rows))
        moment = pa.timestamp("us", "UTC")
        own = pa.table(
            {
                "window_start": pa.array(starts, pa.int64()).cast(moment),
                "window_end": pa.array(ends, pa.int64()).cast(moment),
                "watermark": places.column(WATERMARK).cast(moment),
                PARTITION: places.column(PARTITION).cast(pa.int32()),
                OFFSET: places.column(OFFSET),
            }
        )
        for field in events.schema:
            column = events.column(field.name)
            if field.name == QUALITY:
                column = pa.array(QUALITIES).take(column.combine_chunks())
            own = own.append_column(late_column(field.name), column)
        return own


def decided_to_drop(late: pa.Table) -> pa.Table:
    """Those of a stream's late events that an operator decided to drop, each a row of its own."""
    chosen = late.filter(pc.equal(late.column(DECISION), int(Decision.DROP)))
    ones = pa.array(np.ones(chosen.num_rows, dtype=np.int64))
    return chosen.append_column(ROWS, ones)


def dropped_windows(
    plan: ViewPlan, aside: pa.Table, joined: JoinedWindows
) -> list[tuple[int, int, int]]:
    """(start, end, events) of each window that late events were dropped from: the rows that are
    set aside, partial ones or those of single events."""
    if isinstance(plan.window, (SessionWindow, EventGroup)) and OFFSET not in aside.column_names:
        counts = Counter(joined.by_place.values())  # of a stream that drops all late events
        return [(start, end, count) for (start, end), count in counts.items()]
    aside = aside.filter(pc.greater(aside.column(REJECTED_WINDOWS), 0))
    rows, starts, ends = missed_windows(plan, aside, joined)
    events = aside.column(ROWS).to_numpy()[rows]
    missed = pa.table({"start": starts, "end": ends, "events": events})
    summed = missed.group_by(["start", "end"]).aggregate([("events", "sum")])
    return list(zip(*(column.to_pylist() for column in summed.columns), strict=True))
