"""What one run of the benchmarks was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.shop import CHECKOUT

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """`quick` asks for short runs, a smoke test. `events` is how many events the figures take that
    count to a number of events (None: as many as the figure is defined for). `checkout` is the
    source checkout whose Headrace is measured; only figures taken over HTTP take another than the
    benchmarks' own."""

    quick: bool = False
    events: int | None = None
    checkout: Path = CHECKOUT

    def events_or(self, whole: int, short: int) -> int:
        return self.events or (short if self.quick else whole)
