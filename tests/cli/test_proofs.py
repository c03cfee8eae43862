"""`headrace reconcile` and `headrace why` as commands, of a project that is up and down.

One proof runs in a process of its own with a Spark of its own, as users run it. The others run in
this process and borrow the Spark of the whole run: starting one takes ten times as long as a proof.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tampering import tamper

from headrace.demo.background_project import BackgroundProject
from headrace.model.settings import StoreSettings, load_settings
from headrace.proof import session
from headrace.proof.comparison import Compared
from headrace.store.opening import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        self.project: BackgroundProject | None = BackgroundProject(self.folder)
        try:
            self.url = self.project.wait_ready(lambda _: None)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        if self.project is not None:
            assert self.project.stop() == 0
        self.project = None

    def send(self, lines: bytes) -> None:
        url = f"{self.url}/v1/events?name=payments"
        with urllib.request.urlopen(urllib.request.Request(url, data=lines), timeout=30) as answer:
            assert answer.status == 200

    def is_behind(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=30) as answer:
            views = json.load(answer)["views"].values()
        return any(view["pending_events"] for view in views)

    def run(self, *words: str) -> tuple[int, str, str]:
        """In a process of its own, as users run it."""
        command = [sys.executable, "-m", "headrace", *words, "--project", str(self.folder)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert "nanobind" not in ended.stderr  # which reports what a process leaves open
        return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., None]) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("proofs") / "shop")
    try:
        made.send(b"".join(_line(n, n if n % 10 else max(0, n - 25)) for n in range(60)))
        until(lambda: not made.is_behind())
        yield made
    finally:
        made.down()


@pytest.fixture
def proof(
    shop: Shop,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    headrace: Callable[..., Any],
) -> Iterator[Callable[..., Any]]:
    """The command in this process, on the Spark of the whole run, set as one of its own is."""
    lent = {**session.SETTINGS, "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name) for name in lent}
    for name, value in lent.items():
        spark.conf.set(name, value)
    monkeypatch.setattr(session, "own_spark", lambda *_: contextlib.nullcontext(spark))
    yield lambda *words: headrace(*words, "--project", shop.folder)
    for name, value in before.items():
        spark.conf.set(name, value)


def test_a_running_project_is_proven(shop: Shop) -> None:
    code, out, err = shop.run("reconcile", "INCOME", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["equal"] is True
    assert (document["view"], document["events"]) == ("income", 60)
    assert document["offsets"] == {"0": 60}
    assert document["rows"] > 10
    assert list((shop.folder / ".headrace" / "run").glob("proof-*")) == []


def test_why_a_row_is_as_it_is(proof: Callable[..., Any]) -> None:
    row = ("why", "income", "since=2026-01-01T00:00:20Z", "who=w2")
    said = proof(*row, "--json")
    assert said.code == 0, said.err
    document = said.document
    assert document["row"]["payments"] == len(document["events"])
    late = [event for event in document["events"] if event["fate"] == "late"]
    assert [event["event"]["id"] for event in late] == [50]
    assert [r["offset"] for r in document["revisions"]] == [50]
    assert document["revisions"][0]["tick"] >= 1
    said = proof(*row)
    assert said.code == 0, said.err
    assert "revision 1 in tick" in said.out
    assert proof("why", "income", "who=nobody").code == 1
    said = proof("why", "income", "who=w1")
    assert said.code == 2
    assert "name more columns" in said.err
    assert proof("why", "income", "who").code == 2


def test_an_unknown_view_is_a_mistake(proof: Callable[..., Any]) -> None:
    said = proof("reconcile", "nothing")
    assert said.code == 2
    assert "defines no view 'nothing'" in said.err


def test_a_project_that_is_down_is_proven_from_its_store(
    shop: Shop,
    proof: Callable[..., Any],
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last test of this file: afterwards the project is down."""
    shop.down()
    with contextlib.closing(
        open_store(load_settings(shop.folder).store_file, StoreSettings())
    ) as held:
        code, _, err = shop.run("reconcile", "income")
        assert code == 4
        assert "is held by another process" in err
        tamper(held, "income", "UPDATE {0} SET _rows = _rows + 1 WHERE {mine} AND k0 = 'w1'")
        tamper(held, "visits", "UPDATE {0} SET _rows = _rows + 1 WHERE {mine} AND k0 = 'w2'")
    said = proof("reconcile", "income", "--json", "--limit", "2")
    assert said.code == 1, said.err
    document = said.document
    assert document["different"] > 2
    assert len(document["differences"]) == 2
    one = document["differences"][0]
    assert one["stored"]["payments"] == one["proven"]["payments"] + 1
    said = proof("reconcile", "income", "--repair")
    assert said.code == 2
    assert "the project is down" in said.err
    shop.up()
    said = proof("reconcile", "income")
    assert said.code == 1, said.err
    assert "headrace reconcile income --repair builds the view again from the log" in said.out
    with monkeypatch.context() as patched:  # as if the copy could not be proven either
        patched.setattr(Compared, "is_equal", property(lambda _: False))
        said = proof("reconcile", "income", "--repair")
        assert (said.code, "income is not repaired" in said.out) == (1, True), said.err
    assert "no copy of view income is being built" in proof("rebuild", "income", "--cancel").err
    said = proof("reconcile", "income", "--repair", "--json")
    assert (said.code, said.document["equal"], said.document["repaired"]) == (0, False, True)
    said = proof("reconcile", "visits", "--repair")
    assert said.code == 0, said.err
    assert "visits is repaired" in said.out
    counts = "SELECT sum(payments)::INT FROM income UNION ALL SELECT sum(payments)::INT FROM visits"
    until(lambda: proof("query", counts).out.count("60") == 2)
    for view in ("income", "visits"):
        said = proof("reconcile", view)
        assert said.code == 0, (said.out, said.err)
    shop.down()
    (shop.folder / "payments.sql").write_text(DEFINITIONS.replace("10 seconds", "20 seconds"))
    said = proof("reconcile", "income")
    assert said.code == 2
    assert "the definition of view income changed" in said.err
