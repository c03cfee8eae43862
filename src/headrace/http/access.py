"""Who may call what: tokens and scopes, and on loopback without tokens, whose browser may not.

A web page can send requests to localhost, and by rebinding a DNS name even read the answers. So
without tokens only requests addressed to this machine by a local name are served, and none that a
browser says came from elsewhere.
"""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

from headrace.http.headers import Headers
from headrace.http.tokens import Tokens, load_tokens
from headrace.model.errors import RequestError, SettingsError
from headrace.model.settings import Settings

__all__ = ["Access", "is_loopback"]

logger = logging.getLogger("headrace.gateway")

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


ANY_TOKEN = ""


class Access:
    """Checks requests; `refresh` picks up tokens made or revoked while running."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for a host beyond loopback without tokens."""
        self._file: Path = settings.tokens_file
        self._stamp = self._file_stamp()
        self._tokens = load_tokens(self._file)
        self._is_loopback = is_loopback(settings.gateway.host)
        self._local_host_last = ""
        if self._tokens is None and not self._is_loopback:
            raise SettingsError(
                f"gateway.host is {settings.gateway.host}, which others can reach, and there are "
                "no tokens",
                hint="make one with `headrace token create`, or bind 127.0.0.1",
            )

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def refresh(self) -> None:
        """Cheap when nothing changed. A file that vanished or cannot be read changes nothing: the
        last tokens stay in force."""
        stamp = self._file_stamp()
        if stamp == self._stamp or stamp is None:
            return
        try:
            self._tokens = load_tokens(self._file) or Tokens(())
            self._stamp = stamp
        except SettingsError as error:
            logger.error("the tokens in force stay: %s", error.message)

    def check(self, headers: Headers, authority: str | None, scope: str | None) -> None:
        """Raises RequestError 401 or 403; 421 for a foreign Host on loopback without tokens.
        `scope` None is what anyone may see, ANY_TOKEN what needs a token of whatever scope."""
        tokens = self._tokens
        if tokens is None:
            self._check_local(headers, authority)
            return
        if scope is None:
            return
        kind, _, secret = (headers.get("authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not secret:
            raise RequestError(
                401, "token-missing", "a bearer token is needed", hint="Authorization: Bearer …"
            )
        token = tokens.verify(secret.strip())
        if token is None:
            raise RequestError(401, "token-unknown", "this token is not known", hint="check it")
        if scope != ANY_TOKEN and not token.allows(scope):
            raise RequestError(
                403,
                "scope-missing",
                f"token {token.name} does not have the scope {scope}",
                hint=f"make a token with {scope}",
            )

    def _check_local(self, headers: Headers, authority: str | None) -> None:
        if not self._is_loopback:
            return
        host = authority or headers.get("host") or ""
        if host != self._local_host_last and not _is_local_name(host):
            raise RequestError(
                421,
                "foreign-host",
                "without tokens, only requests to localhost are served",
                hint="call it by localhost or 127.0.0.1, or make a token",
            )
        self._local_host_last = host  # most clients say the same one every time
        if "origin" not in headers:
            return
        if not _is_local_name((headers.get("origin") or "").partition("://")[2]):
            raise RequestError(
                403,
                "foreign-origin",
                "without tokens, no web page of another origin is served",
                hint="make a token and send it",
            )


def _is_local_name(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():
        name = host
    return name.lower() in _LOCAL_NAMES
