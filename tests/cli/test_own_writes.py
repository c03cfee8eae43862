"""What was acknowledged is shown by the next query: right after the start, under way, and when the
engine dies meanwhile. The README's own lines are run as they stand there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

import headrace
from headrace.cli.exits import UNREACHABLE
from headrace.cli.query import WAIT_SECONDS_MAX
from headrace.demo.background_project import BackgroundProject
from headrace.demo.shop import write_project

pytestmark = pytest.mark.end_to_end

README = Path(__file__).parents[2] / "README.md"
TIMES = 5
PATIENCE = 10
SHOWN = 5  # windows, newest first
WINDOW_SECONDS = 3


class Shop:
    """A project that has been started, and whose gateway takes events; nobody waited for more."""

    def __init__(self, folder: Path, until: Callable[..., None]) -> None:
        self.folder = folder
        self.sent = 0
        self.project = BackgroundProject(folder)
        file = folder / ".headrace" / "run" / "gateway.json"
        until(file.exists)
        self.url = f"http://127.0.0.1:{json.loads(file.read_text())['port']}"

    def run(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Pasted into a shell in the project's folder, where curl finds this project's gateway at
        the README's address."""
        port = self.url.rsplit(":", 1)[1]
        (self.folder / ".curlrc").write_text(f'connect-to = "localhost:8080:127.0.0.1:{port}"\n')
        environment = {**os.environ, "CURL_HOME": str(self.folder)}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        for name in ("HEADRACE_URL", "HEADRACE_TOKEN", "http_proxy", "HTTP_PROXY"):
            environment.pop(name, None)
        return subprocess.run(
            ["bash"],
            input=lines,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def ask(self, lines: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        """What the lines, the last of which is `headrace query`, print at first and in the end.
        Where a machine is so slow that the engine takes longer to start than the command waits, it
        must have waited all that time, and say so; it is run again."""
        first = ""
        for _ in range(PATIENCE):
            began = time.monotonic()
            ended = self.run(lines)
            first = first or ended.stdout
            if ended.returncode != UNREACHABLE:
                break
            assert time.monotonic() - began >= WAIT_SECONDS_MAX, ended
            assert "hint: --now shows the views as they stand" in ended.stderr
            lines = lines.splitlines()[-1]
        assert ended.returncode == 0, ended
        return first, ended

    def newest_windows(self) -> list[list[str]]:
        """As a batch computation over what was sent has them: start, income, payments."""
        amounts: dict[int, list[Decimal]] = {}
        for line in (self.folder / "events.ndjson").read_text().splitlines():
            event = json.loads(line)
            if event["status"] == "paid":
                at = int(datetime.fromisoformat(event["created_at"]).timestamp())
                amounts.setdefault(at // WINDOW_SECONDS, []).append(Decimal(event["amount"]))
        return [
            [
                datetime.fromtimestamp(window * WINDOW_SECONDS).astimezone().isoformat(),
                f"{sum(amounts[window]) * self.sent:.2f}",
                f"{len(amounts[window]) * self.sent:,}",
            ]
            for window in sorted(amounts, reverse=True)[:SHOWN]
        ]

    def waiting(self) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            found = re.search(rb"^headrace_queries_waiting (\S+)$", answer.read(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def engine(self) -> psutil.Process:
        file = self.folder / ".headrace" / "run" / "engine.json"
        return psutil.Process(json.loads(file.read_text())["pid"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, until: Callable[..., None]) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("own-writes") / "shop"
    write_project(folder, "shop")
    started = Shop(folder, until)
    yield started
    assert started.project.stop() == 0


@pytest.fixture(scope="module")
def two_lines() -> str:
    (block,) = re.findall(
        r"^```sh\n(curl [^\n]*\nheadrace query [^\n]*\n)```$", README.read_text(), re.MULTILINE
    )
    return str(block)


def windows_shown(table: str) -> list[list[str]]:
    lines = [line.split("│") for line in table.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line] for line in lines]
    return [[_moment(row[1]), row[3], row[4]] for row in rows]


def _moment(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().isoformat()


def test_the_readme_shows_the_income_every_time(shop: Shop, two_lines: str) -> None:
    """The first time the engine has just been started."""
    for _ in range(TIMES):
        first, ended = shop.ask(two_lines)
        shop.sent += 1
        assert json.loads(first[: first.index("}") + 1])["accepted"] == 1_000
        assert windows_shown(ended.stdout) == shop.newest_windows(), ended
        assert f"{SHOWN} rows · tick " in ended.stderr


def test_an_engine_that_dies_while_queries_wait_answers_them_when_it_is_back(
    shop: Shop, until: Callable[..., None]
) -> None:
    """Spark is stopped, so that the engine serves but no tick ends."""
    engine = shop.engine()
    (java,) = (p for p in engine.children(recursive=True) if p.name() == "java")
    java.send_signal(signal.SIGSTOP)
    event = {
        "id": "last",
        "user_id": "u",
        "amount": "1.50",
        "currency": "EUR",
        "status": "paid",
        "created_at": "2026-01-01T00:00:00Z",
    }
    sql = "SELECT payments FROM income WHERE window_start = '2026-01-01 00:00:00Z'"
    found: list[object] = []
    with headrace.Client(shop.url, request_seconds_max=600) as client:
        client.send("transactions", event)
        client.flush()
        ways: list[Callable[[], object]] = [
            lambda: client.query(sql).rows,
            lambda: client.view("income", window_start="2026-01-01T00:00:00Z").rows[0]["payments"],
            lambda: json.loads(shop.ask(f'headrace query "{sql}" --json')[1].stdout)["rows"],
        ]
        threads = [threading.Thread(target=lambda way=way: found.append(way())) for way in ways]
        for thread in threads:
            thread.start()
        until(lambda: shop.waiting() == len(ways))
        for process in (engine, java):
            process.kill()
        for thread in threads:
            thread.join()
    assert sorted(map(str, found)) == ["1", "[{'payments': 1}]", "[{'payments': 1}]"]
    assert shop.engine().pid != engine.pid
