"""Which events were late for their session: events at most a gap apart are one session, which ends
a gap after its last."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.log.contract import EVENT_TIME
from headrace.model.definitions import Stream
from headrace.proof.events import WATERMARK
from headrace.proof.lateness import Question, event_times, judged_events
from headrace.proof.oracle import Oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Sessions", "declare_judged"]


class Sessions:
    """The sessions of one key, of the times that were applied."""

    def __init__(self, gap: int) -> None:
        self._gap = gap
        self._spans: list[tuple[int, int]] = []  # first and last event

    def passed_from(self, time: int) -> int:
        return max([time, *(last for _, last in self._joined(time))]) + self._gap

    def apply(self, time: int) -> None:
        gone = self._joined(time)
        first, last = min([time, *(s[0] for s in gone)]), max([time, *(s[1] for s in gone)])
        self._spans = [*(s for s in self._spans if s not in gone), (first, last)]

    def _joined(self, time: int) -> list[tuple[int, int]]:
        return [s for s in self._spans if s[0] - self._gap <= time <= s[1] + self._gap]


def declare_judged(
    spark: SparkSession, stream: Stream, question: Oracle, gap_microseconds: int
) -> None:
    """Give the stream's events under their name the columns LATE and TAKEN, where they are late. A
    key is doubtful with an event whose own session, with no other event in it, had been passed."""
    judged = judged_events(
        spark,
        stream,
        Question(
            where=question.where,
            keys=question.key_texts[:-1],
            doubtful=f"unix_micros({EVENT_TIME}) + {gap_microseconds}L <= {WATERMARK}",
            columns=(),
            members=event_times,
            nothing_applied=partial(Sessions, gap_microseconds),
        ),
    )
    judged.createOrReplaceTempView(stream.name)
