"""How far the clocks of a stream's producers are off, summed up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.log.contract import QUALITIES

__all__ = ["OTHERS", "ClockOffsetSummary", "ClockOffsets"]

PRODUCERS_MAX = 10_000
OTHERS = ""  # events without a producer, and those of producers beyond the bound


@dataclass(slots=True)
class ClockOffsetSummary:
    """`measured` events had a sent time: the clock offsets (microseconds) are theirs. `qualities`
    counts all events by what their event time rests on."""

    measured: int = 0
    smallest: int = 0
    largest: int = 0
    total: int = 0
    qualities: list[int] = field(default_factory=lambda: [0] * len(QUALITIES))

    def add(self, clock_offsets: npt.NDArray[np.int64], qualities: npt.NDArray[np.int8]) -> None:
        """`clock_offsets` of the events that have one, `qualities` of all."""
        for quality, count in enumerate(np.bincount(qualities, minlength=len(QUALITIES)).tolist()):
            self.qualities[quality] += count
        if len(clock_offsets):
            low, high = int(clock_offsets.min()), int(clock_offsets.max())
            self.smallest = min(self.smallest, low) if self.measured else low
            self.largest = max(self.largest, high) if self.measured else high
            self.total += _sum(clock_offsets)
            self.measured += len(clock_offsets)

    def shown(self) -> dict[str, Any]:
        known = self.measured > 0
        counts = dict(zip(QUALITIES, self.qualities, strict=True))
        return {
            "events": sum(self.qualities),
            **counts,
            "measured": self.measured,
            "skew_microseconds_min": self.smallest if known else None,
            "skew_microseconds_max": self.largest if known else None,
            "skew_microseconds_mean": self.total // self.measured if known else None,
        }


def _sum(clock_offsets: npt.NDArray[np.int64]) -> int:
    """Exact: a few thousand clocks that begin in 1970 are more than 64 bits hold."""
    return (int((clock_offsets >> 32).sum()) << 32) + int((clock_offsets & 0xFFFF_FFFF).sum())


class ClockOffsets:
    """Of one stream, by producer. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._by_producer: dict[str, ClockOffsetSummary] = {}

    def add(
        self, producer: str, clock_offsets: npt.NDArray[np.int64], qualities: npt.NDArray[np.int8]
    ) -> None:
        """Stored events of a producer (OTHERS for none): the clock offsets that are known, and the
        quality of each."""
        if producer not in self._by_producer and len(self._by_producer) >= PRODUCERS_MAX:
            producer = OTHERS
        self._by_producer.setdefault(producer, ClockOffsetSummary()).add(clock_offsets, qualities)

    def totals(self) -> ClockOffsetSummary:
        """Of all producers together, as far as events are counted."""
        total = ClockOffsetSummary()
        for summary in list(self._by_producer.values()):
            total.qualities = [
                a + b for a, b in zip(total.qualities, summary.qualities, strict=True)
            ]
        return total

    def of(self, producer: str) -> dict[str, Any] | None:
        found = self._by_producer.get(producer)
        return None if found is None else found.shown()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        return {name: one.shown() for name, one in list(self._by_producer.items())}
