"""Events by the million: as columns, and as the bodies a client would send.

Everything is drawn from the workload's seed and the chunk's number, so that the load generator and
the oracle make the very same events in different processes, and no file goes between them. The
shop's events are made here; bench/bids.py and bench/readings.py make others in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.shop import STREAM

__all__ = [
    "CHUNK_EVENTS",
    "SCHEMA",
    "START_MICROSECONDS",
    "USERS",
    "Bodies",
    "Events",
    "Workload",
    "bodies",
    "delays",
    "encoded",
    "fixed_width",
    "mixed",
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


class Events(Protocol):
    """What makes events. The request bodies go to the streams by turns."""

    @property
    def streams(self) -> tuple[str, ...]: ...

    def columns(self, chunk: int) -> pa.RecordBatch:
        """Chunk number `chunk` as the log, Parquet and the oracle have it."""


@dataclass(frozen=True)
class Workload:
    """The shop's events. `rate` is how many events share one second of event time, whatever the
    clock does."""

    seed: int
    rate: int

    @property
    def streams(self) -> tuple[str, ...]:
        return (STREAM,)

    def columns(self, chunk: int) -> pa.RecordBatch:
        random = np.random.default_rng([self.seed, chunk])
        first = chunk * CHUNK_EVENTS
        numbers = np.arange(first, first + CHUNK_EVENTS, dtype=np.int64)
        behind = delays(random)
        # Nothing lies before the start: the first events' delays end there.
        at = np.maximum(numbers * 1_000_000 // self.rate - behind, 0) + START_MICROSECONDS
        user = pa.array(random.integers(0, len(USERS), CHUNK_EVENTS))
        currency = random.integers(0, len(_CURRENCIES), CHUNK_EVENTS)
        status = np.searchsorted(np.cumsum(_STATUS_SHARES)[:-1], random.random(CHUNK_EVENTS))
        amounts = pa.array([Decimal(amount) for amount in _AMOUNTS], pa.decimal128(18, 2))
        return pa.RecordBatch.from_arrays(
            [
                mixed(first),
                pa.array(USERS).take(user),
                amounts.take(user),
                pa.array(_CURRENCIES).take(pa.array(currency)),
                pa.array(_STATUSES).take(pa.array(status)),
                pa.array(at, pa.timestamp("us", "UTC")),
            ],
            schema=SCHEMA,
        )


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


def encoded(workload: Events, chunk: int) -> pa.StringArray:
    """The same chunk as NDJSON, one line per event with its newline. Decimals are text, so that no
    binary fraction comes near them. Texts must need no escaping."""
    batch = workload.columns(chunk)
    parts: list[pa.StringArray | str] = []
    for place, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        mark = "" if pa.types.is_integer(field.type) else '"'
        parts += [f'{"," if place else "{"}"{field.name}":{mark}', _texts(column), mark]
    joined: pa.StringArray = pc.binary_join_element_wise(*parts, "}\n", "")
    return joined


def _texts(column: pa.Array) -> pa.StringArray:
    if pa.types.is_timestamp(column.type):
        return _timestamps(column.cast(pa.int64()).to_numpy())
    return column.cast(pa.string())


def tables(workload: Events, events: int) -> Iterator[pa.RecordBatch]:
    """The workload's first `events` events, chunk by chunk."""
    for chunk in range(-(-events // CHUNK_EVENTS)):
        rows = min(CHUNK_EVENTS, events - chunk * CHUNK_EVENTS)
        yield workload.columns(chunk).slice(0, rows)


def bodies(workload: Events, events: int, size: int, first: int = 0) -> Iterator[Bodies]:
    """The workload's events from number `first` up to `events` as bodies of `size` lines. Both
    must divide: a chunk into bodies, the events into chunks."""
    if CHUNK_EVENTS % size or events % CHUNK_EVENTS or first % CHUNK_EVENTS:
        raise ValueError(f"{events} events in chunks of {CHUNK_EVENTS} and bodies of {size}")
    for chunk in range(first // CHUNK_EVENTS, events // CHUNK_EVENTS):
        lines = encoded(workload, chunk)
        offsets = np.frombuffer(lines.buffers()[1], np.int32, CHUNK_EVENTS + 1)
        bounds = tuple(int(offset) for offset in offsets[::size])
        yield Bodies(size, memoryview(lines.buffers()[2]), bounds)


def delays(random: np.random.Generator) -> np.ndarray:
    """By how many microseconds each event of a chunk comes after its time."""
    shares = np.array([share for share, _, _ in _DELAYS])
    kind = np.searchsorted(np.cumsum(shares)[:-1], random.random(_DELAYS_DRAWN))
    least = np.array([least for _, least, _ in _DELAYS])[kind]
    most = np.array([most for _, _, most in _DELAYS])[kind]
    drawn = (random.uniform(least, most) * 1_000_000).astype(np.int64)
    return drawn[random.integers(0, _DELAYS_DRAWN, CHUNK_EVENTS)]


def mixed(first: int) -> pa.StringArray:
    """A chunk's identifiers, sixteen hexadecimal digits each: neighbours do not resemble each
    other."""
    numbers = np.arange(first, first + CHUNK_EVENTS, dtype=np.uint64)
    spread = numbers * np.uint64(0x9E3779B97F4A7C15)  # odd, so no two numbers give the same
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (spread[:, None] >> shifts) & np.uint64(15)
    return fixed_width(np.frombuffer(b"0123456789abcdef", np.uint8)[digits])


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
    return fixed_width(text)


def fixed_width(characters: np.ndarray) -> pa.StringArray:
    """Texts of equal length, a row of characters each."""
    rows, width = characters.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(characters)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data))
