"""The hold: how far the slowest view of each stream has come, as the engine tells the writer.

Retention must not pass it. The file may lag behind (that only keeps more); it never runs ahead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["read_hold", "write_hold"]

_NAME = "hold.json"


def write_hold(log_directory: Path, next_offsets: Mapping[str, tuple[int, ...]]) -> None:
    """Atomically replace the hold. A stream that no view reads is left out."""
    temporary = log_directory / f".{_NAME}.{os.getpid()}"
    temporary.write_text(json.dumps({name: list(value) for name, value in next_offsets.items()}))
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(log_directory / _NAME)


def read_hold(log_directory: Path) -> Mapping[str, tuple[int, ...]] | None:
    """None means the engine never said: nothing may be removed. A stream that is absent from the
    hold is read by no view."""
    try:
        raw = json.loads((log_directory / _NAME).read_text())
    except FileNotFoundError:
        return None
    return {name: tuple(value) for name, value in raw.items()}
