"""What is learnt of producers from their requests beside the numbers: how far events reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.gateway.ingest.decoding import StreamRows
from headrace.gateway.ingest.requests import EventsRequest, ProducerKey
from headrace.log.contract import EVENT_TIME, NO_EVENT_TIME, clock_column
from headrace.model.definitions import Stream

__all__ = ["newest_event_times", "newest_senders"]

Places = npt.NDArray[np.int64]


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


def newest_senders(
    stream: Stream, requests: Sequence[EventsRequest], counts: Sequence[int]
) -> Callable[[pa.RecordBatch, Places | None], str]:
    """A function that says who sent the newest event of some rows, given with their places among
    the rows of all requests (None: all of them). `counts` are the rows of each request."""
    names = [r.retry_key.producer if isinstance(r.retry_key, ProducerKey) else "" for r in requests]
    if len(set(names)) == 1:
        return lambda part, places: names[0]
    ends = np.cumsum(counts)
    clock = clock_column(stream)

    def sender(part: pa.RecordBatch, places: Places | None) -> str:
        row = int(part.column(clock).cast(pa.int64()).to_numpy().argmax())
        place = row if places is None else places[row]
        return names[int(np.searchsorted(ends, place, side="right"))]

    return sender


def _time_column(stream: Stream) -> str | None:
    if stream.clocks is not None:
        return EVENT_TIME
    column = stream.column(stream.event_time) if stream.event_time is not None else None
    return None if column is None else column.name
