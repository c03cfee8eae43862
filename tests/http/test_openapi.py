"""The OpenAPI document is true: schemathesis sends what it allows and checks what comes back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.http.openapi.document import openapi_document

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SERVED = ["/healthz", "/v1/streams", "/v1/status", "/v1/ledger", "/metrics"]
ENGINE = re.compile(r"/v1/(views|sql)|/readyz")


@schemathesis.serializer("application/vnd.apache.arrow.stream", "application/x-ndjson")
def as_bytes(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()


schema = schemathesis.openapi.from_dict(openapi_document())


@(
    schema.exclude(path_regex=ENGINE.pattern)
    .exclude(method="GET", path_regex="/v1/tables")
    .parametrize()
)
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_document_is_true(shared_gateway: Any, case: Any) -> None:
    if case.path == "/v1/events":
        case.query = {**(case.query or {}), "name": "notes"}
    if case.path == "/v1/tables/{table}":
        case.path_parameters = {"table": "customers"}
    answer = case.call(base_url=shared_gateway.url)
    case.validate_response(answer, checks=CHECKS)


def test_it_covers_every_path_of_the_contract() -> None:
    paths = openapi_document()["paths"]
    calls = {
        (method.upper(), path) for path in paths for method in paths[path] if method != "parameters"
    }
    assert calls == {
        ("POST", "/v1/events"),
        ("POST", "/v1/tables/{table}"),
        ("GET", "/v1/tables/{table}"),
        ("GET", "/v1/tables/{table}/changes"),
        ("GET", "/v1/tables"),
        ("POST", "/v1/heartbeats"),
        ("GET", "/v1/deadletters"),
        ("POST", "/v1/deadletters/resubmit"),
        ("POST", "/v1/deadletters/discard"),
        ("GET", "/v1/streams"),
        ("GET", "/v1/streams/{stream}/completeness"),
        ("POST", "/v1/streams/{stream}/completeness/accept"),
        ("POST", "/v1/streams/{stream}/completeness/retire"),
        ("GET", "/v1/streams/{stream}/late"),
        ("POST", "/v1/streams/{stream}/late/apply"),
        ("POST", "/v1/streams/{stream}/resume"),
        ("GET", "/v1/ledger"),
        ("GET", "/openapi.json"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/v1/views"),
        ("GET", "/v1/views/{view}"),
        ("GET", "/v1/views/{view}/changes"),
        ("GET", "/v1/views/{view}/deadletters"),
        ("POST", "/v1/sql"),
        ("GET", "/v1/status"),
        ("POST", "/v1/views/{view}/rebuild"),
        ("GET", "/v1/views/{view}/rebuild"),
        ("DELETE", "/v1/views/{view}/rebuild"),
        ("POST", "/v1/views/{view}/snapshot"),
    }


@pytest.mark.parametrize("path", SERVED)
def test_served(shared_gateway: Any, path: str) -> None:
    assert shared_gateway.client.get(path).status_code == 200
    assert shared_gateway.client.get("/openapi.json").json() == openapi_document()
