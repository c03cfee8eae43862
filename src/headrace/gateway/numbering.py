"""What the number line of a producer learns from a request beside the numbers."""

from __future__ import annotations

import numpy as np

from headrace.gateway.decoding import StreamRows
from headrace.gateway.requests import ProducerKey
from headrace.log.contract import EVENT_TIME, NO_EVENT_TIME
from headrace.model.definitions import Stream

__all__ = ["newest_event_times"]


def newest_event_times(rows: StreamRows) -> list[int]:
    """For each entry the highest event time of its rows; NO_EVENT_TIME where it has none or no
    producer asks for it."""
    numbered = [isinstance(entry.request.retry_key, ProducerKey) for entry in rows.entries]
    column = _time_column(rows.stream)
    if column is None or not rows.batches or not any(numbered):
        return [NO_EVENT_TIME] * len(rows.entries)
    arrays = [batch.column(column).cast("int64") for batch in rows.batches]
    times = np.concatenate([array.to_numpy() for array in arrays])
    return [
        int(times[entry.start : entry.end].max())
        if is_numbered and entry.end > entry.start
        else NO_EVENT_TIME
        for entry, is_numbered in zip(rows.entries, numbered, strict=True)
    ]


def _time_column(stream: Stream) -> str | None:
    if stream.clocks is not None:
        return EVENT_TIME
    column = stream.column(stream.event_time) if stream.event_time is not None else None
    return None if column is None else column.name
