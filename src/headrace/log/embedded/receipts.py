"""What the writer remembers about requests: their receipts by key.

They are bounded. What a bound pushes out is the oldest; its retry is then a new request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from headrace.log.contract import NO_EVENT_TIME, ProducerRange, Receipt
from headrace.model.errors import KeyReusedError, LogError

__all__ = ["Receipts", "decode_receipt", "encode_receipt"]


class _Range(msgspec.Struct, array_like=True, frozen=True):
    stream: str
    producer: str
    epoch: int
    first: int
    count: int
    event_time: int = NO_EVENT_TIME
    partition: int = -1
    mark: str = ""


class _Receipt(msgspec.Struct, array_like=True, frozen=True):
    key: bytes
    digest: bytes
    answer: bytes
    received: int
    ranges: tuple[_Range, ...]
    reached: tuple[int, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Receipt)


def encode_receipt(receipt: Receipt, reached: tuple[int, ...]) -> bytes:
    ranges = [
        (
            r.stream,
            r.producer,
            r.epoch,
            r.first,
            r.count,
            r.event_time_microseconds,
            r.partition,
            r.mark,
        )
        for r in receipt.ranges
    ]
    return _encoder.encode(
        (
            receipt.key,
            receipt.digest,
            receipt.answer,
            receipt.received_at_microseconds,
            ranges,
            reached,
        )
    )


def decode_receipt(encoded: bytes) -> Receipt:
    item = _decoder.decode(encoded)
    ranges = tuple(ProducerRange(*msgspec.structs.astuple(found)) for found in item.ranges)
    return Receipt(item.key, item.digest, item.answer, item.received, ranges, reached=item.reached)


class Receipts:
    """Receipts by key, at most `keys_max`, none more than `seconds_max` older than the newest."""

    def __init__(self, keys_max: int, seconds_max: int) -> None:
        self._keys_max = keys_max
        self._age_max = seconds_max * 1_000_000
        self._by_key: dict[bytes, bytes] = {}
        self._arrivals: deque[tuple[int, list[bytes]]] = deque()
        self._newest = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> Receipt | None:
        encoded = self._by_key.get(key)
        return None if encoded is None else decode_receipt(encoded)

    def check_new(self, receipts: Iterable[Receipt]) -> None:
        """Raises KeyReusedError for a key with another body, LogError for a request that is
        stored already: appending it again would double its events."""
        seen: dict[bytes, bytes] = {}
        for receipt in receipts:
            if not receipt.key:
                continue
            kept = self.get(receipt.key) if receipt.key in self._by_key else None
            digest = kept.digest if kept is not None else seen.get(receipt.key)
            if digest is not None and digest != receipt.digest:
                raise KeyReusedError(
                    "this idempotency key was used before with another body",
                    hint="take a new key for a new request",
                )
            if digest is not None:
                raise LogError("this request is stored already", hint="answer it from its receipt")
            seen[receipt.key] = receipt.digest

    def add(self, encoded: Sequence[tuple[bytes, int, bytes]]) -> None:
        """Add one group's (key, received, encoded)s and forget what the bounds push out. Notes,
        which have no key, are not kept."""
        encoded = [item for item in encoded if item[0]]
        if not encoded:
            return
        for key, received, whole in encoded:
            self._by_key.pop(key, None)
            self._by_key[key] = whole
            self._newest = max(self._newest, received)
        self._arrivals.append((max(r for _, r, _ in encoded), [key for key, _, _ in encoded]))
        while self._arrivals and (
            len(self._by_key) > self._keys_max
            or self._arrivals[0][0] < self._newest - self._age_max
        ):
            received, keys = self._arrivals[0]
            excess = len(self._by_key) - self._keys_max
            if received < self._newest - self._age_max or excess >= len(keys):
                self._arrivals.popleft()
                excess = len(keys)
            for key in keys[:excess]:
                self._by_key.pop(key, None)
            del keys[:excess]

    def encoded(self) -> list[bytes]:
        """All of them, oldest first."""
        return list(self._by_key.values())
