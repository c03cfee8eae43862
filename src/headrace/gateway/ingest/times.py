"""The times of decoded events: corrected by what their clocks say, and not too far in the future.

The clock offset of an event (for users its skew) is when it was received less when its device says
it sent it. Up to the stream's threshold the device's clock is believed; beyond it, the event time
is moved by the offset; beyond the cap, the time it was received counts. Only vector operations
touch the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.json_record import TIMESTAMP_MINIMUM
from headrace.gateway.ingest.requests import EventsRequest
from headrace.log.contract import QUALITIES, stored_schema
from headrace.model.definitions import Clocks, Stream

__all__ = ["Counted", "EventTimes"]

Numbers = npt.NDArray[np.int64]
Counted = Sequence[tuple[EventsRequest, int]]  # requests with how many rows each has, in order

_EXACT, _CORRECTED, _RECEIVED = range(len(QUALITIES))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventTimes:
    """Judges the events of one stream."""

    def __init__(self, stream: Stream) -> None:
        names = [column.name.lower() for column in stream.columns]
        self._stream = stream
        self._schema = pa.schema(list(stored_schema(stream))[:-1])
        time, clocks = stream.event_time, stream.clocks
        self._time_index = None if time is None else names.index(time.lower())
        self._sent_index = -1 if clocks is None else names.index(clocks.sent.lower())

    def complete(self, batch: pa.RecordBatch, requests: Counted) -> pa.RecordBatch:
        """The batch with what its clocks gave, if the stream has any; else the batch itself."""
        clocks = self._stream.clocks
        if clocks is None:
            return batch
        received = _repeated([_first_received(request) for request, _ in requests], requests)
        sent = self._sent(batch, requests)
        arrays = batch.columns
        arrays[self._sent_index] = sent
        occurred = None if self._time_index is None else _numbers(arrays[self._time_index])
        absent = sent.is_null().to_numpy(zero_copy_only=False)
        known = sent.view(pa.int64()).fill_null(0).to_numpy()
        clock_offset = np.where(absent, 0, received - known)
        times, quality = _corrected(occurred, received, clock_offset, clocks)
        kind = self._schema.field(len(arrays)).type
        arrays += [
            pa.array(times).view(kind),
            pa.array(clock_offset, mask=absent),
            pa.array(quality),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def beyond(self, batch: pa.RecordBatch, requests: Counted) -> npt.NDArray[np.bool_] | None:
        """Which rows of a complete batch have an event time too far in the future; None for none,
        which costs next to nothing to find out."""
        times = self._times(batch)
        if times is None or not len(times):
            return None
        bound = self._stream.future_microseconds
        if times.max() <= min(r.received_at_microseconds for r, _ in requests) + bound:
            return None
        received = _repeated([r.received_at_microseconds for r, _ in requests], requests)
        beyond: npt.NDArray[np.bool_] = times > received + bound
        return beyond if beyond.any() else None

    def reason(self, batch: pa.RecordBatch, row: int, received: int) -> str:
        """What the dead letter of such a row says."""
        times = self._times(batch)
        assert times is not None
        seconds = self._stream.future_microseconds / 1_000_000
        return (
            f"event time {_shown(int(times[row]))} is more than {seconds:g} s after it was "
            f"received at {_shown(received)}"
        )

    def _times(self, batch: pa.RecordBatch) -> Numbers | None:
        if self._stream.clocks is not None:
            return _numbers(batch.column(len(self._stream.columns)))
        return None if self._time_index is None else _numbers(batch.column(self._time_index))

    def _sent(self, batch: pa.RecordBatch, requests: Counted) -> pa.Array:
        """The sent column, filled from the requests' own header where an event does not say."""
        sent = batch.column(self._sent_index)
        if not sent.null_count or all(r.sent_at_microseconds is None for r, _ in requests):
            return sent
        given = _repeated([r.sent_at_microseconds or 0 for r, _ in requests], requests)
        is_given = _repeated([r.sent_at_microseconds is not None for r, _ in requests], requests)
        return pc.coalesce(sent, pa.array(given, mask=is_given == 0).view(sent.type))


def _corrected(
    occurred: Numbers | None, received: Numbers, clock_offset: Numbers, clocks: Clocks
) -> tuple[Numbers, npt.NDArray[np.int8]]:
    """Event times and their qualities. An offset of 0 stands for an event without a sent time."""
    if occurred is None:
        return received, np.full(len(received), _RECEIVED, dtype=np.int8)
    size = np.abs(clock_offset)
    quality = np.zeros(len(clock_offset), dtype=np.int8)
    quality[size > clocks.threshold_microseconds] = _CORRECTED
    quality[size > clocks.cap_microseconds] = _RECEIVED
    times = occurred + np.where(quality == _CORRECTED, clock_offset, 0)
    times = np.where(quality == _RECEIVED, received, times)
    return np.maximum(times, TIMESTAMP_MINIMUM), quality


def _first_received(request: EventsRequest) -> int:
    """An event that is submitted again did not travel since it was sent."""
    return request.first_received_at_microseconds or request.received_at_microseconds


def _repeated(values: Sequence[int], requests: Counted) -> Numbers:
    return np.repeat(np.array(values, dtype=np.int64), [count for _, count in requests])


def _numbers(times: pa.Array) -> Numbers:
    """The values of a TIMESTAMP array; it must have no NULL."""
    numbers = np.frombuffer(times.buffers()[1], dtype=np.int64)
    return numbers[times.offset : times.offset + len(times)]


def _shown(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return "after the year 9999"
    return moment.isoformat().replace("+00:00", "Z")
