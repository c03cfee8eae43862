"""Dead letters and their resolutions, each a numbered sequence of frames like a partition's.

Letters are dropped from the oldest on when there are too many; what is dropped unresolved is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from headrace.log.contract import DeadLetter
from headrace.log.embedded.segment_reading import LogFiles, shared_files
from headrace.log.embedded.segments import PartitionFiles
from headrace.model.errors import LogError

__all__ = [
    "LetterBounds",
    "decode_letters",
    "encode_letters",
    "encode_resolved",
    "read_letters",
    "resolved_numbers",
]

LETTERS_SEGMENT_BYTES_MAX = 8 * 1024 * 1024
RESOLVED_SEGMENT_BYTES_MAX = 256 * 1024


class _Letter(msgspec.Struct, array_like=True, frozen=True):
    """As it is stored; what comes last is absent in letters of earlier versions."""

    stream: str
    position: int
    reason: str
    raw: bytes
    received: int
    sent: int | None = None


_encoder = msgspec.msgpack.Encoder()
_letters = msgspec.msgpack.Decoder(list[_Letter])
_numbers = msgspec.msgpack.Decoder(list[int])


def letters_directory(directory: Path) -> Path:
    return directory / "deadletters" / "letters"


def resolved_directory(directory: Path) -> Path:
    return directory / "deadletters" / "resolved"


class LetterBounds:
    """Keeps at most so many letters and bytes, dropping whole segments from the oldest on."""

    def __init__(
        self,
        directory: Path,
        letters: PartitionFiles,
        resolved: PartitionFiles,
        numbers_max: int,
        bytes_max: int,
        publish: Callable[[int], None],
        make_durable: Callable[[int, int], None],
    ) -> None:
        self._directory = directory
        self._letters = letters
        self._resolved = resolved
        self._numbers_max = numbers_max
        self._bytes_max = bytes_max
        self._segment_rows_max = max(1, numbers_max // 8)
        self._publish = publish
        self._make_durable = make_durable

    def make_room(self, incoming: int) -> int:
        """Drop the oldest until `incoming` more fit. Returns how many letters a frame may hold, so
        that later drops are in small steps. Raises LogError if the disk fails."""
        letters = self._letters
        try:
            while letters.segments and letters.end > letters.start:
                if letters.end - letters.segments[-1].base_offset >= self._segment_rows_max:
                    letters.roll()
                kept = letters.end - letters.start
                if kept + incoming <= self._numbers_max and letters.size <= self._bytes_max:
                    break
                if len(letters.segments) == 1:
                    letters.roll()
                self._drop_oldest()
        except OSError as error:
            raise LogError(
                f"old dead letters cannot be removed: {error}", hint="check the disk"
            ) from error
        return self._segment_rows_max

    def _drop_oldest(self) -> None:
        files, oldest = shared_files(self._directory), self._letters.segments[0]
        known = resolved_numbers(files, (self._resolved.start, self._resolved.end))
        gone = range(oldest.base_offset, oldest.end)
        self._make_durable(self._letters.slot, oldest.end)
        unresolved = len(gone) - sum(1 for number in gone if number in known)
        self._letters.remove_first(before_unlink=lambda: self._publish(unresolved))
        while len(self._resolved.segments) > 1:
            first = self._resolved.segments[0]
            numbers = resolved_numbers(files, (first.base_offset, first.end))
            if max(numbers) >= self._letters.start:
                break
            self._make_durable(self._resolved.slot, first.end)
            self._resolved.remove_first(before_unlink=lambda: self._publish(0))


def encode_letters(letters: Sequence[DeadLetter]) -> bytes:
    return _encoder.encode(
        [
            _Letter(
                x.stream,
                x.position,
                x.reason,
                x.raw,
                x.received_at_microseconds,
                x.sent_at_microseconds,
            )
            for x in letters
        ]
    )


def decode_letters(payload: memoryview | bytes, first_number: int) -> list[DeadLetter]:
    return [
        DeadLetter(x.stream, x.position, x.reason, x.raw, x.received, number, x.sent)
        for number, x in enumerate(_letters.decode(payload), first_number)
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
