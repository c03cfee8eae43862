"""The embedded log: a journal for durability, segments for reading, one writer, many readers.

log/lock              held by the writer, with its process id
log/layout.json       the streams, their slots and schemas
log/ends              starts, ends and highest event times of all partitions, mapped by readers
log/hold.json         how far the slowest views have come, written by the engine
log/journal/          what was appended since the last checkpoint
log/checkpoints/      receipts and sequence numbers from before the journal
log/streams/S/P/      segments with their indexes
log/deadletters/      dead letters and resolutions, as segments
log/archive/S/partition=P/   what retention took out, as Parquet
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.log.embedded.reader import EmbeddedAddress, EmbeddedReader
from headrace.log.embedded.verification import Finding, Verified, verify
from headrace.log.embedded.writer import EmbeddedWriter
from headrace.model.definitions import Stream
from headrace.model.errors import LogError, LogLockedError
from headrace.model.settings import GatewaySettings, LogSettings

__all__ = [
    "EmbeddedAddress",
    "EmbeddedReader",
    "EmbeddedWriter",
    "Finding",
    "Verified",
    "open_reader",
    "open_writer",
    "verify",
]


def open_writer(
    directory: Path,
    streams: Sequence[Stream],
    log_settings: LogSettings,
    gateway_settings: GatewaySettings,
) -> EmbeddedWriter:
    """Take the lock, repair what a crash left, and be ready to append.

    Raises LogLockedError naming the holder; LogError for a stream that changed in a way its
    stored events cannot follow; LogCorruptError if acknowledged events are damaged or missing.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(directory / "lock")
    except OSError as error:
        raise LogError(f"{directory} cannot be used: {error}", hint="check its permissions") from (
            error
        )
    try:
        return EmbeddedWriter(directory, streams, log_settings, gateway_settings, lock)
    except OSError as error:
        os.close(lock)
        raise LogError(f"the log in {directory} cannot be opened: {error}") from error
    except BaseException:
        os.close(lock)
        raise


def open_reader(directory: Path, streams: Sequence[Stream]) -> EmbeddedReader:
    """Needs no writer: a log that none has opened yet is empty."""
    return EmbeddedAddress(directory).open(streams)


def _take_lock(file: Path) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise LogLockedError(
            f"the log in {file.parent} is held by process {holder or 'unknown'}",
            hint="a gateway is running for this project already; stop it first",
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
