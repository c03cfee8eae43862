"""The retention floor: how far the slowest view of each stream has come, as the engine says.

Retention must not pass it. The file may lag behind (that only keeps more); it never runs ahead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from headrace.model.errors import LogCorruptError

__all__ = ["read_retention_floor", "write_retention_floor"]

_NAME = "hold.json"
_FORMAT = 2  # in format 1 the file was the offsets alone


def write_retention_floor(log_directory: Path, next_offsets: Mapping[str, tuple[int, ...]]) -> None:
    """Atomically replace the floor. A stream that no view reads is left out."""
    temporary = log_directory / f".{_NAME}.{os.getpid()}"
    offsets = {name: list(value) for name, value in next_offsets.items()}
    temporary.write_text(json.dumps({"format": _FORMAT, "next_offsets": offsets}))
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(log_directory / _NAME)


def read_retention_floor(log_directory: Path) -> Mapping[str, tuple[int, ...]] | None:
    """None means the engine never said: nothing may be removed. A stream that is absent from the
    floor is read by no view."""
    try:
        raw = json.loads((log_directory / _NAME).read_text())
    except FileNotFoundError:
        return None
    file_format = raw.get("format")
    if not isinstance(file_format, int):  # a stream may have this name
        offsets = raw
    elif file_format == _FORMAT:
        offsets = raw["next_offsets"]
    else:
        raise LogCorruptError(
            f"{log_directory / _NAME} has format {file_format}, this version reads up to {_FORMAT}",
            hint="use the version of Headrace that wrote it",
        )
    return {name: tuple(value) for name, value in offsets.items()}
