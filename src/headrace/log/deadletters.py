"""Dead letters and their resolutions, each a numbered sequence of frames like a partition's.

Letters are dropped from the oldest on when there are too many; what is dropped unresolved is
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.log.contract import DeadLetter
from headrace.log.reading import LogFiles

__all__ = [
    "decode_letters",
    "encode_letters",
    "encode_resolved",
    "read_letters",
    "resolved_numbers",
]

LETTERS_SEGMENT_BYTES_MAX = 8 * 1024 * 1024
RESOLVED_SEGMENT_BYTES_MAX = 256 * 1024
_encoder = msgspec.msgpack.Encoder()
_letters = msgspec.msgpack.Decoder(list[tuple[str, int, str, bytes, int]])
_numbers = msgspec.msgpack.Decoder(list[int])


def letters_directory(directory: Path) -> Path:
    return directory / "deadletters" / "letters"


def resolved_directory(directory: Path) -> Path:
    return directory / "deadletters" / "resolved"


def encode_letters(letters: Sequence[DeadLetter]) -> bytes:
    return _encoder.encode(
        [(x.stream, x.position, x.reason, x.raw, x.received_at_microseconds) for x in letters]
    )


def decode_letters(payload: memoryview | bytes, first_number: int) -> list[DeadLetter]:
    return [
        DeadLetter(stream, position, reason, raw, received, first_number + i)
        for i, (stream, position, reason, raw, received) in enumerate(_letters.decode(payload))
    ]


def encode_resolved(numbers: Sequence[int]) -> bytes:
    return _encoder.encode(list(numbers))


def resolved_numbers(files: LogFiles, bounds: tuple[int, int]) -> set[int]:
    """Numbers of all letters dealt with, of those still kept."""
    numbers: set[int] = set()
    for frame in files.partition(resolved_directory(files.directory)).frames(*bounds):
        numbers.update(_numbers.decode(memoryview(frame.payload)))
    return numbers


def read_letters(
    files: LogFiles,
    bounds: tuple[int, int],
    resolved: set[int],
    stream: str | None,
    after: int,
    limit: int,
) -> list[DeadLetter]:
    """Unresolved letters with a number above `after`, ascending, at most `limit`."""
    found: list[DeadLetter] = []
    first, end = max(bounds[0], after + 1), bounds[1]
    if limit <= 0:
        return found
    for frame in files.partition(letters_directory(files.directory)).frames(first, end):
        for letter in decode_letters(memoryview(frame.payload), frame.base_offset):
            if letter.number < first or letter.number in resolved:
                continue
            if stream is not None and letter.stream.lower() != stream.lower():
                continue
            found.append(letter)
            if len(found) == limit:
                return found
    return found
