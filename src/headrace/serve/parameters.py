"""What callers say in query strings and bodies, checked."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.model.errors import RequestError
from headrace.serve.requests import Request

__all__ = ["decoded", "limit_alone", "whole_number"]


def limit_alone(request: Request, default: int, maximum: int) -> int:
    """The limit of a request that may have no other parameter."""
    given = dict(request.parameters())
    unknown = sorted(set(given) - {"limit"})
    if unknown:
        raise RequestError(
            400, "parameter", f"unknown parameter {unknown[0]!r}", hint="limit is the only one"
        )
    return whole_number("limit", given.get("limit", str(default)), 1, maximum)


def whole_number(name: str, text: str, minimum: int, maximum: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= 18
    if not is_number or not minimum <= int(text) <= maximum:
        raise RequestError(
            400,
            "parameter",
            f"{name}={text[:40]} is not a whole number from {minimum} to {maximum}",
            hint=f"{name} is at least {minimum} and at most {maximum}",
        )
    return int(text)


def decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RequestError(
            400, "body", f"the body cannot be read: {error}", hint="see /openapi.json"
        ) from error
