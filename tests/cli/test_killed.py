"""A whole running project under load, killed in parts and as a whole: nothing lost or doubled."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_until

import headrace
from headrace.client.outbox import Limits

pytestmark = pytest.mark.end_to_end

BATCH_EVENTS = 400
UNSEEN_EVENTS_MAX = 8_000
USERS = 20
CHANGES_EVERY = 16  # events
WAIT_SECONDS_MAX = 600.0
until = partial(wait_until, seconds=WAIT_SECONDS_MAX, look_seconds=0.2)

DEFINITIONS = """
CREATE STREAM payments (
  id BIGINT NOT NULL, user_id INT NOT NULL, amount DECIMAL(18, 2) NOT NULL,
  paid_at TIMESTAMP NOT NULL
)
WATERMARK paid_at DELAY OF INTERVAL 2 SECONDS LATE REVISE
PARTITION BY (user_id) INTO 3 PARTITIONS;

CREATE STREAM pings (id INT NOT NULL);

CREATE TABLE users (id INT, name STRING, version BIGINT, PRIMARY KEY (id))
SEQUENCE BY version INTO 2 PARTITIONS;

CREATE MATERIALIZED VIEW totals AS
SELECT count(*) AS events, count(DISTINCT id) AS ids, sum(amount) AS income FROM payments;

CREATE MATERIALIZED VIEW by_name AS
SELECT u.name, count(*) AS events, sum(amount) AS income
FROM payments p LEFT JOIN users u ON u.id = p.user_id GROUP BY u.name;

CREATE MATERIALIZED VIEW by_user AS
SELECT window.start AS window_start, user_id, count(*) AS events, sum(amount) AS income
FROM payments GROUP BY window(paid_at, '3 seconds'), user_id;
"""


class _Project:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        (folder / "headrace.toml").write_text(f'name = "killed"\n[gateway]\nport = {port}\n')
        (folder / "payments.sql").write_text(DEFINITIONS)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "up", "--project", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def pid(self, name: str) -> int:
        return int(
            json.loads((self.folder / ".headrace" / "run" / f"{name}.json").read_text())["pid"]
        )

    def ping(self) -> int:
        """How many events the gateway accepted."""
        request = urllib.request.Request(f"{self.url}/v1/events?name=pings", b'{"id": 1}')
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["accepted"])

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def engine_state(self) -> str:
        return str(self.status()["engine"]["state"])

    def changes_in_table(self) -> int:
        views = self.status().get("views", {})
        return int(views["users"]["counts"]["applied"]) if "users" in views else -1

    def kill_all(self) -> None:
        assert self.process is not None
        root = psutil.Process(self.process.pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.process.wait()


def _event(number: int) -> dict[str, object]:
    seconds, rest = divmod(number, 1_000)
    minute, second = divmod(seconds, 60)
    return {
        "id": number,
        "user_id": number % USERS,
        "amount": f"{number % 97}.{number % 100:02}",
        "paid_at": f"2026-01-01T00:{minute:02}:{second:02}.{rest:03}Z",
    }


def _changes(event: int) -> list[dict[str, object]]:
    """Of the table, sent with the event: some are older than what was sent before, some are sent
    twice, and those without a name are deletes."""
    if event % CHANGES_EVERY:
        return []
    number = event // CHANGES_EVERY
    version = number + (number * 7) % 61
    name = None if number % 5 == 0 else f"name {number}"
    change: dict[str, object] = {"id": number * 3 % USERS, "name": name, "version": version}
    return [change] * (2 if number % 11 == 0 else 1)


class _Sender(threading.Thread):
    """Sends as a careful client does, as long as a view lacks no more than UNSEEN_EVENTS_MAX;
    counts what it has handed over."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.client = headrace.Client(
            url,
            limits=Limits(batch_events_max=500),
            request_seconds_max=WAIT_SECONDS_MAX,
        )
        self.sent = 0
        self.seen = 0
        self.ended = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                if self.sent >= self.seen + UNSEEN_EVENTS_MAX:
                    self.ended.wait(0.01)  # until more is seen
                    continue
                events = [_event(number) for number in range(self.sent, self.sent + BATCH_EVENTS)]
                self.client.send("payments", events)
                for number in range(self.sent, self.sent + BATCH_EVENTS):
                    for change in _changes(number):
                        put = self.client.upsert if change["name"] else self.client.delete
                        put("users", change)
                self.sent += len(events)
            self.client.close(timeout=WAIT_SECONDS_MAX)
        except Exception as error:
            self.failure = error


def _events_in_views(client: headrace.Client) -> int:
    try:
        return int(client.query("SELECT events FROM totals").rows[0]["events"])
    except headrace.HeadraceError:
        return -1


def test_killed_in_parts_and_as_a_whole_it_is_exact(tmp_path: Path) -> None:
    project = _Project(tmp_path)
    project.start()
    with contextlib.ExitStack() as opened:
        opened.callback(project.kill_all)
        until((tmp_path / ".headrace/run/engine.json").exists, "the engine")
        sender = _Sender(project.url)
        reader = opened.enter_context(headrace.Client(project.url))
        opened.callback(sender.ended.set)
        sender.start()

        def events_in_views() -> int:
            sender.seen = max(sender.seen, found := _events_in_views(reader))
            return found

        def goes_on(what: str) -> None:
            sent = sender.sent
            until(lambda: events_in_views() > sent, what)

        goes_on("events in the views")
        engine, gateway = project.pid("engine"), project.pid("gateway")
        psutil.Process(engine).kill()
        assert project.ping() == 1, "the gateway accepts while the engine is away"
        assert project.engine_state() != "live"
        goes_on("events after the engine was killed")
        until(lambda: project.engine_state() == "live", "a live engine")
        assert project.pid("engine") != engine
        assert project.pid("gateway") == gateway
        psutil.Process(project.pid("gateway")).kill()
        goes_on("events after the gateway was killed")
        project.kill_all()
        project.start()
        goes_on("events after everything was killed")
        sender.ended.set()
        sender.join(WAIT_SECONDS_MAX)
        assert not sender.is_alive()
        assert sender.failure is None
        until(lambda: _events_in_views(reader) >= sender.sent, "the last events")
        _check(reader, sender.sent)
        _check_table(project, reader, sender.sent)
        _check_join(project, sender.sent)


def _check(reader: headrace.Client, sent: int) -> None:
    events = [_event(number) for number in range(sent)]
    (totals,) = reader.query("SELECT * FROM totals").rows
    income = sum((Decimal(str(event["amount"])) for event in events), Decimal(0))
    assert (totals["events"], totals["ids"], Decimal(str(totals["income"]))) == (sent, sent, income)
    expected: dict[tuple[int, int], tuple[int, Decimal]] = {}
    for event in events:
        number = int(str(event["id"]))
        key = (number // 3_000, number % USERS)
        count, amount = expected.get(key, (0, Decimal(0)))
        expected[key] = (count + 1, amount + Decimal(str(event["amount"])))
    rows = reader.query(
        "SELECT epoch_ms(window_start) AS start, user_id, events, income FROM by_user"
    ).rows
    first = 1_767_225_600_000  # 2026-01-01 in UTC
    found = {
        ((int(row["start"]) - first) // 3_000, int(row["user_id"])): (
            int(row["events"]),
            Decimal(str(row["income"])),
        )
        for row in rows
    }
    assert len(found) == len(rows)
    assert found == expected


def _check_table(project: _Project, reader: headrace.Client, sent: int) -> None:
    newest: dict[int, dict[str, Any]] = {}
    changes, superseded = 0, 0
    for change in (change for event in range(sent) for change in _changes(event)):
        known = newest.get(int(str(change["id"])))
        changes += 1
        if known is not None and change["version"] <= known["version"]:
            superseded += 1
        else:
            newest[int(str(change["id"]))] = change
    until(lambda: project.changes_in_table() == changes, "the last changes")
    rows = reader.query("SELECT id, name, version FROM users").rows
    expected = [change for change in newest.values() if change["name"] is not None]
    assert superseded > 0
    assert 0 < len(expected) < len(newest)
    assert sorted(rows, key=lambda row: int(row["id"])) == sorted(
        expected, key=lambda row: int(row["id"])
    )
    table = project.status()["views"]["users"]["table"]
    assert table == {"superseded": superseded, "resurrected": 0}


def _check_join(project: _Project, sent: int) -> None:
    """Which name a payment found follows from the log, and so does the proof."""

    def taken() -> int:
        return int(project.status()["views"]["by_name"]["counts"]["applied"])

    until(lambda: taken() == sent, "the last joined events")
    command = [sys.executable, "-m", "headrace", "reconcile", "by_name"]
    proof = subprocess.run(
        [*command, "--project", str(project.folder)], capture_output=True, text=True, check=False
    )
    assert proof.returncode == 0, proof.stdout + proof.stderr
