"""What became of a stream's late events that were not applied at once, as operators see it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DecisionTaken", "DroppedCount", "LateCounts", "SetAsideCount", "late_column"]

_OWN = ("view", "window_start", "window_end", "watermark")
_EVENT = "event_"


def late_column(name: str) -> str:
    """Under what name STREAM_late shows a column of the stream. No two have one name: what looks
    like a name given here is given another itself."""
    bare = name.lower()
    while bare.startswith(_EVENT):
        bare = bare.removeprefix(_EVENT)
    return f"{_EVENT}{name}" if bare in _OWN else name


@dataclass(frozen=True)
class SetAsideCount:
    """Events that were set aside for a view: those that still miss a window are `aside`, those
    that were applied to all of theirs since are `applied`."""

    view: str
    aside: int
    applied: int


@dataclass(frozen=True)
class DroppedCount:
    """Events that a window of a view did not take: one that missed two windows counts in both."""

    view: str
    window_start_microseconds: int
    window_end_microseconds: int
    events: int
    reason: str = "late"


@dataclass(frozen=True)
class DecisionTaken:
    partition: int
    offset: int
    decision: str
    decided_at_microseconds: int


@dataclass(frozen=True)
class LateCounts:
    """`dropped` has the newest windows first, `decisions` the newest first; `is_cut` says that
    there are more of either than were asked for."""

    sided: tuple[SetAsideCount, ...]
    dropped: tuple[DroppedCount, ...]
    decisions: tuple[DecisionTaken, ...]
    is_cut: bool
