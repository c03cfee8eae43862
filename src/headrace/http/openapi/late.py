"""The OpenAPI paths of late events, of decisions about them, and of the ledger."""

from __future__ import annotations

from headrace.http.openapi.parts import answer, operation, parameter, problems, reference
from headrace.http.openapi.schemas import Json

__all__ = ["late_paths", "ledger_paths"]

_LATE_MAX = 1_000


def late_paths() -> Json:
    stream = parameter("stream", {"type": "string"}, "The stream.", place="path", required=True)
    limit = {"type": "integer", "minimum": 1, "maximum": _LATE_MAX}
    text = {"type": "string"}
    refusals = problems(400, 404, 408, 413, 429, 503)
    return {
        "/v1/streams/{stream}/late": {
            "parameters": [stream],
            "get": operation(
                "listLate",
                "Late events set aside and dropped, and the decisions taken.",
                {"200": answer("What became of them.", reference("Late")), **refusals},
                scope="query",
                parameters=[parameter("limit", limit, "At most so many windows and decisions.")],
            ),
        },
        "/v1/streams/{stream}/late/apply": {
            "parameters": [stream],
            "post": operation(
                "applyLate",
                "Apply the events that were set aside, as revisions.",
                {"202": answer("Begun.", reference("LateApplied")), **refusals},
                scope="admin",
                requestBody=_body({"view": {"type": ["string", "null"]}}, required=[]),
            ),
        },
        "/v1/streams/{stream}/resume": {
            "parameters": [stream],
            "post": operation(
                "resumeStream",
                "Decide the late event that the stream's views halted before, and go on.",
                {
                    "200": answer("Decided, and durable so.", reference("Resumed")),
                    **refusals,
                    **problems(409),
                },
                scope="admin",
                requestBody=_body(
                    {"decision": {**text, "enum": ["apply", "side", "drop"]}}, required=["decision"]
                ),
            ),
        },
    }


def _body(properties: Json, required: list[str]) -> Json:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def ledger_paths() -> Json:
    return {
        "/v1/ledger": {
            "get": operation(
                "ledger",
                "What became of every event, by gateway, stream and view, and whether it adds up.",
                {"200": answer("The sums.", reference("Ledger")), **problems()},
                scope="query",
            )
        }
    }
