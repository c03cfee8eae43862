"""How complete an answer is, as far as the gateway knows, and the words for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from headrace.model.completeness import (
    AWAY_SECONDS_MAX,
    StreamProducers,
    WatchedProducers,
    joined,
    producer_words,
)
from headrace.model.moments import moment
from headrace.store.contract import Store

__all__ = ["Completeness", "freshness_text", "held_back_text"]

_decoder = msgspec.json.Decoder(WatchedProducers)


def _clock() -> int:
    return time.time_ns() // 1_000


class Completeness:
    """Reads the gateway's file when it was replaced; otherwise a look costs one stat."""

    def __init__(self, file: Path, store: Store, clock: Callable[[], int] = _clock) -> None:
        self._file = file
        self._store = store
        self._clock = clock
        self._streams: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._watched: WatchedProducers | None = None

    @property
    def now_microseconds(self) -> int:
        return self._clock()

    def of_views(self, views: Iterable[str]) -> StreamProducers | None:
        """The producers of the streams behind these views; None while nobody watches them."""
        return self.of_streams({s for view in views if (s := self._stream(view)) is not None})

    def of_streams(self, streams: Iterable[str]) -> StreamProducers | None:
        by_name = self._by_name()
        if by_name is None:
            return None
        lowered = {stream.lower() for stream in streams}
        return joined(by_name[name] for name in sorted(lowered) if name in by_name)

    def origin(self, stream: str, partition: int, maximum_microseconds: int) -> str | None:
        """The producer that brought the partition to this event time, if that is still as far as
        the partition has come; None where nobody knows."""
        known = (self._by_name() or {}).get(stream.lower(), StreamProducers())
        wanted = (partition, maximum_microseconds)
        for origin in known.holders:
            if (origin.partition, origin.maximum_microseconds) == wanted:
                return origin.producer
        return None

    def _by_name(self) -> dict[str, StreamProducers] | None:
        """By name in lower case; None while nobody watches."""
        watched = self._read()
        if watched is None:
            return None
        if self._clock() - watched.at_microseconds > AWAY_SECONDS_MAX * 1_000_000:
            return None
        return {name.lower(): found for name, found in watched.streams.items()}

    def _read(self) -> WatchedProducers | None:
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            with self._lock:
                if stamp != self._stamp:
                    self._watched = _decoder.decode(self._file.read_bytes())
                    self._stamp = stamp
                return self._watched
        except (OSError, msgspec.DecodeError):
            return None

    def _stream(self, view: str) -> str | None:
        """A view keeps its stream for as long as this process runs."""
        if view not in self._streams:
            self._streams = {name: e.stream for name, e in self._store.catalog().items()}
        return self._streams.get(view)


def freshness_text(
    complete_up_to_microseconds: int | None,
    pending_events: int,
    producers: StreamProducers | None,
    now_microseconds: int,
) -> str:
    """As in "final up to 12:05:00; sensor-7 silent for 4 min; 3 events missing". Times are UTC,
    cut to the second, with the date if that is not today."""
    words = [_final(complete_up_to_microseconds, now_microseconds)]
    if producers is None:
        words.append("producers are not watched")
    else:
        words += producer_words(producers, now_microseconds)
    if pending_events:
        words.append(f"{pending_events:,} event{'' if pending_events == 1 else 's'} pending")
    return "; ".join(words)


def held_back_text(
    place: str, producer: str | None, watermark_microseconds: int, now_microseconds: int
) -> str:
    """As in "transactions/1, held back by sensor-7, complete up to 12:05:00"."""
    by = "" if producer is None else f", held back by {producer}"
    return f"{place}{by}, complete up to {_moment(watermark_microseconds, now_microseconds)}"


def _final(complete_up_to_microseconds: int | None, now_microseconds: int) -> str:
    if complete_up_to_microseconds is None:
        return "nothing final yet"
    return f"final up to {_moment(complete_up_to_microseconds, now_microseconds)}"


def _moment(microseconds: int, now_microseconds: int) -> str:
    when, today = moment(microseconds), moment(now_microseconds)
    text = when.replace(tzinfo=None).isoformat(" ", "seconds")
    return text[-8:] if when.date() == today.date() else text
