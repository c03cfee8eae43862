"""What the gateway says about itself and its streams."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.conservation import Counts
from headrace.log.contract import LogReader
from headrace.model.definitions import Changelog, Project

__all__ = ["Status"]


class Status:
    def __init__(
        self, project: Project, committer: Committer, reader: LogReader, metrics: Metrics
    ) -> None:
        self._project = project
        self._committer = committer
        self._reader = reader
        self._metrics = metrics
        self._started = time.time()

    def gateway(self) -> dict[str, Any]:
        return {
            "state": "failed" if self._committer.failure else "up",
            "reason": self._committer.failure,
            "uptime_seconds": round(time.time() - self._started, 3),
            "queue_requests": self._committer.queue_requests,
            "queue_bytes": self._committer.queue_bytes,
            "events": {name: asdict(c) for name, c in list(self._metrics.counts.items())},
            "conservation": dict(self._committer.conservation.violations),
            "clocks": {name: s.snapshot() for name, s in list(self._metrics.clock_offsets.items())},
        }

    def ledger(self) -> dict[str, Any]:
        """What the gateway counted since it started, of every stream of the project."""
        return {stream.name: self._sums(stream.name) for stream in self._project.streams}

    def _sums(self, stream: str) -> dict[str, Any]:
        counts = self._metrics.counts.get(stream, Counts())
        incident = self._committer.conservation.violations.get(stream, "")
        return {
            **asdict(counts),
            "is_conserved": counts.is_conserved and not incident,
            "incident": incident,
        }

    def streams(self) -> list[dict[str, Any]]:
        """Reads the log's indexes: not for the event loop's thread."""
        described = []
        for stream in self._project.streams:
            starts, ends = self._reader.starts(stream.name), self._reader.ends(stream.name)
            size = sum(
                self._reader.size_bytes(stream.name, partition, start, end)
                for partition, (start, end) in enumerate(zip(starts, ends, strict=True))
            )
            described.append(
                {
                    "name": stream.name,
                    "table": None if stream.changelog is None else _table(stream.changelog),
                    "columns": [
                        {"name": c.name, "type": str(c.type), "nullable": c.nullable}
                        for c in stream.columns
                    ],
                    "event_time": stream.event_time,
                    "partitions": stream.partitions,
                    "starts": starts,
                    "ends": ends,
                    "bytes": size,
                }
            )
        return described


def _table(changes: Changelog) -> dict[str, Any]:
    """What its changes need beside a type: of a column each."""
    return {
        "key": list(changes.key),
        "required": list(changes.required),
        "sequence": changes.sequence,
    }
