"""What a small tick gave of one stream: partials of single events, and which events they are.

Since each row is one event, what other events or an operator decide about it is filled in here,
where the grouped plan would have to run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.definitions import Stream
from headrace.model.plan import LATE, REJECTED_WINDOWS
from headrace.spark.event_annotations import DECISION, EventAnnotations, lateness_column
from headrace.spark.leaf import OFFSET, PARTITION
from headrace.spark.windows import resolved_lateness

__all__ = ["EventTables"]


@dataclass(frozen=True)
class EventTables:
    """`tables` are partial tables by view and distinct. `places` has for each of them that has a
    window a table with as many rows: place, time, watermark and decision of the row's event."""

    tables: dict[tuple[str, str | None], pa.Table]
    places: Mapping[tuple[str, str | None], pa.Table]

    def events(self, view: str, columns: Sequence[str]) -> pa.Table:
        """These columns of the view's partials, and the places; ordered by place."""
        table = self.tables[(view, None)].select(list(columns))
        places = self.places[(view, None)]
        for name in places.column_names:
            table = table.append_column(name, places.column(name))
        return table.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])

    def late_events(self, view: str, columns: Sequence[str]) -> pa.Table:
        """Those that are not applied to all their windows, or not decided yet."""
        names = self.tables[(view, None)].column_names
        events = self.events(view, [name for name in columns if name in names])
        return events.filter(pc.fill_null(pc.not_equal(events.column(REJECTED_WINDOWS), 0), True))

    def with_lateness(self, view: str, stream: Stream, found: EventAnnotations) -> EventTables:
        """With the lateness of the events that others had to judge for this view."""
        tables = dict(self.tables)
        for key, table in self.tables.items():
            if key[0] == view and LATE in table.column_names:
                tables[key] = _with_lateness(
                    table, self.places[key], stream, found, lateness_column(view)
                )
        return EventTables(tables, self.places)


def _with_lateness(
    table: pa.Table, places: pa.Table, stream: Stream, found: EventAnnotations, column: str
) -> pa.Table:
    marked = found.at(column, places.column(PARTITION).to_numpy(), places.column(OFFSET).to_numpy())
    late, beyond = resolved_lateness(
        stream,
        table.column(LATE).combine_chunks(),
        table.column(REJECTED_WINDOWS).combine_chunks(),
        marked,
        places.column(DECISION).combine_chunks(),
    )
    for name, values in ((LATE, late), (REJECTED_WINDOWS, beyond)):
        table = table.set_column(table.column_names.index(name), name, values)
    return table
