"""Every request but sending and following, as a value: what to ask and how to read the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from headrace.client.encode import encode_event
from headrace.client.result import Result
from headrace.model.errors import ClientError

__all__ = ["Call"]

Answer = TypeVar("Answer")
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """`is_repeatable` calls may be asked again when no answer came; those that are `of_views` can
    wait for what the views are to cover."""

    method: str
    path: str
    read: Callable[[Mapping[str, str], bytes], Answer]
    parameters: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_repeatable: bool = True
    of_views: bool = False


def query(sql: str) -> Call[Result]:
    headers = {"accept": ARROW, "content-type": "application/json"}
    body = msgspec.json.encode({"sql": sql})
    return Call("POST", "/v1/sql", Result.from_stream, headers=headers, body=body, of_views=True)


def view(
    name: str,
    filters: Mapping[str, Any],
    order_by: str | Sequence[str],
    limit: int | None,
    cursor: str | None,
) -> Call[Result]:
    parameters = [(f"filter.{column}", _filter(column, v)) for column, v in filters.items()]
    ordering = order_by if isinstance(order_by, str) else ",".join(order_by)
    if ordering:
        parameters.append(("order_by", ordering))
    if limit is not None:
        parameters.append(("limit", str(limit)))
    if cursor is not None:
        parameters.append(("cursor", cursor))
    path = f"/v1/views/{quote(name, safe='')}"
    return Call("GET", path, Result.from_stream, parameters, {"accept": ARROW}, of_views=True)


def _filter(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, int | float | Decimal | date):
        return str(value)
    raise ClientError(
        f"column {column} cannot be compared with {type(value).__name__}",
        hint="filter by text, number, Decimal, bool, date or datetime; use query() for more",
    )


def status() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/status", _document)


def views() -> Call[list[dict[str, Any]]]:
    return Call("GET", "/v1/views", lambda headers, content: _document(headers, content)["views"])


def streams() -> Call[list[dict[str, Any]]]:
    return Call(
        "GET", "/v1/streams", lambda headers, content: _document(headers, content)["streams"]
    )


def rebuild(name: str) -> Call[dict[str, Any]]:
    return Call("POST", f"/v1/views/{quote(name, safe='')}/rebuild", _document)


def view_dead_letters(name: str, limit: int) -> Call[list[dict[str, Any]]]:
    return Call(
        "GET",
        f"/v1/views/{quote(name, safe='')}/deadletters",
        lambda headers, content: _document(headers, content)["deadletters"],
        [("limit", str(limit))],
    )


def dead_letters(stream: str | None, after: int, limit: int) -> Call[list[dict[str, Any]]]:
    parameters = [("after", str(after)), ("limit", str(limit))]
    if stream is not None:
        parameters.append(("stream", stream))
    return Call(
        "GET",
        "/v1/deadletters",
        lambda headers, content: _document(headers, content)["deadletters"],
        parameters,
    )


def resubmit(numbers: Iterable[int], records: Iterable[Any] | None) -> Call[dict[str, Any]]:
    """Never repeated by itself: a lost answer leaves it open whether the letters were taken."""
    given: dict[str, Any] = {"numbers": list(numbers)}
    if records is not None:
        given["records"] = [msgspec.Raw(encode_event(record)) for record in records]
    return _post("/v1/deadletters/resubmit", given, is_repeatable=False)


def heartbeat(
    stream: str, complete_up_to: datetime | str, producer: str | None
) -> Call[dict[str, Any]]:
    moment = complete_up_to if isinstance(complete_up_to, str) else _moment(complete_up_to)
    given = {"stream": stream, "complete_up_to": moment}
    if producer is not None:
        given["producer"] = producer
    return _post("/v1/heartbeats", given, is_repeatable=True)


def _moment(value: datetime) -> str:
    """RFC 3339. Without a zone it is UTC, as everywhere at the gateway."""
    return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()


def discard(numbers: Iterable[int]) -> Call[dict[str, Any]]:
    return _post("/v1/deadletters/discard", {"numbers": list(numbers)}, is_repeatable=True)


def _post(path: str, document: Any, *, is_repeatable: bool) -> Call[dict[str, Any]]:
    body = msgspec.json.encode(document)
    headers = {"content-type": "application/json"}
    return Call("POST", path, _document, (), headers, body, is_repeatable)


def _document(headers: Mapping[str, str], content: bytes) -> dict[str, Any]:
    document = msgspec.json.decode(content)
    if not isinstance(document, dict):
        raise ClientError(f"the server's answer is not an object: {content[:100]!r}")
    return document
