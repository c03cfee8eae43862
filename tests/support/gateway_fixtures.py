"""A real gateway process over a real log, and what the tests send to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import wait_until

from headrace.compile import load_project
from headrace.log.embedded.backend import open_reader
from headrace.model.settings import load_settings

DEFINITIONS = """
CREATE STREAM transactions (
  id STRING NOT NULL, user_id STRING NOT NULL, amount DECIMAL(18, 2) NOT NULL,
  currency STRING, status STRING NOT NULL, created_at TIMESTAMP NOT NULL
)
WATERMARK created_at DELAY OF INTERVAL 5 SECONDS
LATE REVISE
PARTITION BY (user_id) INTO 4 PARTITIONS;

CREATE TABLE customers (
  id STRING PRIMARY KEY, name STRING, tier STRING NOT NULL, spent DECIMAL(10, 2),
  tags ARRAY<STRING>
) INTO 2 PARTITIONS;

CREATE TABLE users FROM transactions KEY (user_id);

CREATE STREAM notes (text STRING NOT NULL, weight DOUBLE) INTO 3 PARTITIONS;

CREATE STREAM everything (
  flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, single FLOAT, number DOUBLE,
  price DECIMAL(10, 3), name STRING, octets BINARY, day DATE, moment TIMESTAMP,
  numbers ARRAY<INT>, place STRUCT<city: STRING, since: DATE, tags: ARRAY<STRING>>
);
"""


def transaction(number: int = 1, **changes: Any) -> dict[str, Any]:
    event = {
        "id": f"t{number}",
        "user_id": f"u{number % 10}",
        "amount": f"{number % 100}.50",
        "currency": "EUR",
        "status": "paid",
        "created_at": "2026-01-01T00:00:00Z",
    }
    return {**event, **changes}


class Gateway:
    """One project folder and the gateway process that serves it, restarted at will."""

    def __init__(self, directory: Path, settings: str = "", definitions: str = DEFINITIONS) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "headrace.toml").write_text("[gateway]\nport = 0\n" + settings)
        (directory / "streams.sql").write_text(definitions)
        self.directory = directory
        self.settings = load_settings(directory, {})
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client()

    def start(self) -> Gateway:
        run_file = self.settings.run_directory / "gateway.json"
        run_file.unlink(missing_ok=True)
        with (self.directory / "gateway.log").open("ab") as log_file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.gateway", str(self.directory)],
                stdout=log_file,
                stderr=log_file,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        wait_until(lambda: run_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log_text()
        self.port = json.loads(run_file.read_text())["port"]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=20)
        wait_until(self._answers)
        return self

    def _answers(self) -> bool:
        try:
            return self.client.get("/openapi.json").status_code == 200
        except httpx.TransportError:
            return False

    def log_text(self) -> str:
        return (self.directory / "gateway.log").read_text()

    def stop(self) -> int:
        """Ask it to stop, as Ctrl-C or a supervisor would."""
        self.client.close()
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        self.client.close()
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=60)

    def send(
        self, body: Any, stream: str = "transactions", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(f"/v1/events?name={stream}", content=content, headers=headers)

    def change(
        self,
        body: Any,
        query: str = "",
        headers: dict[str, str] | None = None,
        table: str = "customers",
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(f"/v1/tables/{table}{query}", content=content, headers=headers)

    def stored(self, stream: str = "transactions") -> list[dict[str, Any]]:
        """Every event in the log, partition by partition."""
        reader = open_reader(self.settings.log_directory, load_project(self.directory).streams)
        try:
            rows = []
            starts, ends = reader.starts(stream), reader.ends(stream)
            for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
                for piece in reader.read(stream, partition, start, end):
                    rows += [{**row, "_partition": partition} for row in piece.batch.to_pylist()]
            return rows
        finally:
            reader.close()

    def counts(self, stream: str = "transactions") -> dict[str, int]:
        status = self.client.get("/v1/status").json()["gateway"]["events"]
        return status.get(stream, {"received": 0, "appended": 0, "retried": 0, "dead": 0})


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """For tests that do not mind what others have sent."""
    gateway = Gateway(tmp_path_factory.mktemp("shared") / "shop").start()
    yield gateway
    code = gateway.stop()
    assert code == 0, gateway.log_text()
    assert "Traceback" not in gateway.log_text(), gateway.log_text()


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(settings: str = "", definitions: str = DEFINITIONS) -> Gateway:
        made.append(Gateway(tmp_path / f"shop{len(made)}", settings, definitions))
        return made[-1].start()

    yield make
    for gateway in made:
        if gateway.process is not None and gateway.process.poll() is None:
            gateway.kill()


@pytest.fixture
def make_transaction() -> Callable[..., dict[str, Any]]:
    return transaction


def wait_until_taken(sock: socket.socket) -> None:
    """Until the gateway has read all that was sent so far: what is sent next arrives apart."""
    here, there = (_kernel_address(*end) for end in (sock.getsockname(), sock.getpeername()))

    def is_taken() -> bool:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        queues = {(local, remote): queued.split(":") for _, local, remote, _, queued, *_ in lines}
        unsent, unread = queues[here, there][0], queues[there, here][1]
        return int(unsent, 16) == int(unread, 16) == 0

    wait_until(is_taken)


def _kernel_address(host: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


@pytest.fixture
def until_taken() -> Callable[[socket.socket], None]:
    return wait_until_taken
