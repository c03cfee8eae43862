"""Compaction: retention of a changelog. What its table no longer needs goes, all else stays.

The engine says what is needed of the changes before an offset `upto` (needed.py). The whole history
of the partition, up to a segment's end behind `upto`, is then written anew as one file, with only
those of the changes before `upto`, and all from there on. It is in place in one instant, so the log
always has exactly what was needed before some offset and everything behind it, which is what makes
a table that is built from it right: were changes let go one after the other, a delete could be gone
before the change that it deletes.

That costs what is left and what has come since. The engine asks when as much has come as half of
what is needed, so a change is copied a bounded number of times on average.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.log.contract import LogBatch
from headrace.log.embedded.archive import (
    archive_directory,
    archived_file,
    check_segment,
    open_compacted,
    remove_superseded,
    sync_archive,
)
from headrace.log.embedded.compacted import write_compacted
from headrace.log.embedded.needed import needed_upto, read_needed, said_together
from headrace.log.embedded.reader import EmbeddedAddress
from headrace.log.embedded.retention_floor import read_retention_floor
from headrace.log.embedded.segments import PartitionFiles, segment_file
from headrace.model.definitions import RetentionAction, Stream
from headrace.model.errors import LogError

__all__ = ["Compactor"]


class _StoppedError(Exception):
    """The log is being closed."""


class Compactor:
    """`lock` is held while it works. The writer's is taken inside, for short steps."""

    def __init__(
        self,
        directory: Path,
        partitions: Mapping[Stream, Sequence[PartitionFiles]],
        append_lock: AbstractContextManager[bool],
        publish: Callable[[Sequence[int]], None],
        make_durable: Callable[[int, int], None],
    ) -> None:
        self._directory = directory
        self._partitions = {
            stream: files
            for stream, files in partitions.items()
            if stream.retention.action is RetentionAction.COMPACT
        }
        self._append_lock = append_lock
        self._publish = publish
        self._make_durable = make_durable
        self.lock = threading.Lock()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let a compaction under way end soon, without effect."""
        self._stopping.set()

    def compact(self) -> Mapping[str, int]:
        """Bytes freed per stream: below 0 where little went and the table has grown. Raises the
        first LogError when all partitions had their turn."""
        freed = dict.fromkeys((stream.name for stream in self._partitions), 0)
        failure: LogError | None = None
        with self.lock:
            for stream, partitions in self._partitions.items():
                for partition, files in enumerate(partitions):
                    try:
                        freed[stream.name] += self._compact(stream, partition, files)
                    except _StoppedError:
                        return freed
                    except (OSError, LogError) as error:
                        failed = f"compaction of {stream.name} partition {partition} failed: "
                        why = error.message if isinstance(error, LogError) else str(error)
                        hint = error.hint if isinstance(error, LogError) else "check the disk"
                        failure = failure or LogError(failed + why, hint=hint)
        if failure is not None:
            raise failure
        return freed

    def _compact(self, stream: Stream, partition: int, files: PartitionFiles) -> int:
        """One partition, if something new is said of it.

        1. Finish what a crash cut short.
        2. Close the segment with `upto` in it, if it is the active one. Find the segments that end
           before the floor: `upto` must be among them, or its time has not come yet.
        3. Write the file under another name, durably.
        4. Unless the floor has been moved back: give it its name, which is the instant in which it
           counts; make the name durable.
        5. Remove what it covers: segments, and older files.
        """
        self._check_stopped()
        # 1.
        upto_before, covered = self._state(stream, partition)
        freed = self._remove_covered(stream, partition, files, covered)
        # 2.
        upto = needed_upto(self._directory, stream.name, partition)
        if upto > upto_before:
            end = self._closed_end(stream, partition, files, upto)
            if end >= max(upto, covered):
                # 3. and 4.
                freed -= self._write(stream, partition, files, end)
                # 5.
                _, covered = self._state(stream, partition)
                freed += self._remove_covered(stream, partition, files, covered)
        return freed

    def _state(self, stream: Stream, partition: int) -> tuple[int, int]:
        """By which `upto` it was compacted, and the offset up to which the archive goes."""
        compacted = open_compacted(self._directory, stream.name, partition)
        if compacted is None:
            return 0, 0
        with compacted:
            return compacted.upto, compacted.end

    def _closed_end(self, stream: Stream, partition: int, files: PartitionFiles, upto: int) -> int:
        """The last end of a segment that the floor has reached; durable."""
        with self._append_lock:
            if files.segments and files.segments[-1].base_offset < upto <= files.end:
                files.roll()
            ends = [segment.base_offset for segment in files.segments]
        floor = self._floor(stream, partition)
        end = max((end for end in ends if end <= floor), default=0)
        if end >= upto:
            with self._append_lock:
                self._make_durable(files.slot, end)
        return end

    def _floor(self, stream: Stream, partition: int) -> int:
        """A changelog that no view reads stays as it is."""
        floor = read_retention_floor(self._directory) or {}
        offsets = {name.lower(): value for name, value in floor.items()}.get(
            stream.name.lower(), ()
        )
        return offsets[partition] if partition < len(offsets) else 0

    def _write(self, stream: Stream, partition: int, files: PartitionFiles, end: int) -> int:
        """Gives the bytes by which the archive has grown."""
        needed = read_needed(self._directory, stream.name, partition)
        reader = EmbeddedAddress(self._directory).open([stream])
        start = reader.oldest(stream.name)[partition]
        for segment in list(files.segments):
            if segment.end <= end and segment.end > segment.base_offset:
                check_segment(segment_file(files.directory, segment.base_offset), segment.end)
                self._check_stopped()
        directory = archive_directory(self._directory, stream.name, partition)
        target = archived_file(directory, start, end)
        temporary = target.with_name(f".{target.name}.new")
        pieces = reader.read_history(stream.name, partition, start, end)
        write_compacted(temporary, stream, self._until_stopped(pieces), needed)
        with said_together(self._directory):
            is_said = needed_upto(self._directory, stream.name, partition) == needed.upto
            if not is_said or self._floor(stream, partition) < end:
                return 0
            grown = temporary.stat().st_size - (target.stat().st_size if target.exists() else 0)
            temporary.replace(target)
        sync_archive(self._directory, directory)
        return grown

    def _until_stopped(self, pieces: Iterator[LogBatch]) -> Iterator[LogBatch]:
        for piece in pieces:
            self._check_stopped()
            yield piece

    def _check_stopped(self) -> None:
        if self._stopping.is_set():
            raise _StoppedError

    def _remove_covered(
        self, stream: Stream, partition: int, files: PartitionFiles, covered: int
    ) -> int:
        """Bytes freed."""
        freed = 0
        with self._append_lock:
            while len(files.segments) > 1 and files.segments[0].end <= covered:
                freed += files.segments[0].size
                files.remove_first(before_unlink=lambda: self._publish([files.slot]))
        return freed + remove_superseded(self._directory, stream.name, partition)
