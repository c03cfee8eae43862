"""A log that gives way to others at one address.

What Spark plans for a project names the log's address. So that the plans of one test serve the next
one with the same definitions, the address is a link, which leads to the log of the test that runs.
Spark's workers import this module, which therefore imports little.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headrace.log.contract import LogReader
from headrace.log.opening import log_address
from headrace.model.definitions import Stream
from headrace.model.settings import Settings

__all__ = ["CurrentLog"]


@dataclass(frozen=True)
class CurrentLog:
    """`link` leads to the directory of a project."""

    link: Path

    def open(self, streams: Sequence[Stream]) -> LogReader:
        return cast(LogReader, _CurrentReader(self, streams))

    def lead_to(self, directory: Path) -> None:
        new = self.link.with_suffix(".new")
        new.symlink_to(directory)
        new.replace(self.link)


class _CurrentReader:
    """Every question goes to the log that the link leads to when it is asked."""

    def __init__(self, address: CurrentLog, streams: Sequence[Stream]) -> None:
        self.address = address
        self._streams = streams
        self._directory = ""
        self._reader: LogReader | None = None

    def __getattr__(self, name: str) -> Any:
        directory = os.readlink(self.address.link)  # noqa: PTH115
        if self._reader is None or directory != self._directory:
            self._directory = directory
            self._reader = log_address(Settings(Path(directory))).open(self._streams)
        return getattr(self._reader, name)
