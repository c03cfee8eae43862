"""Nexmark's bids by the million, as its generator makes them.

Of fifty events one is a person, three are auctions and forty-six are bids; persons and auctions
are not made, but count for the numbers and times of the bids. Half of the bids are for the hot
auction of the moment and three in four by the hot bidder, the others for one of the last hundred
auctions and by one of the last thousand persons. A bid as JSON has about 250 bytes; its time lies
up to 0.2 seconds behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.events import CHUNK_EVENTS, START_MICROSECONDS, fixed_width

__all__ = ["BIDS_SQL", "SCHEMA", "Bids"]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
ALL = PERSONS + AUCTIONS + BIDS
FIRST = 1_000  # the first auction's number, and the first person's
HOT_SHARES = {"auction": 1 / 2, "bidder": 3 / 4, "channel": 1 / 2}
HOT_EVERY = 100  # the hot auction, or bidder, changes with every hundredth
RECENT_AUCTIONS, RECENT_PERSONS = 100, 1_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
WITH_CHANNEL_SHARE = 0.9  # of the URLs of channels that are not hot
DISORDER_MICROSECONDS = 200_000
EXTRA_BYTES = 54
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)

STREAM = "bids"
BIDS_SQL = f"""\
CREATE STREAM {STREAM} (
  auction BIGINT NOT NULL,
  bidder BIGINT NOT NULL,
  price BIGINT NOT NULL,
  channel STRING NOT NULL,
  url STRING NOT NULL,
  date_time TIMESTAMP NOT NULL,
  extra STRING NOT NULL
)
WATERMARK date_time DELAY OF INTERVAL 4 SECONDS
LATE REVISE
PARTITION BY (bidder) INTO 4 PARTITIONS;
"""
SCHEMA = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("bidder", pa.int64(), nullable=False),
        pa.field("price", pa.int64(), nullable=False),
        pa.field("channel", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("date_time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Bids:
    """`rate` is how many events, persons and auctions included, share one second of event time."""

    seed: int
    rate: int = 10_000

    @property
    def streams(self) -> tuple[str, ...]:
        return (STREAM,)

    def columns(self, chunk: int) -> pa.RecordBatch:
        random = np.random.default_rng([self.seed, chunk])
        numbers = np.arange(chunk * CHUNK_EVENTS, (chunk + 1) * CHUNK_EVENTS, dtype=np.int64)
        epochs, within = np.divmod(numbers, BIDS)
        events = epochs * ALL + PERSONS + AUCTIONS + within
        behind = random.integers(0, DISORDER_MICROSECONDS, CHUNK_EVENTS)
        at = np.maximum(events * 1_000_000 // self.rate - behind, 0) + START_MICROSECONDS
        channel, url = _channels_and_urls(random)
        return pa.RecordBatch.from_arrays(
            [
                _recent(random, epochs * AUCTIONS + AUCTIONS - 1, RECENT_AUCTIONS, "auction"),
                _recent(random, epochs * PERSONS + PERSONS - 1, RECENT_PERSONS, "bidder"),
                pa.array((10 ** (random.random(CHUNK_EVENTS) * 6) * 100).astype(np.int64)),
                channel,
                url,
                pa.array(at, pa.timestamp("us", "UTC")),
                _words(random, CHUNK_EVENTS, EXTRA_BYTES),
            ],
            schema=SCHEMA,
        )


def _recent(random: np.random.Generator, last: np.ndarray, recent: int, what: str) -> pa.Array:
    """`last` are the numbers of the newest there is when each bid is made."""
    hot = last // HOT_EVERY * HOT_EVERY
    least = np.maximum(last - recent, 0)
    cold = least + (random.random(CHUNK_EVENTS) * (last - least + 1)).astype(np.int64)
    is_hot = random.random(CHUNK_EVENTS) < HOT_SHARES[what]
    return pa.array(np.where(is_hot, hot, cold) + FIRST)


def _channels_and_urls(random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """A hot channel has one URL without a number; most of the others' name their channel."""
    numbers = np.arange(CHANNELS)
    named = random.random(CHUNK_EVENTS) < WITH_CHANNEL_SHARE
    cold = random.integers(0, CHANNELS, CHUNK_EVENTS)
    hot = random.integers(0, len(HOT_CHANNELS), CHUNK_EVENTS)
    is_hot = random.random(CHUNK_EVENTS) < HOT_SHARES["channel"]
    names = pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in numbers)])
    suffixes = pa.array(["", *(f"&channel_id={number * 214_013}" for number in numbers)])
    folders = _words(np.random.default_rng(0), 3 * 1_000, 5)
    # Each channel has its folders, as the generator's URLs do.
    channel = np.where(is_hot, hot, cold + len(HOT_CHANNELS))
    place = channel % 1_000 * 3
    url = pc.binary_join_element_wise(
        "https://www.nexmark.com",
        *(folders.take(pa.array(place + number)) for number in range(3)),
        pc.binary_join_element_wise(
            "item.htm?query=1",
            suffixes.take(pa.array(np.where(is_hot | ~named, 0, cold + 1))),
            "",
        ),
        "/",
    )
    return names.take(pa.array(channel)), url


def _words(random: np.random.Generator, count: int, width: int) -> pa.Array:
    return fixed_width(_LETTERS[random.integers(0, len(_LETTERS), (count, width))])
