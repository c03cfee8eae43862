"""Errors as RFC 9457 problem documents: the one place that turns an exception into an answer."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import msgspec

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

__all__ = ["problem", "problem_document"]

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


def problem_document(error: BaseException) -> dict[str, Any]:
    """An error outside the error tree tells nothing of itself to the client; it is logged."""
    if isinstance(error, HeadraceError):
        status, code, detail, hint = _status(error), error.code, error.message, error.hint
    else:
        _log.error("a request failed unexpectedly", exc_info=error)
        status, code, detail = 500, "internal", "the engine failed to answer"
        hint = "the engine's log has the reason"
    return {
        "type": f"https://headrace.dev/errors/{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        **(error.more if isinstance(error, RequestError) else {}),
    }


def problem(error: BaseException) -> Response:
    document = problem_document(error)
    status = document["status"]
    headers = [("content-type", "application/problem+json")]
    if isinstance(error, RequestError) and error.retry_after_seconds is not None:
        headers.append(("retry-after", str(error.retry_after_seconds)))
    elif status == 503:
        headers.append(("retry-after", "1"))
    if isinstance(error, StoreError) and status == 500:
        _log.error("the store failed to answer a request", exc_info=error)
    return Response(status, headers, msgspec.json.encode(document))
