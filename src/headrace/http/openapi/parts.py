"""The pieces that operations of the OpenAPI document are put together from."""

from __future__ import annotations

from typing import Any

from headrace.http.openapi.schemas import Json

__all__ = ["answer", "operation", "parameter", "problems", "reference"]


def reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def answer(description: str, schema: Json, *, media_type: str = "application/json") -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def problems(*statuses: int) -> Json:
    """The refusals of an operation. 401, 403 and 421 can meet any; 429, 503 say when to retry."""
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}}
    answers: Json = {}
    for status in sorted({*statuses, 401, 403, 421}):
        refusal = answer(
            "Refused; see `code`.",
            reference("Problem"),
            media_type="application/problem+json",
        )
        if status in (429, 503):
            refusal["headers"] = retry
        answers[str(status)] = refusal
    return answers


def operation(
    identity: str, summary: str, answers: Json, *, scope: str | None, **more: Any
) -> Json:
    whole: Json = {"operationId": identity, "summary": summary, "responses": answers, **more}
    whole["security"] = [{}, {"token": []}] if scope else [{}]
    if scope:
        whole["description"] = f"Needs the scope `{scope}` when the project has tokens."
    return whole


def parameter(
    name: str, schema: Json, description: str, *, place: str = "query", required: bool = False
) -> Json:
    return {
        "name": name,
        "in": place,
        "required": required,
        "schema": schema,
        "description": description,
    }
