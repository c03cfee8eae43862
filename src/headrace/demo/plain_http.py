"""HTTP as curl would speak it: for retries made on purpose, and for reading views page by page."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from headrace.client.retry import RETRIED_STATUSES, pause_seconds
from headrace.demo.shop import STREAM
from headrace.model.errors import RefusedError, UnreachableError

__all__ = ["PlainHttp"]

ANSWER_SECONDS_MAX = 60
PAGE_ROWS = 1_000


class PlainHttp:
    """One connection, opened when needed. Raises the errors that headrace.Client raises."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._url = url
        self._connection = kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS_MAX)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __enter__(self) -> PlainHttp:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, body: bytes, key: str) -> dict[str, Any]:
        """NDJSON to the shop's stream, tried again while the gateway is away: the key says that it
        is the same request."""
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        ends_at = time.monotonic() + ANSWER_SECONDS_MAX
        attempts = 0
        while True:
            try:
                return self._call("POST", f"/v1/events?name={STREAM}", body, headers)
            except (UnreachableError, RefusedError) as error:
                stays = isinstance(error, RefusedError) and error.status not in RETRIED_STATUSES
                if stays or time.monotonic() >= ends_at:
                    raise
            attempts += 1
            time.sleep(pause_seconds(attempts))

    def page(
        self, view: str, order_by: str, limit: int = PAGE_ROWS, cursor: str | None = None
    ) -> dict[str, Any]:
        parameters = {"order_by": order_by, "limit": str(limit)}
        if cursor:
            parameters["cursor"] = cursor
        path = f"/v1/views/{quote(view, safe='')}?{urlencode(parameters)}"
        return self._call("GET", path, None, {"Accept": "application/json"})

    def rows(self, view: str) -> Iterator[dict[str, Any]]:
        """Every row of a view, oldest window first."""
        cursor: str | None = None
        while True:
            page = self.page(view, "window_start", cursor=cursor)
            yield from page["rows"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> dict[str, Any]:
        try:
            self._connection.request(method, path, body, {**self._headers, **headers})
            answer = self._connection.getresponse()
            document: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            raise UnreachableError(f"no answer from {self._url}: {error}") from error
        if answer.status >= 400:
            raise RefusedError(answer.status, document)
        return document
