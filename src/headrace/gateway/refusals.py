"""Why a connection refuses what comes over it, before anybody has a request to answer."""

from __future__ import annotations

from headrace.gateway.requests import Headers
from headrace.model.errors import RequestError

__all__ = [
    "HEAD_BYTES_MAX",
    "check_head",
    "head_too_large",
    "malformed",
    "too_many_connections",
    "too_slow",
]

HEAD_BYTES_MAX = 64 * 1024
RETRY_AFTER_SECONDS = 1


def check_head(fields: Headers, target: bytes, received_bytes: int, is_upgrade: bool) -> None:
    """Raises RequestError for a head that is too large, or whose body nobody could find or read.
    `received_bytes` may have come with more than the head."""
    if received_bytes > HEAD_BYTES_MAX:
        size = len(target) + sum(len(name) + len(value) + 4 for name, value in fields.items())
        if size > HEAD_BYTES_MAX:
            raise head_too_large()
    coding = fields.get("transfer-encoding")
    if coding is not None and coding.lower() != "chunked":
        raise RequestError(
            415,
            "unsupported-encoding",
            f"transfer encoding {coding[:60]!r} is not accepted",
            hint="send chunked, and say how the body is compressed in Content-Encoding",
        )
    if is_upgrade and ("content-length" in fields or coding is not None):
        raise RequestError(
            400,
            "malformed-request",
            "a request with a body cannot ask for another protocol",
            hint="leave out the field Upgrade",
        )


def head_too_large() -> RequestError:
    return RequestError(
        431,
        "head-too-large",
        f"the request's head has more than {HEAD_BYTES_MAX} bytes",
        hint="send fewer or shorter header fields",
    )


def malformed(reason: str) -> RequestError:
    return RequestError(
        400,
        "malformed-request",
        f"this is not HTTP/1.1: {reason}",
        hint="send the request again as HTTP/1.1",
    )


def too_slow(part: str, seconds_max: float) -> RequestError:
    return RequestError(
        408,
        "too-slow",
        f"the {part} did not come within {seconds_max} s",
        hint="send smaller batches; the bound is gateway.request_seconds_max",
    )


def too_many_connections() -> RequestError:
    return RequestError(
        503,
        "too-many-connections",
        "as many connections are open as the gateway serves at once",
        hint="use fewer, or raise gateway.connections_max",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
