"""Who brought each partition to its highest event time.

The highest event time itself is the partition's own; here is only whose it was. A group that makes
it another's says so in a note, so that a crash forgets nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.log.contract import ProducerRange, Receipt
from headrace.model.completeness import WatermarkOrigin

__all__ = ["Place", "WatermarkOriginRecord", "WatermarkOrigins"]

Place = tuple[str, int]  # stream, partition


class WatermarkOriginRecord(msgspec.Struct, array_like=True, frozen=True):
    """As a checkpoint keeps it."""

    stream: str
    partition: int
    maximum: int
    producer: str


class WatermarkOrigins:
    """By stream (in lower case) and partition; where no producer is known there is no entry."""

    def __init__(self) -> None:
        self._known: dict[Place, tuple[int, str]] = {}

    def of(self, stream: str) -> tuple[WatermarkOrigin, ...]:
        low = stream.lower()
        return tuple(
            WatermarkOrigin(partition, *known)
            for (of, partition), known in self._known.items()
            if of == low
        )

    def note(self, raised: Mapping[Place, tuple[int, str]]) -> list[Receipt]:
        """What must be stored with a group that raises partitions to (event time, by whom)."""
        ranges = [
            ProducerRange(stream, producer, 0, 0, 0, maximum, partition)
            for (stream, partition), (maximum, producer) in raised.items()
            if self._known.get((stream.lower(), partition), (0, ""))[1] != producer
        ]
        return [Receipt(b"", b"", b"", 0, tuple(ranges))] if ranges else []

    def put(self, stream: str, partition: int, maximum: int, producer: str) -> None:
        place = (stream.lower(), partition)
        if producer:
            self._known[place] = (maximum, producer)
        else:
            self._known.pop(place, None)

    def settle(self, stream: str, partition: int, maximum: int) -> None:
        """After a recovery: whoever was the last to be noted has brought it all the way."""
        known = self._known.get((stream.lower(), partition))
        if known is not None:
            self.put(stream, partition, maximum, known[1])

    def load(self, records: list[WatermarkOriginRecord]) -> None:
        """A checkpoint has all of them."""
        self._known = {(r.stream, r.partition): (r.maximum, r.producer) for r in records}

    def records(self) -> list[WatermarkOriginRecord]:
        return [WatermarkOriginRecord(*place, *known) for place, known in self._known.items()]
