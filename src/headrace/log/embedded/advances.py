"""Advances: control records in line with events, each a frame without rows in its partition.

The header alone moves the watermark: its maximum is higher after it than before. The payload says
why, for people who ask.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.log.contract import Advance
from headrace.log.embedded.frames import HEADER_BYTES
from headrace.log.embedded.recovery import scan_segment
from headrace.log.embedded.segments import segment_bases, segment_file

__all__ = ["encode_advance", "read_advances"]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, str])


def encode_advance(advance: Advance) -> bytes:
    return _encoder.encode((advance.reason, advance.producer))


def read_advances(
    directory: Path, stream: str, partition: int, bounds: tuple[int, int], maximum: int
) -> list[Advance]:
    """The advances of one partition at offsets from the first of `bounds` to the second, both
    included. Beyond `maximum` they are not published yet."""
    start, end = bounds
    found: list[Advance] = []
    bases = segment_bases(directory)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if base > end or (following is not None and following < start):
            continue
        try:
            _, frames, _, data = scan_segment(segment_file(directory, base))
        except FileNotFoundError:
            continue  # retention took it in between
        for header, position in frames:
            if header.rows or not start <= header.base_offset <= end:
                continue
            if header.maximum_after > maximum:
                break
            payload = data[position + HEADER_BYTES : position + HEADER_BYTES + header.length]
            reason, producer = _decoder.decode(payload)
            place = (header.base_offset, header.position)
            found.append(Advance(stream, partition, header.maximum_after, reason, producer, *place))
    return found
