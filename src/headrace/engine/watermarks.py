"""The watermark of a view: the least over the partitions that feed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.log.contract import NO_EVENT_TIME, LogReader
from headrace.model.definitions import LatePolicy, Stream
from headrace.model.errors import LogOffsetError

__all__ = ["Watermark", "read_watermark", "settled_times"]


@dataclass(frozen=True)
class Watermark:
    """`partition` is the one that is least complete, -1 where several are and there are others;
    `maximum` is its highest event time. `maxima` are those of all that have one."""

    microseconds: int | None
    partition: int = -1
    maximum: int = NO_EVENT_TIME
    maxima: Mapping[int, int] = field(default_factory=dict)


def read_watermark(reader: LogReader, stream: Stream, offsets: Sequence[int]) -> Watermark:
    """Of a view that stands at these offsets. A partition that never had an event or a heartbeat
    holds nothing back: when it gets its first, it begins where the least advanced of the others
    is (log/contract.py, Group), so that the view's watermark never steps back."""
    marks = _marks(reader, stream, offsets)
    if not marks:
        return Watermark(None)
    slowest = min(marks, key=lambda partition: marks[partition])
    is_alone = len(marks) == 1 or len(set(marks.values())) > 1
    return Watermark(
        marks[slowest] - stream.delay_microseconds,
        slowest if is_alone else -1,
        marks[slowest],
        marks,
    )


def settled_times(stream: Stream, found: Watermark) -> Mapping[int, int]:
    """By partition: nothing at or after the offsets at which this watermark was read is applied to
    a window that has ended by then. Only where late events are dropped: under every other policy
    they may be applied, at once, or later when someone wants it."""
    if stream.late_policy is not LatePolicy.DROP:
        return {}
    return {p: highest - stream.delay_microseconds for p, highest in found.maxima.items()}


def _marks(reader: LogReader, stream: Stream, offsets: Sequence[int]) -> dict[int, int]:
    """The highest event times of the partitions that have one. Those without are asked again when
    all others have been read: one that still has none will begin no earlier than these."""
    marks: dict[int, int] = {}
    for _ in range(2):
        for partition, offset in enumerate(offsets):
            if partition in marks:
                continue
            try:
                highest = reader.maximum(stream.name, partition, offset)
            except LogOffsetError:
                continue  # retention took what was before it
            if highest != NO_EVENT_TIME:
                marks[partition] = highest
        if len(marks) == len(offsets):
            break
    return marks
