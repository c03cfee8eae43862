"""When to try again: growing pauses with jitter, longer where the server says so."""

from __future__ import annotations

import random
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time

import msgspec

from headrace.model.errors import RefusedError

__all__ = ["RETRIED_STATUSES", "pause_seconds", "refused", "retry_after_seconds"]

# What another try can mend. Everything else from 400 up is an answer for good.
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 60.0


def pause_seconds(attempt: int, asked_seconds: float = 0.0) -> float:
    """The pause after the given number of failed attempts (1, 2, …): doubled each time up to
    PAUSE_SECONDS_MAX, of which a random half is taken off so that clients do not come together;
    never shorter than what the server asked for, up to RETRY_AFTER_SECONDS_MAX."""
    growing = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(attempt - 1, 16))
    jittered = growing * random.uniform(0.5, 1.0)
    return max(jittered, min(asked_seconds, RETRY_AFTER_SECONDS_MAX))


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """What Retry-After asks for, in seconds or as a date; 0 without one, or one unreadable."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except ValueError:
        return 0.0


def refused(status: int, content: bytes) -> RefusedError:
    """The answer as an error, also when the body is no problem document."""
    try:
        document = msgspec.json.decode(content)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        document = {"status": status, "detail": content[:200].decode("utf-8", "replace")}
    return RefusedError(status, document)
