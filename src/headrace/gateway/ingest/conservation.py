"""Conservation at the gateway: received = appended + retried + dead, for every group and stream.

The two sides are counted by different code: received from the decoded bodies; appended from
what the log says it stored, dead from the numbers it gave the letters, retried by what recognises
retries. Where they differ, events were lost or doubled: the stream takes no more until a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.gateway.ingest.commit_group import Draft
from headrace.gateway.ingest.decoding import StreamRows
from headrace.log.contract import Appended
from headrace.model.errors import RequestError

__all__ = ["Conservation", "Counts", "count_group"]

logger = logging.getLogger("headrace.gateway")


@dataclass(slots=True)
class Counts:
    """What became of the records of a stream."""

    received: int = 0
    appended: int = 0
    retried: int = 0
    dead: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.received + other.received,
            self.appended + other.appended,
            self.retried + other.retried,
            self.dead + other.dead,
        )

    @property
    def is_conserved(self) -> bool:
        return self.received == self.appended + self.retried + self.dead


def count_group(
    all_rows: Sequence[StreamRows], draft: Draft, appended: Appended
) -> dict[str, Counts]:
    """Both sides of a group that is durable. Refused requests are not received."""
    counts = {rows.stream.name: Counts() for rows in all_rows}
    for rows in all_rows:
        counts[rows.stream.name].received += sum(entry.count for entry in rows.entries)
    for stream, refused in draft.refused.items():
        counts[stream].received -= refused
    for batch, count in zip(draft.group.batches, appended.rows, strict=False):
        counts[batch.stream].appended += count
    for letter, _ in zip(draft.group.dead, appended.dead_numbers, strict=False):
        counts[letter.stream].dead += 1
    for retried in (draft.retried, draft.retried_before):
        for stream, count in retried.items():
            counts[stream].retried += count
    return counts


class Conservation:
    """Written by the append thread, read by any. `violations` says of each stream what was found
    first."""

    def __init__(self) -> None:
        self.violations: dict[str, str] = {}

    def check(self, counts: Mapping[str, Counts]) -> None:
        for stream, found in counts.items():
            if found.is_conserved or stream in self.violations:
                continue
            text = (
                f"{found.received} received, but {found.appended} appended, "
                f"{found.retried} retried and {found.dead} dead in one group"
            )
            logger.critical("stream %s lost or doubled events, and is closed: %s", stream, text)
            self.violations[stream] = text

    def require(self, stream: str) -> None:
        """Raises RequestError 503 for a stream whose sums did not hold."""
        if stream in self.violations:
            raise RequestError(
                503,
                "conservation",
                f"stream {stream} takes no events: {self.violations[stream]}",
                hint="a defect: keep the gateway's log, then start the gateway again",
                retry_after_seconds=60,
            )
