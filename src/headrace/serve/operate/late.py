"""Handlers for late events: what became of them, and what an operator decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from headrace.model.errors import QueryError, RequestError
from headrace.model.moments import moment_text
from headrace.serve.parameters import decoded, limit_alone
from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services, own_spelling
from headrace.store.late_counts import LateCounts

__all__ = ["apply_late", "list_late", "resume"]

LIMIT = 100
LATE_MAX = 1_000


class _ApplyAsked(msgspec.Struct, forbid_unknown_fields=True):
    view: str | None = None


class _ResumeAsked(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["apply", "side", "drop"]


async def list_late(services: Services, request: Request, name: str) -> Response:
    limit = limit_alone(request, LIMIT, LATE_MAX)

    def read() -> bytes:
        stream = _stream_name(services, name)
        return msgspec.json.encode(_document(stream, services.store.late(stream, limit)))

    return json_response(await services.reads.run(read))


async def apply_late(services: Services, request: Request, name: str) -> Response:
    asked: _ApplyAsked = decoded(await request.body() or b"{}", _ApplyAsked)

    def ask() -> bytes:
        stream = _stream_name(services, name)
        with _refused("view-unknown"):
            view = None if asked.view is None else _view_name(services, asked.view)
            services.control.apply_late(stream, view)
        return msgspec.json.encode({"stream": stream, "view": view, "state": "applying"})

    return json_response(await services.reads.run(ask), status=202)


async def resume(services: Services, request: Request, name: str) -> Response:
    asked: _ResumeAsked = decoded(await request.body(), _ResumeAsked)

    def ask() -> tuple[bytes, Future[None]]:
        stream = _stream_name(services, name)
        with _refused("unknown-stream"):
            places, recorded = services.control.resume(stream, asked.decision)
        events = [{"partition": partition, "offset": offset} for partition, offset in places]
        said = {"stream": stream, "decision": asked.decision, "events": events}
        return msgspec.json.encode(said), recorded

    said, recorded = await services.reads.run(ask)
    await asyncio.wrap_future(recorded)
    return json_response(said)


@contextmanager
def _refused(unknown: str) -> Iterator[None]:
    """The control's refusals with codes of their own: 404 for what is `unknown`, 409."""
    try:
        yield
    except QueryError as error:
        if error.status == 409:
            raise RequestError(409, "not-halted", error.message, hint=error.hint) from error
        if error.status == 404:
            raise RequestError(404, unknown, error.message, hint=error.hint) from error
        raise


def _stream_name(services: Services, name: str) -> str:
    """The stream's own spelling of its name."""
    names = {*services.store.streams(), *services.control.status().streams}
    own = own_spelling(names, name)
    if own is None:
        raise RequestError(
            404,
            "unknown-stream",
            f"there is no stream {name[:100]!r} with views",
            hint=f"streams with views are {', '.join(sorted(names)) or 'none'}",
        )
    if own in services.store.catalog():  # a table that changes are posted to shares the name
        raise RequestError(
            404,
            "unknown-stream",
            f"{own} is a table, not a stream",
            hint="changes of a table are never late",
        )
    return own


def _view_name(services: Services, name: str) -> str:
    return own_spelling(services.control.status().views, name) or name


def _document(stream: str, late: LateCounts) -> dict[str, Any]:
    return {
        "stream": stream,
        "sided": late.sided,
        "dropped": [
            {
                "view": count.view,
                "window_start": moment_text(count.window_start_microseconds),
                "window_end": moment_text(count.window_end_microseconds),
                "events": count.events,
                "reason": count.reason,
            }
            for count in late.dropped
        ],
        "decisions": [
            {
                "partition": taken.partition,
                "offset": taken.offset,
                "decision": taken.decision,
                "decided_at": moment_text(taken.decided_at_microseconds),
            }
            for taken in late.decisions
        ],
        "cut": late.is_cut,
    }
