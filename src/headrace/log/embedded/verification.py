"""Check every checksum of a log. Reads everything, changes nothing, needs no lock."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.log.embedded.archive import archive_directory, archived_file, archived_ranges
from headrace.log.embedded.compacted import CompactedFile
from headrace.log.embedded.deadletters import letters_directory, resolved_directory
from headrace.log.embedded.ends import EMPTY_SLOT, EndsReader
from headrace.log.embedded.frames import HEADER_BYTES
from headrace.log.embedded.layout import (
    LETTERS_SLOT,
    RESOLVED_SLOT,
    partition_directory,
    read_layout,
)
from headrace.log.embedded.recovery import scan_segment
from headrace.log.embedded.segments import segment_bases, segment_file
from headrace.model.errors import LogError

__all__ = ["Finding", "Verified", "verify"]


@dataclass(frozen=True)
class Finding:
    """One damage: where, and what."""

    file: Path
    what: str


@dataclass(frozen=True)
class Verified:
    """What was checked: segments, and the files of compacted changelogs. No findings: every
    published event is there and whole."""

    segments: int
    events: int
    size_bytes: int
    findings: tuple[Finding, ...]


def verify(directory: Path) -> Verified:
    """A log that is being written may be verified: what is not yet published does not count."""
    slots = EndsReader(directory).slots()
    places = [
        (LETTERS_SLOT, letters_directory(directory)),
        (RESOLVED_SLOT, resolved_directory(directory)),
    ]
    segments = events = size = 0
    findings: list[Finding] = []
    for stream in read_layout(directory).streams:
        for partition in range(stream.partitions):
            slot = stream.slot + partition
            places.append((slot, partition_directory(directory, stream.name, partition)))
            for file in _archived(directory, stream.name, partition):
                found, count = _verify_archived(file)
                findings += found
                events += count
                size += file.stat().st_size
    for slot, folder in places:
        start, end, _ = slots[slot] if slot < len(slots) else EMPTY_SLOT
        bases = [base for base in segment_bases(folder) if base < end]
        reached = start
        for base in bases:
            file = segment_file(folder, base)
            covered, found = _verify_segment(file, end)
            segments += 1
            size += file.stat().st_size
            events += max(0, min(covered, end) - max(base, start))
            findings += found
            if base > reached:
                findings.append(Finding(file, f"offsets {reached} to {base} are missing"))
            reached = max(reached, covered)
        if reached < end:
            findings.append(Finding(folder, f"offsets {reached} to {end} are missing"))
    return Verified(segments, events, size, tuple(findings))


def _archived(directory: Path, stream: str, partition: int) -> Sequence[Path]:
    folder = archive_directory(directory, stream, partition)
    return [archived_file(folder, *r) for r in archived_ranges(directory, stream, partition)]


def _verify_archived(file: Path) -> tuple[Sequence[Finding], int]:
    """Of a compacted file; what else is archived is a copy for others, and is not checked."""
    try:
        with CompactedFile(file, verify=True) as compacted:
            if not compacted.is_compacted:
                return (), 0
            what = compacted.check()
            return [Finding(file, what)] if what else (), compacted.events
    except LogError as error:
        return [Finding(file, error.message)], 0


def _verify_segment(file: Path, published: int) -> tuple[int, Sequence[Finding]]:
    try:
        head, frames, _, data = scan_segment(file)
    except LogError as error:
        return 0, [Finding(file, error.message)]
    findings: list[Finding] = []
    end = head.base_offset
    maximum = head.maximum
    for header, position in frames:
        if header.base_offset >= published:
            break
        payload = data[position + HEADER_BYTES : position + HEADER_BYTES + header.length]
        if zlib.crc32(payload) != header.payload_crc:
            what = f"offsets {header.base_offset} to {header.end} fail their checksum"
            findings.append(Finding(file, what))
        if header.maximum_before != maximum:
            what = f"the running maximum before offset {header.base_offset} does not fit"
            findings.append(Finding(file, what))
        end, maximum = header.end, header.maximum_after
    return end, findings
