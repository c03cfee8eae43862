"""One HTTP call to the gateway. The standard library's client, because it is there at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from headrace.cli.project import read_settings
from headrace.model.errors import RefusedError, SettingsError, UnreachableError
from headrace.model.settings import Settings

__all__ = ["ANSWER_SECONDS_MAX", "Address", "Running", "gateway_url", "resolve", "running_gateway"]

ANSWER_SECONDS_MAX = 60
PROBE_SECONDS_MAX = 2
ANSWER_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True)
class Running:
    pid: int
    host: str
    port: int


def running_gateway(settings: Settings) -> Running | None:
    """What the project's gateway said about itself, if that process is still there."""
    try:
        said = json.loads((settings.run_directory / "gateway.json").read_text())
        running = Running(int(said["pid"]), str(said["host"]), int(said["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # there, but someone else's
    return running


def gateway_url(settings: Settings) -> str:
    """Where the project's gateway says it is, else where its settings put it."""
    running = running_gateway(settings)
    host = (running.host if running else settings.gateway.host).strip("[]")
    port = running.port if running else settings.gateway.port
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def resolve(project: Path | None, url: str | None, token: str | None) -> Address:
    """`--url` needs no project; without it the project's gateway is meant."""
    if url is None:
        return Address(gateway_url(read_settings(project)), token)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise SettingsError(f"{url!r} is not an address", hint="as in http://127.0.0.1:8080")
    return Address(url.rstrip("/"), token)


@dataclass(frozen=True)
class Address:
    """`internal` is the secret by which gateway and engine know each other."""

    url: str
    token: str | None
    internal: str | None = None

    def get(self, path: str, **parameters: str | int | None) -> Any:
        given = {name: value for name, value in parameters.items() if value is not None}
        return self.call("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Any = None, seconds_max: float = ANSWER_SECONDS_MAX) -> Any:
        return self.call("POST", path, {} if body is None else body, seconds_max)

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=seconds)

    def answers(self, path: str) -> bool:
        """Whether a GET of this path is answered with success right now."""
        connection = self._connection(PROBE_SECONDS_MAX)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def call(
        self, method: str, path: str, body: Any = None, seconds_max: float = ANSWER_SECONDS_MAX
    ) -> Any:
        """The JSON answer. Raises UnreachableError when none came in time, RefusedError when the
        answer is a problem document."""
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.internal:
            headers["Headrace-Internal"] = self.internal
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(seconds_max)
        try:
            encoded = None if body is None else json.dumps(body).encode()
            connection.request(method, urlsplit(self.url).path + path, encoded, headers)
            answer = connection.getresponse()
            raw = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException, socket.gaierror) as error:
            raise UnreachableError(
                f"no answer from {self.url}: {error or type(error).__name__}",
                hint="start the project with headrace up, or name its address with --url",
            ) from error
        finally:
            connection.close()
        return _decoded(self.url, answer.status, raw)


def _decoded(url: str, status: int, raw: bytes) -> Any:
    try:
        value = json.loads(raw) if raw else {}
    except ValueError as error:
        raise UnreachableError(
            f"{url} answered HTTP {status} with something other than JSON",
            hint="is this the address of a Headrace gateway?",
        ) from error
    if status >= 400:
        problem = value if isinstance(value, dict) else {"detail": str(value)}
        raise RefusedError(status, problem)
    return value
