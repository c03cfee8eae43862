"""What the gateway refuses of a connection, a request's head or the way its body comes."""

from __future__ import annotations

from headrace.http.headers import Headers
from headrace.model.errors import RequestError

__all__ = [
    "HEAD_BYTES_MAX",
    "address_not_ascii",
    "body_cut_off",
    "body_too_large",
    "check_head",
    "head_too_large",
    "malformed",
    "queue_full",
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


def address_not_ascii() -> RequestError:
    return RequestError(
        400,
        "malformed-request",
        "the address has characters that are not ASCII",
        hint="percent-encode them",
    )


def body_cut_off() -> RequestError:
    return RequestError(
        400, "body-cut-off", "the body ended before it was whole", hint="send the request again"
    )


def body_too_large(bytes_max: int) -> RequestError:
    return RequestError(
        413,
        "body-too-large",
        f"the body has more than {bytes_max} bytes",
        hint="send smaller batches; the bound is gateway.request_bytes_max",
    )


def queue_full(reason: str, hint: str = "send again after Retry-After") -> RequestError:
    return RequestError(
        429,
        "queue-full",
        reason,
        hint=hint,
        retry_after_seconds=RETRY_AFTER_SECONDS,
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
