"""The writer of the embedded log."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.log.contract import (
    NO_EVENT_TIME,
    RECEIVED_AT,
    Advance,
    Appended,
    Completeness,
    DeadLetter,
    Group,
    PartitionBatch,
    ProducerRange,
    ProducerReport,
    Receipt,
)
from headrace.log.embedded.advances import encode_advance
from headrace.log.embedded.commits import Commits
from headrace.log.embedded.deadletters import (
    LetterBounds,
    encode_letters,
    encode_resolved,
    resolved_numbers,
)
from headrace.log.embedded.frames import PAYLOAD_BYTES_MAX, FrameHeader, newest_time
from headrace.log.embedded.journal import Frame
from headrace.log.embedded.layout import LETTERS_SLOT, RESOLVED_SLOT, StreamLayout
from headrace.log.embedded.receipts import encode_receipt
from headrace.log.embedded.retention import Keeper
from headrace.log.embedded.segment_reading import shared_files
from headrace.log.sequences.watermark_origin import Place
from headrace.model.completeness import WatermarkOrigin
from headrace.model.definitions import Stream
from headrace.model.errors import LogError, LogOffsetError
from headrace.model.settings import GatewaySettings, LogSettings

__all__ = ["EmbeddedWriter"]


class EmbeddedWriter:
    """append() may be called from any thread; groups go one after the other. receipt(), present(),
    check_ranges() and check_room() never wait for a group being written."""

    def __init__(
        self,
        directory: Path,
        streams: Sequence[Stream],
        log_settings: LogSettings,
        gateway_settings: GatewaySettings,
        lock: int,
    ) -> None:
        self._directory = directory
        self._commits = Commits(directory, streams, log_settings, gateway_settings)
        self._layouts = {s.name.lower(): s for s in self._commits.layout.streams}
        self._required = {
            s.name: [(i, f.name) for i, f in enumerate(s.schema) if not f.nullable]
            for s in self._commits.layout.streams
        }
        self._letters = self._commits.partitions[LETTERS_SLOT]
        self._resolved = self._commits.partitions[RESOLVED_SLOT]
        self._letter_bounds = LetterBounds(
            directory,
            self._letters,
            self._resolved,
            gateway_settings.dead_letters_max,
            gateway_settings.dead_letters_bytes_max,
            self._publish_drop,
            self._commits.make_durable,
        )
        by_stream = {}
        for stream in streams:
            known = self._layouts[stream.name.lower()]
            slots = range(known.slot, known.slot + known.partitions)
            by_stream[stream] = [self._commits.partitions[slot] for slot in slots]
        self._keeper = Keeper(
            directory,
            by_stream,
            self._commits.lock,
            self._commits.publish,
            self._commits.make_durable,
        )
        self._lock = lock

    def identity(self) -> str:
        return self._commits.layout.identity

    def ends(self, stream: str) -> tuple[int, ...]:
        known = self._known(stream, 0)
        slots = range(known.slot, known.slot + known.partitions)
        return tuple(self._commits.partitions[slot].end for slot in slots)

    def append(self, group: Group) -> Appended:
        """Stored whole or not at all:

        1. Refuse what cannot be stored: no room, a key that is there already, a wrong schema.
        2. Make the frames; payloads are serialised once, for journal and segments alike.
        3. Commit them.
        4. Remember the receipts.

        Raises LogFullError, KeyReusedError, ProducerGapsError, or LogError; nothing of the group
        is stored then, except that after a LogError from a failing disk the group may be found
        stored when the log is opened anew, as with any answer lost on its way.
        """
        # 1.
        self._keeper.require_room(group.batches)
        with self._commits.lock:
            self._commits.require_usable()
            ranges = [item for receipt in group.receipts for item in receipt.ranges]
            with self._commits.memory_lock:
                self._commits.receipts.check_new(group.receipts)
                self._commits.producers.check(ranges)
            # 2.
            reached: dict[int, tuple[int, int]] = {}
            raised: dict[Place, tuple[int, str]] = {}
            frames = self._advance_frames(self._beginnings(group), reached, raised)
            events, places = self._event_frames(group.batches, reached, raised)
            frames += events
            frames += self._advance_frames(group.advances, reached, raised)
            frames += self._letter_frames(group.dead)
            receipts = [*group.receipts, *self._commits.producers.watermark_origins.note(raised)]
            encoded = [
                (r.key, r.received_at_microseconds, encode_receipt(r, self._reached(r, reached)))
                for r in receipts
            ]
            first = self._letters.end
            if frames or encoded:
                # 3.
                self._commits.commit([(key, item) for key, _, item in encoded], frames)
                # 4.
                with self._commits.memory_lock:
                    self._commits.receipts.add(encoded)
                    for receipt in group.receipts:
                        self._commits.producers.add(
                            receipt.ranges, receipt.received_at_microseconds
                        )
                    for place, origin in raised.items():
                        self._commits.producers.watermark_origins.put(*place, *origin)
                for item in group.batches:
                    self._commits.event_sequences.add(item.stream, item.batch)
            return Appended(
                tuple(start for start, _ in places),
                tuple(end for _, end in places),
                tuple(end - start for start, end in places),
                tuple(range(first, self._letters.end)),
                self._commits.next_group - 1,
            )

    def receipt(self, key: bytes) -> Receipt | None:
        with self._commits.memory_lock:
            return self._commits.receipts.get(key)

    def present(self, wanted: ProducerRange) -> Sequence[tuple[int, int]]:
        with self._commits.memory_lock:
            return self._commits.producers.present(wanted)

    def heard(self, stream: str, producer: str, received_at_microseconds: int) -> None:
        with self._commits.memory_lock:
            self._commits.producers.heard(stream, producer, received_at_microseconds)

    def completeness(self, stream: str) -> Completeness:
        if stream in self._commits.event_sequences:
            return self._commits.event_sequences.completeness(stream)
        with self._commits.memory_lock:
            return self._commits.producers.completeness(stream)

    def producers(self, stream: str, after: str, limit: int) -> Sequence[ProducerReport]:
        with self._commits.memory_lock:
            found = self._commits.producers.reports(stream, after, limit)
        sequences = self._commits.event_sequences
        return sequences.with_reports(stream, after, limit, found) if stream in sequences else found

    def quiet_since(self, limits: Mapping[str, int]) -> Mapping[str, Sequence[tuple[str, int]]]:
        with self._commits.memory_lock:
            found = self._commits.producers.quiet_since(limits)
        for stream, limit in limits.items():
            if stream in self._commits.event_sequences:
                found[stream] = self._commits.event_sequences.quiet_since(stream, limit)
        return found

    def knows(self, stream: str, producer: str) -> bool:
        with self._commits.memory_lock:
            return self._commits.producers.knows(stream, producer)

    def watermark_origins(self, stream: str) -> Sequence[WatermarkOrigin]:
        with self._commits.memory_lock:
            return self._commits.producers.watermark_origins.of(stream)

    def check_ranges(self, ranges: Sequence[ProducerRange]) -> None:
        """Raises ProducerGapsError if appending these would leave a producer with more gaps than
        are kept. append() checks the same; this is for refusing a request before it queues."""
        with self._commits.memory_lock:
            self._commits.producers.check(ranges)

    def check_room(self, stream: str) -> None:
        """Raises LogFullError if the stream is at its size limit and the retention floor keeps it
        there. For refusing a request before it queues."""
        self._keeper.check_room(stream)

    def received(self, stream: str) -> tuple[int, ...]:
        known = self._known(stream, 0)
        slots = range(known.slot, known.slot + known.partitions)
        partitions = [self._commits.partitions[slot] for slot in slots]
        return tuple(p.received if p.end else NO_EVENT_TIME for p in partitions)

    def resolve_dead_letters(self, numbers: Sequence[int]) -> None:
        """Numbers resolved or dropped before are passed over; one never given is LogOffsetError."""
        with self._commits.lock:
            self._commits.require_usable()
            unknown = [number for number in numbers if not 0 <= number < self._letters.end]
            if unknown:
                raise LogOffsetError(
                    f"there is no dead letter {unknown[0]}",
                    hint=f"numbers given so far are below {self._letters.end}",
                )
            bounds = (self._resolved.start, self._resolved.end)
            known = resolved_numbers(shared_files(self._directory), bounds)
            fresh = sorted({n for n in numbers if n >= self._letters.start} - known)
            if fresh:
                payload = encode_resolved(fresh)
                frame = self._frame(RESOLVED_SLOT, self._resolved.end, len(fresh), payload, 0)
                self._commits.commit([], [frame])

    @property
    def dead_letters_dropped(self) -> int:
        """How many unresolved dead letters were dropped because there were too many."""
        return self._commits.dead_letters_dropped

    def retain(self, now_microseconds: int) -> Mapping[str, int]:
        return self._keeper.retain(now_microseconds)

    def checkpoint(self) -> None:
        """Make the segments durable and start an empty journal, which otherwise happens by itself
        when the journal is full."""
        with self._commits.lock:
            self._commits.require_usable()
            self._commits.checkpoint()

    def close(self) -> None:
        self._keeper.compactor.stop()
        with self._keeper.compactor.lock, self._keeper.lock, self._commits.lock:
            if self._lock >= 0:
                self._commits.close()
                os.close(self._lock)
                self._lock = -1

    def _beginnings(self, group: Group) -> Iterator[Advance]:
        """For each partition that gets its first while others have something. Where none has, all
        of the group begin at once, and none is ahead."""
        places = {(item.stream, item.partition) for item in group.batches if item.batch.num_rows}
        places.update((advance.stream, advance.partition) for advance in group.advances)
        partitions = self._commits.partitions
        for stream, partition in sorted(places):
            known = self._known(stream, partition)
            if not partitions[known.slot + partition].has_begun:
                slots = range(known.slot, known.slot + known.partitions)
                begun = [partitions[slot] for slot in slots if partitions[slot].has_begun]
                if begun:
                    least = min(files.maximum for files in begun)
                    yield Advance(stream, partition, least, "first")

    def _event_frames(
        self,
        batches: Sequence[PartitionBatch],
        reached: dict[int, tuple[int, int]],
        raised: dict[Place, tuple[int, str]],
    ) -> tuple[list[Frame], list[tuple[int, int]]]:
        """The frames, and from which offset to which each batch goes. `reached` gets the end and
        the maximum of the partitions, `raised` who raised the maximum."""
        frames: list[Frame] = []
        places: list[tuple[int, int]] = []
        for item in batches:
            known = self._check_batch(item)
            slot = known.slot + item.partition
            files = self._commits.partitions[slot]
            end, maximum = reached.get(slot, (files.end, files.maximum))
            batch = item.batch
            if not batch.num_rows:
                places.append((end, end))
                continue
            payload = batch.serialize()
            if payload.size > PAYLOAD_BYTES_MAX:
                raise LogError(
                    f"a batch of {payload.size} bytes is more than a frame can hold",
                    hint="split it",
                )
            received = newest_time(batch.column(RECEIVED_AT))
            newest = received
            if known.clock != RECEIVED_AT:
                newest = newest_time(batch.column(known.clock))
            header = FrameHeader(
                payload.size,
                zlib.crc32(payload),
                end,
                batch.num_rows,
                slot,
                maximum,
                max(maximum, newest),
                received,
                self._commits.next_group,
            )
            frames.append(Frame(header, header.pack(), payload))
            places.append((end, header.end))
            reached[slot] = (header.end, header.maximum_after)
            if newest > maximum:
                raised[item.stream, item.partition] = (newest, item.producer)
        return frames, places

    def _advance_frames(
        self,
        advances: Iterable[Advance],
        reached: dict[int, tuple[int, int]],
        raised: dict[Place, tuple[int, str]],
    ) -> list[Frame]:
        """One frame for each partition that moves on."""
        furthest: dict[int, Advance] = {}
        for advance in advances:
            slot = self._known(advance.stream, advance.partition).slot + advance.partition
            before = furthest.get(slot)
            if before is None or advance.maximum_microseconds > before.maximum_microseconds:
                furthest[slot] = advance
        frames: list[Frame] = []
        for slot, advance in furthest.items():
            files = self._commits.partitions[slot]
            end, maximum = reached.get(slot, (files.end, files.maximum))
            if advance.maximum_microseconds > maximum:
                maxima = (maximum, advance.maximum_microseconds)
                payload = encode_advance(advance)
                frames.append(self._frame(slot, end, 0, payload, files.received, maxima))
                reached[slot] = (end, maxima[1])
                raised[advance.stream, advance.partition] = (maxima[1], advance.producer)
        return frames

    def _reached(self, receipt: Receipt, reached: dict[int, tuple[int, int]]) -> tuple[int, ...]:
        if not receipt.key or not receipt.stream:
            return ()
        slot = self._known(receipt.stream, 0).slot
        before = self.ends(receipt.stream)
        return tuple(reached.get(slot + p, (end, 0))[0] for p, end in enumerate(before))

    def _known(self, stream: str, partition: int) -> StreamLayout:
        known = self._layouts.get(stream.lower())
        if known is None:
            raise LogError(f"the log has no stream {stream}", hint="declare it first")
        if not 0 <= partition < known.partitions:
            raise LogError(
                f"stream {stream} has no partition {partition}",
                hint=f"its partitions are 0 to {known.partitions - 1}",
            )
        return known

    def _check_batch(self, item: PartitionBatch) -> StreamLayout:
        known = self._known(item.stream, item.partition)
        if not item.batch.schema.equals(known.schema):
            raise LogError(
                f"a batch for {item.stream} has the schema {_spell(item.batch.schema)}, "
                f"not the stored one {_spell(known.schema)}",
                hint="make batches with stored_schema(stream)",
            )
        for index, name in self._required[known.name]:
            if item.batch.column(index).null_count:
                raise LogError(
                    f"a batch for {item.stream} has NULL in {name}, which is NOT NULL",
                    hint="such events are dead letters",
                )
        return known

    def _letter_frames(self, letters: Sequence[DeadLetter]) -> list[Frame]:
        if not letters:
            return []
        rows_max = self._letter_bounds.make_room(len(letters))
        frames: list[Frame] = []
        for at in range(0, len(letters), rows_max):
            some = letters[at : at + rows_max]
            received = max(letter.received_at_microseconds for letter in some)
            first = self._letters.end + at
            frames.append(
                self._frame(LETTERS_SLOT, first, len(some), encode_letters(some), received)
            )
        return frames

    def _frame(
        self,
        slot: int,
        base_offset: int,
        rows: int,
        payload: bytes,
        received: int,
        maxima: tuple[int, int] = (NO_EVENT_TIME, NO_EVENT_TIME),
    ) -> Frame:
        header = FrameHeader(
            len(payload),
            zlib.crc32(payload),
            base_offset,
            rows,
            slot,
            *maxima,
            received,
            self._commits.next_group,
        )
        return Frame(header, header.pack(), payload)

    def _publish_drop(self, dropped: int) -> None:
        self._commits.dead_letters_dropped += dropped
        self._commits.publish([LETTERS_SLOT, RESOLVED_SLOT])


def _spell(schema: object) -> str:
    return ", ".join(str(schema).splitlines())
