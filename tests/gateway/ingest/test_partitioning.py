"""The partition of an event is for ever: fixed values, and the definition computed another way."""

from __future__ import annotations

import hashlib
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gateway.ingest.partitioning import partition_of_text, partitions_of_rows

MASK = 2**64 - 1


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hash_words(words: list[int], length: int) -> int:
    h = mix((0x9E3779B97F4A7C15 + length) & MASK)
    for word in words:
        h = mix(h ^ (word & MASK))
    return h


def hash_value(value: Any, kind: str) -> int:
    if value is None:
        return mix(0xD1B54A32D192ED03)
    if kind == "bytes":
        octets = value.encode() if isinstance(value, str) else value
        length = len(octets)
        if length > 64:
            octets = hashlib.blake2b(octets, digest_size=8).digest()
        padded = octets + b"\0" * (-len(octets) % 8)
        return hash_words(list(struct.unpack(f"<{len(padded) // 8}Q", padded)), length)
    if kind == "decimal":
        unscaled = int(value.scaleb(2)) & (2**128 - 1)
        return hash_words([unscaled & MASK, unscaled >> 64], 16)
    if kind == "float":
        if value != value:
            return hash_words([0x7FF8 << 48], 8)
        return hash_words([struct.unpack("<Q", struct.pack("<d", value + 0.0))[0]], 8)
    return hash_words([value], 8)


def partition(values: list[tuple[Any, str]], partitions: int) -> int:
    row = 0
    for value, kind in values:
        row = mix((row + hash_value(value, kind)) & MASK)
    return row % partitions


columns = st.one_of(
    st.tuples(st.just("bytes"), st.just(pa.string()), st.lists(st.none() | st.text(max_size=90))),
    st.tuples(
        st.just("bytes"), st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=90))
    ),
    st.tuples(
        st.just("int"),
        st.just(pa.int64()),
        st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    ),
    st.tuples(
        st.just("int"), st.just(pa.int8()), st.lists(st.none() | st.integers(-128, 127))
    ),
    st.tuples(st.just("int"), st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just("float"), st.just(pa.float64()), st.lists(st.none() | st.floats())),
    st.tuples(
        st.just("decimal"),
        st.just(pa.decimal128(38, 2)),
        st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1).map(
            lambda n: Decimal(n).scaleb(-2, None) if abs(n) < 10**27 else Decimal(n // 10**12) / 100
        )),
    ),
)  # fmt: skip


@given(columns, st.integers(1, 256), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_it_is_as_defined(
    column: tuple[str, pa.DataType, list[Any]], partitions: int, skipped: int
) -> None:
    kind, arrow, values = column
    array = pa.array([None] * skipped + values, type=arrow).slice(skipped)
    got = partitions_of_rows([array, array], partitions)
    expected = [partition([(value, kind)] * 2, partitions) for value in values]
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (
            pa.array(["", "a", "user-1", "12345678", "123456789", "é" * 40, None]),
            [191, 92, 21, 236, 47, 123, 63],
        ),
        (pa.array([0, 1, -1, 2**62, None]), [78, 134, 153, 223, 63]),
        (pa.array([date(2026, 1, 1)]), [202]),
        (pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), [8]),
        (pa.array([[1, 2], None]), [37, 63]),
    ],
)
def test_it_never_changes(array: pa.Array, expected: list[int]) -> None:
    assert partitions_of_rows([array], 256).tolist() == expected


def test_a_producer_is_hashed_as_a_string() -> None:
    assert partition_of_text("p", 7) == partitions_of_rows([pa.array(["p"])], 7)[0]


def test_keys_spread() -> None:
    keys = pa.array([f"user-{n}" for n in range(10_000)])
    counts = [0] * 16
    for chosen in partitions_of_rows([keys], 16):
        counts[chosen] += 1
    assert min(counts) > 500
    assert max(counts) < 750
