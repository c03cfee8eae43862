"""Compressed bodies: inflated whole, and in time that grows with their size alone."""

from __future__ import annotations

import gzip
import random
import time

import pyarrow as pa
import pytest

from headrace.formats.bodies import GZIP_MEMBERS_MAX, inflate
from headrace.model.errors import RequestError

NOTE = b'{"text":"x"}'


def test_many_empty_gzip_members_take_no_time() -> None:
    empty = gzip.compress(b"", mtime=0)
    many = inflate(empty * (GZIP_MEMBERS_MAX - 1) + gzip.compress(NOTE), "gzip", 1_000)
    assert many == NOTE
    body = empty * (4 * 1024 * 1024 // len(empty))
    with pytest.raises(RequestError, match="gzip members"):
        inflate(body, "gzip", 1_000_000)


def test_members_of_every_size_are_inflated_whole() -> None:
    parts = [bytes(range(256)) * n for n in (0, 1, 15, 16, 17, 1_000, 0, 5_000, 1)]
    noise = [random.Random(n).randbytes(n) for n in (4_095, 4_096, 4_097, 300_000, 1)]
    body = b"".join(gzip.compress(part) for part in parts + noise)
    assert inflate(body, "gzip", 10_000_000) == b"".join(parts + noise)
    for cut in (1, 9, 20, 4_096, 300_000):
        with pytest.raises(RequestError, match="gzip"):
            inflate(body[:-cut], "gzip", 10_000_000)


def test_many_zstd_frames_take_no_time() -> None:
    empty, note = (pa.Codec("zstd").compress(part, asbytes=True) for part in (b"", NOTE))

    def seconds(frames: int) -> float:
        body = empty * frames + note
        began = time.process_time()
        assert inflate(body, "zstd", 100) == NOTE
        return time.process_time() - began

    few, many = (min(seconds(frames) for _ in range(3)) for frames in (50_000, 400_000))
    assert many < 8 * 3 * few  # it grows with the frames, not with their square
