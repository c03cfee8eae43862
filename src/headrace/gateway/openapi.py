"""The OpenAPI 3.1 document of every path at the gateway's address, the engine's among them.

Tests run it against the server, so what it says of statuses, types and bodies is what happens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headrace.gateway.completeness import PRODUCERS_MAX
from headrace.gateway.openapi_schemas import Json, openapi_schemas
from headrace.gateway.requests import (
    IDEMPOTENCY_KEY_CHARACTERS_MAX,
    PRODUCER_CHARACTERS_MAX,
    SEQUENCE_MAX,
)

__all__ = ["openapi_body", "openapi_document"]

_ROW_TYPES = (
    "application/x-ndjson",
    "text/csv",
    "application/vnd.apache.arrow.stream",
)
_BODY_TYPES = (
    "application/json",
    "application/x-ndjson",
    "application/x-www-form-urlencoded",
    "application/vnd.apache.arrow.stream",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
)


@lru_cache(maxsize=1)
def openapi_body() -> bytes:
    return msgspec.json.encode(openapi_document())


def openapi_document() -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": "1",
            "description": "Send events, read views that stay exact and live.",
        },
        "paths": {**_event_paths(), **_dead_letter_paths(), **_view_paths(), **_own_paths()}
        | _completeness_paths(),
        "components": {
            "schemas": openapi_schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: Json, *, media_type: str = "application/json") -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _problems(*statuses: int) -> Json:
    """The refusals of an operation. 401, 403 and 421 can meet any; 429, 503 say when to retry."""
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
    answers: Json = {}
    for status in sorted({*statuses, 401, 403, 421}):
        answer = _answer(
            "Refused; see `code`.",
            _reference("Problem"),
            media_type="application/problem+json",
        )
        if status in (429, 503):
            answer["headers"] = retry
        answers[str(status)] = answer
    return answers


def _operation(
    identity: str, summary: str, answers: Json, *, scope: str | None, **more: Any
) -> Json:
    operation: Json = {"operationId": identity, "summary": summary, "responses": answers, **more}
    operation["security"] = [{}, {"token": []}] if scope else [{}]
    if scope:
        operation["description"] = f"Needs the scope `{scope}` when the project has tokens."
    return operation


def _parameter(
    name: str, schema: Json, description: str, *, place: str = "query", required: bool = False
) -> Json:
    return {
        "name": name,
        "in": place,
        "required": required,
        "schema": schema,
        "description": description,
    }


def _event_paths() -> Json:
    number = {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX - 1}
    parameters = [
        _parameter("name", {"type": "string"}, "The stream.", required=True),
        _parameter(
            "Idempotency-Key",
            {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_CHARACTERS_MAX},
            "A retry with the same key gets the first answer, and nothing is stored twice.",
            place="header",
        ),
        _parameter(
            "Headrace-Producer",
            {"type": "string", "minLength": 1, "maxLength": PRODUCER_CHARACTERS_MAX},
            "With Headrace-Sequence: retries are recognised event by event.",
            place="header",
        ),
        _parameter("Headrace-Epoch", number, "Raised when a producer starts over.", place="header"),
        _parameter("Headrace-Sequence", number, "Number of the first event.", place="header"),
        _parameter(
            "Headrace-Sent-At",
            {"type": "string"},
            "When the client sends this, by its own clock: RFC 3339, or microseconds since 1970. "
            "Stands in for the SENT column where an event has none.",
            place="header",
        ),
        _parameter(
            "Content-Encoding",
            {"type": "string", "enum": ["identity", "gzip", "zstd"]},
            "How the body is compressed.",
            place="header",
        ),
    ]
    accepted = _answer("Durable. Records that could not be taken are named.", _reference("Answer"))
    accepted["headers"] = {
        "Headrace-Retried": {
            "schema": {"type": "string", "const": "true"},
            "description": "The first answer to this request, given again.",
        }
    }
    return {
        "/v1/events": {
            "post": _operation(
                "sendEvents",
                "Store events; the answer comes when they are durable.",
                {"200": accepted, **_problems(400, 404, 408, 413, 415, 422, 429, 503)},
                scope="ingest:STREAM",
                parameters=parameters,
                requestBody={
                    "required": True,
                    "description": "A JSON object, a JSON array of objects, NDJSON, an Arrow IPC "
                    "stream, or CloudEvents.",
                    "content": {media_type: {"schema": {}} for media_type in _BODY_TYPES},
                },
            )
        },
        "/v1/heartbeats": {
            "post": _operation(
                "sendHeartbeats",
                "Say up to which time a stream or producer is complete: its watermark moves on.",
                {
                    "200": _answer("Durable.", _reference("State")),
                    **_problems(400, 404, 408, 413, 422, 429, 503),
                },
                scope="ingest:STREAM",
                requestBody={
                    "required": True,
                    "content": {"application/json": {"schema": _reference("Heartbeats")}},
                },
            )
        },
    }


def _completeness_paths() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": PRODUCERS_MAX}
    return {
        "/v1/streams/{stream}/completeness": {
            "get": _operation(
                "showCompleteness",
                "Gaps in sequence numbers, and producers that have gone silent.",
                {
                    "200": _answer("A page.", _reference("Completeness")),
                    **_problems(404, 422, 503),
                },
                scope="query",
                parameters=[
                    _parameter(
                        "stream", {"type": "string"}, "The stream.", place="path", required=True
                    ),
                    _parameter("after", {"type": "string"}, "Only producers after this name."),
                    _parameter("limit", limit, "At most so many producers; default 100."),
                ],
            )
        }
    }


def _dead_letter_paths() -> Json:
    numbers = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 2**62 - 1},
        "minItems": 1,
        "maxItems": 1_000,
    }

    def body(properties: Json) -> Json:
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["numbers"],
            "additionalProperties": False,
        }
        return {"required": True, "content": {"application/json": {"schema": schema}}}

    refusals = _problems(408, 413, 422, 429, 503)
    return {
        "/v1/deadletters": {
            "get": _operation(
                "listDeadLetters",
                "Records that could not be accepted, oldest first.",
                {"200": _answer("A page.", _reference("DeadLetters")), **_problems(404, 422, 503)},
                scope="admin",
                parameters=[
                    _parameter("stream", {"type": "string"}, "Only of this stream."),
                    _parameter(
                        "after",
                        {"type": "integer", "minimum": -1, "maximum": 2**62},
                        "Only numbers above this one.",
                    ),
                    _parameter(
                        "limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "At most."
                    ),
                ],
            )
        },
        "/v1/deadletters/resubmit": {
            "post": _operation(
                "resubmitDeadLetters",
                "Submit dead letters again, exactly once, as they are or repaired.",
                {"200": _answer("What became of them.", _reference("Resubmitted")), **refusals},
                scope="admin",
                requestBody=body(
                    {"numbers": numbers, "records": {"type": ["array", "null"], "items": {}}}
                ),
            )
        },
        "/v1/deadletters/discard": {
            "post": _operation(
                "discardDeadLetters",
                "Mark dead letters as dealt with.",
                {
                    "200": _answer(
                        "Done.",
                        {
                            "type": "object",
                            "properties": {
                                "discarded": {"type": "integer"},
                                "missing": {"type": "array", "items": {"type": "integer"}},
                            },
                            "required": ["discarded", "missing"],
                        },
                    ),
                    **refusals,
                },
                scope="admin",
                requestBody=body({"numbers": numbers}),
            )
        },
    }


def _view_paths() -> Json:
    name = _parameter("view", {"type": "string"}, "The view.", place="path", required=True)
    rows = _answer("Rows and their freshness.", _reference("Rows"))
    for media_type in _ROW_TYPES:
        rows["content"][media_type] = {"schema": {}}
    after = _parameter("after", {"type": "integer"}, "Changes after this tick.")
    resume = _parameter("Last-Event-ID", {"type": "string"}, "As `after`.", place="header")
    any_object: Json = {"type": "object"}
    query = {
        "type": "object",
        "properties": {"sql": {"type": "string"}},
        "required": ["sql"],
    }
    return {
        "/v1/views": {
            "get": _operation(
                "listViews",
                "The views, their columns and state.",
                {"200": _answer("The views.", any_object), **_problems(503)},
                scope="query",
            )
        },
        "/v1/views/{view}": {
            "parameters": [name],
            "get": _operation(
                "readView",
                "Rows of a view; any other parameter filters by a column of that name.",
                {"200": rows, **_problems(400, 404, 406, 408, 413, 422, 429, 503)},
                scope="query",
                parameters=[
                    _parameter("order_by", {"type": "string"}, "Columns; - before one descends."),
                    _parameter("limit", {"type": "integer", "minimum": 1}, "At most this many."),
                    _parameter("cursor", {"type": "string"}, "`next_cursor` of the page before."),
                ],
            ),
        },
        "/v1/views/{view}/changes": {
            "parameters": [name],
            "get": _operation(
                "subscribe",
                "Changes of a view, tick by tick, as server-sent events.",
                {
                    "200": _answer(
                        "An endless stream.", {"type": "string"}, media_type="text/event-stream"
                    ),
                    **_problems(400, 404, 410, 422, 429, 503),
                },
                scope="query",
                parameters=[after, resume],
            ),
        },
        "/v1/views/{view}/deadletters": {
            "parameters": [name],
            "get": _operation(
                "listViewDeadLetters",
                "Events that this view's expressions failed on.",
                {"200": _answer("The dead letters.", any_object), **_problems(400, 404, 422, 503)},
                scope="admin",
            ),
        },
        "/v1/views/{view}/rebuild": {
            "parameters": [name],
            "post": _operation(
                "rebuildView",
                "Compute a view anew from the log.",
                {
                    "200": _answer("Done.", any_object),
                    "202": _answer("Begun.", any_object),
                    **_problems(404, 408, 409, 413, 429, 503),
                },
                scope="admin",
            ),
        },
        "/v1/views/{view}/snapshot": {
            "parameters": [name],
            "post": _operation(
                "snapshotView",
                "Write a view's rows at one tick to a file of the project's run directory.",
                {"200": _answer("Written.", any_object), **_problems(400, 404, 408, 409, 503)},
                scope="admin",
                requestBody={
                    "required": True,
                    "content": {"application/json": {"schema": any_object}},
                },
            ),
        },
        "/v1/sql": {
            "post": _operation(
                "query",
                "A read-only SELECT over the views.",
                {"200": rows, **_problems(400, 406, 408, 413, 415, 422, 429, 503)},
                scope="sql",
                requestBody={"required": True, "content": {"application/json": {"schema": query}}},
            )
        },
    }


def _own_paths() -> Json:
    state = {
        "type": "object",
        "properties": {"state": {"type": "string"}},
        "required": ["state"],
    }
    any_object: Json = {"type": "object"}
    streams = {
        "type": "object",
        "properties": {"streams": {"type": "array", "items": _reference("Stream")}},
        "required": ["streams"],
    }
    status = {
        "type": "object",
        "properties": {"gateway": any_object, "engine": any_object},
        "required": ["gateway"],
    }
    metrics = _answer("Prometheus' text format.", {"type": "string"}, media_type="text/plain")
    found = [
        ("/v1/streams", "listStreams", "The streams, how far they reach, their size.", "query",
         _answer("The streams.", streams), (503,)),
        ("/v1/status", "status", "The state of gateway, engine and views.", "query",
         _answer("The state.", status), ()),
        ("/metrics", "metrics", "Figures of gateway and engine.", "admin", metrics, ()),
        ("/healthz", "healthz", "Whether events can be stored.", None,
         _answer("They can.", state), (503,)),
        ("/readyz", "readyz", "Whether events can be stored and views read.", None,
         _answer("They can.", state), (503,)),
        ("/openapi.json", "openapi", "This document.", None,
         _answer("OpenAPI 3.1.", any_object), ()),
    ]  # fmt: skip
    return {
        path: {
            "get": _operation(identity, summary, {"200": ok, **_problems(*statuses)}, scope=scope)
        }
        for path, identity, summary, scope, ok, statuses in found
    }
