"""Which backend a project's log has: the only place above the backends that knows one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.log.contract import LogAddress, LogWriter
from headrace.log.embedded.backend import open_writer as open_embedded_writer
from headrace.log.embedded.reader import EmbeddedAddress
from headrace.model.definitions import Stream
from headrace.model.settings import Settings

__all__ = ["log_address", "open_writer"]


def log_address(settings: Settings) -> LogAddress:
    """Where the project's log is read."""
    return EmbeddedAddress(settings.log_directory)


def open_writer(settings: Settings, streams: Sequence[Stream]) -> LogWriter:
    """Take the log's lock, repair what a crash left, and be ready to append.

    Raises LogLockedError naming the holder; LogError for a stream that changed in a way its
    stored events cannot follow; LogCorruptError if acknowledged events are damaged or missing.
    """
    return open_embedded_writer(settings.log_directory, streams, settings.log, settings.gateway)
