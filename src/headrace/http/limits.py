"""What a request may say and what an answer lists at most, as the handlers and OpenAPI have it."""

from __future__ import annotations

__all__ = [
    "ERRORS_LISTED_MAX",
    "IDEMPOTENCY_KEY_CHARACTERS_MAX",
    "PRODUCERS_LISTED_MAX",
    "PRODUCER_CHARACTERS_MAX",
    "SEQUENCE_MAX",
]

IDEMPOTENCY_KEY_CHARACTERS_MAX = 255
PRODUCER_CHARACTERS_MAX = 128
SEQUENCE_MAX = 2**62
ERRORS_LISTED_MAX = 100
PRODUCERS_LISTED_MAX = 500  # in one page
