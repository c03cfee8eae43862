"""Which old rows of tables are still needed, and how far back views that join tables can begin.

An event that can still be read may be read again, by a view that is behind or by one that is
rebuilt, and must find the rows of its own position then. So the tables that a stream's views join
keep what the oldest event of the stream would find.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.engine.reach import first_position, missing_text
from headrace.log.contract import NO_POSITION, LogReader
from headrace.model.definitions import Lookup, Project
from headrace.store.contract import Store

__all__ = ["Versions", "earliest_offsets", "missing_of", "tables_text"]


class Versions:
    """Says it to the store whenever it has changed. Used by the tick's thread alone."""

    def __init__(self, project: Project, log: LogReader, store: Store) -> None:
        self._log = log
        self._store = store
        self._streams: dict[str, set[str]] = {}  # of the views that join a table, by table
        for view in project.views:
            for join in view.joins:
                self._streams.setdefault(join.lookup.table, set()).add(view.source)
        self._oldest: dict[str, tuple[tuple[int, ...], int]] = {}
        self._said: dict[str, int] = {}

    def look(self) -> None:
        for table, streams in self._streams.items():
            since = min(map(self._oldest_position, streams))
            if self._said.get(table) != since:
                self._store.keep_versions(table, since)
                self._said[table] = since

    def _oldest_position(self, stream: str) -> int:
        """No event of the stream that can be read, now or ever, has a lower one."""
        oldest = self._log.oldest(stream)
        known = self._oldest.get(stream)
        if known is not None and known[0] == oldest:
            return known[1]
        position = self._log.position()
        for partition, (start, end) in enumerate(zip(oldest, self._log.ends(stream), strict=True)):
            first = first_position(self._log, stream, partition, start, end)
            if first is not None:
                position = min(position, first)
        self._oldest[stream] = oldest, position
        return position


def earliest_offsets(
    log: LogReader, store: Store, stream: str, lookups: Collection[Lookup]
) -> tuple[int, ...]:
    """Where a view of the stream with these look-ups can begin: where the log does, or later, where
    the tables know all rows that its events may find. Raises StoreError for a table that is not
    open."""
    oldest = log.oldest(stream)
    for lookup in lookups:
        since = store.complete_since(lookup.table, lookup.as_of is not None)
        if since > NO_POSITION + 1:
            oldest = tuple(map(max, oldest, log.cut_at(stream, since - 1)))
    return oldest


def missing_of(
    log: LogReader, store: Store, stream: str, lookups: Collection[Lookup], starts: Sequence[int]
) -> str:
    """What is lacking to a view that begins at `starts`, in words; "" where nothing is."""
    missing = missing_text(stream, starts, log.oldest(stream))
    if missing or not lookups:
        return missing
    earliest = earliest_offsets(log, store, stream, lookups)
    lost = [
        f"of partition {partition} from offset {first} on, and the view begins at {start}"
        for partition, (start, first) in enumerate(zip(starts, earliest, strict=True))
        if first > start
    ]
    if not lost:
        return ""
    return (
        f"what events of stream {stream} find in {tables_text(lookups)} is known {', '.join(lost)}"
    )


def tables_text(lookups: Collection[Lookup]) -> str:
    return ", ".join(sorted({lookup.table for lookup in lookups}))
