"""The proof at the end of a demo: every window of every view against a batch recomputation.

The recomputation reads what the senders themselves wrote down, and nothing of the gateway, the
log, the engine or the store. Sums and counts are exact decimals and whole numbers; the average is
their quotient, rounded half up to six places, which is what Spark gives for DECIMAL(18, 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from pathlib import Path
from typing import Any

from headrace.demo.events import PAID

__all__ = ["Expected", "Row", "expected_rows", "first_difference", "view_rows"]

WINDOW_MICROSECONDS = 3_000_000
_EXACT = Context(prec=60)

Key = tuple[str, ...]  # window start, then the user where the view has one


@dataclass(frozen=True)
class Row:
    window_end: str
    income: Decimal
    payments: int
    average: Decimal


@dataclass(frozen=True)
class Expected:
    """`events` and `paid` count the senders' records; `views` is what each view must hold."""

    events: int
    paid: int
    views: Mapping[str, Mapping[Key, Row]]


def expected_rows(records: Sequence[Path]) -> Expected:
    """Recompute the views from the senders' records: CSV lines of user_id, amount, status and
    created_at, as they were sent."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            "CREATE TABLE sent AS SELECT user_id, amount::DECIMAL(18, 2) AS amount, status,"
            " epoch_us(created_at::TIMESTAMPTZ) AS occurred FROM read_csv(?, header = false,"
            " all_varchar = true, names = ['user_id', 'amount', 'status', 'created_at'])",
            [[str(file) for file in records]],
        )
        events, paid = _one(
            connection.execute("SELECT count(*), count(*) FILTER (status = ?) FROM sent", [PAID])
        )
        grouped = connection.execute(
            "SELECT occurred - occurred % ?, user_id, sum(amount), count(*) FROM sent"
            " WHERE status = ? GROUP BY ALL",
            [WINDOW_MICROSECONDS, PAID],
        ).fetchall()
    overall: dict[int, tuple[Decimal, int]] = {}
    for start, _, income, payments in grouped:
        sum_before, count_before = overall.get(start, (Decimal(0), 0))
        overall[start] = (sum_before + income, count_before + payments)
    by_user: dict[Key, Row] = {
        (_text(start), user): _row(start, s, n) for start, user, s, n in grouped
    }
    in_all: dict[Key, Row] = {
        (_text(start),): _row(start, s, n) for start, (s, n) in overall.items()
    }
    return Expected(events, paid, {"income": in_all, "income_by_user": by_user})


def _one(result: Any) -> tuple[int, int]:
    row = result.fetchone()
    return int(row[0]), int(row[1])


def _row(start_microseconds: int, income: Decimal, payments: int) -> Row:
    average = _EXACT.divide(income, Decimal(payments))
    return Row(
        window_end=_text(start_microseconds + WINDOW_MICROSECONDS),
        income=income,
        payments=payments,
        average=average.quantize(Decimal("0.000001"), ROUND_HALF_UP, _EXACT),
    )


def _text(microseconds: int) -> str:
    second, fraction = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:06d}Z"


def view_rows(rows: Iterable[Mapping[str, Any]], by_user: bool) -> dict[Key, Row]:
    """A view's rows, as read over HTTP, by key. Raises ValueError if a key comes twice."""
    found: dict[Key, Row] = {}
    for row in rows:
        start = _as_text(row["window_start"])
        key = (start, str(row["user_id"])) if by_user else (start,)
        if key in found:
            raise ValueError(f"two rows for {' '.join(key)}")
        found[key] = Row(
            window_end=_as_text(row["window_end"]),
            income=Decimal(row["income"]),
            payments=int(row["payments"]),
            average=Decimal(row["average"]),
        )
    return found


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    return str(value)


def first_difference(
    view: str, expected: Mapping[Key, Row], found: Mapping[Key, Row]
) -> str | None:
    """In the order of the keys; None when the two are equal in every row and column."""
    for key in sorted(expected.keys() | found.keys()):
        wanted, had = expected.get(key), found.get(key)
        if wanted == had:
            continue
        where = f"{view}, window {' of user '.join(key)}"
        if had is None:
            return f"{where}: expected {_said(wanted)}, but the view has no such row"
        if wanted is None:
            return f"{where}: the view has {_said(had)}, but nothing was paid in it"
        return f"{where}: expected {_said(wanted)}, the view has {_said(had)}"
    return None


def _said(row: Row | None) -> str:
    assert row is not None
    return (
        f"income {row.income}, payments {row.payments}, average {row.average}, "
        f"ending {row.window_end}"
    )
