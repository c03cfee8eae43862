"""The shop's events by the million: as columns, and as the bodies a client would send.

Everything is drawn from the workload's seed and the chunk's number, so that the load generator and
the oracle make the very same events in different processes, and no file goes between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CHUNK_EVENTS",
    "SCHEMA",
    "USERS",
    "Bodies",
    "Workload",
    "bodies",
    "columns",
    "encoded",
    "tables",
]

CHUNK_EVENTS = 100_000
START_MICROSECONDS = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
USERS = tuple(f"{digit}{digit * 0x1F3A5C7 + 0xA1B2C3D4E5:011x}"[:12] for digit in range(10))
_AMOUNTS = tuple(10 * digit or 100 for digit in range(10))  # what each user always pays
_CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY", "SEK", "NOK", "DKK", "PLN", "CZK")
_STATUSES = ("paid", "failed", "pending", "refunded")
_STATUS_SHARES = (0.80, 0.08, 0.07, 0.05)
# How far an event's time lies behind the stream's: as in the shop's demo, one in a hundred comes
# after its window's watermark, so that results are revised.
_DELAYS = ((0.90, 0.0, 0.2), (0.09, 0.2, 3.0), (0.01, 8.0, 14.0))
_DELAYS_DRAWN = 65_536

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("amount", pa.decimal128(18, 2), nullable=False),
        pa.field("currency", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@dataclass(frozen=True)
class Workload:
    """`rate` is how many events share one second of event time, whatever the clock does."""

    seed: int
    rate: int


@dataclass(frozen=True)
class _Drawn:
    """A chunk before it takes a form: indexes into the value tables above, and times."""

    first: int
    user: np.ndarray
    currency: np.ndarray
    status: np.ndarray
    created_at: np.ndarray


@dataclass(frozen=True)
class Bodies:
    """Request bodies of `size` events each, lying one after the other in one buffer."""

    size: int
    buffer: memoryview
    bounds: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> memoryview:
        return self.buffer[self.bounds[index] : self.bounds[index + 1]]


def columns(workload: Workload, chunk: int) -> pa.RecordBatch:
    """Chunk number `chunk` as the log, Parquet and the oracle have it."""
    return _typed(_draw(workload, chunk))


def encoded(workload: Workload, chunk: int) -> pa.StringArray:
    """The same chunk as NDJSON, one line per event with its newline. Amounts are text, so that no
    binary fraction comes near them."""
    return _lines(_draw(workload, chunk))


def tables(workload: Workload, events: int) -> Iterator[pa.RecordBatch]:
    """The workload's first `events` events, chunk by chunk."""
    for chunk in range(-(-events // CHUNK_EVENTS)):
        yield columns(workload, chunk).slice(0, min(CHUNK_EVENTS, events - chunk * CHUNK_EVENTS))


def bodies(workload: Workload, events: int, size: int) -> Iterator[Bodies]:
    """The workload's first `events` events as bodies of `size` lines. Both must divide: a chunk
    into bodies, the events into chunks."""
    if CHUNK_EVENTS % size or events % CHUNK_EVENTS:
        raise ValueError(f"{events} events in chunks of {CHUNK_EVENTS} and bodies of {size}")
    for chunk in range(events // CHUNK_EVENTS):
        lines = encoded(workload, chunk)
        offsets = np.frombuffer(lines.buffers()[1], np.int32, CHUNK_EVENTS + 1)
        bounds = tuple(int(offset) for offset in offsets[::size])
        yield Bodies(size, memoryview(lines.buffers()[2]), bounds)


def _draw(workload: Workload, chunk: int) -> _Drawn:
    random = np.random.default_rng([workload.seed, chunk])
    first = chunk * CHUNK_EVENTS
    numbers = np.arange(first, first + CHUNK_EVENTS, dtype=np.int64)
    delays = _delays(random)[random.integers(0, _DELAYS_DRAWN, CHUNK_EVENTS)]
    # Nothing lies before the start: the first events' delays end there.
    created_at = np.maximum(numbers * 1_000_000 // workload.rate - delays, 0) + START_MICROSECONDS
    return _Drawn(
        first=first,
        user=random.integers(0, len(USERS), CHUNK_EVENTS),
        currency=random.integers(0, len(_CURRENCIES), CHUNK_EVENTS),
        status=np.searchsorted(np.cumsum(_STATUS_SHARES)[:-1], random.random(CHUNK_EVENTS)),
        created_at=created_at,
    )


def _delays(random: np.random.Generator) -> np.ndarray:
    """In microseconds, to be drawn from."""
    shares = np.array([share for share, _, _ in _DELAYS])
    kind = np.searchsorted(np.cumsum(shares)[:-1], random.random(_DELAYS_DRAWN))
    least = np.array([least for _, least, _ in _DELAYS])[kind]
    most = np.array([most for _, _, most in _DELAYS])[kind]
    return (random.uniform(least, most) * 1_000_000).astype(np.int64)


def _typed(drawn: _Drawn) -> pa.RecordBatch:
    cents = pa.array([amount * 100 for amount in _AMOUNTS], pa.int64())
    exact = pc.divide(cents.cast(pa.decimal128(19, 0)), pa.scalar(100, pa.decimal128(3, 0)))
    amounts = exact.cast(pa.decimal128(18, 2))
    return pa.RecordBatch.from_arrays(
        [
            _ids(drawn.first),
            pa.array(USERS).take(pa.array(drawn.user)),
            amounts.take(pa.array(drawn.user)),
            pa.array(_CURRENCIES).take(pa.array(drawn.currency)),
            pa.array(_STATUSES).take(pa.array(drawn.status)),
            pa.array(drawn.created_at, pa.timestamp("us", "UTC")),
        ],
        schema=SCHEMA,
    )


def _lines(drawn: _Drawn) -> pa.StringArray:
    texts = pa.array([f"{amount}.00" for amount in _AMOUNTS])
    joined: pa.StringArray = pc.binary_join_element_wise(
        '{"id":"',
        _ids(drawn.first),
        '","user_id":"',
        pa.array(USERS).take(pa.array(drawn.user)),
        '","amount":"',
        texts.take(pa.array(drawn.user)),
        '","currency":"',
        pa.array(_CURRENCIES).take(pa.array(drawn.currency)),
        '","status":"',
        pa.array(_STATUSES).take(pa.array(drawn.status)),
        '","created_at":"',
        _timestamps(drawn.created_at),
        '"}\n',
        "",
    )
    return joined


def _ids(first: int) -> pa.StringArray:
    """Sixteen hexadecimal digits, well mixed: neighbours do not resemble each other."""
    numbers = np.arange(first, first + CHUNK_EVENTS, dtype=np.uint64)
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)  # odd, so no two numbers give the same
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (mixed[:, None] >> shifts) & np.uint64(15)
    return _fixed_width(np.frombuffer(b"0123456789abcdef", np.uint8)[digits])


def _timestamps(microseconds: np.ndarray) -> pa.StringArray:
    """RFC 3339 in UTC with six digits of fraction."""
    seconds, fractions = np.divmod(microseconds, 1_000_000)
    least = seconds.min()
    known = np.arange(least, seconds.max() + 1).astype("datetime64[s]").astype("S19")
    table = np.frombuffer(known.tobytes(), np.uint8).reshape(-1, 19)
    text = np.empty((len(microseconds), 27), np.uint8)
    text[:, :19] = table[seconds - least]
    text[:, 19] = ord(".")
    for place in range(6):
        text[:, 25 - place] = fractions % 10 + ord("0")
        fractions = fractions // 10
    text[:, 26] = ord("Z")
    return _fixed_width(text)


def _fixed_width(characters: np.ndarray) -> pa.StringArray:
    rows, width = characters.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(characters)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data))
