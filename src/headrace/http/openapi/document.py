"""The OpenAPI 3.1 document of every path at the gateway's address, the engine's among them.

Tests run it against the server, so what it says of statuses, types and bodies is what happens.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.http.limits import (
    IDEMPOTENCY_KEY_CHARACTERS_MAX,
    PRODUCER_CHARACTERS_MAX,
    SEQUENCE_MAX,
)
from headrace.http.openapi.completeness import completeness_paths
from headrace.http.openapi.late import late_paths, ledger_paths
from headrace.http.openapi.parts import answer, operation, parameter, problems, reference
from headrace.http.openapi.schemas import Json, openapi_schemas
from headrace.model.covers import WAIT_SECONDS, WAIT_SECONDS_MAX

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
        "paths": {**_event_paths(), **_dead_letter_paths(), **_own_paths()}
        | (views := _view_paths())
        | _table_paths(views)
        | completeness_paths()
        | late_paths()
        | ledger_paths(),
        "components": {
            "schemas": openapi_schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _event_paths() -> Json:
    stream = parameter("name", {"type": "string"}, "The stream.", required=True)
    return {
        "/v1/events": {"post": _sending("sendEvents", "Store events", "STREAM", stream)},
        "/v1/heartbeats": {
            "post": operation(
                "sendHeartbeats",
                "Say up to which time a stream or producer is complete: its watermark moves on.",
                {
                    "200": answer("Durable.", reference("State")),
                    **problems(400, 404, 408, 413, 422, 429, 503),
                },
                scope="ingest:STREAM",
                requestBody={
                    "required": True,
                    "content": {"application/json": {"schema": reference("Heartbeats")}},
                },
            )
        },
    }


def _sending(identity: str, summary: str, scope: str, own: Json) -> Json:
    """Storing records, whatever they are; `own` is the parameter that this call alone has."""
    number = {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX - 1}
    parameters = [
        own,
        parameter(
            "Idempotency-Key",
            {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_CHARACTERS_MAX},
            "A retry with the same key gets the first answer, and nothing is stored twice.",
            place="header",
        ),
        parameter(
            "Headrace-Producer",
            {"type": "string", "minLength": 1, "maxLength": PRODUCER_CHARACTERS_MAX},
            "With Headrace-Sequence: retries are recognised event by event.",
            place="header",
        ),
        parameter("Headrace-Epoch", number, "Raised when a producer starts over.", place="header"),
        parameter("Headrace-Sequence", number, "Number of the first event.", place="header"),
        parameter(
            "Headrace-Sent-At",
            {"type": "string"},
            "When the client sends this, by its own clock: RFC 3339, or microseconds since 1970. "
            "Stands in for the SENT column where an event has none.",
            place="header",
        ),
        parameter(
            "Content-Encoding",
            {"type": "string", "enum": ["identity", "gzip", "zstd"]},
            "How the body is compressed.",
            place="header",
        ),
    ]
    accepted = answer("Durable. Records that could not be taken are named.", reference("Answer"))
    accepted["headers"] = {
        "Headrace-Retried": {
            "schema": {"type": "string", "const": "true"},
            "description": "The first answer to this request, given again.",
        },
        "Headrace-Covers": {
            "schema": {"type": "string"},
            "description": "The token that covers these events, as in the body.",
        },
    }
    return operation(
        identity,
        f"{summary}; the answer comes when they are durable.",
        {"200": accepted, **problems(400, 404, 408, 413, 415, 422, 429, 503)},
        scope=f"ingest:{scope}",
        parameters=parameters,
        requestBody={
            "required": True,
            "description": "A JSON object, a JSON array of objects, NDJSON, an Arrow IPC "
            "stream, or CloudEvents.",
            "content": {media_type: {"schema": {}} for media_type in _BODY_TYPES},
        },
    )


def _table_paths(views: Json) -> Json:
    """A table is asked for as a view is."""
    name = parameter("table", {"type": "string"}, "The table.", place="path", required=True)
    what = parameter(
        "op",
        {"type": "string", "enum": ["upsert", "delete"], "default": "upsert"},
        "What the records are that have no `_op` of their own.",
    )

    def asked(path: str, identity: str, summary: str) -> Json:
        return {**views[path]["get"], "operationId": identity, "summary": summary}

    return {
        "/v1/tables": {
            "get": asked("/v1/views", "listTables", "The tables, their columns and state.")
        },
        "/v1/tables/{table}": {
            "parameters": [name],
            "post": _sending("changeTable", "Store upserts and deletes", "TABLE", what),
            "get": asked(
                "/v1/views/{view}",
                "readTable",
                "Rows of a table; any other parameter filters by a column of that name.",
            ),
        },
        "/v1/tables/{table}/changes": {
            "parameters": [name],
            "get": asked(
                "/v1/views/{view}/changes",
                "subscribeToTable",
                "Changes of a table, tick by tick, as server-sent events.",
            ),
        },
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

    refusals = problems(408, 413, 422, 429, 503)
    return {
        "/v1/deadletters": {
            "get": operation(
                "listDeadLetters",
                "Records that could not be accepted, oldest first.",
                {"200": answer("A page.", reference("DeadLetters")), **problems(404, 422, 503)},
                scope="admin",
                parameters=[
                    parameter("stream", {"type": "string"}, "Only of this stream."),
                    parameter(
                        "after",
                        {"type": "integer", "minimum": -1, "maximum": 2**62},
                        "Only numbers above this one.",
                    ),
                    parameter(
                        "limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "At most."
                    ),
                ],
            )
        },
        "/v1/deadletters/resubmit": {
            "post": operation(
                "resubmitDeadLetters",
                "Submit dead letters again, exactly once, as they are or repaired.",
                {"200": answer("What became of them.", reference("Resubmitted")), **refusals},
                scope="admin",
                requestBody=body(
                    {"numbers": numbers, "records": {"type": ["array", "null"], "items": {}}}
                ),
            )
        },
        "/v1/deadletters/discard": {
            "post": operation(
                "discardDeadLetters",
                "Mark dead letters as dealt with.",
                {
                    "200": answer(
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


def _covers_parameters() -> list[Json]:
    token = {"type": "string"}
    seconds = {
        "type": "number",
        "minimum": 0,
        "maximum": WAIT_SECONDS_MAX,
        "default": WAIT_SECONDS,
    }
    return [
        parameter(
            "covers",
            token,
            "The `covers` of an answer to POST /v1/events, or `now` for all that is stored: the "
            "query waits until the views it reads have taken in what it covers.",
        ),
        parameter("wait_seconds", seconds, "With `covers`: how long; then 504."),
        parameter(
            "Headrace-Covers",
            token,
            "As `covers`; several tokens are separated by commas, and all of them count.",
            place="header",
        ),
    ]


def _view_paths() -> Json:
    name = _view_parameter()
    rows = answer("Rows and their freshness.", reference("Rows"))
    for media_type in _ROW_TYPES:
        rows["content"][media_type] = {"schema": {}}
    after = parameter("after", {"type": "integer"}, "Changes after this tick.")
    resume = parameter("Last-Event-ID", {"type": "string"}, "As `after`.", place="header")
    any_object: Json = {"type": "object"}
    query = {
        "type": "object",
        "properties": {"sql": {"type": "string"}},
        "required": ["sql"],
    }
    flag = {"type": "boolean"}
    how = {"type": "object", "properties": {"from_oldest": flag, "hold": flag, "swap": flag}}
    return {
        "/v1/views": {
            "get": operation(
                "listViews",
                "The views, their columns and state.",
                {"200": answer("The views.", any_object), **problems(503)},
                scope="query",
            )
        },
        "/v1/views/{view}": {
            "parameters": [name],
            "get": operation(
                "readView",
                "Rows of a view; any other parameter filters by a column of that name.",
                {"200": rows, **problems(400, 404, 406, 408, 409, 413, 414, 422, 429, 503, 504)},
                scope="query",
                parameters=[
                    *_covers_parameters(),
                    parameter("order_by", {"type": "string"}, "Columns; - before one descends."),
                    parameter("limit", {"type": "integer", "minimum": 1}, "At most this many."),
                    parameter("cursor", {"type": "string"}, "`next_cursor` of the page before."),
                ],
            ),
        },
        "/v1/views/{view}/changes": {
            "parameters": [name],
            "get": operation(
                "subscribe",
                "Changes of a view, tick by tick, as server-sent events.",
                {
                    "200": answer(
                        "An endless stream.", {"type": "string"}, media_type="text/event-stream"
                    ),
                    **problems(400, 404, 410, 422, 429, 503),
                },
                scope="query",
                parameters=[after, resume],
            ),
        },
        "/v1/views/{view}/deadletters": {
            "parameters": [name],
            "get": operation(
                "listViewDeadLetters",
                "Events that this view's expressions failed on.",
                {"200": answer("The dead letters.", any_object), **problems(400, 404, 422, 503)},
                scope="admin",
            ),
        },
        "/v1/views/{view}/rebuild": {
            "parameters": [name],
            "post": operation(
                "rebuildView",
                "Compute a view anew from the log in a copy beside it, which then takes its place.",
                {
                    "202": answer("Asked for.", any_object),
                    **problems(400, 404, 408, 409, 413, 429, 503),
                },
                scope="admin",
                requestBody={"required": False, "content": {"application/json": {"schema": how}}},
            ),
            "get": operation(
                "readRebuild",
                "How far the newest rebuild of a view is.",
                {"200": answer("Its state.", any_object), **problems(404, 429, 503)},
                scope="admin",
            ),
            "delete": operation(
                "cancelRebuild",
                "Drop the copy that is being built.",
                {"202": answer("Asked for.", any_object), **problems(404, 409, 429, 503)},
                scope="admin",
            ),
        },
        "/v1/views/{view}/snapshot": _proof_path(
            "snapshotView",
            "Write a view's rows at one tick to a file of the project's run directory.",
            "Written.",
        ),
        "/v1/sql": {
            "post": operation(
                "query",
                "A read-only SELECT over the views.",
                {"200": rows, **problems(400, 406, 408, 409, 413, 414, 415, 422, 429, 503, 504)},
                scope="sql",
                parameters=_covers_parameters(),
                requestBody={"required": True, "content": {"application/json": {"schema": query}}},
            )
        },
    }


def _proof_path(identity: str, summary: str, done: str) -> Json:
    """One of the two steps of a proof, which talk through a file."""
    any_object: Json = {"type": "object"}
    return {
        "parameters": [_view_parameter()],
        "post": operation(
            identity,
            summary,
            {"200": answer(done, any_object), **problems(400, 404, 408, 409, 503)},
            scope="admin",
            requestBody={"required": True, "content": {"application/json": {"schema": any_object}}},
        ),
    }


def _view_parameter() -> Json:
    return parameter("view", {"type": "string"}, "The view.", place="path", required=True)


def _own_paths() -> Json:
    state = {
        "type": "object",
        "properties": {"state": {"type": "string"}},
        "required": ["state"],
    }
    any_object: Json = {"type": "object"}
    streams = {
        "type": "object",
        "properties": {"streams": {"type": "array", "items": reference("Stream")}},
        "required": ["streams"],
    }
    status = {
        "type": "object",
        "properties": {"gateway": any_object, "engine": any_object},
        "required": ["gateway"],
    }
    metrics = answer("Prometheus' text format.", {"type": "string"}, media_type="text/plain")
    found = [
        ("/v1/streams", "listStreams", "The streams, how far they reach, their size.", "query",
         answer("The streams.", streams), (503,)),
        ("/v1/status", "status", "The state of gateway, engine and views.", "query",
         answer("The state.", status), ()),
        ("/metrics", "metrics", "Figures of gateway and engine.", "admin", metrics, ()),
        ("/healthz", "healthz", "Whether events can be stored.", None,
         answer("They can.", state), (503,)),
        ("/readyz", "readyz", "Whether events can be stored and views read.", None,
         answer("They can.", state), (503,)),
        ("/openapi.json", "openapi", "This document.", None,
         answer("OpenAPI 3.1.", any_object), ()),
    ]  # fmt: skip
    return {
        path: {"get": operation(identity, summary, {"200": ok, **problems(*statuses)}, scope=scope)}
        for path, identity, summary, scope, ok, statuses in found
    }
