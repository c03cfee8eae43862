"""The way of events into a test's log: the gateway's code, one request at a time, at the times that
a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.encode import encode_delete, encode_event, events_of
from headrace.formats.bodies import BodyKind
from headrace.formats.json_record import TIMESTAMP_MAXIMUM
from headrace.gateway.ingest.commit_group import GroupBuilder
from headrace.gateway.ingest.conservation import Conservation, count_group
from headrace.gateway.ingest.decoding import StreamDecoder
from headrace.gateway.ingest.heartbeats import HeartbeatReader
from headrace.gateway.ingest.idle import IdlePartitions
from headrace.gateway.ingest.requests import EventsRequest, read_retry_key, read_sent_at
from headrace.http.headers import Headers
from headrace.http.problems import Response, unknown_stream, unknown_table
from headrace.log.contract import Appended, LogReader, LogWriter
from headrace.model.definitions import Project, Stream
from headrace.model.errors import RequestError
from headrace.model.settings import GatewaySettings

__all__ = ["Answer", "Ingest"]


@dataclass(frozen=True)
class Answer:
    """What a client is told about its request: how many records were accepted, how many became dead
    letters, and (position, reason) of these. `retried` counts records whose sequence numbers were
    stored before; `is_retry` says that the whole request was, and that this is its first answer."""

    accepted: int
    quarantined: int
    errors: tuple[tuple[int, str], ...] = ()
    retried: int = 0
    is_retry: bool = False


class _Unheard:
    """Nobody waits for the reply: the outcome is at hand as soon as the group is stored."""

    def done(self) -> bool:
        return True

    def set_result(self, response: Response, /) -> None: ...

    def set_exception(self, error: RequestError, /) -> None: ...


class Ingest:
    """Every request is a group commit of its own, so the log has what a test wrote in its order."""

    def __init__(
        self, project: Project, settings: GatewaySettings, writer: LogWriter, reader: LogReader
    ) -> None:
        self._project = project
        self._writer = writer
        self._decoders = {s.name: StreamDecoder(s, settings) for s in project.streams}
        self._builder = GroupBuilder(writer)
        self._conservation = Conservation()
        self._heartbeats = HeartbeatReader(project)
        self._idle = IdlePartitions(project.streams, writer, reader)

    def body(self, events: Any, *, deletes: bool = False) -> bytes:
        """Of one request. Raises ClientError for what cannot be written as JSON."""
        encode = encode_delete if deletes else encode_event
        return b"\n".join(_line(event, encode) for event in _items(events))

    def newest_event_time(self, stream: str, body: bytes) -> int | None:
        """The highest event time, in microseconds, of the records that fit their stream."""
        definition = self._stream(stream)
        if definition.event_time is None:
            return None
        rows = self._decoders[definition.name].decode(
            [(_request(definition.name, body, Headers(), TIMESTAMP_MAXIMUM), body)]
        )
        column = definition.column(definition.event_time)
        assert column is not None, "the compiler saw to it"
        times = [pc.max(batch.column(column.name)).cast(pa.int64()) for batch in rows.batches]
        return max((t.as_py() for t in times if t.is_valid), default=None)

    def send(self, stream: str, body: bytes, headers: Mapping[str, Any], received: int) -> Answer:
        """Raises RequestError as the gateway refuses a request, and what the log raises."""
        name = self._stream(stream).name
        request = _request(name, body, _headers(headers), received)
        rows = [self._decoders[name].decode([(request, body)])]
        draft = self._builder.build(rows)
        appended = Appended()
        if draft.group.batches or draft.group.receipts or draft.group.dead:
            appended = self._writer.append(draft.group)
        self._conservation.check(count_group(rows, draft, appended))
        self._conservation.require(name)
        ((_, outcome),) = self._builder.covered(draft.fresh) + draft.settled
        if isinstance(outcome, RequestError):
            raise outcome
        _, answered, body = outcome
        return _answer(body, is_retry=("headrace-retried", "true") in answered)

    def require_table(self, name: str) -> None:
        """Raises RequestError as the gateway refuses changes of what takes none."""
        found = self._project.stream(name)
        if found is None or found.changelog is None:
            raise unknown_table(name, self._project)

    def require_stream(self, name: str) -> None:
        """Raises RequestError as the gateway refuses events of what is no stream."""
        found = self._project.stream(name)
        if found is None:
            streams = [s for s in self._project.streams if s.changelog is None]
            raise unknown_stream(name, streams)
        if found.changelog is not None:
            raise RequestError(
                422,
                "not-a-stream",
                f"{found.name} is a table, not a stream",
                hint=f'project.upsert("{found.name}", …), project.delete("{found.name}", …)',
            )

    def _stream(self, name: str) -> Stream:
        found = self._project.stream(name)
        assert found is not None, "its name was looked up before"
        return found

    def heartbeat(self, stream: str, asked: Mapping[str, Any], received: int) -> None:
        """Raises RequestError as the gateway does."""
        body = msgspec.json.encode({"stream": stream, **asked})
        beats = self._heartbeats.read(body, received, lambda _: None)
        self._writer.append(beats.group(received))

    def move_idle_on(self, now: int) -> None:
        """What the gateway writes by itself when time has passed."""
        self._idle.move_on(now)


def _request(stream: str, body: bytes, headers: Headers, received: int) -> EventsRequest:
    return EventsRequest(
        stream,
        body,
        BodyKind.LINES,
        "identity",
        read_retry_key(headers),
        received,
        _Unheard(),
        sent_at_microseconds=read_sent_at(headers),
    )


def _headers(given: Mapping[str, Any]) -> Headers:
    headers = Headers()
    for name, value in given.items():
        if value is not None:
            headers.add(name.encode(), str(value).encode())
    return headers


def _items(events: Any) -> Iterable[Any]:
    return [events] if isinstance(events, str | bytes) else events_of(events)


def _line(event: Any, encode: Callable[[Any], bytes]) -> bytes:
    """A text is a line as it stands: how a test writes a record that is broken."""
    if isinstance(event, str):
        return event.encode("utf-8", "surrogatepass")
    return event if isinstance(event, bytes) else encode(event)


def _answer(body: bytes, *, is_retry: bool) -> Answer:
    told = msgspec.json.decode(body)
    errors = tuple((error["position"], error["reason"]) for error in told["errors"])
    return Answer(told["accepted"], told["quarantined"], errors, told.get("retried", 0), is_retry)
