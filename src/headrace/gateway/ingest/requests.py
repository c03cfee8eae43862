"""One POST of events between the HTTP handler and the committer: what it asks, how its retry is
recognised, and what it is answered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import msgspec

from headrace.formats.bodies import BodyKind
from headrace.formats.json_record import TIMESTAMP_MAXIMUM, RecordError, read_timestamp
from headrace.http.headers import Headers
from headrace.http.limits import (
    ERRORS_LISTED_MAX,
    IDEMPOTENCY_KEY_CHARACTERS_MAX,
    PRODUCER_CHARACTERS_MAX,
    SEQUENCE_MAX,
)
from headrace.http.problems import Response
from headrace.model.errors import RequestError

__all__ = [
    "EventsRequest",
    "ProducerKey",
    "RetryKey",
    "answer_body",
    "read_retry_key",
    "read_sent_at",
    "with_covers",
]

JSON_HEADERS = [("content-type", "application/json")]
RETRIED_HEADERS = [*JSON_HEADERS, ("headrace-retried", "true")]


class Reply(Protocol):
    """Where a request's answer is put, once, on the event loop: a future, or what acts like one."""

    def done(self) -> bool: ...

    def set_result(self, response: Response, /) -> None: ...

    def set_exception(self, error: RequestError, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ProducerKey:
    """A producer's request: its events are numbered `first`, `first` + 1, …"""

    producer: str
    epoch: int
    first: int


RetryKey = str | ProducerKey | None  # an idempotency key, a place on a number line, or neither


@dataclass(slots=True, eq=False)
class EventsRequest:
    """`future` is completed on the event loop with the response, or with a RequestError."""

    stream: str
    body: bytes
    kind: BodyKind
    encoding: str
    retry_key: RetryKey
    received_at_microseconds: int
    future: Reply
    time_hint: str | None = None  # the ce-time header of a binary CloudEvent
    sent_at_microseconds: int | None = None  # the Headrace-Sent-At header
    first_received_at_microseconds: int | None = None  # of an event that is submitted again
    deletes: bool = False  # records that do not say their operation are deletes

    def digest(self, inflated: bytes) -> bytes:
        """Of the body as the client meant it: the same however it was compressed."""
        meant = b"deletes" if self.deletes else b""
        return hashlib.blake2b(inflated, digest_size=16, person=meant).digest()


def read_retry_key(headers: Headers) -> RetryKey:
    """Raises RequestError 422 for keys that are too long, not ASCII, contradictory or not numbers:
    a key that was ignored would have its request stored twice."""
    if "headrace-producer" in headers:
        return _producer_key(headers)
    if "headrace-sequence" in headers or "headrace-epoch" in headers:
        raise _bad_key("Headrace-Sequence and Headrace-Epoch need Headrace-Producer")
    if "idempotency-key" not in headers:
        return None
    return _ascii_text(headers, "Idempotency-Key", IDEMPOTENCY_KEY_CHARACTERS_MAX)


def read_sent_at(headers: Headers) -> int | None:
    """When the client sent the request, by its own clock, in microseconds since the epoch. Raises
    RequestError 422 for what is neither RFC 3339 nor such a number."""
    if "headrace-sent-at" not in headers:
        return None
    text = headers.get("headrace-sent-at") or ""
    try:
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text) if int(text) <= TIMESTAMP_MAXIMUM else read_timestamp(text)
        return read_timestamp(text)
    except RecordError as error:
        raise RequestError(
            422,
            "bad-sent-at",
            f"Headrace-Sent-At: {error}",
            hint="RFC 3339 such as 2026-01-31T12:00:00.123456Z, or microseconds since 1970",
        ) from None


def _producer_key(headers: Headers) -> ProducerKey:
    if "idempotency-key" in headers:
        raise _bad_key("Idempotency-Key and Headrace-Producer exclude each other")
    if "headrace-sequence" not in headers:
        raise _bad_key("Headrace-Producer needs Headrace-Sequence, the number of the first event")
    epoch = headers.get("headrace-epoch", "?") if "headrace-epoch" in headers else "0"
    return ProducerKey(
        _ascii_text(headers, "Headrace-Producer", PRODUCER_CHARACTERS_MAX),
        _whole_number("Headrace-Epoch", epoch or "0"),
        _whole_number("Headrace-Sequence", headers.get("headrace-sequence") or ""),
    )


def _ascii_text(headers: Headers, name: str, characters_max: int) -> str:
    text = headers.get(name.lower())
    if text is None:
        raise _bad_key(f"{name} holds characters that are not ASCII")
    if not 1 <= len(text) <= characters_max:
        raise _bad_key(f"{name} must have 1 to {characters_max} characters")
    return text


def _bad_key(message: str) -> RequestError:
    return RequestError(422, "bad-retry-key", message, hint="see docs/reference/events.md")


def _whole_number(header: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < SEQUENCE_MAX):
        raise _bad_key(f"{header} must be a whole number from 0 to {SEQUENCE_MAX - 1}")
    return int(text)


@lru_cache(maxsize=1024)
def _plain_answer(accepted: int) -> bytes:
    return b'{"accepted":%d,"quarantined":0,"errors":[],"errors_truncated":false}' % accepted


def answer_body(accepted: int, rejected: list[tuple[int, str]], retried: int = 0) -> bytes:
    """`retried` counts events whose sequence numbers were stored before: it is only named when
    part of the request was new, and accepted + quarantined + retried is the number of records."""
    if not rejected and not retried:
        return _plain_answer(accepted)
    answer: dict[str, object] = {
        "accepted": accepted,
        "quarantined": len(rejected),
        "errors": [
            {"position": position, "reason": reason}
            for position, reason in rejected[:ERRORS_LISTED_MAX]
        ],
        "errors_truncated": len(rejected) > ERRORS_LISTED_MAX,
    }
    if retried:
        answer["retried"] = retried
    return msgspec.json.encode(answer)


def with_covers(response: Response, token: str) -> Response:
    """The answer to a request that is stored, with the token that covers its events."""
    status, headers, body = response
    covered = b'%s,"covers":"%s"}' % (body[:-1], token.encode())
    return status, [*headers, ("headrace-covers", token)], covered
