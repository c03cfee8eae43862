"""Refusals as RFC 9457 problem documents, for both processes. Every code the gateway answers with
is made here or carried by a RequestError, and is documented in docs/reference/errors.md."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from headrace.model.definitions import Project, Stream
from headrace.model.errors import HeadraceError, RequestError

__all__ = [
    "Response",
    "failure_response",
    "problem_document",
    "problem_response",
    "unknown_stream",
    "unknown_table",
]

logger = logging.getLogger("headrace.gateway")

# status, headers, body: what a handler hands back to the server
Response = tuple[int, list[tuple[str, str]], bytes]

PROBLEM_TYPE = "https://headrace.dev/errors/"
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


def problem_document(
    status: int, code: str, detail: str, hint: str = "", more: Mapping[str, object] | None = None
) -> dict[str, Any]:
    return {
        "type": PROBLEM_TYPE + code,
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        **(more or {}),
    }


def unknown_stream(name: str, streams: Iterable[Stream]) -> RequestError:
    return RequestError(
        404,
        "unknown-stream",
        f"there is no stream {name[:100]!r}" if name else "name=STREAM is missing",
        hint=f"streams are {', '.join(stream.name for stream in streams) or 'none'}",
    )


def unknown_table(name: str, project: Project) -> RequestError:
    """For a name that is no table, or none that changes are posted to."""
    stream, view = project.stream(name), project.view(name)
    if view is not None and view.table is not None:
        return RequestError(
            422,
            "table-from-stream",
            f"table {view.name} takes its changes from the stream {view.source}",
            hint=f"POST /v1/events?name={view.source}",
        )
    found = stream or view
    if found is not None:
        kind, hint = ("stream", f"POST /v1/events?name={found.name}")
        if stream is None:
            kind, hint = ("view", f"GET /v1/views/{found.name}")
        return RequestError(422, "not-a-table", f"{found.name} is a {kind}, not a table", hint=hint)
    tables = {view.name.lower(): view.name for view in project.views if view.table is not None}
    tables.update({s.name.lower(): s.name for s in project.streams if s.changelog is not None})
    near = get_close_matches(name.lower(), tables, n=1)
    hint = f"did you mean {tables[near[0]]}? " if near else ""
    hint += f"tables are {', '.join(sorted(tables.values())) or 'none'}"
    return RequestError(404, "unknown-table", f"there is no table {name[:100]!r}", hint=hint)


def problem_response(error: RequestError) -> Response:
    """The whole answer for a refused request, with the headers its status asks for."""
    headers = [("content-type", "application/problem+json")]
    if error.retry_after_seconds is not None:
        headers.append(("retry-after", str(error.retry_after_seconds)))
    if error.status == 401:
        headers.append(("www-authenticate", 'Bearer realm="headrace"'))
    document = problem_document(error.status, error.code, error.message, error.hint, error.more)
    return error.status, headers, msgspec.json.encode(document)


def failure_response(error: Exception) -> Response:
    """For whatever a handler raised; what is not meant for the client goes to the log."""
    if isinstance(error, RequestError):
        response = problem_response(error)
        if error.code == "method-not-allowed":
            response[1].append(("allow", error.hint.removeprefix("use ")))
        return response
    if isinstance(error, HeadraceError):
        return problem_response(RequestError(503, error.code, error.message, hint=error.hint))
    logger.error("a request could not be handled", exc_info=error)
    return problem_response(RequestError(500, "internal", "the gateway failed", hint="see its log"))
