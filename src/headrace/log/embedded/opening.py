"""Opening a log for writing: checkpoints first, then the journal, then every partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.log.embedded.checkpoints import Checkpoints
from headrace.log.embedded.deadletters import (
    LETTERS_SEGMENT_BYTES_MAX,
    RESOLVED_SEGMENT_BYTES_MAX,
    letters_directory,
    resolved_directory,
)
from headrace.log.embedded.frames import fsync_directory
from headrace.log.embedded.journal import (
    Frame,
    Journal,
    JournalFile,
    journal_files,
    read_journal_file,
)
from headrace.log.embedded.layout import (
    LETTERS_SLOT,
    RESOLVED_SLOT,
    Layout,
    StreamLayout,
    partition_directory,
)
from headrace.log.embedded.receipts import Receipts, decode_receipt
from headrace.log.embedded.recovery import recover_partition
from headrace.log.embedded.segments import PartitionFiles
from headrace.log.sequences.event_sequence_streams import EventSequenceStreams
from headrace.log.sequences.producers import Producers
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError
from headrace.model.settings import GatewaySettings, LogSettings

__all__ = ["Opened", "make_partitions", "open_log"]

notes_decoder = msgspec.msgpack.Decoder(list[bytes])


@dataclass
class Opened:
    """Everything a writer continues from. `fresh_receipts` came after the last checkpoint."""

    journal: Journal
    checkpoints: Checkpoints
    partitions: dict[int, PartitionFiles]
    receipts: Receipts
    producers: Producers
    fresh_receipts: list[bytes]
    next_group: int
    durable_ends: dict[int, int]
    dead_letters_dropped: int


def open_log(
    directory: Path,
    layout: Layout,
    streams: Sequence[Stream],
    log_settings: LogSettings,
    gateway_settings: GatewaySettings,
) -> Opened:
    """Bring back all that was acknowledged.

    1. Checkpoints give receipts, sequence numbers and how far segments are durable.
    2. The journal's whole entries follow; a torn last one is cut.
    3. Each partition is made equal to checkpoint plus journal.
    """
    for name in ("journal", "checkpoints", "streams", "deadletters"):
        (directory / name).mkdir(exist_ok=True)
        # A name that a killed process left may not be durable yet, and is about to be relied on.
        fsync_directory(directory / name)
    fsync_directory(directory)
    fsync_directory(directory.parent)
    receipts = Receipts(
        gateway_settings.idempotency_keys_max, gateway_settings.idempotency_seconds_max
    )
    bounds = (gateway_settings.producers_max, gateway_settings.producer_intervals_max)
    sequences = EventSequenceStreams(streams, *bounds)
    producers = Producers(*bounds, sequences)

    # 1.
    checkpoints = Checkpoints(directory / "checkpoints")
    covered, next_group, durable_group, dropped = 0, 0, 0, 0
    durable: dict[int, int] = {}
    for checkpoint in checkpoints.load():
        _add_receipts(receipts, producers, checkpoint.receipts, with_ranges=False)
        producers.load(checkpoint.producers, checkpoint.writers)
        producers.watermark_origins.load(checkpoint.holders)
        sequences.load(checkpoint.numbered)
        covered, next_group = checkpoint.journal, checkpoint.next_group
        durable, durable_group = checkpoint.ends, checkpoint.next_group
        dropped = checkpoint.dead_letters_dropped
    producers.settle()

    # 2.
    journal = Journal(directory / "journal", log_settings.journal_bytes_max)
    found = _read_journal(journal, directory / "journal", covered, next_group)
    frames: dict[int, list[Frame]] = defaultdict(list)
    counted = {
        stream.slot + partition: stream
        for stream in layout.streams
        for partition in range(stream.partitions)
        if stream.name in sequences
    }
    fresh: list[bytes] = []
    for file in found:
        for entry in file.entries:
            noted = notes_decoder.decode(entry.notes)
            fresh += _add_receipts(receipts, producers, noted, with_ranges=True)
            for frame in entry.frames:
                frames[frame.header.slot].append(frame)
                _count(frame, counted, sequences)
        next_group = file.first_group + len(file.entries)
    if found:
        journal.continue_file(found[-1])
    else:
        journal.start_file(covered + 1, next_group)

    # 3.
    partitions = make_partitions(directory, layout, log_settings, gateway_settings)
    for slot, files in partitions.items():
        recover_partition(files, durable.get(slot, 0), durable_group, frames.pop(slot, []))
    for stream in layout.streams:
        for partition in range(stream.partitions):
            maximum = partitions[stream.slot + partition].maximum
            producers.watermark_origins.settle(stream.name, partition, maximum)
    if frames:
        raise LogCorruptError(
            f"the journal has events for slots {sorted(frames)}, which layout.json does not name",
            hint="restore the log's directory from a backup",
        )
    return Opened(
        journal, checkpoints, partitions, receipts, producers, fresh, next_group, durable, dropped
    )


def _count(
    frame: Frame, counted: Mapping[int, StreamLayout], sequences: EventSequenceStreams
) -> None:
    """As append() does: the journal's frames have the layout's schema."""
    stream = counted.get(frame.header.slot)
    if stream is not None and frame.header.rows:
        payload = pa.py_buffer(frame.payload)
        sequences.add(stream.name, pa.ipc.read_record_batch(payload, stream.schema))


def make_partitions(
    directory: Path, layout: Layout, log_settings: LogSettings, gateway_settings: GatewaySettings
) -> dict[int, PartitionFiles]:
    """The files of every slot, not yet looked at."""
    letters_bytes = min(
        LETTERS_SEGMENT_BYTES_MAX, max(gateway_settings.dead_letters_bytes_max // 8, 4_096)
    )
    partitions = {
        LETTERS_SLOT: PartitionFiles(
            letters_directory(directory), LETTERS_SLOT, b"", letters_bytes
        ),
        RESOLVED_SLOT: PartitionFiles(
            resolved_directory(directory), RESOLVED_SLOT, b"", RESOLVED_SEGMENT_BYTES_MAX
        ),
    }
    for stream in layout.streams:
        schema = stream.schema.serialize().to_pybytes()
        for partition in range(stream.partitions):
            slot = stream.slot + partition
            folder = partition_directory(directory, stream.name, partition)
            partitions[slot] = PartitionFiles(folder, slot, schema, log_settings.segment_bytes_max)
    return partitions


def _read_journal(
    journal: Journal, directory: Path, covered: int, next_group: int
) -> list[JournalFile]:
    """The files after the covered ones, which must follow each other without a missing group."""
    found: list[JournalFile] = []
    numbers = journal_files(directory)
    for number in numbers:
        if number <= covered:
            journal.recycle(number)
            continue
        file = read_journal_file(directory, number)
        is_unused = file is None or (not file.entries and file.first_group < next_group)
        if is_unused and number == numbers[-1]:
            # It ended, or failed to be made, between creating the file and its first entry.
            journal.start_file(number, next_group)
            file = read_journal_file(directory, number)
        if file is None or file.first_group != next_group:
            raise LogCorruptError(
                f"journal file {number} in {directory} does not continue with group {next_group}",
                hint="keep a copy of the log's directory and restore it from a backup",
            )
        next_group = file.first_group + len(file.entries)
        found.append(file)
    return found


def _add_receipts(
    receipts: Receipts, producers: Producers, encoded: list[bytes], *, with_ranges: bool
) -> list[bytes]:
    """Gives those that have a key: the others have said all they had to say."""
    decoded = [(decode_receipt(item), item) for item in encoded]
    receipts.add([(r.key, r.received_at_microseconds, item) for r, item in decoded])
    if with_ranges:
        for receipt, _ in decoded:
            producers.add(receipt.ranges, receipt.received_at_microseconds)
    return [item for receipt, item in decoded if receipt.key]
