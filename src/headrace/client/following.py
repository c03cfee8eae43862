"""Following a view: reading server-sent events and keeping the place, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.client.result import Change, Freshness, row_reader
from headrace.client.retry import RETRIED_STATUSES, refused
from headrace.model.errors import ChangesExpiredError, ClientError, RefusedError

__all__ = ["Event", "EventReader", "Follower"]

EVENT_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True)
class Event:
    """`identifier` None: the message had no id line. `data` None: it had no data line."""

    name: str
    identifier: str | None
    data: bytes | None


class EventReader:
    """Bytes in whatever pieces they come, events out. What follows the last blank line is not an
    event yet: a connection that breaks in the middle of a message loses nothing of the others."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._lines: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Raises ClientError when a message is larger than EVENT_BYTES_MAX."""
        self._held_bytes += len(piece)
        if self._held_bytes > EVENT_BYTES_MAX:
            raise ClientError(f"a message has more than {EVENT_BYTES_MAX} bytes")
        if b"\n" not in piece:
            self._pieces.append(piece)
            return
        *lines, rest = b"".join([*self._pieces, piece]).split(b"\n")
        self._pieces = [rest]
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                self._lines.append(line)
            elif self._lines:
                event = _event(self._lines)
                self._lines = []
                yield event
        self._held_bytes = len(rest) + sum(len(line) for line in self._lines)


def _event(lines: Sequence[bytes]) -> Event:
    name, identifier = "message", None
    data: list[bytes] = []
    for line in lines:
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode()
        elif key == b"id":
            identifier = value.decode()
    return Event(name, identifier, b"\n".join(data) if data else None)


class Follower:
    """The place of one subscription over any number of connections: each tick is given once, in
    order, whatever a server sends again."""

    def __init__(self, view: str, after: int | None, columns: Sequence[dict[str, Any]]) -> None:
        self.view = view
        self.position = after
        self._read_row = row_reader(columns)
        self._events = EventReader()

    @classmethod
    def of(cls, view: str, after: int | None, views: Sequence[dict[str, Any]]) -> Follower:
        """`views` is what the server lists; case does not count in names. A view that is not
        listed is left to the server to refuse."""
        for listed in views:
            if listed["name"].lower() == view.lower():
                return cls(listed["name"], after, listed["columns"])
        return cls(view, after, ())

    def request(self) -> tuple[str, dict[str, str], dict[str, str]]:
        """Path, parameters and headers of the next connection."""
        self._events = EventReader()
        path = f"/v1/views/{quote(self.view, safe='')}/changes"
        parameters = {} if self.position is None else {"after": str(self.position)}
        return path, parameters, {"accept": "text/event-stream"}

    def check(self, status: int, content: bytes) -> None:
        """Returns for an answer that is worth another try. Raises ChangesExpiredError or
        RefusedError for others."""
        if status in RETRIED_STATUSES:
            return
        error = refused(status, content)
        if status == 410:
            raise _expired(error.problem)
        raise error

    def feed(self, piece: bytes) -> Iterator[Change]:
        """Raises ChangesExpiredError when the server says so in the middle."""
        for event in self._events.feed(piece):
            if event.name == "problem":
                document = msgspec.json.decode(event.data or b"{}")
                if document.get("code") == "changes-expired":
                    raise _expired(document)
                raise RefusedError(int(document.get("status", 500)), document)
            if event.data is None:
                if event.identifier is not None:
                    self._advance(int(event.identifier))
            elif event.name == "changes":
                change = self._change(event.data)
                if self.position is None or change.tick > self.position:
                    self._advance(change.tick)
                    yield change

    def _advance(self, tick: int) -> None:
        self.position = tick if self.position is None else max(self.position, tick)

    def _change(self, data: bytes) -> Change:
        document = msgspec.json.decode(data)
        return Change(
            document["tick"],
            document["view"],
            [self._read_row(row) for row in document["before"]],
            [self._read_row(row) for row in document["after"]],
            Freshness.from_document(document["freshness"]),
        )


def _expired(document: dict[str, Any]) -> ChangesExpiredError:
    return ChangesExpiredError(
        str(document.get("detail") or "the changes no longer reach back that far"),
        hint=str(document.get("hint") or "read the view again and go on after its tick"),
    )
