"""What the engine answers for an exception."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from headrace.http.problems import problem_document
from headrace.model.errors import (
    ChangesExpiredError,
    CoversError,
    FencedError,
    HeadraceError,
    QueryError,
    RequestError,
    StoreError,
)
from headrace.serve.requests import Response

__all__ = ["error_document", "error_response"]

_log = logging.getLogger("headrace.serve")


def _status(error: HeadraceError) -> int:
    if isinstance(error, RequestError | QueryError):
        return error.status
    if isinstance(error, CoversError):
        return 400
    if isinstance(error, ChangesExpiredError):
        return 410
    if isinstance(error, FencedError):
        return 503
    return 500


def error_document(error: BaseException) -> dict[str, Any]:
    """An error outside the error tree tells nothing of itself to the client; it is logged."""
    if isinstance(error, HeadraceError):
        status, code, detail, hint = _status(error), error.code, error.message, error.hint
    else:
        _log.error("a request failed unexpectedly", exc_info=error)
        status, code, detail = 500, "internal", "the engine failed to answer"
        hint = "the engine's log has the reason"
    more = error.more if isinstance(error, RequestError) else None
    return problem_document(status, code, detail, hint, more)


def error_response(error: BaseException) -> Response:
    document = error_document(error)
    status = document["status"]
    headers = [("content-type", "application/problem+json")]
    if isinstance(error, RequestError) and error.retry_after_seconds is not None:
        headers.append(("retry-after", str(error.retry_after_seconds)))
    elif status == 503:
        headers.append(("retry-after", "1"))
    if isinstance(error, StoreError) and status == 500:
        _log.error("the store failed to answer a request", exc_info=error)
    return Response(status, headers, msgspec.json.encode(document))
