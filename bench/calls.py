"""Reading views over HTTP, on one keep-alive connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from bench.batch import Snapshot
from bench.oracle import Rows, rows_of
from bench.shop import STREAM, TOTALS, VIEWS

__all__ = ["TOTALS_PATH", "Caller", "events_in"]

PAGE_ROWS = 1_000
TOTALS_PATH = f"/v1/views/{TOTALS}?limit={PAGE_ROWS}"
ANSWER_SECONDS_MAX = 300  # a snapshot of millions of rows is one answer


class Caller:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, ANSWER_SECONDS_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> tuple[int, Any]:
        """The status and the decoded answer; status 0 while nobody listens."""
        status, said = self._call("GET", path, None)
        # A kept connection may have been closed by the other side in the meantime.
        return (status, said) if status else self._call("GET", path, None)

    def post_events(self, body: bytes, stream: str = STREAM) -> tuple[int, Any]:
        return self._call("POST", f"/v1/events?name={stream}", body)

    def post_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        body = "\n".join(json.dumps(row) for row in rows).encode()
        status, said = self._call("POST", f"/v1/tables/{table}", body)
        if status != 200 or said["accepted"] != len(rows):
            raise RuntimeError(f"POST /v1/tables/{table} answered {status}: {said}")

    def _call(
        self, method: str, path: str, body: bytes | None, kind: str = "application/x-ndjson"
    ) -> tuple[int, Any]:
        headers = {} if body is None else {"Content-Type": kind}
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return 0, {"detail": str(error)}
        return answer.status, json.loads(raw) if raw else None

    def events_in_views(self) -> int:
        """How many events the view of totals has taken in; -1 while it cannot be read."""
        status, said = self.get(TOTALS_PATH)
        return events_in(said) if status == 200 else -1

    def events_read(self) -> int:
        """How many events of its stream the view has read that has read the fewest; -1 while that
        cannot be told."""
        return min(self.read_by_view().values(), default=-1)

    def read_by_view(self) -> dict[str, int]:
        """How many events of its stream each view has read; nothing while that cannot be told."""
        status, said = self.get("/v1/ledger")
        views = said.get("views", {}) if status == 200 else {}
        return {name: int(sums["read"]) for name, sums in views.items()}

    def engine(self) -> dict[str, Any]:
        """What the status says of the engine."""
        status, said = self.get("/v1/status")
        if status != 200 or said["engine"]["state"] != "live":
            raise RuntimeError(f"GET /v1/status answered {status}: {said}")
        engine: dict[str, Any] = said["engine"]
        return engine

    def tick(self) -> int:
        return int(self.engine()["tick"])

    def watermarks(self) -> dict[str, datetime | None]:
        """By view, up to when it is complete."""
        status, said = self.get("/v1/status")
        views = said.get("views", {}) if status == 200 else {}
        return {
            name: datetime.fromisoformat(view["watermark"]) if view["watermark"] else None
            for name, view in views.items()
        }

    def complete(self, streams: Collection[str], up_to: str) -> None:
        """Say that everything up to this time has been sent to these streams."""
        beats = [{"stream": stream, "complete_up_to": up_to} for stream in sorted(streams)]
        raw = json.dumps(beats).encode()
        status, said = self._call("POST", "/v1/heartbeats", raw, "application/json")
        if status != 200:
            raise RuntimeError(f"POST /v1/heartbeats answered {status}: {said}")

    def snapshot(self, project: Path, view: str) -> Snapshot:
        """All rows of a view at one tick, however many, as `headrace reconcile` reads them."""
        run_directory = project / ".headrace" / "run"
        number = sum(1 for _ in run_directory.glob("proof-*"))
        folder = run_directory / f"proof-{number}"
        folder.mkdir()
        asked = json.dumps({"folder": folder.name, "ticks": True}).encode()
        path = f"/v1/views/{view}/snapshot"
        status, said = self._call("POST", path, asked, "application/json")
        if status != 200:
            raise RuntimeError(f"POST {path} answered {status}: {said}")
        reached, ends = [], dict(said["start_offsets"])
        for tick, offsets in said["ticks"]:
            ends |= offsets
            reached.append((tick, sum(ends.values())))
        return Snapshot(folder / "rows.parquet", tuple(said["columns"]), tuple(reached))

    def rebuild(self, view: str) -> None:
        """Ask for a copy of the view that takes its place."""
        path = f"/v1/views/{view}/rebuild"
        status, said = self._call("POST", path, b"{}", "application/json")
        if status != 202:
            raise RuntimeError(f"POST {path} answered {status}: {said}")

    def rebuild_state(self, view: str) -> str:
        """Raises RuntimeError where it has failed."""
        status, said = self.get(f"/v1/views/{view}/rebuild")
        if status != 200 or said["state"] in ("failed", "cancelled", "none"):
            raise RuntimeError(f"the rebuild of {view} stands at {status}: {said}")
        return str(said["state"])

    def views(self) -> dict[str, Rows]:
        """All rows of all views, page by page."""
        return {view.name: rows_of(view, self._rows(view.name)) for view in VIEWS}

    def _rows(self, view: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            position = f"&cursor={quote(cursor)}" if cursor else ""
            status, said = self.get(f"/v1/views/{view}?limit={PAGE_ROWS}{position}")
            if status != 200:
                raise RuntimeError(f"GET /v1/views/{view} answered {status}: {said}")
            rows += said["rows"]
            cursor = said["next_cursor"]
        return rows


def events_in(totals: Any) -> int:
    """How many events an answer with the rows of the view of totals counts."""
    return sum(int(row["events"]) for row in totals["rows"])
