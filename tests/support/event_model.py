"""What views with windows mean, in plain Python that shares nothing with the engine.

Every function takes the accepted events of a log in its order and gives the rows with their events,
how many of those were late, and what became of the others. Times are microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECOND = 1_000_000
Place = tuple[int, int]  # partition and offset
Span = tuple[int, int]  # from, to


@dataclass(frozen=True, eq=False)
class Event:
    """`watermark` is that of its partition before it; None while there was nothing."""

    place: Place
    time: int
    watermark: int | None
    columns: Mapping[str, Any]

    def is_late(self, passed_at: int) -> bool:
        """For a window that is passed from this watermark on."""
        return self.watermark is not None and passed_at <= self.watermark


@dataclass(frozen=True)
class Policy:
    """`word` is revise, within (the horizon), side, drop or halt; what was decided counts for the
    last alone."""

    word: str
    horizon: int = 0
    decisions: Mapping[Place, str] = field(default_factory=dict)

    def takes(self, event: Event, passed_at: int) -> bool:
        if not event.is_late(passed_at) or self.word == "revise":
            return True
        if self.word == "within":
            assert event.watermark is not None
            return passed_at > event.watermark - self.horizon
        return self.word == "halt" and self.decisions.get(event.place) == "apply"


@dataclass(frozen=True)
class Row:
    """`passed_at` is the watermark from which on it is final."""

    key: Any
    span: Span
    passed_at: int
    events: Sequence[Event]
    revision: int


@dataclass
class Outcome:
    """`late` counts those of `applied` that were late for some window, `aside` has the windows
    that did not take an event, `left_out` the events that none took."""

    rows: list[Row] = field(default_factory=list)
    applied: int = 0
    late: int = 0
    left_out: list[Place] = field(default_factory=list)
    aside: Counter[tuple[Place, Span]] = field(default_factory=Counter)
    late_places: set[Place] = field(default_factory=set)

    def count(self, event: Event, is_late: bool, is_applied: bool) -> None:
        self.applied += is_applied
        self.late += is_applied and is_late
        if is_late:
            self.late_places.add(event.place)
        if not is_applied:
            self.left_out.append(event.place)


Key = Callable[[Event], Any]
Finder = Callable[[Sequence[Event], Policy], Outcome]


def unwindowed(key: Key) -> Finder:
    """Such a view knows no lateness."""

    def find(events: Sequence[Event], policy: Policy) -> Outcome:
        outcome = Outcome(applied=len(events))
        for name, mine in _by_key(events, key).items():
            outcome.rows.append(Row(name, (0, 0), 0, mine, 0))
        return outcome

    return find


def windowed(key: Key, windows: Callable[[int], Iterable[Span]]) -> Finder:
    """Windows that the event's time alone decides."""

    def find(events: Sequence[Event], policy: Policy) -> Outcome:
        outcome = Outcome()
        members: dict[tuple[Any, Span], list[Event]] = defaultdict(list)
        for event in events:
            spans = list(windows(event.time))
            taken = [span for span in spans if policy.takes(event, span[1])]
            for span in taken:
                members[key(event), span].append(event)
            outcome.aside.update((event.place, span) for span in spans if span not in taken)
            is_late = any(event.is_late(end) for _, end in spans)
            outcome.count(event, is_late, bool(taken))
        for (name, span), mine in members.items():
            revision = sum(event.is_late(span[1]) for event in mine)
            outcome.rows.append(Row(name, span, span[1], mine, revision))
        return outcome

    return find


def regular(size: int, slide: int) -> Callable[[int], Iterable[Span]]:
    """Of `size`, a new one at every multiple of `slide`."""

    def windows(time: int) -> Iterable[Span]:
        start = time - time % slide
        while start + size > time:
            yield start, start + size
            start -= slide

    return windows


def sessions(key: Key, gap: int) -> Finder:
    def split(events: Sequence[Event]) -> list[list[Event]]:
        found: list[list[Event]] = []
        for event in sorted(events, key=_in_time):
            if found and event.time - found[-1][-1].time <= gap:
                found[-1].append(event)
            else:
                found.append([event])
        return found

    def end(found: Sequence[Event]) -> Span:
        return (found[-1].time + gap,) * 2

    return _judged(key, split, end, lambda found, _: (found[0].time, end(found)[0]))


def event_groups(
    key: Key, opens: Callable[[Event], bool], closes: Callable[[Event], bool], timeout: int
) -> Finder:
    def split(events: Sequence[Event]) -> list[list[Event]]:
        found: list[list[Event]] = []
        is_open = False
        for event in sorted(events, key=_in_time):
            is_open = is_open and event.time < found[-1][0].time + timeout
            if not is_open and opens(event):
                found.append([])
                is_open = True
            if is_open:
                found[-1].append(event)
                is_open = not closes(event)
        return found

    def end(found: Sequence[Event]) -> Span:
        """Closed: the last event's time, and passed after it; else when it times out."""
        if closes(found[-1]):
            return found[-1].time, found[-1].time + 1
        return (found[0].time + timeout,) * 2

    def missed(found: Sequence[Event], event: Event) -> Span:
        """A group that the event would have opened is told with its timeout."""
        if found[0] is event and not closes(event):
            return event.time, event.time + timeout
        return found[0].time, end(found)[0]

    return _judged(key, split, end, missed)


def _judged(
    key: Key,
    split: Callable[[Sequence[Event]], list[list[Event]]],
    end: Callable[[Sequence[Event]], Span],
    missed: Callable[[Sequence[Event], Event], Span],
) -> Finder:
    """Windows made of the events that were applied: `split` finds them, `end` says where one ends
    and when it is passed. An event is judged by its window as it is with those before it; `missed`
    says what is told of that window when the event is set aside."""

    def find(events: Sequence[Event], policy: Policy) -> Outcome:
        outcome = Outcome()
        for name, mine in _by_key(events, key).items():
            applied: list[Event] = []
            late: set[Place] = set()
            for event in mine:
                found = [one for one in split([*applied, event]) if event in one]
                passed_at = end(found[0])[1] if found else None
                is_late = passed_at is not None and event.is_late(passed_at)
                is_taken = passed_at is None or policy.takes(event, passed_at)
                outcome.count(event, is_late, is_taken)
                if is_taken:
                    applied.append(event)
                    late |= {event.place} if is_late else set()
                else:
                    outcome.aside[event.place, missed(found[0], event)] += 1
            for one in split(applied):
                span = (one[0].time, end(one)[0])
                revision = sum(event.place in late for event in one)
                outcome.rows.append(Row(name, span, end(one)[1], one, revision))
        return outcome

    return find


def sliding(key: Key, reach: int) -> Finder:
    """A row for each event, over those of its key from `reach` before it up to its own time."""

    def find(events: Sequence[Event], policy: Policy) -> Outcome:
        outcome = Outcome()
        for event in events:
            own, last = event.time + 1, event.time + reach + 1
            if not policy.takes(event, own):
                outcome.aside[event.place, (event.time, own)] += 1
            is_applied = policy.takes(event, own) or policy.takes(event, last)
            outcome.count(event, event.is_late(own), is_applied)
        for name, mine in _by_key(events, key).items():
            for row in mine:
                end = row.time + 1
                near = [e for e in mine if row.time - reach <= e.time <= row.time]
                frame = [e for e in near if policy.takes(e, end)]
                if row in frame:
                    revision = sum(e.is_late(end) for e in frame)
                    outcome.rows.append(Row(name, (row.time, end), end, frame, revision))
        return outcome

    return find


def _in_time(event: Event) -> tuple[int, Place]:
    return event.time, event.place


def _by_key(events: Iterable[Event], key: Key) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        found[key(event)].append(event)
    return found
