"""Which changes of a changelog its table still needs: the engine asks the store and tells the log.

The answer is one for all changes before the table's next offset. It is asked for when as much has
come as half of what was needed last, and at least COMPACTION_BYTES_MIN; so what is read and copied
for it stays in proportion to what comes. The snapshot is taken between two ticks, and read in a
thread while ticks go on.

Nothing is said, and what was said is taken back, while somebody reads the changelog of whom it is
not known what they need: a view that is no table, one that was refused or failed, a copy. Before an
engine knows what its tables are, it takes back what the engine before it said: a table with another
definition may need more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from headrace.engine.views import LiveView
from headrace.log.contract import LogReader
from headrace.model.definitions import Project, RetentionAction, Stream
from headrace.model.errors import StoreError
from headrace.model.settings import MEBIBYTE
from headrace.store.contract import Offsets, Store

__all__ = ["COMPACTION_BYTES_MIN", "Compactions"]

log = logging.getLogger("headrace.engine")

COMPACTION_BYTES_MIN = 4 * MEBIBYTE
_NOTHING: Offsets = np.empty(0, dtype=np.int64)


@dataclass
class _Known:
    """What was needed last, and whether the log was told and has not acted on it yet."""

    upto: int
    rows: int
    is_pending: bool = False


@dataclass
class _Asked:
    """`is_void`: meanwhile it was not known what all readers need."""

    stream: Stream
    partition: int
    upto: int
    answer: Future[Offsets]
    is_void: bool = False


class Compactions:
    """Used by the tick's thread alone."""

    def __init__(self, project: Project, reader: LogReader, store: Store) -> None:
        self._streams = [
            stream
            for stream in project.streams
            if stream.retention.action is RetentionAction.COMPACT
        ]
        self._reader = reader
        self._store = store
        self._known: dict[tuple[str, int], _Known] = {}
        self._asked: _Asked | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="needed")
        self._closing = threading.Event()

    def take_back(self) -> None:
        """All that was said, by whomever."""
        for stream in self._streams:
            self._take_back(stream)

    def look(self, views: Sequence[LiveView]) -> None:
        """Tell the log what was found out, and ask about one partition more. Takes no time that
        could be noticed, but for 10 million rows some tenths of a second to write down."""
        open_tables = {stream.name: _tables(stream, views) for stream in self._streams}
        asked = self._asked
        if asked is not None:
            asked.is_void = asked.is_void or not open_tables[asked.stream.name]
            if asked.answer.done():
                self._tell(asked)
                self._asked = None
        for stream in self._streams:
            tables = open_tables[stream.name]
            if not tables:
                if any(self._of(stream, p).is_pending for p in range(stream.partitions)):
                    self._take_back(stream)
                continue
            for partition in range(stream.partitions):
                if self._asked is None and self._is_due(stream, partition, tables):
                    self._asked = self._ask(stream, partition, tables)

    def close(self) -> None:
        """Let go of the snapshot that is being read."""
        self._closing.set()
        self._thread.shutdown()

    def _is_due(self, stream: Stream, partition: int, tables: Sequence[LiveView]) -> bool:
        known = self._of(stream, partition)
        uptos = {table.next_offsets[partition] for table in tables}
        upto = max(uptos)
        if len(uptos) > 1 or upto <= known.upto:
            return False  # tables that stand apart speak of different changes
        if known.is_pending:
            known.is_pending = self._reader.compacted(stream.name)[partition][0] < known.upto
            return False
        size = self._reader.size_bytes(stream.name, partition, known.upto, upto)
        if size < COMPACTION_BYTES_MIN:
            return False
        return 2 * self._reader.rows_of(stream.name, partition, known.upto, upto) > known.rows

    def _ask(self, stream: Stream, partition: int, tables: Sequence[LiveView]) -> _Asked | None:
        upto = tables[0].next_offsets[partition]
        arrays: list[Iterator[Offsets]] = []
        try:
            arrays.extend(
                self._store.needed_offsets(table.name, partition, upto) for table in tables
            )
        except StoreError as error:
            log.warning("changelog %s is not compacted: %s", stream.name, error.message)
            for taken in arrays:
                _close(taken)
            self._of(stream, partition).upto = upto  # asked again when more has come
            return None
        answer = self._thread.submit(self._read, arrays)
        return _Asked(stream, partition, upto, answer)

    def _read(self, arrays: Sequence[Iterator[Offsets]]) -> Offsets:
        """Runs in the thread."""
        try:
            whole = [np.concatenate([_NOTHING, *self._until_closing(taken)]) for taken in arrays]
        finally:
            for taken in arrays:
                _close(taken)
        return whole[0] if len(whole) == 1 else np.unique(np.concatenate(whole))

    def _until_closing(self, arrays: Iterable[Offsets]) -> Iterator[Offsets]:
        for found in arrays:
            if self._closing.is_set():
                raise StoreError("the engine ends")
            yield found

    def _tell(self, asked: _Asked) -> None:
        """Unless hardly anything could go: then it is asked again when more has come."""
        name, partition = asked.stream.name, asked.partition
        known = self._of(asked.stream, partition)
        try:
            needed = asked.answer.result()
        except Exception as error:  # of the store's query
            log.warning("changelog %s is not compacted: %s", name, error)
            known.upto = asked.upto
            return
        if asked.is_void:
            return
        oldest = self._reader.oldest(name)[partition]
        rows = self._reader.rows_of(name, partition, oldest, asked.upto)
        known.upto, known.rows = asked.upto, len(needed)
        known.is_pending = 2 * rows > 3 * len(needed)
        if known.is_pending:
            self._reader.set_needed(name, partition, asked.upto, needed)

    def _of(self, stream: Stream, partition: int) -> _Known:
        place = (stream.name, partition)
        if place not in self._known:
            for number, (upto, rows) in enumerate(self._reader.compacted(stream.name)):
                self._known.setdefault((stream.name, number), _Known(upto, rows))
        return self._known[place]

    def _take_back(self, stream: Stream) -> None:
        for partition in range(stream.partitions):
            self._reader.set_needed(stream.name, partition, 0, _NOTHING)
            self._known.pop((stream.name, partition), None)


def _close(arrays: Iterator[Offsets]) -> None:
    """Whether it was taken to its end or not."""
    if isinstance(arrays, Generator):
        arrays.close()


def _tables(stream: Stream, views: Sequence[LiveView]) -> list[LiveView]:
    """The tables that are made of a changelog; none if it is not known what somebody needs."""
    readers = [view for view in views if view.stream.name == stream.name]
    is_known = all(
        view.is_open and not view.is_copy and view.running_plan.plan.table is not None
        for view in readers
    )
    return readers if is_known else []
