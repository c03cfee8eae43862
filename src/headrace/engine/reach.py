"""Whether the log still reaches back to where a view begins, and at which position events stand."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log.contract import RECEIVED_AT, LogReader

__all__ = ["first_position", "missing_text"]


def first_position(log: LogReader, stream: str, partition: int, start: int, end: int) -> int | None:
    """Of the first event start ≤ offset < end; None where there is none."""
    if start >= end or not (first := log.cut(stream, partition, start, end, 1)).rows:
        return None
    pieces = log.read_history(stream, partition, start, first.end, [RECEIVED_AT])
    return int(next(iter(pieces)).positions[0])


def missing_text(stream: str, starts: Sequence[int], oldest: Sequence[int]) -> str:
    """What the log lacks of a view that begins at `starts`, in words; "" where it has all."""
    lost = [
        f"partition {partition} begins at offset {first}, and the view at {start}"
        for partition, (start, first) in enumerate(zip(starts, oldest, strict=True))
        if first > start
    ]
    if not lost:
        return ""
    return f"the log of stream {stream} no longer reaches the view's start: {'; '.join(lost)}"
