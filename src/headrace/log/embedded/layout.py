"""The layout: which streams a log holds, with the slot and the schema of each.

Written by the writer alone, atomically. Slots are given once and never move.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from headrace.log.contract import CLOCK_OFFSET, EVENT_TIME, QUALITY, RECEIVED_AT, stored_schema
from headrace.log.embedded.frames import replace_file
from headrace.model.definitions import Stream
from headrace.model.errors import LogCorruptError, LogError

__all__ = ["LETTERS_SLOT", "RESOLVED_SLOT", "Layout", "StreamLayout", "read_layout"]

LAYOUT_NAME = "layout.json"
LETTERS_SLOT = 0  # dead letters: (first kept number, next number)
RESOLVED_SLOT = 1  # resolutions: (first kept, next); a sequence of numbers of dead letters
COUNTERS_SLOT = 2  # (dead letters dropped unresolved, the next position); has no files
_SLOTS_RESERVED = 8
_FORMAT = 2
_FORMATS_READ = (1, 2)
_NOT_OWN = (EVENT_TIME, CLOCK_OFFSET, QUALITY, RECEIVED_AT)


@dataclass(frozen=True)
class StreamLayout:
    """Partition p has slot `slot` + p."""

    name: str
    slot: int
    partitions: int
    event_time: str | None
    schema: pa.Schema

    @property
    def has_clocks(self) -> bool:
        return EVENT_TIME in self.schema.names

    @property
    def clock(self) -> str:
        """The stored column with the event time."""
        return EVENT_TIME if self.has_clocks else self.event_time or RECEIVED_AT


@dataclass(frozen=True)
class Layout:
    """`identity` is given once, to a log that is new or has none yet. `format` is that of the
    newest files: once a writer of this version has opened a log, older versions refuse it."""

    number: int = 0
    streams: tuple[StreamLayout, ...] = ()
    identity: str = ""
    format: int = _FORMAT

    @property
    def slot_count(self) -> int:
        return max((s.slot + s.partitions for s in self.streams), default=_SLOTS_RESERVED)

    def stream(self, name: str) -> StreamLayout | None:
        return next((s for s in self.streams if s.name.lower() == name.lower()), None)

    def extended(self, streams: Sequence[Stream]) -> Layout:
        """With the new streams and the added columns of known ones, in the newest format; the same
        object if nothing is new. Raises LogError for a change that stored events cannot follow."""
        known = list(self.streams)
        for stream in streams:
            old = self.stream(stream.name)
            schema = stored_schema(stream)
            if old is None:
                slot = max((s.slot + s.partitions for s in known), default=_SLOTS_RESERVED)
                known.append(
                    StreamLayout(stream.name, slot, stream.partitions, stream.event_time, schema)
                )
            else:
                _check_change(old, stream, schema)
                known[known.index(old)] = replace(old, schema=schema)
        streams_now = tuple(known)
        if streams_now == self.streams and self.identity and self.format == _FORMAT:
            return self
        return Layout(self.number + 1, streams_now, self.identity or secrets.token_urlsafe(6))

    def write(self, directory: Path) -> None:
        document = {
            "format": self.format,
            "number": self.number,
            "identity": self.identity,
            "streams": [
                {
                    "name": s.name,
                    "slot": s.slot,
                    "partitions": s.partitions,
                    "event_time": s.event_time,
                    "schema": base64.b64encode(s.schema.serialize()).decode(),
                }
                for s in self.streams
            ],
        }
        replace_file(directory / LAYOUT_NAME, [json.dumps(document, indent=1).encode()])


def read_layout(directory: Path) -> Layout:
    """An empty layout if no writer ever opened the log."""
    file = directory / LAYOUT_NAME
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        return Layout()
    except ValueError as error:
        raise LogCorruptError(f"{file}: {error}", hint="restore the file from a backup") from error
    if document["format"] not in _FORMATS_READ:
        raise LogError(
            f"{file} has format {document['format']}, this version reads up to {_FORMAT}",
            hint="use the version of Headrace that wrote it",
        )
    return Layout(
        document["number"],
        tuple(
            StreamLayout(
                s["name"],
                s["slot"],
                s["partitions"],
                s["event_time"],
                pa.ipc.read_schema(pa.py_buffer(base64.b64decode(s["schema"]))),
            )
            for s in document["streams"]
        ),
        document.get("identity", ""),
        document["format"],
    )


def partition_directory(directory: Path, stream: str, partition: int) -> Path:
    return directory / "streams" / stream_folder(stream) / str(partition)


def stream_folder(stream: str) -> str:
    """A folder name for any stream name, the same for every spelling of its case."""
    return quote(stream.lower(), safe="").replace(".", "%2E")


def _check_change(old: StreamLayout, stream: Stream, schema: pa.Schema) -> None:
    kind, rows = ("table", "changes") if stream.changelog else ("stream", "events")

    def refuse(what: str) -> LogError:
        return LogError(
            f"{kind} {stream.name} changed while the log holds its {rows}: {what}",
            hint=f"undo the change, or give the changed {kind} a new name; "
            "only nullable columns added after the last one are taken over",
            location=stream.location,
        )

    if old.partitions != stream.partitions:
        raise refuse(f"{old.partitions} partitions became {stream.partitions}")
    if (old.event_time or "").lower() != (stream.event_time or "").lower():
        raise refuse(f"its event time {old.event_time} became {stream.event_time}")
    if old.has_clocks != (stream.clocks is not None):
        raise refuse(f"its SENT column {'is gone' if old.has_clocks else 'is new'}")
    before = [field for field in old.schema if field.name not in _NOT_OWN]
    now = [field for field in schema if field.name not in _NOT_OWN]
    for position, was in enumerate(before):
        if position >= len(now):
            raise refuse(f"column {was.name} is gone")
        field = now[position]
        if field.name != was.name:
            raise refuse(f"column {position + 1} was {was.name} and is now {field.name}")
        if field.type != was.type or field.nullable != was.nullable:
            raise refuse(f"column {was.name} was {_spell(was)} and is now {_spell(field)}")
    required = stream.changelog.required if stream.changelog else ()
    for field in now[len(before) :]:
        if not field.nullable or field.name in required:
            raise refuse(f"the added column {field.name} is NOT NULL")


def _spell(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' NOT NULL'}"
