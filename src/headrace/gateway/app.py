"""The gateway's HTTP face: routing, limits on reading, and one handler per path.

The path of an event is kept short: check access, read the headers, read the body within its
bounds, hand it to the committer, and wait for the one completion of its group.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.formats.bodies import BodyKind, body_kind, check_encoding
from headrace.formats.cloudevents import binary_key, is_binary
from headrace.gateway.admin.combined_answers import CombinedAnswers
from headrace.gateway.admin.completeness import ProducerWatch
from headrace.gateway.admin.deadletters import LIST_MAX, DeadLetters
from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.admin.producer_decisions import Decide, accept_gaps, retire_producer
from headrace.gateway.admin.proxy import EngineProxy
from headrace.gateway.admin.status import Status
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.heartbeats import HeartbeatReader, Heartbeats
from headrace.gateway.ingest.requests import (
    JSON_HEADERS,
    EventsRequest,
    read_retry_key,
    read_sent_at,
)
from headrace.http.access import ANY_TOKEN, Access
from headrace.http.connections import Connections
from headrace.http.headers import Headers
from headrace.http.incoming import BodyRoom, Incoming, IncomingReply
from headrace.http.limits import PRODUCERS_LISTED_MAX
from headrace.http.openapi.document import openapi_body
from headrace.http.parameters import (
    number_parameter,
    operation_parameter,
    read_parameters,
    stream_parameter,
)
from headrace.http.problems import (
    Response,
    failure_response,
    problem_response,
    unknown_stream,
    unknown_table,
)
from headrace.log.contract import LogReader
from headrace.model.definitions import Project, Stream
from headrace.model.errors import RequestError
from headrace.model.settings import Settings

__all__ = ["GatewayApp"]

logger = logging.getLogger("headrace.gateway")

Handler = Callable[[Incoming], Awaitable[Response | None]]

NOT_ASCII = "(not ASCII)"
_TABLE_PATH = re.compile(r"/v1/tables/([^/]+)")
_CHANGES_PATH = re.compile(r"/v1/tables/([^/]+)/changes")
_VIEW_PATH = re.compile(r"/v1/views/([^/]+)(?:/(changes|deadletters|rebuild|snapshot))?")
_STREAM_PATH = re.compile(
    r"/v1/streams/([^/]+)/(completeness(?:/accept|/retire)?|late|late/apply|resume)"
)
_ADMIN_BODY_BYTES_MAX = 4 * 1024 * 1024
_QUERY_BODY_BYTES_MAX = 1 * 1024 * 1024


class GatewayApp:
    """Answers (None from a handler means it has answered by itself) go out in one place, so that
    every failure becomes a problem document."""

    def __init__(
        self,
        settings: Settings,
        project: Project,
        access: Access,
        committer: Committer,
        reader: LogReader,
        proxy: EngineProxy,
        metrics: Metrics,
        watch: ProducerWatch,
    ) -> None:
        self._project = project
        self._watch = watch
        self._access = access
        self._committer = committer
        self._proxy = proxy
        self._combined_answers = CombinedAnswers(proxy)
        self._metrics = metrics
        self.room = BodyRoom(settings.gateway.queue_bytes_max, committer)
        self._request_bytes_max = settings.gateway.request_bytes_max
        self._deadletters = DeadLetters(settings, reader, committer.decoders, committer.account)
        self._heartbeat_reader = HeartbeatReader(project)
        self._heartbeats = Heartbeats(committer)
        self._state = Status(project, committer, reader, metrics)
        self._streams = _names(s for s in project.streams if s.changelog is None)
        self._tables = _names(s for s in project.streams if s.changelog is not None)
        self._loop = asyncio.get_running_loop()
        self.is_draining = False
        self.forwarding: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        # path → method → (scope, handler)
        self._routes: dict[str, dict[str, tuple[str | None, Handler]]] = {
            "/v1/deadletters": {"GET": ("admin", self._list_deadletters)},
            "/v1/deadletters/resubmit": {"POST": ("admin", self._resubmit)},
            "/v1/deadletters/discard": {"POST": ("admin", self._discard)},
            "/v1/heartbeats": {"POST": (ANY_TOKEN, self._post_heartbeats)},
            "/v1/streams": {"GET": ("query", self._list_streams)},
            "/v1/status": {"GET": ("query", self._status)},
            "/v1/ledger": {"GET": ("query", self._ledger)},
            "/v1/tables": {"GET": ("query", self._list_tables)},
            "/v1/views": {"GET": ("query", self._forward)},
            "/v1/sql": {"POST": ("sql", self._forward)},
            "/metrics": {"GET": ("admin", self._show_metrics)},
            "/healthz": {"GET": (None, self._healthz)},
            "/readyz": {"GET": (None, self._readyz)},
            "/openapi.json": {"GET": (None, self._openapi)},
        }
        self._view_routes: dict[str | None, dict[str, tuple[str | None, Handler]]] = {
            None: {"GET": ("query", self._forward)},
            "changes": {"GET": ("query", self._forward)},
            "deadletters": {"GET": ("admin", self._forward)},
            "rebuild": dict.fromkeys(("POST", "GET", "DELETE"), ("admin", self._forward)),
            "snapshot": {"POST": ("admin", self._forward)},
        }
        self._stream_routes: dict[str, dict[str, tuple[str | None, Handler]]] = {
            "completeness": {"GET": ("query", self._completeness)},
            "completeness/accept": {"POST": ("admin", self._accept_gaps)},
            "completeness/retire": {"POST": ("admin", self._retire_producer)},
            "late": {"GET": ("query", self._forward_about_stream)},
            "late/apply": {"POST": ("admin", self._forward_about_stream)},
            "resume": {"POST": ("admin", self._forward_about_stream)},
        }

    def handle(self, request: Incoming) -> None:
        """Answers now or later; never raises."""
        if request.path == "/v1/events" and request.method == "POST":
            self._take(request, self._expected_events)
        elif request.method == "POST" and _TABLE_PATH.fullmatch(request.path):
            self._take(request, self._expected_changes)
        else:
            task = self._loop.create_task(self._answer(request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, request: Incoming) -> None:
        try:
            response = await self._route(request)
        except ConnectionAbortedError:
            request.break_off()
            return
        except asyncio.CancelledError:
            self._stop_answering(request)
            raise
        except Exception as error:
            response = failure_response(error)
        if response is not None:
            self._finish(request, response)

    def _stop_answering(self, request: Incoming) -> None:
        """What the gateway's end cuts short: a subscription breaks off."""
        if request.is_answered:
            request.break_off()
        else:
            self._finish(request, problem_response(_stopping()))

    def _finish(self, request: Incoming, response: Response) -> None:
        if not request.is_answered:
            self._metrics.add_response(response[0])
            request.respond(response)

    @property
    def is_reading(self) -> bool:
        return self.room.reading > 0

    async def sweep(self, connections: Connections) -> None:
        """Once a second: cut slow clients, pick up new tokens. No failure may end this."""
        while True:
            await asyncio.sleep(1.0)
            try:
                connections.sweep()
                self._access.refresh()
            except Exception as error:
                logger.error("slow clients or new tokens were not looked at", exc_info=error)

    # ---------------------------------------------------------------------------------- events

    def _take(self, request: Incoming, expected_of: Callable[[Incoming], EventsRequest]) -> None:
        """No task and no future: at many small requests these would cost more than all the rest."""
        try:
            expected = expected_of(request)
        except Exception as error:
            self._finish(request, failure_response(error))
            return

        def submit(body: bytes) -> None:
            self._metrics.body_bytes += len(body)
            expected.body = body
            expected.received_at_microseconds = time.time_ns() // 1000
            try:
                self._committer.submit(expected)
            except RequestError as error:
                refuse(error)

        def refuse(error: RequestError) -> None:
            self._finish(request, problem_response(error))

        request.collect(self._request_bytes_max, submit, refuse)

    def _expected_events(self, request: Incoming) -> EventsRequest:
        name = stream_parameter(request.query_string)
        stream = self._streams.get(name) or self._streams.get(name.lower())
        self._access.check(request.headers, request.authority, f"ingest:{stream or name}")
        if stream is None:
            raise self._no_stream(name)
        return self._expected(request, stream)

    def _expected_changes(self, request: Incoming) -> EventsRequest:
        name = request.path.removeprefix("/v1/tables/")
        table = self._tables.get(name) or self._tables.get(name.lower())
        self._access.check(request.headers, request.authority, f"ingest:{table or name}")
        if table is None:
            raise unknown_table(name, self._project)
        expected = self._expected(request, table)
        expected.deletes = operation_parameter(request.query_string) == "delete"
        return expected

    def _expected(self, request: Incoming, stream: str) -> EventsRequest:
        """What the head says of the events, before there is a body. Raises RequestError."""
        headers = request.headers
        if self.is_draining:
            raise _stopping()
        self._committer.conservation.require(stream)
        retry_key = read_retry_key(headers)
        sent_at = read_sent_at(headers)
        encoding = check_encoding(_header(headers, "content-encoding"))
        kind = body_kind(_header(headers, "content-type"))
        time_hint = None
        if is_binary(headers):
            key = binary_key(headers)
            retry_key = key if retry_key is None else retry_key
            time_hint = _header(headers, "ce-time")
            kind = BodyKind.ONE
        answer = IncomingReply(self._finish, request)
        return EventsRequest(stream, b"", kind, encoding, retry_key, 0, answer, time_hint, sent_at)

    async def _post_heartbeats(self, request: Incoming) -> Response:
        body = await request.read(_QUERY_BODY_BYTES_MAX)

        def check(stream: str) -> None:
            self._access.check(request.headers, request.authority, f"ingest:{stream}")

        received = time.time_ns() // 1000
        beats = self._heartbeat_reader.read(body, received, check)
        await self._heartbeats.store(beats, received)
        return 200, JSON_HEADERS, b'{"state":"durable"}'

    # --------------------------------------------------------------------------------- routing

    async def _route(self, request: Incoming) -> Response | None:
        path, method = request.path, request.method
        routes = self._routes.get(path)
        if routes is None:
            view = _VIEW_PATH.fullmatch(path)
            if view is not None:
                routes = self._view_routes[view.group(2)]
            elif (stream := _STREAM_PATH.fullmatch(path)) is not None:
                routes = self._stream_routes[stream.group(2)]
            elif _CHANGES_PATH.fullmatch(path) is not None:
                routes = {"GET": ("query", self._forward_about_table)}
            elif _TABLE_PATH.fullmatch(path) is not None:
                routes = dict.fromkeys(("GET", "POST"), ("query", self._forward_about_table))
            elif path == "/v1/events":
                routes = {"POST": ("admin", self._forward)}
            else:
                self._access.check(request.headers, request.authority, None)
                raise RequestError(
                    404, "unknown-path", "there is nothing at this path", hint="see /openapi.json"
                )
        if method not in routes:
            self._access.check(request.headers, request.authority, None)
            raise RequestError(
                405,
                "method-not-allowed",
                f"{method} is not possible here",
                hint=f"use {', '.join(routes)}",
            )
        needed, handler = routes[method]
        if self.is_draining and method == "POST":
            raise _stopping()
        self._access.check(request.headers, request.authority, needed)
        return await handler(request)

    async def _forward(self, request: Incoming, path: str | None = None) -> Response | None:
        if _header(request.headers, "headrace-covers") == NOT_ASCII:
            # It would not be passed on, and the query would not wait.
            raise RequestError(
                400,
                "bad-covers",
                "the header Headrace-Covers has characters that are not ASCII",
                hint="give the token as an answer to POST /v1/events gave it",
            )
        body = b""
        if request.method == "POST":
            body = await request.read(_QUERY_BODY_BYTES_MAX)
        # The path that was checked, encoded whole: the engine must read the very same from it.
        target = quote(path or request.path, safe="/")
        if request.query_string:
            target += "?" + request.query_string
        task = asyncio.current_task()
        assert task is not None
        self.forwarding.add(task)
        try:
            status = await self._proxy.forward(request, target, body)
        finally:
            self.forwarding.discard(task)
        self._metrics.add_response(status)
        return None

    async def _list_tables(self, request: Incoming) -> Response:
        names = {view.name for view in self._project.views if view.table is not None}
        views = await self._combined_answers.views()
        tables = [view for view in views if view.get("name") in names]
        return 200, JSON_HEADERS, msgspec.json.encode({"tables": tables})

    async def _forward_about_table(self, request: Incoming) -> Response | None:
        _, _, _, name, *rest = request.path.split("/")
        view = self._project.view(name)
        if view is None or view.table is None:
            raise unknown_table(name, self._project)
        return await self._forward(request, "/".join(["/v1/views", view.name, *rest]))

    async def _forward_about_stream(self, request: Incoming) -> Response | None:
        self._stream_of(request.path)
        return await self._forward(request)

    # ------------------------------------------------------------------------------ the gateway's

    async def _list_deadletters(self, request: Incoming) -> Response:
        parameters = read_parameters(request.query_string)
        stream = parameters.get("stream", [None])[0]
        if stream is not None:
            stream = self._known_stream(stream)
        after = number_parameter(parameters, "after", -1, -1, 2**62)
        limit = number_parameter(parameters, "limit", 100, 1, LIST_MAX)
        page = await asyncio.to_thread(self._deadletters.list, stream, after, limit)
        return 200, JSON_HEADERS, msgspec.json.encode(page)

    def _known_stream(self, name: str) -> str:
        """Also of the log of a table."""
        known = self._project.stream(name)
        if known is None:
            raise unknown_stream(name, self._project.streams)
        return known.name

    def _no_stream(self, name: str) -> RequestError:
        if name.lower() not in self._tables:
            streams = [stream for stream in self._project.streams if stream.changelog is None]
            return unknown_stream(name, streams)
        table = self._tables[name.lower()]
        return RequestError(
            422,
            "not-a-stream",
            f"{table} is a table, not a stream",
            hint=f"POST /v1/tables/{table}",
        )

    def _stream_of(self, path: str) -> str:
        named = _STREAM_PATH.fullmatch(path)
        assert named is not None, "only paths of streams come here"
        return self._known_stream(named.group(1))

    async def _completeness(self, request: Incoming) -> Response:
        stream = self._stream_of(request.path)
        parameters = read_parameters(request.query_string)
        after = parameters.get("after", [""])[0]
        limit = number_parameter(parameters, "limit", 100, 1, PRODUCERS_LISTED_MAX)
        page = await asyncio.to_thread(self._watch.document, stream, after, limit)
        return 200, JSON_HEADERS, msgspec.json.encode(page)

    async def _accept_gaps(self, request: Incoming) -> Response:
        return await self._decide(request, accept_gaps)

    async def _retire_producer(self, request: Incoming) -> Response:
        return await self._decide(request, retire_producer)

    async def _decide(self, request: Incoming, decide: Decide) -> Response:
        stream = self._stream_of(request.path)
        body = await request.read(_QUERY_BODY_BYTES_MAX)
        job = decide(stream, body, time.time_ns() // 1000)
        return 200, JSON_HEADERS, msgspec.json.encode(await self._committer.run_job(job))

    async def _resubmit(self, request: Incoming) -> Response:
        body = await request.read(_ADMIN_BODY_BYTES_MAX)
        job = self._deadletters.resubmit(body, self._loop)
        return 200, JSON_HEADERS, msgspec.json.encode(await self._committer.run_job(job))

    async def _discard(self, request: Incoming) -> Response:
        body = await request.read(_ADMIN_BODY_BYTES_MAX)
        job = self._deadletters.discard(body)
        return 200, JSON_HEADERS, msgspec.json.encode(await self._committer.run_job(job))

    async def _list_streams(self, request: Incoming) -> Response:
        streams = await asyncio.to_thread(self._state.streams)
        return 200, JSON_HEADERS, msgspec.json.encode({"streams": streams})

    async def _status(self, request: Incoming) -> Response:
        status = await self._combined_answers.document("/v1/status", self._state.gateway)
        return 200, JSON_HEADERS, msgspec.json.encode(status)

    async def _ledger(self, request: Incoming) -> Response:
        sums = await self._combined_answers.document("/v1/ledger", self._state.ledger)
        return 200, JSON_HEADERS, msgspec.json.encode(sums)

    async def _show_metrics(self, request: Incoming) -> Response:
        text = await self._combined_answers.metrics(self._metrics)
        return 200, [("content-type", "text/plain; version=0.0.4; charset=utf-8")], text

    async def _healthz(self, request: Incoming) -> Response:
        if self._committer.failure is not None:
            raise RequestError(
                503, "log-failed", "the log cannot be written", hint="see the gateway's log"
            )
        return 200, JSON_HEADERS, b'{"state":"up"}'

    async def _readyz(self, request: Incoming) -> Response:
        await self._healthz(request)
        if self.is_draining:
            raise _stopping()
        await self._combined_answers.require_started()
        return 200, JSON_HEADERS, b'{"state":"ready"}'

    async def _openapi(self, request: Incoming) -> Response:
        return 200, JSON_HEADERS, openapi_body()


def _names(streams: Iterable[Stream]) -> dict[str, str]:
    named = {}
    for stream in streams:
        named[stream.name] = named[stream.name.lower()] = stream.name
    return named


def _header(headers: Headers, name: str) -> str | None:
    """None only if there is none: a value that is not ASCII is one that nothing accepts."""
    return headers.get(name, NOT_ASCII) if name in headers else None


def _stopping() -> RequestError:
    return RequestError(
        503,
        "stopping",
        "the gateway is stopping",
        hint="send again when it is back",
        retry_after_seconds=2,
    )
