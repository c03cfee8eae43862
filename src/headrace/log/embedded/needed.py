"""What a table still needs of its changelog, as the engine says; retention reads it.

`needed/STREAM/P.parquet` has the offsets, ascending, of those changes before `upto` that are
needed: one column, delta-encoded, 1 to 2 bytes for each. A missing file says nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.log.embedded.frames import fsync_directory
from headrace.log.embedded.layout import stream_folder
from headrace.model.errors import LogCorruptError, LogOffsetError

__all__ = ["Needed", "needed_upto", "read_needed", "said_together", "write_needed"]

_UPTO = b"headrace.upto"
_FORMAT = b"headrace.format"
_FORMAT_NOW = 1


@dataclass(frozen=True)
class Needed:
    """Of the changes before `upto`, those at `offsets` are needed, and no others."""

    upto: int
    offsets: npt.NDArray[np.int64]


def write_needed(log_directory: Path, stream: str, partition: int, needed: Needed) -> None:
    """Durably replace what was said before; with `upto` 0 nothing is said any more. Raises
    LogOffsetError for offsets that are not ascending, or not from 0 to below `upto`."""
    offsets = np.ascontiguousarray(needed.offsets, dtype=np.int64)
    if len(offsets) and not (
        offsets[0] >= 0 and offsets[-1] < needed.upto and bool(np.all(np.diff(offsets) > 0))
    ):
        raise LogOffsetError(
            f"the needed offsets of {stream} partition {partition} are not ascending and "
            f"from 0 to below {needed.upto}",
            hint="this is a fault of Headrace; please report it",
        )
    file = _file(log_directory, stream, partition)
    if not needed.upto:
        if file.exists():
            file.unlink()
            fsync_directory(file.parent)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    described = pa.schema(
        [pa.field("offset", pa.int64(), nullable=False)],
        {_FORMAT: str(_FORMAT_NOW).encode(), _UPTO: str(needed.upto).encode()},
    )
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    pq.write_table(
        pa.Table.from_arrays([pa.array(offsets)], schema=described),
        temporary,
        compression="zstd",
        use_dictionary=False,
        column_encoding={"offset": "DELTA_BINARY_PACKED"},
        write_page_checksum=True,
    )
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(file)
    for folder in (file.parent, file.parent.parent, log_directory):
        fsync_directory(folder)


def needed_upto(log_directory: Path, stream: str, partition: int) -> int:
    """Up to where something is said: 0 if nothing is."""
    file = _file(log_directory, stream, partition)
    try:
        return _upto(pq.read_schema(file), file)
    except FileNotFoundError:
        return 0
    except pa.ArrowInvalid as error:
        raise _damaged(file, error) from error


def read_needed(log_directory: Path, stream: str, partition: int) -> Needed:
    """With `upto` 0 if nothing is said."""
    file = _file(log_directory, stream, partition)
    try:
        table = pq.read_table(file, page_checksum_verification=True)
    except FileNotFoundError:
        return Needed(0, np.empty(0, dtype=np.int64))
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(file, error) from error
    return Needed(_upto(table.schema, file), table.column("offset").to_numpy())


@contextmanager
def said_together(log_directory: Path) -> Iterator[None]:
    """While it is held, the retention floor does not move. The engine holds it to write the floor,
    retention between its last look at it and a compaction's appearance: so once the floor is
    written, nothing that it forbids appears any more. Held for the time of a rename."""
    descriptor = os.open(log_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _file(log_directory: Path, stream: str, partition: int) -> Path:
    return log_directory / "needed" / stream_folder(stream) / f"{partition}.parquet"


def _upto(schema: pa.Schema, file: Path) -> int:
    metadata = schema.metadata or {}
    file_format = int(metadata.get(_FORMAT, 0))
    if file_format != _FORMAT_NOW:
        raise LogCorruptError(
            f"{file} has format {file_format}, this version reads up to {_FORMAT_NOW}",
            hint="use the version of Headrace that wrote it",
        )
    return int(metadata[_UPTO])


def _damaged(file: Path, error: Exception) -> LogCorruptError:
    return LogCorruptError(
        f"{file} is damaged: {error}",
        hint="remove it: the engine writes it anew; nothing is compacted until then",
    )
