"""Handlers that read: views, their dead letters, ad-hoc SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headrace.formats.answers import Answer, AnswerFreshness, choose, encode
from headrace.model.errors import QueryError, RequestError
from headrace.serve.parameters import limit_alone, whole_number
from headrace.serve.query.covers import COVERS_PARAMETERS, Wanted, read_wanted
from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services
from headrace.store.contract import QueryResult

__all__ = ["list_dead_letters", "list_views", "read_view", "run_sql"]

LIMIT = 100
SQL_BYTES_MAX = 64 * 1024
DEAD_LETTERS_MAX = 10_000
RESERVED = ("order_by", "limit", "cursor", *COVERS_PARAMETERS)


@dataclass(frozen=True)
class _Asked:
    """`reserved` are the parameters that are no filters."""

    reserved: dict[str, str]
    filters: dict[str, str]
    order_by: list[tuple[str, bool]]
    limit: int
    cursor: str | None


async def list_views(services: Services, request: Request, name: str) -> Response:
    def read() -> bytes:
        reports = services.control.status().views
        views = []
        for entry in services.store.catalog().values():
            report = reports.get(entry.view)
            status = entry.status if report is None else report
            try:
                columns = services.store.describe(entry.view)
            except QueryError:
                columns = ()  # not open in this process: its state and detail say why
            views.append(
                {
                    "name": entry.view,
                    "stream": entry.stream,
                    "is_table": entry.is_table,
                    "state": status.state,
                    "detail": status.detail,
                    "columns": [{"name": column, "type": kind} for column, kind in columns],
                    "sql": entry.sql,
                }
            )
        return msgspec.json.encode({"views": views})

    return json_response(await services.reads.run(read))


async def read_view(services: Services, request: Request, name: str) -> Response:
    media_type = choose(request.headers.get("accept"))
    asked = _asked(request.parameters(), services.settings.store.query_rows_max)
    wanted = read_wanted(request, asked.reserved)

    def views() -> list[str]:
        return [services.view_name(name)]

    def read() -> Response:
        view = services.view_name(name)
        progress = services.progress([view])
        with services.reading(view):
            page = services.store.read_view(
                view, asked.filters, asked.order_by, asked.limit, asked.cursor
            )
        table: pa.Table = page.table
        freshness = progress.at(page.freshness)
        answer = Answer(table.schema, table.to_batches(), freshness, page.next_cursor)
        return Response(200, *encode(answer, media_type))

    async with _covering(services, request, wanted, views) as seconds:
        return await services.reads.run(read, seconds)


def _asked(parameters: list[tuple[str, str]], rows_max: int) -> _Asked:
    reserved: dict[str, str] = {}
    filters: dict[str, str] = {}
    for name, value in parameters:
        target = reserved if name in RESERVED else filters
        column = name.removeprefix("filter.") if target is filters else name
        if column in target:
            raise RequestError(
                400,
                "parameter",
                f"parameter {name!r} is given twice",
                hint="a filter is one value; use POST /v1/sql for more",
            )
        target[column] = value
    return _Asked(
        reserved,
        filters,
        _order_by(reserved.get("order_by", "")),
        whole_number("limit", reserved.get("limit", str(min(LIMIT, rows_max))), 1, rows_max),
        reserved.get("cursor") or None,
    )


def _order_by(text: str) -> list[tuple[str, bool]]:
    items = [item.strip() for item in text.split(",")] if text else []
    if "" in items or "-" in items:
        raise RequestError(
            400,
            "parameter",
            f"order_by={text} has an empty column name",
            hint="write order_by=-column,other: a minus sign means descending",
        )
    return [(item.removeprefix("-"), item.startswith("-")) for item in items]


async def list_dead_letters(services: Services, request: Request, name: str) -> Response:
    limit = limit_alone(request, LIMIT, DEAD_LETTERS_MAX)

    def read() -> bytes:
        view = services.view_name(name)
        with services.reading(view):
            letters = services.store.dead_letters(view, limit)
        return msgspec.json.encode({"deadletters": letters})

    return json_response(await services.reads.run(read))


async def run_sql(services: Services, request: Request, name: str) -> Response:
    media_type = choose(request.headers.get("accept"))
    wanted = read_wanted(request, _covers_alone(request))
    sql = _sql(request, await request.body())

    def views() -> list[str]:
        return services.views_read_by(sql)

    def run() -> Response:
        progress = services.progress(services.views_named_in(sql))
        with services.querying():
            result = services.store.query(sql)
        answer = Answer(result.schema, _closing(result), progress.at(result.freshness))
        return Response(200, *encode(answer, media_type))

    async with _covering(services, request, wanted, views) as seconds:
        return await services.queries.run(run, seconds)


def _covers_alone(request: Request) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in request.parameters():
        if name not in COVERS_PARAMETERS or name in given:
            raise RequestError(
                400,
                "parameter",
                f"parameter {name[:100]!r} is unknown, or given twice",
                hint=f"parameters are {', '.join(COVERS_PARAMETERS)}",
            )
        given[name] = value
    return given


@asynccontextmanager
async def _covering(
    services: Services, request: Request, wanted: Wanted | None, find: Callable[[], list[str]]
) -> AsyncIterator[float]:
    """Entered when the views that `find` gives, on another thread, have taken in what is wanted;
    gives the seconds that the query may still wait for its turn. All that were waiting for a tick
    come at once: they are not refused because they are many.

    Raises what Coverage.reached raises, and RequestError 504, with the freshness an answer would
    have had, when the time is over.
    """
    if wanted is None:
        yield 0.0
        return
    views = await services.reads.run(find)
    async with services.coverage.reached(views, wanted, request.receive) as reached:
        if reached.lacking:
            raise await _not_covered(services, views, reached.lacking, wanted)
        yield reached.seconds


async def _not_covered(
    services: Services, views: list[str], lacking: Sequence[str], wanted: Wanted
) -> RequestError:
    def freshness() -> AnswerFreshness:
        engine = services.control.status()
        return services.progress(views).of_tick(engine.tick, engine.committed_at_microseconds)

    fresh = await services.reads.run(freshness)
    names = ", ".join(lacking)
    return RequestError(
        504,
        "not-covered",
        f"after {wanted.seconds:g} s {names} {'has' if len(lacking) == 1 else 'have'} not taken in "
        f"what is to be covered: {fresh.text}",
        hint="ask again, wait longer with wait_seconds, or read without covers",
        more={"views": lacking, "freshness": fresh.document()},
    )


def _closing(result: QueryResult) -> Iterator[pa.RecordBatch]:
    """The batches, closed also when the answer is given up half-way."""
    try:
        yield from result.batches
    finally:
        close = getattr(result.batches, "close", None)
        if close is not None:
            close()


def _sql(request: Request, body: bytes) -> str:
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RequestError(
            415,
            "content-type",
            f"the body is {content_type[:100]}, application/json is expected",
            hint='send {"sql": "SELECT …"} with Content-Type: application/json',
        )
    try:
        document: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise RequestError(
            400, "body", f"the body is not JSON: {error}", hint='send {"sql": "SELECT …"}'
        ) from error
    if not isinstance(document, dict) or set(document) != {"sql"}:
        raise RequestError(
            400, "body", "the body must be an object with sql alone", hint='{"sql": "SELECT …"}'
        )
    sql = document["sql"]
    if not isinstance(sql, str) or not sql.strip():
        raise RequestError(400, "body", "sql must be text and not empty", hint="SELECT …")
    if len(sql.encode()) > SQL_BYTES_MAX:
        raise RequestError(
            413, "body-too-large", f"the SQL text has more than {SQL_BYTES_MAX} bytes"
        )
    return sql
