"""What is known of writers whose events carry numbers, for those who ask."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np

from headrace.log.contract import (
    LINES_MAX,
    NO_EVENT_TIME,
    Completeness,
    Gap,
    LineReport,
    ProducerRange,
    ProducerReport,
)
from headrace.log.sequences.event_sequences import EventSequences
from headrace.log.sequences.intervals import Intervals, of_lines
from headrace.log.sequences.ranges import Ranges

__all__ = ["accept", "quiet_writers", "sums_of", "writer_report"]


def sums_of(known: EventSequences) -> Completeness:
    lines, lost = known.lines, known.lost
    return Completeness(
        len(known.names),
        int(_missing(lines).sum()),
        int(lines["late_fills"].sum()) + lost.late_fills,
        int(lines["duplicates"].sum()) + lost.duplicates,
        int(known.resets().sum()) + lost.resets,
    )


def _missing(lines: Any) -> Any:
    return lines["top_end"] - lines["lowest"] - lines["present"] - lines["accepted"]


def accept(known: EventSequences, item: ProducerRange) -> None:
    """What is missing just now of these numbers of a writer is missed no more."""
    line = int(known.keys["line"][known.ids[item.producer]])
    while line >= 0:
        if item.epoch in (-1, int(known.lines["epoch"][line])):
            accepted = known.accepted.setdefault(line, Ranges())
            for before, after in pairwise(_whole(known, line)):
                first = max(item.first, int(before["end"]))
                end = min(item.first + item.count, int(after["first"]))
                if first < end:
                    accepted.add(first, end)
            known.lines["accepted"][line] = accepted.count
            known.changed_lines[line] = True
        line = int(known.lines["previous"][line])


def _whole(known: EventSequences, line: int) -> Intervals:
    alone = np.array([line])
    return known.known(alone, known.lower[of_lines(known.lower, alone)])


def quiet_writers(known: EventSequences, limit: int) -> list[tuple[str, int]]:
    """Those last heard from before `limit`, longest quiet first."""
    heard = known.keys["heard"]
    quiet = np.flatnonzero((heard < limit) & ~known.keys["retired"])
    quiet = quiet[np.argsort(heard[quiet], kind="stable")]
    return [(known.names[place], int(heard[place])) for place in quiet]


def writer_report(known: EventSequences, name: str, gaps_max: int) -> ProducerReport:
    """Its lines, newest first. One line for each time it started over."""
    key = known.ids[name]
    line = int(known.keys["line"][key])
    resets = int(known.lines["epoch"][line]) if line >= 0 else 0
    lines: list[LineReport] = []
    while line >= 0 and len(lines) < LINES_MAX:
        lines.append(_line_report(known, line, gaps_max))
        line = int(known.lines["previous"][line])
    heard, is_retired = int(known.keys["heard"][key]), bool(known.keys["retired"][key])
    return ProducerReport(name, heard, resets, tuple(lines), line >= 0, "events", is_retired)


def _line_report(known: EventSequences, line: int, gaps_max: int) -> LineReport:
    state = known.lines[line]
    accepted = known.accepted.get(line, Ranges())
    gaps = (
        Gap(low, high - 1, int(after["noticed"]))
        for before, after in pairwise(_whole(known, line))
        for low, high in accepted.outside(int(before["end"]), int(after["first"]))
    )
    shown = tuple(islice(gaps, gaps_max))
    newest = int(state["newest"])
    return LineReport(
        int(state["epoch"]),
        int(state["lowest"]),
        int(state["top_end"]) - 1,
        int(state["present"]),
        int(_missing(state)),
        shown,
        next(gaps, None) is not None,
        int(state["late_fills"]),
        int(state["duplicates"]),
        int(state["first_received"]),
        int(state["last_received"]),
        None if newest == NO_EVENT_TIME else newest,
        int(state["accepted"]),
    )
