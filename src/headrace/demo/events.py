"""The shop's events: made up with faker, fast, and told apart by their ids.

Faker makes a few hundred thousand values a minute, so it fills small pools at the start, and each
event draws from them: a process makes more than 100,000 events a second.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from headrace.demo.shop import USERS

__all__ = ["STATUSES", "Generator", "Pools", "make_pools", "sample"]

PAID = "paid"
STATUSES = {PAID: 80, "failed": 8, "pending": 7, "refunded": 5}
POOL_SIZE = 1_024
DRAWS = 8_192  # prepared (user, amount, currency, status) combinations per generator
# How far behind the clock an event's time lies: most are in order within a blink, some are out of
# order, and one in a hundred comes after its window's watermark, so that results are revised.
DELAYS = ((0.90, 0.0, 0.2), (0.09, 0.2, 3.0), (0.01, 8.0, 14.0))


@dataclass(frozen=True)
class Pools:
    """Values from faker to draw from: the same for every sender, so made once."""

    ids: tuple[str, ...]
    currencies: tuple[str, ...]


def make_pools(seed: int = 0) -> Pools:
    from faker import Faker

    fake = Faker()
    fake.seed_instance(seed)
    return Pools(
        ids=tuple(fake.uuid4()[:18] for _ in range(POOL_SIZE)),
        currencies=tuple(fake.currency_code() for _ in range(POOL_SIZE)),
    )


class Generator:
    """An endless source of one sender's events. Equal seeds and clocks give equal events; the id
    ends in the sender's number and a running number, so no two senders' events share one."""

    def __init__(self, pools: Pools, sender: int, seed: int = 0) -> None:
        self._random = random.Random(f"{seed}/{sender}")
        self._ids = pools.ids
        self._sender = sender
        self._number = 0
        chosen = self._random
        statuses = chosen.choices(list(STATUSES), list(STATUSES.values()), k=DRAWS)
        self._draws = [
            (user.id, f"{user.amount:.2f}", chosen.choice(pools.currencies), status)
            for user, status in zip(chosen.choices(USERS, k=DRAWS), statuses, strict=True)
        ]
        self._delays = [self._delay_microseconds() for _ in range(DRAWS)]

    def _delay_microseconds(self) -> int:
        shares = [share for share, _, _ in DELAYS]
        _, least, most = self._random.choices(DELAYS, shares)[0]
        return int(self._random.uniform(least, most) * 1_000_000)

    def batch(self, count: int, now_microseconds: int) -> list[dict[str, str]]:
        """The next `count` events as of a moment on the clock. Amounts are text, so that no
        binary fraction comes near them."""
        draw = self._random.random
        ids, draws, delays = self._ids, self._draws, self._delays
        first, sender = self._number, f"{self._sender:04x}"
        self._number += count
        made = []
        for number in range(first, first + count):
            user_id, amount, currency, status = draws[int(draw() * DRAWS)]
            occurred = now_microseconds - delays[int(draw() * DRAWS)]
            made.append(
                {
                    "id": f"{ids[number % POOL_SIZE]}-{sender}-{number:012x}",
                    "user_id": user_id,
                    "amount": amount,
                    "currency": currency,
                    "status": status,
                    "created_at": _timestamp(occurred),
                }
            )
        return made


@lru_cache(maxsize=64)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _timestamp(microseconds: int) -> str:
    """RFC 3339 in UTC. A second's text is kept for a while, because neighbours share it."""
    second, fraction = divmod(microseconds, 1_000_000)
    return f"{_second(second)}.{fraction:06d}Z"


def sample(count: int, seconds: int, now: datetime) -> str:
    """`count` events over the `seconds` before `now`, as NDJSON."""
    return "".join(_sample_lines(count, seconds, now))


def _sample_lines(count: int, seconds: int, now: datetime) -> Iterator[str]:
    import json

    generator = Generator(make_pools(), sender=0)
    start = now - timedelta(seconds=seconds)
    for index in range(count):
        moment = start + timedelta(seconds=seconds) * (index / count)
        yield json.dumps(generator.batch(1, round(moment.timestamp() * 1_000_000))[0]) + "\n"
