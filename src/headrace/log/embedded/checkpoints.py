"""Checkpoints: what must outlive the journal that carried it.

A checkpoint says: every segment is durable up to these ends, and these receipts and sequence
numbers came in since the one before. Files are written whole or not at all. Each holds only what
is new, until there are so many that one takes everything in and the others go.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.log.embedded.frames import replace_file
from headrace.log.sequences.event_sequence_streams import EventSequenceRecord
from headrace.log.sequences.producer_sequences import LineRecord
from headrace.log.sequences.producers import WriterRecord
from headrace.log.sequences.watermark_origin import WatermarkOriginRecord
from headrace.model.errors import LogCorruptError

__all__ = ["Checkpoint", "Checkpoints"]

_SUFFIX = ".checkpoint"
_HEAD = struct.Struct("<IIIIq")  # magic, format, crc of the rest, unused, length
_MAGIC = 0x43524448  # "HDRC"
_FORMAT = 1
FILES_MAX = 64


@dataclass(frozen=True)
class Checkpoint:
    """Covers the journal up to file `journal`; `next_group` is the first it does not cover.
    `ends[slot]` is durable in the segments. `is_whole` means that
    earlier checkpoints no longer count."""

    journal: int
    next_group: int
    is_whole: bool
    ends: dict[int, int]
    receipts: list[bytes]
    producers: list[LineRecord]
    dead_letters_dropped: int = 0
    writers: list[WriterRecord] = field(default_factory=list)
    holders: list[WatermarkOriginRecord] = field(default_factory=list)
    numbered: list[EventSequenceRecord] = field(default_factory=list)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)


class Checkpoints:
    """Files named by the journal number they cover."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = sorted(int(f.name[:20]) for f in directory.glob(f"*{_SUFFIX}"))

    @property
    def wants_whole(self) -> bool:
        return len(self._numbers) >= FILES_MAX

    def load(self) -> list[Checkpoint]:
        """Those that count, oldest first. Raises LogCorruptError if one is damaged."""
        loaded = [self._load_one(self._file(number)) for number in self._numbers]
        whole = max((i for i, item in enumerate(loaded) if item.is_whole), default=0)
        return loaded[whole:]

    def write(self, checkpoint: Checkpoint) -> None:
        """Durable when it returns."""
        body = _encoder.encode(checkpoint)
        head = _HEAD.pack(_MAGIC, _FORMAT, zlib.crc32(body), 0, len(body))
        replace_file(self._file(checkpoint.journal), [head, body])
        if checkpoint.is_whole:
            for number in self._numbers:
                if number != checkpoint.journal:
                    self._file(number).unlink(missing_ok=True)
            self._numbers = []
        self._numbers = [*self._numbers, checkpoint.journal]

    def _file(self, number: int) -> Path:
        return self._directory / f"{number:020d}{_SUFFIX}"

    @staticmethod
    def _load_one(file: Path) -> Checkpoint:
        raw = file.read_bytes()
        if len(raw) >= _HEAD.size:
            magic, version, crc, _, length = _HEAD.unpack_from(raw)
            body = memoryview(raw)[_HEAD.size :]
            if magic == _MAGIC and len(body) == length and zlib.crc32(body) == crc:
                if version != _FORMAT:
                    raise LogCorruptError(
                        f"{file} has format {version}, this version reads {_FORMAT}",
                        hint="use the version of Headrace that wrote it",
                    )
                return _decoder.decode(body)
        raise LogCorruptError(
            f"{file} is damaged", hint="restore the log's directory from a backup"
        )
