"""Retention: which segments leave the log, and never one that a view still needs.

Changelogs are compacted instead (compaction.py): neither age nor size takes anything from them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.log.contract import PartitionBatch
from headrace.log.embedded.archive import archive_segment
from headrace.log.embedded.compaction import Compactor
from headrace.log.embedded.retention_floor import read_retention_floor
from headrace.log.embedded.segments import PartitionFiles, Segment, segment_file
from headrace.model.definitions import RetentionAction, Stream
from headrace.model.errors import LogError, LogFullError

__all__ = ["Keeper"]

_SEGMENT_BYTES_MIN = 64 * 1024
ADVANCES_SHARE = 16  # a segment without events gets as large as this part of a segment's limit
_REFUSE_SECONDS = 0.1  # how long a refusal stands before the floor is looked at again
RetentionFloor = Mapping[str, tuple[int, ...]]


class Keeper:
    """Frees space stream by stream. Locks are taken in one order: its own, then the writer's;
    the writer's is not held while a segment is archived. Compaction has a lock of its own: it may
    take long, and no stream that has no room waits for it."""

    def __init__(
        self,
        directory: Path,
        partitions: Mapping[Stream, Sequence[PartitionFiles]],
        append_lock: AbstractContextManager[bool],
        publish: Callable[[Sequence[int]], None],
        make_durable: Callable[[int, int], None],
    ) -> None:
        self._directory = directory
        self._partitions = {s.name.lower(): files for s, files in partitions.items()}
        self._streams = {s.name.lower(): s for s in partitions}
        self._append_lock = append_lock
        self._publish = publish
        self._make_durable = make_durable
        self.lock = threading.Lock()
        self.compactor = Compactor(directory, partitions, append_lock, publish, make_durable)
        self._refused: dict[str, tuple[float, str]] = {}
        for name, stream in self._streams.items():
            limit = stream.retention.bytes_max
            if limit is None:
                continue
            share = max(limit // (4 * stream.partitions), _SEGMENT_BYTES_MIN)
            for files in self._partitions[name]:
                files.segment_bytes_max = min(files.segment_bytes_max, share)

    def require_room(self, batches: Sequence[PartitionBatch]) -> None:
        """Raises LogFullError unless every stream has room for its batches, freeing what may be
        freed when one has not."""
        wanted: dict[str, int] = {}
        for item in batches:
            stream = self._streams.get(item.stream.lower())
            if stream is not None and stream.retention.bytes_max is not None:
                name = item.stream.lower()
                wanted[name] = wanted.get(name, 0) + item.batch.nbytes
        for name, incoming in wanted.items():
            self._require(name, incoming)

    def check_room(self, stream: str) -> None:
        """As require_room, for one more byte."""
        name = stream.lower()
        if name in self._streams and self._streams[name].retention.bytes_max is not None:
            self._require(name, 1)

    def retain(self, now_microseconds: int) -> Mapping[str, int]:
        """Bytes freed per stream: by age, by size down to seven eighths of the limit, and of
        changelogs by compaction."""
        freed: dict[str, int] = {}
        with self.lock:
            floor = self._read_retention_floor()
            for name, stream in self._streams.items():
                self._forget_advances(name)
                limit, age = stream.retention.bytes_max, stream.retention.age_microseconds
                total = 0
                if age is not None:
                    total += self._free_older(name, now_microseconds - age, floor)
                if limit is not None:
                    total += self._free_down_to(name, limit - limit // 8, floor)
                freed[stream.name] = total
        freed.update(self.compactor.compact())
        return freed

    def _require(self, name: str, incoming: int) -> None:
        stream = self._streams[name]
        limit = stream.retention.bytes_max
        assert limit is not None
        if self._size(name) + incoming <= limit:
            return
        refused_until, reason = self._refused.get(name, (0.0, ""))
        if time.monotonic() >= refused_until:
            with self.lock:
                self._free_down_to(name, max(0, limit - incoming), self._read_retention_floor())
            if self._size(name) + incoming <= limit:
                self._refused.pop(name, None)
                return
            reason = (
                f"stream {stream.name} has reached {limit} bytes, "
                "and the slowest view has not read the oldest of them"
            )
            self._refused[name] = (time.monotonic() + _REFUSE_SECONDS, reason)
        raise LogFullError(
            reason, hint="let the views catch up, or give the stream more room (RETAIN … UP TO)"
        )

    def _size(self, name: str) -> int:
        return sum(files.size for files in self._partitions[name])

    def _read_retention_floor(self) -> RetentionFloor | None:
        floor = read_retention_floor(self._directory)
        return None if floor is None else {name.lower(): value for name, value in floor.items()}

    def _may_go(
        self, name: str, partition: int, segment: Segment, floor: RetentionFloor | None
    ) -> bool:
        if floor is None or self._streams[name].retention.action is RetentionAction.COMPACT:
            return False
        if name not in floor:
            return True
        offsets = floor[name]
        return partition < len(offsets) and segment.end <= offsets[partition]

    def _free_older(self, name: str, before: int, floor: RetentionFloor | None) -> int:
        freed = 0
        for partition, files in enumerate(self._partitions[name]):
            while (
                files.segments
                and files.segments[0].end > files.segments[0].base_offset
                and files.segments[0].received < before
                and self._may_go(name, partition, files.segments[0], floor)
            ):
                freed += self._free_first(name, partition)
        return freed

    def _free_down_to(self, name: str, size: int, floor: RetentionFloor | None) -> int:
        freed = 0
        while self._size(name) > size:
            candidates = [
                (files.segments[0].received, partition)
                for partition, files in enumerate(self._partitions[name])
                if files.segments
                and files.segments[0].end > files.segments[0].base_offset
                and self._may_go(name, partition, files.segments[0], floor)
            ]
            if not candidates:
                break
            freed += self._free_first(name, min(candidates)[1])
        return freed

    def _forget_advances(self, name: str) -> None:
        """Where only advances come, for days, they do not fill the disk or the stream's limit."""
        for files in self._partitions[name]:
            with self._append_lock:
                if files.advances_bytes * ADVANCES_SHARE > files.segment_bytes_max:
                    try:
                        files.forget_advances()
                    except OSError as error:
                        raise LogError(
                            f"old advances of {name} cannot be removed: {error}",
                            hint="check the disk",
                        ) from error

    def _free_first(self, name: str, partition: int) -> int:
        """Remove the oldest segment of a partition.

        1. If it is the active one, close it: the next one begins. A checkpoint covers it.
        2. Archive it where the stream says so; durable before it goes.
        3. Move the start on, then remove the files.
        """
        files, stream = self._partitions[name][partition], self._streams[name]
        try:
            # 1.
            with self._append_lock:
                segment = files.segments[0]
                if len(files.segments) == 1:
                    files.roll()
                self._make_durable(files.slot, segment.end)
            # 2.
            if stream.retention.action is RetentionAction.ARCHIVE:
                file = segment_file(files.directory, segment.base_offset)
                archive_segment(self._directory, stream.name, partition, file, segment.end)
            # 3.
            with self._append_lock:
                files.remove_first(before_unlink=lambda: self._publish([files.slot]))
        except OSError as error:
            raise LogError(
                f"retention of {stream.name} partition {partition} failed: {error}",
                hint="check the disk",
            ) from error
        return segment.size
