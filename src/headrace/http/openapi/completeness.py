"""The OpenAPI paths of producers: what is missing, and what was decided about it."""

from __future__ import annotations

from headrace.http.limits import PRODUCERS_LISTED_MAX, SEQUENCE_MAX
from headrace.http.openapi.parts import answer, operation, parameter, problems, reference
from headrace.http.openapi.schemas import Json

__all__ = ["completeness_paths"]


def completeness_paths() -> Json:
    limit = {"type": "integer", "minimum": 1, "maximum": PRODUCERS_LISTED_MAX}
    stream = parameter("stream", {"type": "string"}, "The stream.", place="path", required=True)
    number = {"type": ["integer", "null"], "minimum": 0, "maximum": SEQUENCE_MAX - 1}
    producer: Json = {"producer": {"type": "string", "minLength": 1}}
    path = "/v1/streams/{stream}/completeness"
    return {
        path: {
            "parameters": [stream],
            "get": operation(
                "showCompleteness",
                "Gaps in sequence numbers, and producers that have gone silent.",
                {
                    "200": answer("A page.", reference("Completeness")),
                    **problems(404, 422, 503),
                },
                scope="query",
                parameters=[
                    parameter("after", {"type": "string"}, "Only producers after this name."),
                    parameter("limit", limit, "At most so many producers; default 100."),
                ],
            ),
        },
        f"{path}/accept": {
            "parameters": [stream],
            "post": _decision(
                "acceptGaps",
                "Miss no more what has not come: numbers first to last, or all gaps there are.",
                "AcceptedGaps",
                producer | dict.fromkeys(("epoch", "first", "last"), number),
            ),
        },
        f"{path}/retire": {
            "parameters": [stream],
            "post": _decision(
                "retireProducer",
                "Expect nothing more of a producer, until it is heard from again.",
                "RetiredProducer",
                producer,
            ),
        },
    }


def _decision(identity: str, summary: str, answered: str, properties: Json) -> Json:
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["producer"],
        "additionalProperties": False,
    }
    return operation(
        identity,
        summary,
        {
            "200": answer("Decided, durably.", reference(answered)),
            **problems(400, 404, 408, 413, 422, 429, 503),
        },
        scope="admin",
        requestBody={"required": True, "content": {"application/json": {"schema": schema}}},
    )
