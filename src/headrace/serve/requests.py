"""Requests and answers as plain values, and the little of ASGI that carries them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from headrace.model.errors import RequestError

__all__ = ["Receive", "Request", "Response", "Scope", "Send", "json_response", "send_response"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

QUERY_STRING_BYTES_MAX = 32 * 1024
PARAMETERS_MAX = 64
BODY_BYTES_MAX = 256 * 1024
BODY_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Request:
    """`path` is percent-decoded, header names are lower case, of equal names the last counts."""

    method: str
    path: str
    query_string: bytes
    headers: dict[str, str]
    receive: Receive = field(repr=False)

    @classmethod
    def from_scope(cls, scope: Scope, receive: Receive) -> Request:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        return cls(scope["method"], scope["path"], scope["query_string"], headers, receive)

    def parameters(self) -> list[tuple[str, str]]:
        """The query string's parameters in order. Raises RequestError when it is too long, has too
        many of them, or is not UTF-8."""
        if len(self.query_string) > QUERY_STRING_BYTES_MAX:
            raise RequestError(
                414,
                "uri-too-long",
                f"the query string has {len(self.query_string)} bytes, "
                f"at most {QUERY_STRING_BYTES_MAX} are read",
                hint="use fewer filters, or POST /v1/sql",
            )
        try:
            return parse_qsl(
                self.query_string.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=PARAMETERS_MAX,
            )
        except ValueError as error:
            raise RequestError(
                400,
                "parameter",
                f"the query string cannot be read: {error}",
                hint=f"at most {PARAMETERS_MAX} parameters, percent-encoded UTF-8",
            ) from error

    async def body(self) -> bytes:
        """The whole body. Raises RequestError beyond BODY_BYTES_MAX or BODY_SECONDS_MAX."""
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "body-truncated", "the body ended too early")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > BODY_BYTES_MAX:
                        raise RequestError(
                            413, "body-too-large", f"the body has more than {BODY_BYTES_MAX} bytes"
                        )
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError as error:
            raise RequestError(
                408, "body-timeout", f"the body did not arrive within {BODY_SECONDS_MAX:g} s"
            ) from error


def json_response(body: bytes, status: int = 200) -> Response:
    return Response(status, [("content-type", "application/json")], body)


async def send_response(send: Send, response: Response, *, head_only: bool) -> None:
    """`head_only` answers a HEAD: the same headers with the length the body would have."""
    headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers
    ]
    headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = b"" if head_only else response.body
    await send({"type": "http.response.body", "body": body, "more_body": False})
