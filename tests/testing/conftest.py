"""The kit takes the suite's Spark session, which therefore must be there first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.testing import Project

SHOP = """
CREATE STREAM payments (
  id STRING NOT NULL, user_id STRING NOT NULL, amount DECIMAL(18, 2) NOT NULL, status STRING,
  at TIMESTAMP NOT NULL
)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE;

CREATE MATERIALIZED VIEW income AS
SELECT window.start AS window_start, user_id, sum(amount) AS income, count(*) AS payments
FROM payments WHERE status = 'paid' GROUP BY window(at, '10 seconds'), user_id;

CREATE MATERIALIZED VIEW shares AS
SELECT user_id, sum(100 / amount) AS share FROM payments GROUP BY user_id;
"""


@pytest.fixture
def make(spark: SparkSession) -> Iterator[Callable[..., Project]]:
    with ExitStack() as opened:

        def opened_project(*given: Any, **named: Any) -> Project:
            return opened.enter_context(Project(*given, **named))

        yield opened_project


@pytest.fixture
def shop(make: Callable[..., Project]) -> Project:
    return make(sql=SHOP)


@pytest.fixture
def pay() -> Callable[[str, str, str], dict[str, str]]:
    """A payment of a user at a minute and second of the first hour of 2026."""

    def payment(user: str, amount: str, at: str) -> dict[str, str]:
        event = {"id": f"{user}{at}", "user_id": user, "amount": amount, "status": "paid"}
        return {**event, "at": f"2026-01-01T00:{at}Z"}

    return payment
