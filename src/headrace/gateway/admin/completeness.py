"""Watching producers: who is silent, what is missing, and telling it to whoever asks.

A producer is silent when it was not heard from (an event or a heartbeat) for longer than its stream
expects, and the gateway has itself been listening for that long: while the gateway was away nobody
could be heard. Numbers and times are the log's; this file only compares them with the clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.gateway.admin.clock_offset import ClockOffsets
from headrace.log.contract import LineReport, LogWriter, ProducerReport
from headrace.model.completeness import (
    COMPLETENESS_FILE,
    SILENT_NAMED_MAX,
    Silent,
    StreamProducers,
    WatchedProducers,
    producer_words,
)
from headrace.model.definitions import Project, Stream
from headrace.model.moments import moment_text
from headrace.model.settings import Settings

__all__ = ["ProducerWatch"]

logger = logging.getLogger("headrace.gateway")

LOOK_SECONDS = 0.5
TELL_SECONDS_MAX = 5.0


def _clock() -> int:
    return time.time_ns() // 1_000


class ProducerWatch:
    """For any thread. `clock` gives microseconds since 1970."""

    def __init__(
        self,
        settings: Settings,
        project: Project,
        writer: LogWriter,
        clock_offsets: Mapping[str, ClockOffsets],
        clock: Callable[[], int] = _clock,
    ) -> None:
        self._file = settings.run_directory / COMPLETENESS_FILE
        self._streams = {stream.name: stream for stream in project.streams}
        self._writer = writer
        self._clock_offsets = clock_offsets
        self._clock = clock
        self._listening_since = clock()
        self._told: WatchedProducers | None = None

    def heard(self, stream: str, producer: str, received_at_microseconds: int) -> None:
        """A sign of life without events."""
        self._writer.heard(stream, producer, received_at_microseconds)

    # ------------------------------------------------------------------------ for the engine

    async def watch(self) -> None:
        """Look twice a second until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.tell)
            except OSError as error:
                logger.error("the engine cannot be told about producers", exc_info=error)
            await asyncio.sleep(LOOK_SECONDS)

    def tell(self) -> bool:
        """Replace the file if something changed, or if it is getting old; whether it did."""
        now = self._clock()
        found = WatchedProducers(now, self._look(now))
        told = self._told
        if told is not None and told.streams == found.streams:
            age = now - told.at_microseconds
            if 0 <= age < TELL_SECONDS_MAX * 1_000_000:
                return False
        _replace(self._file, msgspec.json.encode(found))
        self._told = found
        return True

    def close(self) -> None:
        """From now on nobody watches."""
        self._file.unlink(missing_ok=True)

    def _look(self, now: int) -> dict[str, StreamProducers]:
        quiet = self._quiet(now, self._streams.values())
        found = {}
        for name in self._streams:
            known = self._writer.completeness(name)
            silent = quiet.get(name, ())
            if known.producers:
                named = tuple(Silent(*item) for item in silent[:SILENT_NAMED_MAX])
                origins = tuple(self._writer.watermark_origins(name))
                found[name] = StreamProducers(
                    known.producers, known.missing, len(silent), named, origins
                )
        return found

    def _quiet(
        self, now: int, streams: Iterable[Stream]
    ) -> Mapping[str, Sequence[tuple[str, int]]]:
        limits = {}
        for stream in streams:
            expected = stream.expect_microseconds
            if expected is not None and now - self._listening_since > expected:
                limits[stream.name] = now - expected
        return self._writer.quiet_since(limits) if limits else {}

    # -------------------------------------------------------------------------- for those who ask

    def document(self, name: str, after: str, limit: int) -> dict[str, Any]:
        """One page of a stream's producers by name, and the sum of all."""
        now = self._clock()
        stream = self._streams[name]
        reports = self._writer.producers(name, after, limit + 1)
        names = sorted({report.producer for report in reports})
        shown = [report for report in reports if report.producer in names[:limit]]
        of_all = self._writer.completeness(name)
        all_quiet = self._quiet(now, [stream]).get(name, ())
        quiet = dict(all_quiet)
        named = tuple(Silent(*item) for item in all_quiet[:SILENT_NAMED_MAX])
        sums = StreamProducers(of_all.producers, of_all.missing, len(quiet), named)
        return {
            "stream": name,
            "summary": {
                "producers": of_all.producers,
                "missing_events": of_all.missing,
                "silent_producers": len(quiet),
                "late_fills": of_all.late_fills,
                "duplicates": of_all.duplicates,
                "resets": of_all.resets,
                "text": _text(sums, stream, now),
            },
            "producers": [
                _producer(r, _is_watched(stream, r) and r.producer in quiet, now)
                | {"clocks": self._clocks(name, r.producer)}
                for r in shown
            ],
            "next_after": names[limit - 1] if len(names) > limit else None,
        }

    def _clocks(self, stream: str, producer: str) -> dict[str, Any] | None:
        clock_offsets = self._clock_offsets.get(stream)
        return None if clock_offsets is None else clock_offsets.of(producer)

    def metrics(self) -> Iterator[Metric]:
        look = self._look(self._clock())
        missing = GaugeMetricFamily(
            "headrace_producer_missing_events",
            "Sequence numbers that have not come although a higher one has",
            labels=["stream"],
        )
        silent = GaugeMetricFamily(
            "headrace_producers_silent",
            "Producers not heard from for longer than the stream expects",
            labels=["stream"],
        )
        counters = {
            name: CounterMetricFamily(f"headrace_producer_{name}", meaning, labels=["stream"])
            for name, meaning in (
                ("late_fills", "Sequence numbers that came after a higher one"),
                ("duplicates", "Sequence numbers that came again"),
                ("resets", "Times that a producer took a higher epoch"),
            )
        }
        for name, of_stream in look.items():
            missing.add_metric([name], of_stream.missing_events)
            silent.add_metric([name], of_stream.silent_producers)
            known = self._writer.completeness(name)
            for counted, family in counters.items():
                family.add_metric([name], getattr(known, counted))
        yield from (missing, silent, *counters.values())


def _is_watched(stream: Stream, report: ProducerReport) -> bool:
    """With NUMBERED BY, the writers that events name are the producers that are expected."""
    return stream.numbering is None or report.numbered_by == "events"


def _text(sums: StreamProducers, stream: Stream, now: int) -> str:
    if not sums.producers:
        return "no producer has been heard from"
    fine = "nothing missing" if stream.expect_microseconds is None else "all heard from"
    return "; ".join(producer_words(sums, now)) or fine


def _producer(report: ProducerReport, is_silent: bool, now: int) -> dict[str, Any]:
    silent_for = (now - report.heard_at_microseconds) / 1_000_000 if is_silent else None
    return {
        "producer": report.producer,
        "numbered_by": report.numbered_by,
        "retired": report.is_retired,
        "heard_at": _time(report.heard_at_microseconds),
        "silent_for_seconds": silent_for,
        "resets": report.resets,
        "epochs": [_line(line) for line in report.lines],
        "epochs_truncated": report.lines_truncated,
    }


def _line(line: LineReport) -> dict[str, Any]:
    """A line that begins with 0 or 1 is taken to be whole from its start."""
    return {
        "epoch": line.epoch,
        "lowest": line.lowest,
        "highest": line.highest,
        "start_is_known": line.lowest <= 1,
        "present": line.present,
        "missing_events": line.missing,
        "accepted_events": line.accepted,
        "gaps": [
            {"first": gap.first, "last": gap.last, "noticed_at": _time(gap.noticed_at_microseconds)}
            for gap in line.gaps
        ],
        "gaps_truncated": line.gaps_truncated,
        "late_fills": line.late_fills,
        "duplicates": line.duplicates,
        "first_received_at": _time(line.first_received_at_microseconds),
        "last_received_at": _time(line.last_received_at_microseconds),
        "last_event_time": _time(line.last_event_time_microseconds),
    }


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else moment_text(microseconds)


def _replace(file: Path, content: bytes) -> None:
    """Whole or not at all for readers; it need not outlive the machine, so nothing is synced."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(file)
