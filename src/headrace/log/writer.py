"""The writer of the embedded log."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from headrace.log.checkpoints import Checkpoint
from headrace.log.contract import (
    NO_EVENT_TIME,
    RECEIVED_AT,
    Appended,
    DeadLetter,
    Group,
    PartitionBatch,
    ProducerRange,
    Receipt,
)
from headrace.log.deadletters import encode_letters, encode_resolved, resolved_numbers
from headrace.log.ends import EndsWriter
from headrace.log.frames import PAYLOAD_BYTES_MAX, FrameHeader
from headrace.log.journal import Frame, encode_entry
from headrace.log.layout import (
    COUNTERS_SLOT,
    LETTERS_SLOT,
    RESOLVED_SLOT,
    Layout,
    StreamLayout,
    read_layout,
)
from headrace.log.opening import make_partitions, open_log
from headrace.log.reading import shared_files
from headrace.log.receipts import encode_receipt
from headrace.log.retention import Keeper
from headrace.log.segments import PartitionFiles, sync_segments
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError, LogError, LogOffsetError
from headrace.model.settings import GatewaySettings, LogSettings

__all__ = ["EmbeddedWriter"]

_encoder = msgspec.msgpack.Encoder()


class EmbeddedWriter:
    """append() may be called from any thread; groups go one after the other. receipt() and
    present() never wait for a disk."""

    def __init__(
        self,
        directory: Path,
        streams: Sequence[Stream],
        log_settings: LogSettings,
        gateway_settings: GatewaySettings,
        lock: int,
    ) -> None:
        self._directory = directory
        self._letters_max = gateway_settings.dead_letters_max
        self._letters_bytes_max = gateway_settings.dead_letters_bytes_max
        self._append_lock = threading.RLock()
        self._memory_lock = threading.Lock()
        self._failure = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-checkpoint")
        self._running: tuple[Checkpoint, set[Path], Future[None]] | None = None

        layout = read_layout(directory)
        wanted = layout.extended(streams)
        opened = open_log(directory, layout, log_settings, gateway_settings)
        self._journal, self._checkpoints = opened.journal, opened.checkpoints
        self._partitions = opened.partitions
        self._receipts, self._producers = opened.receipts, opened.producers
        self._fresh_receipts = opened.fresh_receipts
        self._next_group = opened.next_group
        self._dropped = opened.dead_letters_dropped
        if wanted is not layout:
            self._change_layout(layout, wanted, log_settings, gateway_settings)
        self._layouts = {s.name.lower(): s for s in wanted.streams}
        self._ends = self._open_ends(wanted)
        self._keeper = Keeper(
            directory,
            {
                s: [
                    self._partitions[known.slot + p]
                    for p in range(self._layouts[s.name.lower()].partitions)
                ]
                for s in streams
                if (known := self._layouts[s.name.lower()])
            },
            self._append_lock,
            self._publish,
        )
        self._lock = lock

    def append(self, group: Group) -> Appended:
        """Stored whole or not at all:

        1. Refuse what cannot be stored: unknown keys twice, wrong schema, no room.
        2. Make the frames: payloads are serialised once, for journal and segments alike.
        3. Write one journal entry, one fdatasync. From here on the group is stored.
        4. Write the frames to their segments, without fsync: the journal has them.
        5. Publish the new ends, all at once.
        """
        self._keeper.require_room(group.batches)
        with self._append_lock:
            self._require_usable()
            # 1.
            ranges = [item for receipt in group.receipts for item in receipt.ranges]
            with self._memory_lock:
                self._receipts.check_new(group.receipts)
                self._producers.check(ranges)
            # 2.
            frames, base_offsets = self._event_frames(group.batches)
            letters, numbers = self._letter_frames(group.dead)
            frames += letters
            encoded = [
                (r.key, r.received_at_microseconds, encode_receipt(r)) for r in group.receipts
            ]
            if not frames and not encoded:
                return Appended(tuple(base_offsets), ())
            # 3. to 5.
            self._commit([item for _, _, item in encoded], frames)
            with self._memory_lock:
                self._receipts.add(encoded)
                self._producers.add(ranges)
            if letters:
                self._drop_letters()
            return Appended(tuple(base_offsets), tuple(numbers))

    def receipt(self, key: bytes) -> Receipt | None:
        with self._memory_lock:
            return self._receipts.get(key)

    def present(self, wanted: ProducerRange) -> Sequence[tuple[int, int]]:
        with self._memory_lock:
            return self._producers.present(wanted)

    def check_ranges(self, ranges: Sequence[ProducerRange]) -> None:
        """Raises ProducerGapsError if appending these would leave a producer with more gaps than
        are kept. append() checks the same; this is for refusing a request before it queues."""
        with self._memory_lock:
            self._producers.check(ranges)

    def check_room(self, stream: str) -> None:
        """Raises LogFullError if the stream is at its size limit and the hold keeps it there.
        Cheap: for refusing a request before it queues."""
        self._keeper.check_room(stream)

    def resolve_dead_letters(self, numbers: Sequence[int]) -> None:
        """Numbers resolved or dropped before are passed over; one never given is LogOffsetError."""
        with self._append_lock:
            self._require_usable()
            letters, resolved = self._partitions[LETTERS_SLOT], self._partitions[RESOLVED_SLOT]
            unknown = [number for number in numbers if not 0 <= number < letters.end]
            if unknown:
                raise LogOffsetError(
                    f"there is no dead letter {unknown[0]}",
                    hint=f"the newest is {letters.end - 1}" if letters.end else "there are none",
                )
            known = resolved_numbers(shared_files(self._directory), (resolved.start, resolved.end))
            fresh = sorted({n for n in numbers if n >= letters.start} - known)
            if fresh:
                payload = encode_resolved(fresh)
                self._commit([], [self._frame(RESOLVED_SLOT, resolved.end, len(fresh), payload)])

    @property
    def dead_letters_dropped(self) -> int:
        """How many unresolved dead letters were dropped because there were too many."""
        return self._dropped

    def retain(self, now_microseconds: int) -> Mapping[str, int]:
        return self._keeper.retain(now_microseconds)

    def checkpoint(self) -> None:
        """Make segments durable and start an empty journal, as rotation does by itself."""
        with self._append_lock:
            self._require_usable()
            self._rotate(0)
            self._finish_checkpoint()

    def close(self) -> None:
        with self._append_lock:
            if self._failure == "closed":
                return
            self._failure = "closed"
            try:
                if self._running is not None:
                    self._running[2].exception()  # the journal still has what it failed to cover
            finally:
                self._thread.shutdown()
                self._journal.close()
                for files in self._partitions.values():
                    files.close()
                self._ends.close()
                os.close(self._lock)

    # Frames

    def _event_frames(self, batches: Sequence[PartitionBatch]) -> tuple[list[Frame], list[int]]:
        frames: list[Frame] = []
        base_offsets: list[int] = []
        reached: dict[int, tuple[int, int]] = {}
        for item in batches:
            known = self._check_batch(item)
            slot = known.slot + item.partition
            files = self._partitions[slot]
            end, maximum = reached.get(slot, (files.end, files.maximum))
            base_offsets.append(end)
            batch = item.batch
            if not batch.num_rows:
                continue
            payload = batch.serialize()
            if payload.size > PAYLOAD_BYTES_MAX:
                raise LogError(f"a batch of {payload.size} bytes is too large for the log")
            received = pc.max(batch.column(RECEIVED_AT)).value
            newest = received
            if known.event_time is not None:
                newest = pc.max(batch.column(known.event_time)).value
            after = max(maximum, newest)
            header = FrameHeader(
                payload.size,
                zlib.crc32(payload),
                end,
                batch.num_rows,
                slot,
                maximum,
                after,
                received,
                self._next_group,
            )
            frames.append(Frame(header, header.pack(), payload))
            reached[slot] = (header.end, after)
        return frames, base_offsets

    def _check_batch(self, item: PartitionBatch) -> StreamLayout:
        known = self._layouts.get(item.stream.lower())
        if known is None:
            raise LogError(f"the log has no stream {item.stream}", hint="declare it first")
        if not 0 <= item.partition < known.partitions:
            raise LogError(
                f"stream {item.stream} has no partition {item.partition}",
                hint=f"its partitions are 0 to {known.partitions - 1}",
            )
        if not item.batch.schema.equals(known.schema):
            raise LogError(
                f"a batch for {item.stream} has the schema {item.batch.schema.names}, "
                f"not the stored one {known.schema.names}, or other types",
                hint="make batches with stored_schema(stream)",
            )
        for field, column in zip(known.schema, item.batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise LogError(f"a batch for {item.stream} has NULL in {field.name}, NOT NULL")
        return known

    def _letter_frames(self, letters: Sequence[DeadLetter]) -> tuple[list[Frame], list[int]]:
        first = self._partitions[LETTERS_SLOT].end
        step = max(1, self._letters_max // 8)
        frames = []
        for at in range(0, len(letters), step):
            some = letters[at : at + step]
            received = max(letter.received_at_microseconds for letter in some)
            frames.append(
                self._frame(LETTERS_SLOT, first + at, len(some), encode_letters(some), received)
            )
        return frames, list(range(first, first + len(letters)))

    def _frame(
        self, slot: int, base_offset: int, count: int, payload: bytes, received: int = 0
    ) -> Frame:
        header = FrameHeader(
            len(payload),
            zlib.crc32(payload),
            base_offset,
            count,
            slot,
            NO_EVENT_TIME,
            NO_EVENT_TIME,
            received,
            self._next_group,
        )
        return Frame(header, header.pack(), payload)

    # Committing

    def _commit(self, receipts: list[bytes], frames: list[Frame]) -> None:
        notes = _encoder.encode(receipts)
        length = sum(frame.header.frame_bytes for frame in frames) + len(notes) + 192
        try:
            if not self._journal.has_room(length):
                self._rotate(length)
            buffers = encode_entry(self._journal.salt, self._next_group, notes, frames)
        except OSError as error:
            raise LogError(
                f"the journal cannot be extended: {error}", hint="make room on the disk"
            ) from error
        began = self._journal.position
        try:
            self._journal.write(buffers)
        except OSError as error:
            self._undo(began, {}, error)
        marks = {slot: self._partitions[slot].mark() for slot in {f.header.slot for f in frames}}
        try:
            for frame in frames:
                self._partitions[frame.header.slot].append(*frame)
        except OSError as error:
            self._undo(began, marks, error)
        self._next_group += 1
        self._fresh_receipts += receipts
        self._publish(list(marks))

    def _undo(self, began: int, marks: Mapping[int, Any], error: OSError) -> None:
        """Take the group back: first out of the segments, then out of the journal. If that fails
        too, nothing may be appended until the log is opened anew, which repairs it."""
        try:
            for slot, mark in marks.items():
                self._partitions[slot].rollback(mark)
            self._journal.erase(began)
        except OSError as second:
            self._failure = f"{error}; taking the group back failed: {second}"
        raise LogError(
            f"the group was not stored: {error}", hint="make room on the disk and try again"
        ) from error

    def _publish(self, slots: Sequence[int]) -> None:
        changed = {
            slot: (self._partitions[slot].start, self._partitions[slot].end) for slot in slots
        }
        self._ends.publish(changed)

    def _require_usable(self) -> None:
        if self._failure == "closed":
            raise LogError("the log is closed")
        if self._failure:
            raise LogError(
                f"the log refuses to append after a failure: {self._failure}",
                hint="repair the disk and start the gateway again",
            )

    # Checkpoints

    def _rotate(self, bytes_min: int) -> None:
        """Go on in an empty journal file; a thread makes the old one superfluous.

        1. The checkpoint before must be finished: at most two journal files are in use.
        2. Start the new file. If that fails, the old one simply goes on.
        3. In the thread: fsync the segments, write the checkpoint, recycle the old file.
        """
        self._finish_checkpoint()
        covered = self._journal.number
        self._journal.start_file(covered + 1, self._next_group, bytes_min)
        is_whole = self._checkpoints.wants_whole
        with self._memory_lock:
            checkpoint = Checkpoint(
                covered,
                self._next_group,
                is_whole,
                {slot: files.end for slot, files in self._partitions.items()},
                self._receipts.encoded() if is_whole else self._fresh_receipts,
                self._producers.take_changed(is_whole),
                self._dropped,
            )
        self._fresh_receipts = []
        unsynced = set().union(*(files.take_unsynced() for files in self._partitions.values()))
        future = self._thread.submit(self._write_checkpoint, checkpoint, unsynced)
        self._running = (checkpoint, unsynced, future)

    def _write_checkpoint(self, checkpoint: Checkpoint, unsynced: set[Path]) -> None:
        sync_segments(unsynced)
        self._checkpoints.write(checkpoint)
        self._journal.recycle(checkpoint.journal)

    def _finish_checkpoint(self) -> None:
        if self._running is None:
            return
        checkpoint, unsynced, future = self._running
        if future.exception() is not None:
            self._write_checkpoint(checkpoint, unsynced)
        self._running = None

    # Opening

    def _change_layout(
        self,
        layout: Layout,
        wanted: Layout,
        log_settings: LogSettings,
        gateway_settings: GatewaySettings,
    ) -> None:
        """Before a schema changes, the journal is emptied: all its frames have one schema."""
        if any(wanted.stream(s.name) != s for s in layout.streams):
            self._rotate(0)
            self._finish_checkpoint()
        wanted.write(self._directory)
        fresh = make_partitions(self._directory, wanted, log_settings, gateway_settings)
        for slot, files in fresh.items():
            known = self._partitions.setdefault(slot, files)
            if known.schema != files.schema:
                known.schema = files.schema
                if known.segments:
                    known.roll()

    def _open_ends(self, layout: Layout) -> EndsWriter:
        ends = EndsWriter(self._directory, layout.number, layout.slot_count)
        changed: dict[int, tuple[int, int]] = {}
        for slot, files in self._partitions.items():
            start, end = ends.published[slot] if slot < len(ends.published) else (0, 0)
            if files.end < end:
                raise LogCorruptError(
                    f"{files.directory} ends at offset {files.end}, "
                    f"but events up to {end} were acknowledged",
                    hint="keep a copy of the log's directory and restore it from a backup",
                )
            changed[slot] = (max(start, files.start), files.end)
        if len(ends.published) > COUNTERS_SLOT:
            self._dropped = max(self._dropped, ends.published[COUNTERS_SLOT][0])
        changed[COUNTERS_SLOT] = (self._dropped, 0)
        ends.publish(changed)
        return ends

    # Dead letters

    def _drop_letters(self) -> None:
        """Keep at most the stated number and bytes, dropping whole segments from the oldest on."""
        letters = self._partitions[LETTERS_SLOT]
        if letters.end - letters.segments[-1].base_offset >= max(1, self._letters_max // 8):
            letters.roll()
        while len(letters.segments) > 1 and (
            letters.end - letters.start > self._letters_max
            or letters.size > self._letters_bytes_max
        ):
            self._drop_oldest_letters(letters)

    def _drop_oldest_letters(self, letters: PartitionFiles) -> None:
        oldest, resolved = letters.segments[0], self._partitions[RESOLVED_SLOT]
        files = shared_files(self._directory)
        known = resolved_numbers(files, (resolved.start, resolved.end))
        gone = range(oldest.base_offset, oldest.end)
        self._dropped += len(gone) - sum(1 for number in gone if number in known)
        self._ends.publish(
            {LETTERS_SLOT: (oldest.end, letters.end), COUNTERS_SLOT: (self._dropped, 0)}
        )
        letters.remove_first()
        while len(resolved.segments) > 1:
            first = resolved.segments[0]
            numbers = resolved_numbers(files, (first.base_offset, first.end))
            if max(numbers) >= letters.start:
                break
            self._ends.publish({RESOLVED_SLOT: (first.end, resolved.end)})
            resolved.remove_first()
