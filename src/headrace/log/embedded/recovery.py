"""Recovery: bring the segments of a partition to exactly what the journal says.

A segment's frames of groups before the checkpoint are durable and stay. Behind it, a frame stays
only if it is byte for byte the journal's; from the first difference on, the segment is cut and
written again from the journal. Published frames are always equal (they were written after the
journal), so a reader that has the segment mapped sees nothing move.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from headrace.log.embedded.frames import HEADER_BYTES, FrameHeader, parse_frame_header, write_all
from headrace.log.embedded.index import index_entry, index_head, newest_entry
from headrace.log.embedded.journal import Frame
from headrace.log.embedded.segments import (
    PartitionFiles,
    Segment,
    SegmentHead,
    index_file,
    parse_head,
    segment_bases,
    segment_file,
)
from headrace.model.errors import LogCorruptError

__all__ = ["recover_partition", "scan_segment"]

Identity = tuple[int, int, int]
_HINT = "keep a copy of the log's directory and restore it from a backup"


def recover_partition(
    files: PartitionFiles, durable_end: int, durable_group: int, journal: Sequence[Frame]
) -> None:
    """Make `files` ready to append: everything in the journal is in its segments when this
    returns. A checkpoint covers offsets before `durable_end`, and groups before `durable_group`.
    Raises LogCorruptError if events before the journal are missing or damaged."""
    bases = segment_bases(files.directory)
    headless = next(
        (b for b in bases if b >= durable_end and not _has_head(files.directory, b)), None
    )
    while headless is not None and bases and bases[-1] >= headless:
        _remove(files.directory, bases.pop())
    if not durable_end and bases and bases[0] > 0:
        # A power cut took the names before them: what retention removes is checkpointed first.
        while bases:
            _remove(files.directory, bases.pop())
    if bases and bases[0] <= durable_end:
        written = {_identity(frame.header): frame for frame in journal}
        _adopt(files, bases, durable_end, durable_group, written)
    elif durable_end:
        raise LogCorruptError(f"{files.directory} has lost its segments", hint=_HINT)
    for frame in journal:
        if _is_covered(frame.header, files):
            continue
        if frame.header.base_offset != files.end:
            raise LogCorruptError(
                f"{files.directory} lacks offsets {files.end} to {frame.header.base_offset}",
                hint=_HINT,
            )
        files.append(*frame)


def _identity(header: FrameHeader) -> Identity:
    """A group has one frame at most without events per partition, and it comes last."""
    return header.position, header.base_offset, header.rows


def _is_covered(header: FrameHeader, files: PartitionFiles) -> bool:
    """Whether the segments have the frame. One without events raises the maximum, always."""
    if header.rows:
        return header.end <= files.end
    return header.base_offset < files.end or header.maximum_after <= files.maximum


def _adopt(
    files: PartitionFiles,
    bases: list[int],
    durable_end: int,
    durable_group: int,
    written: dict[Identity, Frame],
) -> None:
    directory = files.directory
    segments: list[Segment] = []
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is not None and following <= durable_end:
            segments.append(_closed_segment(directory, base, following))
            continue
        head, headers, frames_end = _cut_segment(
            segment_file(directory, base), durable_group, written
        )
        end = headers[-1].end if headers else base
        received = max((header.received for header in headers), default=-(2**63))
        size = frames_end + index_file(directory, base).stat().st_size
        segments.append(Segment(base, end, size, received))
        files.unsynced.add(segment_file(directory, base))
        if following is not None and end != following:
            for later in bases[bases.index(base) + 1 :]:
                _remove(directory, later)
            following = None
        if following is None:
            if end < durable_end:
                raise LogCorruptError(
                    f"{segment_file(directory, base)} is damaged at offset {end}, "
                    f"before {durable_end}",
                    hint=_HINT,
                )
            files.adopt(segments, head, headers[-1] if headers else None, frames_end)
            return


def _cut_segment(
    file: Path, durable_group: int, written: dict[Identity, Frame]
) -> tuple[SegmentHead, list[FrameHeader], int]:
    """Cut a segment behind its last good frame and make its index fit."""
    head, frames, position, data = scan_segment(file)
    headers: list[FrameHeader] = []
    entries = bytearray(index_head(head.format))
    for header, at in frames:
        if header.position >= durable_group:
            frame = written.get(_identity(header))
            if frame is None or frame.packed != data[at : at + HEADER_BYTES]:
                position = at
                break
            if zlib.crc32(data[at + HEADER_BYTES :][: header.length]) != header.payload_crc:
                position = at
                break
        headers.append(header)
        entries += index_entry(header, at, head.format)
    if len(data) != position:
        os.truncate(file, position)
    data.release()
    _fit_index(index_file(file.parent, head.base_offset), bytes(entries))
    return head, headers, position


def _fit_index(index: Path, entries: bytes) -> None:
    kept = index.read_bytes() if index.exists() else b""
    if kept == entries:
        return
    good = min(len(kept), len(entries))
    if kept[:good] != entries[:good]:
        good = 0
    descriptor = os.open(index, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        write_all(descriptor, [entries[good:]], good)
        os.ftruncate(descriptor, len(entries))
    finally:
        os.close(descriptor)


def scan_segment(
    file: Path,
) -> tuple[SegmentHead, list[tuple[FrameHeader, int]], int, memoryview]:
    """The head, the frames whose headers are good (with their positions), where they end, and the
    file's bytes. Payloads are not checked."""
    with file.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        mapped = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) if size else b""
    data = memoryview(mapped)
    head = parse_head(data, file)
    frames: list[tuple[FrameHeader, int]] = []
    position, end = head.frames_position, head.base_offset
    while (header := parse_frame_header(data, position)) is not None:
        if header.base_offset != end or position + header.frame_bytes > len(data):
            break
        frames.append((header, position))
        position, end = position + header.frame_bytes, header.end
    return head, frames, position, data


def _closed_segment(directory: Path, base: int, end: int) -> Segment:
    index = index_file(directory, base)
    size = segment_file(directory, base).stat().st_size
    try:
        raw = index.read_bytes()
    except FileNotFoundError as error:
        raise LogCorruptError(f"{index} is missing", hint=_HINT) from error
    newest = newest_entry(raw, index)
    if newest is None:
        raise LogCorruptError(f"{index} is damaged", hint=_HINT)
    if newest[0] != end:
        raise LogCorruptError(f"{index} does not end at offset {end}", hint=_HINT)
    return Segment(base, end, size + len(raw), newest[1])


def _has_head(directory: Path, base: int) -> bool:
    file = segment_file(directory, base)
    with file.open("rb") as handle:
        try:
            parse_head(handle.read(1 << 20), file)
        except LogCorruptError:
            return False
    return True


def _remove(directory: Path, base: int) -> None:
    segment_file(directory, base).unlink(missing_ok=True)
    index_file(directory, base).unlink(missing_ok=True)
