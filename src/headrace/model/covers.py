"""Tokens by which one reads what was written: the answer to POST /v1/events carries one, and a
query that brings it waits until the views behind it have taken in what it covers.

A token names a log and, for each stream, the ends its partitions had reached. It is opaque to
users; it begins with its version, and a checksum tells one that was cut or changed. Tokens merge by
maximum: the merged one covers what each of them does.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from headrace.model.errors import CoversError

__all__ = [
    "CHARACTERS_MAX",
    "COVERS_NOW",
    "WAIT_SECONDS",
    "WAIT_SECONDS_MAX",
    "Covers",
    "Ends",
]

COVERS_NOW = "now"  # in place of a token: whatever the log holds when the query comes
CHARACTERS_MAX = 16_384
WAIT_SECONDS = 30.0  # that a query waits for what it is to cover, if it does not say
WAIT_SECONDS_MAX = 60.0  # that it may say
VERSION = "1"
_CHECKSUM_BYTES = 4
_HINT = "give the token as an answer to POST /v1/events gave it, or covers=now"

Ends = tuple[int, ...]  # per partition, the offset after its last event


@dataclass(frozen=True)
class Covers:
    """What a token says: `log` is the identity of the log, `ends` are by stream."""

    log: str
    ends: Mapping[str, Ends]

    def text(self) -> str:
        """
        >>> Covers("aB3-xY_9", {"payments": (7, 0, 12)}).text()
        '1kqhhQjMteFlfOYGocGF5bWVudHOTBwAMwrqILA'
        """
        body = msgspec.msgpack.encode((self.log, self.ends))
        whole = body + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big")
        return VERSION + base64.urlsafe_b64encode(whole).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Covers:
        """Raises CoversError for what is no token, or one of a version that is not known."""
        if len(text) > CHARACTERS_MAX:
            raise CoversError(f"the token has more than {CHARACTERS_MAX} characters", hint=_HINT)
        if text[:1] != VERSION:
            raise CoversError(f"{text[:40]!r} is no token of version {VERSION}", hint=_HINT)
        try:
            encoded = text[1:].encode("ascii")
            whole = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
            body, checksum = whole[:-_CHECKSUM_BYTES], whole[-_CHECKSUM_BYTES:]
            if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
                raise ValueError("its checksum is wrong")
            log, ends = msgspec.msgpack.decode(body, type=tuple[str, dict[str, Ends]])
        except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
            raise CoversError(f"the token {text[:40]!r} is damaged: {error}", hint=_HINT) from error
        return cls(log, ends)

    def merged(self, other: Covers) -> Covers:
        """Raises CoversError for a token of another log.

        >>> Covers("x", {"a": (1, 5)}).merged(Covers("x", {"a": (3, 2), "b": (1,)})).ends
        {'a': (3, 5), 'b': (1,)}
        """
        if other.log != self.log:
            raise CoversError(
                "tokens of two logs cannot be merged",
                hint="was the project's data removed? what the older token names is gone then",
            )
        ends = dict(self.ends)
        for stream, reached in other.ends.items():
            pairs = zip_longest(ends.get(stream, ()), reached, fillvalue=0)
            ends[stream] = tuple(max(pair) for pair in pairs)
        return Covers(self.log, ends)
