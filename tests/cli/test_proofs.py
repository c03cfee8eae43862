"""`headrace reconcile` and `headrace why` as commands: real processes, a project up and down."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.demo.upright import Upright

pytestmark = pytest.mark.end_to_end
DEFINITIONS = """
CREATE STREAM payments (id INT NOT NULL, who STRING, amount DECIMAL(18, 2), at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND
LATE REVISE;

CREATE MATERIALIZED VIEW income AS
SELECT window.start AS since, who, sum(amount) AS income, count(*) AS payments
FROM payments GROUP BY window(at, '10 seconds'), who;

CREATE MATERIALIZED VIEW visits AS
SELECT window.start AS since, who, count(*) AS payments
FROM payments GROUP BY session_window(at, '2 seconds'), who;
"""


def _line(number: int, second: int) -> bytes:
    at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
    event = {"id": number, "who": f"w{number % 3}", "amount": f"{number}.25", "at": at}
    return json.dumps(event).encode() + b"\n"


class Shop:
    """A project with 60 events, every tenth of them late for its window."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "headrace.toml").write_text("[gateway]\nport = 0\n")
        (folder / "payments.sql").write_text(DEFINITIONS)
        self.up()

    def up(self) -> None:
        self.upright: Upright | None = Upright(self.folder)
        self.url = self.upright.wait_ready(lambda _: None)

    def down(self) -> None:
        if self.upright is not None:
            assert self.upright.stop() == 0
        self.upright = None

    def send(self, lines: bytes) -> None:
        url = f"{self.url}/v1/events?name=payments"
        with urllib.request.urlopen(urllib.request.Request(url, data=lines), timeout=30) as answer:
            assert answer.status == 200

    def run(self, *words: str) -> tuple[int, str, str]:
        """In a process of its own, as users run it."""
        command = [sys.executable, "-m", "headrace", *words, "--project", str(self.folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("proofs") / "shop")
    made.send(b"".join(_line(n, n if n % 10 else max(0, n - 25)) for n in range(60)))
    deadline = time.monotonic() + 60
    while json.loads(made.run("status", "--json")[1])["views"]["income"]["pending_events"]:
        assert time.monotonic() < deadline
    yield made
    made.down()


def test_a_running_project_is_proven(shop: Shop) -> None:
    code, out, err = shop.run("reconcile", "INCOME", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["equal"] is True
    assert (document["view"], document["events"]) == ("income", 60)
    assert document["offsets"] == {"0": 60}
    assert document["rows"] > 10
    assert list((shop.folder / ".headrace" / "run").glob("proof-*")) == []


def test_why_a_row_is_as_it_is(shop: Shop) -> None:
    row = ("why", "income", "since=2026-01-01T00:00:20Z", "who=w2")
    code, out, err = shop.run(*row, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["row"]["payments"] == len(document["events"])
    late = [event for event in document["events"] if event["fate"] == "late"]
    assert [event["event"]["id"] for event in late] == [50]
    assert [r["offset"] for r in document["revisions"]] == [50]
    assert document["revisions"][0]["tick"] >= 1
    code, out, err = shop.run(*row)
    assert code == 0, err
    assert "revision 1 in tick" in out
    assert shop.run("why", "income", "who=nobody")[0] == 1
    code, _, err = shop.run("why", "income", "who=w1")
    assert code == 2
    assert "name more columns" in err
    assert shop.run("why", "income", "who")[0] == 2


def test_an_unknown_view_is_a_mistake(shop: Shop) -> None:
    code, _, err = shop.run("reconcile", "nothing")
    assert code == 2
    assert "defines no view 'nothing'" in err


def test_a_project_that_is_down_is_proven_from_its_store(
    shop: Shop, tmp_path: Path, headrace: Callable[..., Any]
) -> None:
    """The last test of this file: afterwards the project is down."""
    shop.down()
    with duckdb.connect(str(shop.folder / ".headrace" / "store.duckdb")) as held:
        code, _, err = shop.run("reconcile", "income")
        assert code == 4
        assert "is held by another process" in err
        held.execute("UPDATE _headrace.state_0 SET _rows = _rows + 1 WHERE who = 'w1'")
        held.execute("UPDATE _headrace.state_1 SET _rows = _rows + 1 WHERE who = 'w2'")
    code, out, err = shop.run("reconcile", "income", "--json", "--limit", "2")
    assert code == 1, err
    document = json.loads(out)
    assert document["different"] > 2
    assert len(document["differences"]) == 2
    one = document["differences"][0]
    assert one["stored"]["payments"] == one["proven"]["payments"] + 1
    assert document["repaired"] is None
    shop.up()
    code, out, err = shop.run("reconcile", "income", "--repair")
    assert code == 0, err
    assert f"{document['different']} rows were replaced in tick {document['tick'] + 1}" in out
    after = str(document["tick"])
    tailed = shop.run("tail", "income", "--after", after, "--ticks", "1", "--json")[1]
    assert len(json.loads(tailed)["after"]) == document["different"]
    code, out, err = shop.run("reconcile", "visits", "--repair", "--json")
    assert code == 0, err
    mended = json.loads(out)
    assert mended["different"] == mended["repaired"]["rows"] > 2
    shop.down()
    (shop.folder / "payments.sql").write_text(DEFINITIONS.replace("10 seconds", "20 seconds"))
    code, _, err = shop.run("reconcile", "income")
    assert code == 2
    assert "the definition of view income changed" in err
