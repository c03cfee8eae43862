"""Committing ticks: one durable transaction each, and what this process remembers of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import duckdb

from headrace.model.definitions import Stream
from headrace.model.errors import FencedError, StoreError
from headrace.model.settings import StoreSettings
from headrace.store.conservation import check_sums
from headrace.store.contract import (
    Freshness,
    StreamProgress,
    TickWrite,
    ViewChange,
    ViewWrite,
)
from headrace.store.duckdb.changes import Retention, encode_rows
from headrace.store.duckdb.dedup_keys import SeenStreams
from headrace.store.duckdb.late import Late
from headrace.store.duckdb.ledger import Ledger, Moved, read_freshness
from headrace.store.duckdb.merge import Merged
from headrace.store.duckdb.views import Views

__all__ = ["Commits"]

log = logging.getLogger("headrace.store")


class Commits:
    """What the ledger says (generation, last tick, how far streams came) is remembered here and
    changes only after a durable commit. Every method is called by the one that writes."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        settings: StoreSettings,
        ledger: Ledger,
        views: Views,
        late: Late,
        seen: SeenStreams,
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._ledger = ledger
        self._views = views
        self._late = late
        self._seen = seen
        self._transaction = transaction
        self.freshness = Freshness(0, 0)
        self.generation = 0
        self.streams: Mapping[str, StreamProgress] = {}

    def load(self) -> None:
        """What the file says; nothing remembered counts."""
        self._views.load()
        self._seen.forget()
        self.freshness = read_freshness(self._connection)
        self.generation = self._ledger.number("generation")
        self.streams = self._ledger.stream_progress()
        self._retention = Retention(
            self._settings.changes_ticks_max,
            self._settings.changes_rows_max,
            self._ledger.number("lowest_change_tick"),
        )
        self._retention.load(self._connection)

    def claim(self) -> int:
        with self._transaction():
            generation = self.generation + 1
            self._ledger.set_number("generation", generation)
        self.generation = generation
        return generation

    def open_stream(self, stream: Stream) -> None:
        with self._transaction():
            streams = self.streams
            if not self._seen.open(stream) and stream.name in streams:
                streams = {n: progress for n, progress in streams.items() if n != stream.name}
                self._ledger.set_streams(self.freshness.tick, streams)
        self.streams = streams

    def commit(
        self,
        write: TickWrite,
        want_changes: frozenset[str] | None,
        make_room: Callable[[], None],
    ) -> Sequence[ViewChange]:
        """1. The generation, the tick number and the sums are checked.
        2. Each view's partials are merged into its state.
        3. Progress with the changes, late events, keys seen, duplicates, dead letters and the
           ledger row are added; what is past its bound is dropped.
        4. COMMIT: durable. Only then does this process's memory move on.

        `make_room` is called when memory runs short; then it is tried once more.
        """
        self._check_generation(write.generation)
        if write.tick != self.freshness.tick + 1:
            raise StoreError(f"tick {write.tick} does not follow {self.freshness.tick}")
        check_sums(write, {n: v.entry for n, v in self._views.stored.items()})
        try:
            return self._commit(write, want_changes)
        except duckdb.OutOfMemoryException:
            make_room()
        try:
            # If it was the COMMIT that failed, the tick may be durable all the same.
            return () if self.freshness.tick == write.tick else self._commit(write, want_changes)
        except duckdb.OutOfMemoryException as error:
            raise StoreError(
                f"tick {write.tick} needs more memory than the store may use: {error}",
                hint="raise store.memory_mebibytes or lower engine.tick_rows_max",
            ) from error

    def _commit(
        self, write: TickWrite, want_changes: frozenset[str] | None
    ) -> Sequence[ViewChange]:
        lowest = None
        streams = {**self.streams, **_progress(write, self.streams)}
        try:
            with self._transaction():
                merged = self._views.merge(write.views, write.tick)
                moved = {
                    view.view: self._moved(view, merged.get(view.view)) for view in write.views
                }
                if moved:
                    self._ledger.add_progress(write.tick, list(moved.values()))
                dead = [(moved[v.view].number, letter) for v in write.views for letter in v.dead]
                if dead:
                    self._ledger.add_dead_letters(write.tick, dead)
                for view in write.views:
                    self._late.add(write.tick, self._views.stored[view.view].entry.stream, view)
                seen = self._seen.write(write.streams)
                if self._retention.is_exceeded:
                    lowest = self._retention.shrunk_lowest_tick()
                    self._prune(lowest)
                committed_at = max(time.time_ns() // 1000, self.freshness.committed_at_microseconds)
                self._ledger.add_tick(write, committed_at, streams)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            raise StoreError(f"tick {write.tick} was not stored: {error}") from error
        try:
            self._views.accept(write.tick, merged, moved)
            self._seen.accept(seen)
            self._retention.add(write.tick, sum(m.change_rows for m in moved.values()))
            if lowest is not None:
                self._retention.shrink(lowest)
            self.streams = streams
            self.freshness = Freshness(write.tick, committed_at)
        except Exception:  # it is durable, whatever this process can remember of it
            log.exception("tick %s is read anew from the store", write.tick)
            self.load()
        return [
            ViewChange(name, write.tick, result.before, result.after)
            for name, result in merged.items()
            if (want_changes is None or name in want_changes)
            and (result.before.num_rows or result.after.num_rows)
        ]

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise FencedError(
                f"generation {generation} was replaced by {self.generation}",
                hint="another engine took over; this one must stop",
            )

    def _moved(self, view: ViewWrite, merged: Merged | None) -> Moved:
        stored = self._views.stored[view.view]
        past = stored.entry
        rows, before, after, state = 0, None, None, None
        if merged is not None:
            rows = merged.before.num_rows + merged.after.num_rows
            before, after = encode_rows(merged.before), encode_rows(merged.after)
            state = merged.state
        return Moved(
            stored.number,
            {**past.next_offsets, **view.next_offsets},
            past.totals.plus(view.counts),
            view.watermark_microseconds
            if view.watermark_microseconds is not None
            else past.watermark_microseconds,
            rows,
            before,
            after,
            state,
        )

    def tidy_up(self) -> None:
        """Drop the changes that are past their bound, also when no tick comes."""
        lowest = self._retention.shrunk_lowest_tick()
        if lowest > self._retention.lowest_tick:
            with self._transaction():
                self._prune(lowest)
            self._retention.shrink(lowest)

    def _prune(self, lowest: int) -> None:
        since = self._views.behind_since()
        opened = [merge.schema.number for merge in self._views.merges.values()]
        behind_since = self.freshness.tick + 1 if since is None else since
        self._ledger.prune(self.freshness.tick, lowest, behind_since, opened)


def _progress(write: TickWrite, streams: Mapping[str, StreamProgress]) -> dict[str, StreamProgress]:
    moved = {}
    for stream in write.streams:
        past = streams.get(stream.stream)
        totals = stream.counts if past is None else past.totals.plus(stream.counts)
        moved[stream.stream] = StreamProgress(dict(stream.next_offsets), totals)
    return moved
