"""Events put into a project's log directly, as the gateway would have left them there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.shop import STREAM
from headrace.compile import load_project
from headrace.log.contract import Group, LogWriter, PartitionBatch, stored_schema
from headrace.log.embedded.backend import open_writer
from headrace.model.definitions import Stream
from headrace.model.settings import load_settings

__all__ = ["GROUP_EVENTS", "Preloader", "groups", "preload"]

GROUP_EVENTS = 10_000  # one group commit; the gateway's are of about this size under load


class Preloader:
    """Appends to one project's log; users go to the partitions by turns, as they come up."""

    def __init__(self, project: Path, stream_name: str = STREAM) -> None:
        settings = load_settings(project)
        settings.log_directory.mkdir(parents=True, exist_ok=True)
        definitions = load_project(project)
        stream = definitions.stream(stream_name)
        assert stream is not None
        self._stream: Stream = stream
        self._schema = stored_schema(stream)
        self._partition_of: dict[str, int] = {}
        self._writer: LogWriter = open_writer(
            settings.log_directory, definitions.streams, settings.log, settings.gateway
        )

    def append(self, events: pa.RecordBatch) -> None:
        now = pa.scalar(time.time_ns() // 1_000, pa.timestamp("us", "UTC"))
        received = pa.repeat(now, events.num_rows)
        stored = pa.RecordBatch.from_arrays([*events.columns, received], schema=self._schema)
        users = events.column("user_id").dictionary_encode()
        known = [self._partition(user) for user in users.dictionary.to_pylist()]
        partitions = np.array(known)[users.indices.to_numpy()]
        batches = tuple(
            PartitionBatch(self._stream.name, number, stored.take(pa.array(rows)))
            for number in range(self._stream.partitions)
            if len(rows := np.flatnonzero(partitions == number))
        )
        self._writer.append(Group(batches=batches))

    def _partition(self, user: str) -> int:
        return self._partition_of.setdefault(
            user, len(self._partition_of) % self._stream.partitions
        )

    def close(self) -> None:
        self._writer.close()


def groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, GROUP_EVENTS):
            yield batch.slice(start, GROUP_EVENTS)


def preload(project: Path, batches: Iterable[pa.RecordBatch], stream: str = STREAM) -> None:
    """Returns when everything is durable in the log."""
    preloader = Preloader(project, stream)
    try:
        for group in groups(batches):
            preloader.append(group)
    finally:
        preloader.close()
