"""Which events of a tick are duplicates.

An event is a duplicate when one with equal columns (NULLs equal) was accepted earlier in its
partition, at most `within` away in event time. Keys are remembered until the partition's watermark
is more than twice the interval past them: an accepted event counts against a later one while
M ≥ W − 2 · within, where M is the partition's highest event time when the first was accepted (its
own included) and W the watermark before the later one. So an event that is at most `within` behind
the watermark is compared with every event it may equal; one that is later still, with those that
came into the log not too long before it. The log alone decides, so every replay finds the same.

1. What the stream's views have passed before is on record in the store.
2. The keys of all other events are looked up in the store, in one batch.
3. Events that equal none kept there are compared with each other, in the order of the log.
4. What is found goes into the tick's transaction: a tick that dies leaves nothing of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.contract import LogAddress, LogReader, Range
from headrace.model.definitions import Stream
from headrace.spark.leaf import EVENT_TIME, OFFSET, WATERMARK, Source
from headrace.store.contract import Store
from headrace.store.dedup_keys import (
    HASH,
    MARK_TIME,
    PARTITION,
    SINCE,
    TIME,
    dedup_keys_schema,
    events_schema,
    key_columns,
)

__all__ = ["Verdict", "find_duplicates"]

_LEAST = -(2**63)

Numbers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Verdict:
    """`excluded` are all duplicates of the ranges. The others are what is new: the duplicates
    among the events that were not judged before, the keys of those accepted, and the marks below
    which kept keys no longer count."""

    excluded: Mapping[int, Numbers] = field(default_factory=dict)
    duplicates: Mapping[int, Numbers] = field(default_factory=dict)
    dedup_keys: pa.Table | None = None
    dedup_keys_since: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Events:
    """Events in the order of the log, by partition; `marks` are as they are after each event."""

    table: pa.Table
    offsets: Numbers
    marks: Numbers

    def column(self, name: str) -> Numbers:
        found: Numbers = self.table.column(name).to_numpy()
        return found


def find_duplicates(
    log: LogReader,
    store: Store,
    stream: Stream,
    ranges: Sequence[Range],
    judged: Mapping[int, int],
) -> Verdict:
    """`judged` says up to where the stream's events were judged by the ticks so far."""
    excluded: dict[int, list[Numbers]] = {}
    fresh: list[Range] = []
    for r in ranges:
        # 1.
        border = min(max(judged.get(r.partition, 0), r.start), r.end)
        known = store.duplicates(stream.name, r.partition, r.start, border)
        excluded.setdefault(r.partition, []).append(known)
        if border < r.end:
            whole = border == r.start
            fresh.append(r if whole else log.cut(stream.name, r.partition, border, r.end))
    if not fresh:
        return Verdict(_joined(excluded))
    events = _read(log.address, stream, fresh)
    # 2.
    looked_up = store.known_keys(stream.name, events.table)
    # 3.
    is_duplicate = looked_up.is_known | _repeats(stream, events, looked_up.groups)
    partitions = events.column(PARTITION)
    duplicates: dict[int, Numbers] = {}
    for r in fresh:
        found = events.offsets[is_duplicate & (partitions == r.partition)]
        duplicates[r.partition] = found
        excluded[r.partition].append(found)
    # 4.
    return Verdict(
        excluded=_joined(excluded),
        duplicates=duplicates,
        dedup_keys=_accepted(stream, events, looked_up.hashes, ~is_duplicate),
        dedup_keys_since=_since(events),
    )


def _read(log: LogAddress, stream: Stream, ranges: Sequence[Range]) -> _Events:
    assert stream.deduplication is not None
    keys = [column.name for column in key_columns(stream)]
    source = Source(log, stream, (OFFSET, EVENT_TIME, WATERMARK, *dict.fromkeys(keys)))
    schema = events_schema(stream)
    memory = 2 * stream.deduplication.within_microseconds
    tables: list[pa.Table] = []
    offsets: list[Numbers] = []
    marks: list[Numbers] = []
    for r in ranges:
        for batch in source.read(r):
            offsets.append(batch.column(OFFSET).to_numpy())
            times = batch.column(EVENT_TIME).cast(pa.int64()).to_numpy()
            watermarks = batch.column(WATERMARK).to_numpy()
            marks.append(np.maximum(watermarks + stream.delay_microseconds, times))
            arrays = [
                pa.array(np.full(batch.num_rows, r.partition, dtype=np.int32)),
                pa.array(times),
                pa.array(np.maximum(watermarks, _LEAST + memory) - memory),
                *(batch.column(key) for key in keys),
            ]
            tables.append(pa.Table.from_arrays(arrays, schema=schema))
    return _Events(
        pa.concat_tables(tables).combine_chunks(), np.concatenate(offsets), np.concatenate(marks)
    )


def _repeats(stream: Stream, events: _Events, groups: Numbers) -> Booleans:
    """Which events equal one of these that was accepted before them."""
    assert stream.deduplication is not None
    within = stream.deduplication.within_microseconds
    repeats = np.zeros(len(groups), dtype=np.bool_)
    order = np.flatnonzero(groups >= 0)
    if not len(order):
        return repeats
    order = order[np.argsort(groups[order], kind="stable")]
    times, since, marks = events.column(TIME)[order], events.column(SINCE)[order], events.marks
    marks = marks[order]
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    spread = np.maximum.reduceat(times, starts) - np.minimum.reduceat(times, starts)
    is_close = (spread <= within) & (np.maximum.reduceat(since, starts) <= marks[starts])
    # Where all are within the interval of each other, the first is the one accepted.
    found = np.repeat(is_close, np.diff(starts, append=len(order)))
    found[starts] = False
    ends = np.append(starts[1:], len(order))
    for group in np.flatnonzero(~is_close).tolist():
        part = slice(starts[group], ends[group])
        found[part] = _in_turn(
            times[part].tolist(), since[part].tolist(), marks[part].tolist(), within
        )
    repeats[order] = found
    return repeats


def _in_turn(
    times: Sequence[int], since: Sequence[int], marks: Sequence[int], within: int
) -> list[bool]:
    """The definition itself, for events of one key in the order of the log."""
    accepted: list[tuple[int, int]] = []  # time and mark, ordered
    repeats: list[bool] = []
    for time, least, mark in zip(times, since, marks, strict=True):
        place = bisect_left(accepted, (time - within,))
        is_repeat = False
        while not is_repeat and place < len(accepted) and accepted[place][0] <= time + within:
            is_repeat = accepted[place][1] >= least
            place += 1
        repeats.append(is_repeat)
        if not is_repeat:
            insort(accepted, (time, mark))
    return repeats


def _accepted(
    stream: Stream, events: _Events, hashes: npt.NDArray[np.uint64], is_accepted: Booleans
) -> pa.Table:
    columns = {
        **{name: events.table.column(name) for name in events.table.column_names},
        MARK_TIME: pa.chunked_array([events.marks]),
        HASH: pa.chunked_array([hashes]),
    }
    schema = dedup_keys_schema(stream)
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return table if is_accepted.all() else table.filter(pa.array(is_accepted))


def _since(events: _Events) -> dict[int, int]:
    """By partition, at its last event: the lowest mark that counts then and ever after."""
    partitions, since = events.column(PARTITION), events.column(SINCE)
    lasts = np.flatnonzero(np.diff(partitions, append=-1))
    return {int(partitions[last]): int(since[last]) for last in lasts}


def _joined(parts: Mapping[int, Sequence[Numbers]]) -> dict[int, Numbers]:
    joined = {partition: np.concatenate(found) for partition, found in parts.items()}
    return {partition: found for partition, found in joined.items() if len(found)}
