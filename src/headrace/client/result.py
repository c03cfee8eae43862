"""Answers as Python values."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import pyarrow

__all__ = ["Change", "Freshness", "Result", "row_reader"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Freshness:
    """`tick` can be given to subscribe(after=…) to go on from the answer without a gap.
    `complete_up_to` None means that it is not known; `missing_events` and `silent_producers` None
    that nobody watches producers. `text` says it all in words."""

    tick: int
    committed_at: datetime | None
    complete_up_to: datetime | None
    pending_events: int
    missing_events: int | None = None
    silent_producers: tuple[str, ...] | None = None
    text: str = ""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Freshness:
        return cls(
            int(headers["headrace-tick"]),
            _time(headers.get("headrace-committed-at")),
            _time(headers.get("headrace-complete-up-to")),
            int(headers["headrace-pending-events"]),
            _whole(headers.get("headrace-missing-events")),
            _names(headers.get("headrace-silent-producers")),
            headers.get("headrace-freshness", ""),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Freshness:
        return cls(
            document["tick"],
            _time(document["committed_at"]),
            _time(document["complete_up_to"]),
            document["pending_events"],
            document.get("missing_events"),
            None if (silent := document.get("silent_producers")) is None else tuple(silent),
            document.get("text", ""),
        )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(json.loads(text))


@dataclass(frozen=True)
class Result:
    """The rows of an answer, all from one tick boundary."""

    arrow: pyarrow.Table = field(repr=False)
    freshness: Freshness
    next_cursor: str | None = None

    @classmethod
    def from_stream(cls, headers: Mapping[str, str], content: bytes) -> Result:
        import pyarrow

        with pyarrow.ipc.open_stream(content) as reader:
            table = reader.read_all()
        cursor = headers.get("headrace-next-cursor")
        return cls(table, Freshness.from_headers(headers), cursor)

    @cached_property
    def rows(self) -> list[Row]:
        """Decimal, datetime (UTC), date, bytes and so on as Python has them."""
        rows: list[Row] = self.arrow.to_pylist()
        return rows

    def pandas(self) -> pandas.DataFrame:
        return self.arrow.to_pandas()

    def __len__(self) -> int:
        return int(self.arrow.num_rows)


@dataclass(frozen=True)
class Change:
    """What one tick changed in one view: the affected rows as they were and as they are."""

    tick: int
    view: str
    before: list[Row]
    after: list[Row]
    freshness: Freshness


_READERS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("DECIMAL", Decimal),
    ("TIMESTAMP", datetime.fromisoformat),
    ("DATE", date.fromisoformat),
    ("BINARY", base64.b64decode),
    ("FLOAT", float),
    ("DOUBLE", float),
)


def row_reader(columns: Sequence[Mapping[str, str]]) -> Callable[[Row], Row]:
    """Turns the JSON of a view's row into the Python values Result.rows would have. Nested columns
    stay as JSON has them."""
    readers = {
        column["name"]: reader
        for column in columns
        for kind, reader in _READERS
        if column["type"].startswith(kind)
    }

    def read(row: Row) -> Row:
        for name, reader in readers.items():
            value = row.get(name)
            if value is not None:
                row[name] = reader(value)
        return row

    return read
