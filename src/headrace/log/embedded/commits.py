"""Commits: the durable part of the writer. Takes frames and receipts, and stores all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from headrace.log.embedded.checkpoints import Checkpoint
from headrace.log.embedded.ends import EMPTY_SLOT, EndsWriter, Slot
from headrace.log.embedded.journal import Frame, encode_entry
from headrace.log.embedded.layout import COUNTERS_SLOT, Layout, read_layout
from headrace.log.embedded.opening import make_partitions, open_log
from headrace.log.embedded.segments import PartitionFiles, sync_segments
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError, LogError
from headrace.model.settings import GatewaySettings, LogSettings

__all__ = ["Commits"]

_CLOSED = "it is closed"
_encoder = msgspec.msgpack.Encoder()


class Commits:
    """Journal, partitions, checkpoints and published ends of one open log.

    The caller holds `lock` around everything but reading `receipts` and `producers`, for which
    `memory_lock` is enough: that one is never held during I/O.
    """

    def __init__(
        self,
        directory: Path,
        streams: Sequence[Stream],
        log_settings: LogSettings,
        gateway_settings: GatewaySettings,
    ) -> None:
        self._directory = directory
        self.lock = threading.RLock()
        self.memory_lock = threading.Lock()
        self._failure = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-checkpoint")
        self._running: tuple[Checkpoint, set[Path], Future[None]] | None = None
        layout = read_layout(directory)
        self.layout = layout.extended(streams)
        opened = open_log(directory, layout, streams, log_settings, gateway_settings)
        self._journal, self._checkpoints = opened.journal, opened.checkpoints
        self.partitions = opened.partitions
        self.receipts, self.producers = opened.receipts, opened.producers
        self.event_sequences = opened.producers.event_sequences
        self._fresh_receipts = opened.fresh_receipts
        self.next_group = opened.next_group
        self._durable_ends = opened.durable_ends
        self.dead_letters_dropped = opened.dead_letters_dropped
        self._ends: EndsWriter | None = None
        try:
            if self.layout is not layout:
                self._change_layout(layout, log_settings, gateway_settings)
            self._ends = self._open_ends()
        except BaseException:
            self.close()
            raise

    def require_usable(self) -> None:
        if self._failure:
            raise LogError(
                f"the log cannot be written: {self._failure}",
                hint="repair the disk if it failed, and start the gateway again",
            )

    def commit(self, receipts: list[tuple[bytes, bytes]], frames: Sequence[Frame]) -> None:
        """Store all or nothing. Receipts are given as (key, encoded).

        1. Write one journal entry, rotating first if the file is full.
        2. One fdatasync: from here on the group is stored.
        3. Write the frames to their segments, without fsync: the journal has them.
        4. Publish the new ends, all at once.

        A failed write is taken back and the log goes on. After a failed fdatasync, or a failure
        while taking back, nothing can be appended until the log is opened anew.
        """
        buffers = self._entry([encoded for _, encoded in receipts], frames)
        began = self._journal.position
        slots = {frame.header.slot for frame in frames}
        marks = {slot: self.partitions[slot].mark() for slot in slots}
        try:
            # 1.
            try:
                ended = self._journal.write(buffers)
            except OSError as error:
                self._undo(began, {}, error)
                raise
            # 2.
            try:
                self._journal.sync(ended)
            except OSError as error:
                self._failure = f"fdatasync of the journal failed: {error}"
                self._undo(began, {}, error)
                raise
            # 3.
            try:
                for frame in frames:
                    self.partitions[frame.header.slot].append(*frame)
            except OSError as error:
                self._undo(began, marks, error)
                raise
        except OSError as error:
            raise LogError(
                f"the group was not stored: {error}", hint="make room on the disk and try again"
            ) from error
        except BaseException as error:
            self._failure = self._failure or f"a commit was interrupted: {error!r}"
            raise
        self.next_group += 1
        self._fresh_receipts += [encoded for key, encoded in receipts if key]
        # 4.
        self.publish(list(slots))

    def publish(self, slots: Sequence[int]) -> None:
        """Show readers the present starts and ends of these slots, and the counters."""
        assert self._ends is not None
        shown = {slot: self.partitions[slot].bounds for slot in slots}
        shown[COUNTERS_SLOT] = self._counters
        self._ends.publish(shown)

    @property
    def _counters(self) -> Slot:
        return self.dead_letters_dropped, self.next_group, 0

    def make_durable(self, slot: int, end: int) -> None:
        """Segments may be removed only up to where a checkpoint says they were durable: recovery
        tells by it what was removed from what was lost."""
        if self._durable_ends.get(slot, 0) < end:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make the segments durable and start an empty journal, and wait for it."""
        try:
            self._rotate(0)
            self._finish_checkpoint()
        except OSError as error:
            raise LogError(f"the checkpoint failed: {error}", hint="check the disk") from error

    def close(self) -> None:
        if self._failure == _CLOSED:
            return
        self._failure = _CLOSED
        self._thread.shutdown()  # a checkpoint that failed is no loss: its journal is still there
        self._journal.close()
        for files in self.partitions.values():
            files.close()
        if self._ends is not None:
            self._ends.close()

    def _entry(self, receipts: list[bytes], frames: Sequence[Frame]) -> list[Any]:
        notes = _encoder.encode(receipts)
        length = sum(frame.header.frame_bytes for frame in frames) + len(notes) + 192
        try:
            if not self._journal.has_room(length):
                self._rotate(length)
        except OSError as error:
            raise LogError(
                f"the journal cannot be extended: {error}", hint="make room on the disk"
            ) from error
        return encode_entry(self._journal.salt, self.next_group, notes, frames)

    def _undo(self, began: int, marks: Mapping[int, Any], error: OSError) -> None:
        """Take the group back: first out of the segments, then out of the journal. If that fails
        half way, the journal still has the group whole, and opening the log anew brings it in."""
        try:
            for slot, mark in marks.items():
                self.partitions[slot].rollback(mark)
            self._journal.erase(began)
        except OSError as second:
            self._failure = f"{error}; taking the group back failed: {second}"

    def _rotate(self, bytes_min: int) -> None:
        """Go on in an empty journal file; a thread makes the old one superfluous.

        1. The checkpoint before must be finished: at most two journal files are in use.
        2. Start the new file. If that fails, the old one simply goes on.
        3. In the thread: fsync the segments, write the checkpoint, recycle the old file.
        """
        # 1.
        self._finish_checkpoint()
        # 2.
        covered = self._journal.number
        self._journal.start_file(covered + 1, self.next_group, bytes_min)
        # 3.
        is_whole = self._checkpoints.wants_whole
        with self.memory_lock:
            lines, writers = self.producers.take_changed(is_whole)
            checkpoint = Checkpoint(
                covered,
                self.next_group,
                is_whole,
                {slot: files.end for slot, files in self.partitions.items()},
                self.receipts.encoded() if is_whole else self._fresh_receipts,
                lines,
                self.dead_letters_dropped,
                writers,
                self.producers.watermark_origins.records(),
                self.event_sequences.take_changed(is_whole),
            )
        self._fresh_receipts = []
        unsynced = set().union(*(files.take_unsynced() for files in self.partitions.values()))
        future = self._thread.submit(self._write_checkpoint, checkpoint, unsynced)
        self._running = (checkpoint, unsynced, future)

    def _write_checkpoint(self, checkpoint: Checkpoint, unsynced: set[Path]) -> None:
        sync_segments(unsynced)
        self._checkpoints.write(checkpoint)
        self._journal.recycle(checkpoint.journal)

    def _finish_checkpoint(self) -> None:
        """Wait for the checkpoint in the thread; one that failed is tried again here."""
        if self._running is not None:
            checkpoint, unsynced, future = self._running
            if future.exception() is not None:
                self._write_checkpoint(checkpoint, unsynced)
            self._durable_ends = checkpoint.ends
            self._running = None

    def _change_layout(
        self, old: Layout, log_settings: LogSettings, gateway_settings: GatewaySettings
    ) -> None:
        """Before a schema changes, the journal is emptied: all its frames have one schema. And
        before the format changes: what an older version could still read is in the segments."""
        is_changed = any(self.layout.stream(stream.name) != stream for stream in old.streams)
        if is_changed or old.format != self.layout.format:
            self.checkpoint()
        self.layout.write(self._directory)
        fresh = make_partitions(self._directory, self.layout, log_settings, gateway_settings)
        for slot, files in fresh.items():
            known = self.partitions.setdefault(slot, files)
            if known.schema != files.schema:
                known.schema = files.schema
                if known.segments:
                    known.roll()

    def _open_ends(self) -> EndsWriter:
        """Publish what was recovered, which may not be less than was published before."""
        ends = EndsWriter(self._directory, self.layout.number, self.layout.slot_count)
        shown: dict[int, Slot] = {}
        for slot, files in self.partitions.items():
            known = ends.published[slot] if slot < len(ends.published) else EMPTY_SLOT
            start, end, maximum = known
            if files.end < end or files.maximum < maximum:
                ends.close()
                raise LogCorruptError(
                    f"{files.directory} ends at offset {files.end} and event time "
                    f"{files.maximum}, but {end} and {maximum} were acknowledged",
                    hint="keep a copy of the log's directory and restore it from a backup",
                )
            _finish_removal(files, start)
            shown[slot] = files.bounds
        if len(ends.published) > COUNTERS_SLOT:
            counted = ends.published[COUNTERS_SLOT][0]
            self.dead_letters_dropped = max(self.dead_letters_dropped, counted)
        shown[COUNTERS_SLOT] = self._counters
        ends.publish(shown)
        return ends


def _finish_removal(files: PartitionFiles, start: int) -> None:
    """Remove what retention had already declared gone when the writer ended."""
    while len(files.segments) > 1 and files.segments[0].end <= start:
        files.remove_first()
