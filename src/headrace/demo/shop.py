"""The shop's project: its users, and the files of a folder that `headrace up` can start."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

__all__ = ["STREAM", "USERS", "VIEWS", "User", "definitions", "write_project"]

STREAM = "transactions"
VIEWS = ("income", "income_by_user")
SAMPLE_EVENTS = 1_000
SAMPLE_SECONDS = 30


@dataclass(frozen=True)
class User:
    """`id` starts with the digit d, and every payment is 10·d (100 where d is 0): a sum or an
    average that is wrong cannot look right."""

    id: str
    amount: Decimal


def _user(digit: int) -> User:
    drawn = hashlib.sha256(f"headrace shop user {digit}".encode()).hexdigest()
    text = f"{digit}{drawn[1:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:32]}"
    return User(text, Decimal(10 * digit or 100).quantize(Decimal("0.01")))


USERS = tuple(_user(digit) for digit in range(10))


def definitions() -> str:
    """The shop's streams and views, as SQL."""
    return files("headrace.demo").joinpath("shop.sql").read_text(encoding="utf-8")


def write_project(folder: Path, name: str, now: datetime | None = None) -> list[Path]:
    """Write the project's files into `folder`, which is made if need be; returns them in the order
    a reader wants them. The sample's events lie in the half minute before `now`."""
    from headrace.demo.events import sample

    now = now or datetime.now(UTC)
    texts = {
        "README.md": _README.format(name=name),
        "headrace.toml": _SETTINGS.format(name=name),
        "definitions/shop.sql": definitions(),
        "tests/test_shop.py": _TESTS,
        "events.ndjson": sample(SAMPLE_EVENTS, SAMPLE_SECONDS, now),
        ".gitignore": ".headrace/\n",
    }
    for relative, text in texts.items():
        file = folder / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return [folder / relative for relative in texts]


_SETTINGS = """\
# Settings of this project. Every setting, its default and its meaning:
# docs/reference/settings.md in Headrace's sources. An environment variable such as
# HEADRACE_GATEWAY_PORT=9000 overrides what is written here.
name = "{name}"

[gateway]
host = "127.0.0.1"
port = 8080
"""

_README = """\
# {name}

Payments come in as events, income goes out as two live views: see `definitions/shop.sql`.

```
headrace up                                     # start; stays in the foreground
```

In another terminal, in this folder:

```
curl -s 'localhost:8080/v1/events?name=transactions' --data-binary @events.ndjson
headrace query "SELECT * FROM income ORDER BY window_start DESC LIMIT 5"
headrace generate --events 100000               # more events, from ten senders
headrace tail income                            # follow the changes
headrace status
```

Change the definitions, run `headrace validate` and the tests, and start again:

```
pip install pytest
pytest tests                                    # needs nothing that is running
```
"""

_TESTS = '''\
"""What the views of this project must hold. Run it with `pytest tests`."""

from pathlib import Path

import pytest

from headrace.testing import Project


@pytest.fixture
def project():
    with Project(Path(__file__).parents[1]) as project:
        yield project


def payment(user, amount, second, status="paid"):
    return {
        "id": f"{user}-{second}",
        "user_id": user,
        "amount": amount,
        "currency": "EUR",
        "status": status,
        "created_at": f"2026-01-01T12:00:{second:02}Z",
    }


def test_only_what_was_paid_is_income(project):
    project.send(
        "transactions",
        [
            payment("ada", "10.00", 0),
            payment("bob", "2.50", 1),
            payment("bob", "9.99", 2, status="failed"),
        ],
    )
    project.expect("income").rows(
        [{"window_start": "2026-01-01T12:00:00Z", "income": "12.50", "payments": 2}]
    )
    project.expect("income_by_user").row(user_id="bob", income="2.50")


def test_a_late_payment_revises_its_window(project):
    project.send("transactions", [payment("ada", "10.00", 1), payment("ada", "10.00", 20)])
    project.send("transactions", payment("ada", "5.00", 2))
    project.expect("income").row(
        window_start="2026-01-01T12:00:00Z", income="15.00", revision=1, final=True
    )
'''
