"""What is known of a stream's producers, as the gateway tells it to the engine, and the words.

The gateway watches producers; the engine answers queries. Between them stands one small file,
replaced whole when something changed and every few seconds besides, so that its age tells whether
anyone is watching.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = [
    "AWAY_SECONDS_MAX",
    "COMPLETENESS_FILE",
    "SILENT_NAMED_MAX",
    "Silent",
    "StreamProducers",
    "WatchedProducers",
    "WatermarkOrigin",
    "duration_words",
    "joined",
    "producer_words",
]

COMPLETENESS_FILE = "completeness.json"
AWAY_SECONDS_MAX = 15.0  # a file older than this: nobody watches
SILENT_NAMED_MAX = 20
_SILENT_IN_WORDS_MAX = 3
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True)
class Silent:
    producer: str
    heard_at_microseconds: int


@dataclass(frozen=True)
class WatermarkOrigin:
    """The producer whose event or heartbeat brought a partition to its highest event time. Nobody
    has brought anything later: it is the one to ask when the partition holds a view back."""

    partition: int
    maximum_microseconds: int
    producer: str


@dataclass(frozen=True)
class StreamProducers:
    """`silent` names those silent for longest, at most SILENT_NAMED_MAX of `silent_producers`.
    `holders` are known for partitions whose newest event came from a producer."""

    producers: int = 0
    missing_events: int = 0
    silent_producers: int = 0
    silent: tuple[Silent, ...] = ()
    holders: tuple[WatermarkOrigin, ...] = ()


@dataclass(frozen=True)
class WatchedProducers:
    """The whole file. Streams without a producer are left out."""

    at_microseconds: int
    streams: dict[str, StreamProducers] = field(default_factory=dict)


def joined(streams: Iterable[StreamProducers]) -> StreamProducers:
    """Several streams as one; partitions have no meaning then."""
    found = list(streams)
    silent = sorted((s for item in found for s in item.silent), key=lambda s: _place(s))
    return StreamProducers(
        sum(item.producers for item in found),
        sum(item.missing_events for item in found),
        sum(item.silent_producers for item in found),
        tuple(silent[:SILENT_NAMED_MAX]),
    )


def _place(silent: Silent) -> tuple[int, str]:
    return silent.heard_at_microseconds, silent.producer


def producer_words(producers: StreamProducers, now_microseconds: int) -> list[str]:
    """Who is silent and how much is missing; empty when there is nothing to say."""
    words = []
    for silent in producers.silent[:_SILENT_IN_WORDS_MAX]:
        seconds = max(0, now_microseconds - silent.heard_at_microseconds) // 1_000_000
        words.append(f"{silent.producer} silent for {duration_words(seconds)}")
    more = producers.silent_producers - len(words)
    if more > 0:
        words.append(f"{more:,} more silent")
    missing = producers.missing_events
    if missing:
        words.append(f"{missing:,} event{'' if missing == 1 else 's'} missing")
    return words


def duration_words(seconds: int) -> str:
    """In the largest unit of which there are two, cut and not rounded: "90 s", "4 min", "26 h"."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit}"
    return f"{seconds} s"
