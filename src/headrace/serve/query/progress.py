"""How far the views behind an answer have come, and so how fresh the answer is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.formats.answers import AnswerFreshness
from headrace.model.completeness import StreamProducers
from headrace.serve.operate.completeness import Completeness, freshness_text
from headrace.serve.operate.control import Control
from headrace.store.contract import Freshness

__all__ = ["Progress", "ProgressReader"]


@dataclass(frozen=True)
class Progress:
    """How far the views behind an answer had come, asked before their rows are read, so that the
    answer holds at least this much."""

    complete_up_to_microseconds: int | None
    pending_events: int
    producers: StreamProducers | None
    text: str

    def at(self, freshness: Freshness) -> AnswerFreshness:
        return self.of_tick(
            freshness.tick, freshness.committed_at_microseconds if freshness.tick else None
        )

    def of_tick(self, tick: int, committed_at_microseconds: int | None) -> AnswerFreshness:
        known = self.producers
        return AnswerFreshness(
            tick,
            committed_at_microseconds,
            self.complete_up_to_microseconds,
            self.pending_events,
            None if known is None else known.missing_events,
            None if known is None else tuple(s.producer for s in known.silent),
            self.text,
        )


class ProgressReader:
    """Asks the engine how far views are and the gateway's file who is missing. Cheap."""

    def __init__(self, control: Control, completeness: Completeness) -> None:
        self._control = control
        self._completeness = completeness

    def of(self, views: Iterable[str]) -> Progress:
        """The least complete of the views decides; one without a watermark leaves it unknown."""
        names = list(views)
        watermarks = [self._control.watermark(name) for name in names]
        known = [w for w in watermarks if w is not None]
        complete = min(known) if known and len(known) == len(names) else None
        pending = sum(self._control.pending(name) for name in names)
        if not names:
            return Progress(complete, pending, None, "no view is read")
        producers = self._completeness.of_views(names)
        now = self._completeness.now_microseconds
        return Progress(
            complete, pending, producers, freshness_text(complete, pending, producers, now)
        )

    def of_replayed(self, view: str) -> Progress:
        """For a tick read again from the store: what it was complete up to is not kept."""
        pending = self._control.pending(view)
        return Progress(None, pending, None, "an earlier tick: how complete it was is not kept")
