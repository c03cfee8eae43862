"""What the writer remembers about requests: receipts by key, and the sequence numbers present.

Both are bounded. What a bound pushes out is the oldest (receipts) or the least recently used
(producers); its retry is then a new request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.log.contract import ProducerRange, Receipt
from headrace.model.errors import KeyReusedError, LogError, ProducerGapsError

__all__ = ["Producers", "Receipts", "decode_receipt", "encode_receipt"]

INTERVALS_TOTAL_MAX = 1_000_000
_encoder = msgspec.msgpack.Encoder()
_Range = tuple[str, str, int, int, int]
_decoder = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes, int, tuple[_Range, ...]])
Line = tuple[str, str, int]  # stream (lower case), producer, epoch


def encode_receipt(receipt: Receipt) -> bytes:
    ranges = [(r.stream, r.producer, r.epoch, r.first, r.count) for r in receipt.ranges]
    return _encoder.encode(
        (receipt.key, receipt.digest, receipt.answer, receipt.received_at_microseconds, ranges)
    )


def decode_receipt(encoded: bytes) -> Receipt:
    key, digest, answer, received, ranges = _decoder.decode(encoded)
    return Receipt(key, digest, answer, received, tuple(ProducerRange(*r) for r in ranges))


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
        """Add one group's (key, received, encoded)s and forget what the bounds push out."""
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


class Producers:
    """For each producer, epoch and stream the set of sequence numbers present, as intervals.

    A set, not a high-water mark: a request that another overtook is still taken in later.
    """

    def __init__(self, producers_max: int, intervals_max: int) -> None:
        self._producers_max = producers_max
        self._intervals_max = intervals_max
        self._lines: dict[Line, tuple[list[int], list[int]]] = {}  # firsts and ends, sorted
        self._changed: dict[Line, None] = {}
        self._intervals_total = 0

    def __len__(self) -> int:
        return len(self._lines)

    def present(self, wanted: ProducerRange) -> list[tuple[int, int]]:
        firsts, ends = self._lines.get(_line(wanted), ([], []))
        low, high = wanted.first, wanted.first + wanted.count
        found: list[tuple[int, int]] = []
        for position in range(bisect_right(ends, low), len(firsts)):
            if firsts[position] >= high:
                break
            found.append((max(low, firsts[position]), min(high, ends[position])))
        return found

    def check(self, ranges: Iterable[ProducerRange]) -> None:
        """Raises ProducerGapsError if a range would leave a producer with too many gaps."""
        added: dict[Line, int] = {}
        for item in ranges:
            line = _line(item)
            firsts, ends = self._lines.get(line, ([], []))
            touched = self._touched(firsts, ends, item.first, item.first + item.count)
            count = added[line] = added.get(line, 0) + (0 if touched[0] < touched[1] else 1)
            if count and len(firsts) + count > self._intervals_max:
                raise ProducerGapsError(
                    f"producer {item.producer} (epoch {item.epoch}) has left "
                    f"{len(firsts) - 1} gaps in its sequence numbers on {item.stream}, "
                    f"the most that are kept",
                    hint="send the missing numbers, or start over with a higher epoch",
                )

    def add(self, ranges: Iterable[ProducerRange]) -> None:
        for item in ranges:
            if item.count <= 0:
                continue
            line = _line(item)
            firsts, ends = self._lines.pop(line, ([], []))
            self._lines[line] = (firsts, ends)
            self._changed.pop(line, None)
            self._changed[line] = None
            first, end = item.first, item.first + item.count
            low, high = self._touched(firsts, ends, first, end)
            if low < high:
                first, end = min(first, firsts[low]), max(end, ends[high - 1])
            firsts[low:high] = [first]
            ends[low:high] = [end]
            self._intervals_total += 1 - (high - low)
        self._evict()

    def load(self, lines: Iterable[tuple[str, str, int, Sequence[int]]]) -> None:
        """Put in sets from a checkpoint, each in the place of an older one."""
        for stream, producer, epoch, flat in lines:
            line = (stream, producer, epoch)
            old = self._lines.pop(line, ([], []))
            self._lines[line] = (list(flat[0::2]), list(flat[1::2]))
            self._intervals_total += len(flat) // 2 - len(old[0])
        self._evict()

    def take_changed(self, everything: bool) -> list[tuple[str, str, int, list[int]]]:
        """Sets changed since the last call (or all), least recently used first."""
        lines = list(self._lines) if everything else [x for x in self._changed if x in self._lines]
        self._changed = {}
        return [(*line, list(_flat(*self._lines[line]))) for line in lines]

    def _evict(self) -> None:
        while len(self._lines) > self._producers_max or (
            self._intervals_total > INTERVALS_TOTAL_MAX and len(self._lines) > 1
        ):
            line = next(iter(self._lines))
            self._intervals_total -= len(self._lines.pop(line)[0])

    @staticmethod
    def _touched(firsts: list[int], ends: list[int], first: int, end: int) -> tuple[int, int]:
        """Positions of the intervals that overlap or adjoin [first, end)."""
        return bisect_left(ends, first), bisect_right(firsts, end)


def _line(item: ProducerRange) -> Line:
    return item.stream.lower(), item.producer, item.epoch


def _flat(firsts: list[int], ends: list[int]) -> Iterator[int]:
    for first, end in zip(firsts, ends, strict=True):
        yield first
        yield end
