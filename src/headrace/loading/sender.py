"""Numbered batches to the gateway, one after the other, each until it is durable or refused.

The rows of a file are numbered from 0, by a producer that stands for the file as it is and the
table. So the log knows which of them it has: whatever is sent again is stored once, and a load that
was interrupted goes on where the log ends. When a load is done its producer is retired; loading the
same file again is a new load, with a higher epoch.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from headrace.client.retry import RETRIED_STATUSES, pause_seconds, refused, retry_after_seconds
from headrace.loading.bodies import Body
from headrace.loading.files import STDIN
from headrace.model.errors import RefusedError, UnreachableError

__all__ = ["Numbers", "Sender", "Tally", "producer_of"]

REQUEST_SECONDS_MAX = 60.0
UNREACHABLE_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Numbers:
    """Where the numbers of a file go on: the rows before `next` are stored."""

    producer: str
    epoch: int
    next: int


@dataclass
class Tally:
    """What became of rows sent: `rows` of them are durable, of which `dead` are dead letters."""

    rows: int = 0
    dead: int = 0
    covers: str = ""
    reasons: list[str] = field(default_factory=list)


def producer_of(file: Path, table: str) -> str:
    """Another one as soon as the file is replaced or changed; never the same for standard input."""
    if file == STDIN:
        return f"load-{uuid.uuid4().hex}"
    found = file.stat()
    told = f"{table.lower()}\0{file.resolve()}\0{found.st_size}\0{found.st_mtime_ns}"
    return f"load-{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}"


class Sender:
    """For one table. Raises RefusedError for what the gateway will not take, UnreachableError when
    it does not answer for UNREACHABLE_SECONDS_MAX."""

    def __init__(self, url: str, token: str | None, table: str) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._table = table
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=httpx.Timeout(REQUEST_SECONDS_MAX, connect=5.0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def numbers(self, producer: str) -> Numbers:
        """Where the producer's newest load goes on, or where a new one begins."""
        path = f"/v1/streams/{quote(self._table, safe='')}/completeness"
        page = self.ask("GET", path, params={"after": producer[:-1], "limit": "1"})
        for known in msgspec.json.decode(page.content)["producers"]:
            if known["producer"] != producer or not known["epochs"]:
                continue
            newest = known["epochs"][0]
            if known["retired"]:
                return Numbers(producer, newest["epoch"] + 1, 0)
            first_gap = next((gap["first"] for gap in newest["gaps"]), newest["highest"] + 1)
            return Numbers(producer, newest["epoch"], first_gap if newest["lowest"] == 0 else 0)
        return Numbers(producer, 0, 0)

    def send(self, body: Body, numbers: Numbers, tally: Tally) -> None:
        """The body's first row has the number `numbers.next`."""
        headers = {
            "content-type": body.content_type,
            "headrace-producer": numbers.producer,
            "headrace-epoch": str(numbers.epoch),
            "headrace-sequence": str(numbers.next),
        }
        path = f"/v1/tables/{quote(self._table, safe='')}"
        answer: dict[str, Any] = msgspec.json.decode(
            self.ask("POST", path, content=body.content, headers=headers).content
        )
        tally.rows += answer["accepted"] + answer["quarantined"] + answer.get("retried", 0)
        tally.dead += answer["quarantined"]
        tally.covers = answer["covers"]
        if not tally.reasons:
            tally.reasons += [error["reason"] for error in answer["errors"][:1]]

    def finish(self, producers: list[str]) -> None:
        finished = [{"stream": self._table, "producer": p, "finished": True} for p in producers]
        self.ask("POST", "/v1/heartbeats", content=msgspec.json.encode(finished))

    def ask(
        self,
        method: str,
        path: str,
        *,
        covered_seconds_max: float = 0.0,
        **request: Any,
    ) -> httpx.Response:
        """The answer, with success, tried again within UNREACHABLE_SECONDS_MAX; where the engine
        has yet to take something in, within `covered_seconds_max`."""
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            error: RefusedError | UnreachableError
            asked_seconds, seconds_max = 0.0, UNREACHABLE_SECONDS_MAX
            try:
                response = self._http.request(method, path, **request)
            except (httpx.TransportError, httpx.DecodingError) as failure:
                error = UnreachableError(
                    f"no answer from {self._http.base_url}: {failure or type(failure).__name__}",
                    hint="start the project with headrace up; the same command goes on",
                )
            else:
                if response.status_code < 400:
                    return response
                error = refused(response.status_code, response.content)
                if response.status_code not in RETRIED_STATUSES:
                    raise error
                asked_seconds = retry_after_seconds(response.headers)
                if error.problem.get("code") == "not-covered":
                    seconds_max = covered_seconds_max
            pause = pause_seconds(attempt, asked_seconds)
            if time.monotonic() + pause >= began + seconds_max:
                raise error
            time.sleep(pause)
