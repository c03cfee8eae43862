"""From a request to its handler: who may ask, which path, which method."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.model.errors import RequestError
from headrace.serve.changes.change_stream import EventStream, follow_changes
from headrace.serve.operate import late, ledger, operations, proof
from headrace.serve.problems import error_response
from headrace.serve.query import views
from headrace.serve.requests import Receive, Request, Response, Scope, Send, send_response
from headrace.serve.services import Services

__all__ = ["INTERNAL_HEADER", "Application"]

INTERNAL_HEADER = "headrace-internal"

Handler = Callable[[Services, Request, str], Awaitable[Response | EventStream]]


@dataclass(frozen=True)
class _Route:
    method: str
    path: re.Pattern[str]
    handler: Handler
    is_open: bool = False


def _route(method: str, path: str, handler: Handler, *, is_open: bool = False) -> _Route:
    return _Route(method, re.compile(path.replace("NAME", "(?P<name>[^/]+)")), handler, is_open)


ROUTES = (
    _route("GET", "/v1/views", views.list_views),
    _route("GET", "/v1/views/NAME", views.read_view),
    _route("GET", "/v1/views/NAME/changes", follow_changes),
    _route("GET", "/v1/views/NAME/deadletters", views.list_dead_letters),
    _route("POST", "/v1/views/NAME/rebuild", operations.rebuild),
    _route("GET", "/v1/views/NAME/rebuild", operations.rebuild_progress),
    _route("DELETE", "/v1/views/NAME/rebuild", operations.cancel_rebuild),
    _route("POST", "/v1/views/NAME/snapshot", proof.snapshot),
    _route("POST", "/v1/sql", views.run_sql),
    _route("GET", "/v1/streams/NAME/late", late.list_late),
    _route("POST", "/v1/streams/NAME/late/apply", late.apply_late),
    _route("POST", "/v1/streams/NAME/resume", late.resume),
    _route("GET", "/v1/ledger", ledger.ledger),
    _route("GET", "/v1/status", operations.status),
    _route("GET", "/metrics", operations.metrics),
    _route("GET", "/healthz", operations.health, is_open=True),
    _route("GET", "/readyz", operations.ready, is_open=True),
)


class Application:
    """Only who knows the secret gets an answer: the gateway, which has checked the user."""

    def __init__(self, services: Services, secret: str) -> None:
        self._services = services
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request.from_scope(scope, receive)
        head_only = request.method == "HEAD"
        try:
            answer = await self._answer(request)
        except Exception as error:
            answer = _problem(error)
        if isinstance(answer, EventStream):
            await answer.send(receive, send, head_only=head_only)
        else:
            await send_response(send, answer, head_only=head_only)

    async def _answer(self, request: Request) -> Response | EventStream:
        matches = [
            (route, match)
            for route in ROUTES
            if (match := route.path.fullmatch(request.path)) is not None
        ]
        if not any(route.is_open for route, _ in matches):
            self._check_secret(request)
        if not matches:
            raise RequestError(404, "path-unknown", f"there is nothing at {request.path[:200]}")
        method = "GET" if request.method == "HEAD" else request.method
        for route, match in matches:
            if route.method == method:
                return await route.handler(
                    self._services, request, match.groupdict().get("name", "")
                )
        raise _method_refused(request.method, [route.method for route, _ in matches])

    def _check_secret(self, request: Request) -> None:
        given = request.headers.get(INTERNAL_HEADER, "").encode("latin-1")
        if not hmac.compare_digest(given, self._secret):
            raise RequestError(
                401,
                "internal-only",
                "this address is the engine's own, for the gateway",
                hint="ask the gateway",
            )


def _method_refused(method: str, allowed: list[str]) -> RequestError:
    allow = ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)
    return RequestError(
        405, "method", f"{method} is not possible here", hint=f"possible are {allow}", allow=allow
    )


def _problem(error: Exception) -> Response:
    response = error_response(error)
    if isinstance(error, RequestError) and error.allow:
        response.headers.append(("allow", error.allow))
    return response
