"""Which partition an event goes to: a stable hash of its PARTITION BY columns.

The hash decides where events of a key lie for ever, so it must not change between versions,
machines or processes. It is defined here and nowhere else (all arithmetic modulo 2^64):

    mix(x)      x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB;
                x ^= x >> 31                                  (the finaliser of SplitMix64)
    words       the value as little-endian 64-bit words:
                  whole numbers, booleans   sign-extended, one word
                  DATE, TIMESTAMP           days, microseconds since the epoch, one word
                  FLOAT, DOUBLE             the bits as a double; -0.0 as 0.0; NaN as 0x7FF8 << 48
                  DECIMAL                   the unscaled value, two words, low first
                  STRING, BINARY            the bytes, the last word padded with zeros; more than
                                            64 bytes count as their 8-byte BLAKE2b digest
                  ARRAY, STRUCT             as the STRING of their compact JSON
    hash(value) h = mix(0x9E3779B97F4A7C15 + byte length); for each word: h = mix(h ^ word)
                (NULL: h = mix(0xD1B54A32D192ED03))
    row         r = 0; for each column: r = mix(r + hash(value)); partition = r mod partitions
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["partition_of_text", "partitions_of_rows"]

Words = npt.NDArray[np.uint64]

_SEED = 0x9E3779B97F4A7C15
_NULL = 0xD1B54A32D192ED03
_LONG_BYTES = 64
_FEW_ROWS = 256
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def _mix(words: Words) -> Words:
    words = (words ^ (words >> _SHIFTS[0])) * _MULTIPLIERS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _MULTIPLIERS[1]
    mixed: Words = words ^ (words >> _SHIFTS[2])
    return mixed


def partitions_of_rows(columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.uint8]:
    """The partition of each row by the values of `columns`, in their order; partitions ≤ 256."""
    if len(columns) == 1 and len(columns[0]) <= _FEW_ROWS and pa.types.is_string(columns[0].type):
        texts = columns[0].to_pylist()
        return np.array([_partition_of_value(text, partitions) for text in texts], np.uint8)
    return _partitions_of_many(columns, partitions)


def _partitions_of_many(columns: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.uint8]:
    rows = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        rows = _mix(rows + _hash_column(column))
    return (rows % np.uint64(partitions)).astype(np.uint8)


def partition_of_text(text: str, partitions: int) -> int:
    """The partition of a producer id: as for a single STRING column."""
    return _partition_of_value(text, partitions)


@lru_cache(maxsize=10_000)
def _partition_of_value(text: str | None, partitions: int) -> int:
    """For a few rows, remembering the keys seen last is cheaper than starting vector operations."""
    return int(_partitions_of_many([pa.array([text], type=pa.string())], partitions)[0])


def _hash_column(column: pa.Array) -> Words:
    kind = column.type
    if pa.types.is_nested(kind):
        texts = [
            None if value is None else json.dumps(value, separators=(",", ":"), default=str)
            for value in column.to_pylist()
        ]
        hashes = _hash_bytes(pa.array(texts, type=pa.string()))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(column)
    elif pa.types.is_decimal(kind):
        pairs = np.frombuffer(column.buffers()[1], dtype=np.uint64)
        pairs = pairs[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
        start = _mix(np.full(len(column), _SEED + 16, dtype=np.uint64))
        hashes = _mix(_mix(start ^ pairs[:, 0]) ^ pairs[:, 1])
    else:
        start = _mix(np.full(len(column), _SEED + 8, dtype=np.uint64))
        hashes = _mix(start ^ _single_words(column))
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        hashes = np.where(nulls, _mix(np.full(1, _NULL, dtype=np.uint64)), hashes)
    return hashes


def _single_words(column: pa.Array) -> Words:
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy() + 0.0
        bits = np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)
        return np.where(np.isnan(numbers), np.uint64(0x7FF8 << 48), bits)
    if pa.types.is_date(kind):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.view(pa.int64())
    whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    words: Words = whole.astype(np.int64).view(np.uint64)
    return words


def _hash_bytes(column: pa.Array) -> Words:
    count = len(column)
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[column.offset : column.offset + count + 1].astype(np.int64)
    lengths = np.diff(offsets)
    starts = offsets[:-1]
    longest = int(lengths.max()) if count else 0
    if longest > _LONG_BYTES:
        return _hash_long(column, lengths > _LONG_BYTES)
    hashes = _mix(np.uint64(_SEED) + lengths.astype(np.uint64))
    if longest == 0:
        return hashes
    low, high = int(offsets[0]), int(offsets[-1])
    octets = np.zeros(high - low + 8, dtype=np.uint8)
    octets[: high - low] = np.frombuffer(data_buffer, dtype=np.uint8)[low:high]
    # a 64-bit word at every byte position, so that one gather reads eight bytes of every value
    words = np.ndarray((high - low + 1,), dtype="<u8", buffer=octets, strides=(1,))
    shortest = int(lengths.min())
    starts = starts - low
    for at in range(0, longest, 8):
        if at + 8 <= shortest:
            hashes = _mix(hashes ^ words[starts + at])
            continue
        rows = np.flatnonzero(lengths > at)
        remaining = np.minimum(lengths[rows] - at, 8)
        unused_bits = ((8 - remaining) * 8).astype(np.uint64)
        kept = (words[starts[rows] + at] << unused_bits) >> unused_bits
        hashes[rows] = _mix(hashes[rows] ^ kept)
    return hashes


def _hash_long(column: pa.Array, is_long: npt.NDArray[np.bool_]) -> Words:
    """Long values are replaced by their digest, but keep their own length in the hash."""
    values = column.cast(pa.binary()).to_pylist()
    hashes = np.zeros(len(values), dtype=np.uint64)
    short = [b"" if long or value is None else value
             for value, long in zip(values, is_long, strict=True)]  # fmt: skip
    hashes[:] = _hash_bytes(pa.array(short, type=pa.binary()))
    for row in np.flatnonzero(is_long):
        value = values[row]
        digest = hashlib.blake2b(value, digest_size=8).digest()
        start = _mix(np.full(1, (_SEED + len(value)) % 2**64, dtype=np.uint64))
        hashes[row] = _mix(start ^ np.frombuffer(digest, dtype="<u8"))[0]
    return hashes
