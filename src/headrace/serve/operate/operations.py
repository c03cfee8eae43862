"""Handlers for operators: status, rebuild, metrics, health."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from headrace.model.errors import QueryError, RequestError
from headrace.model.moments import moment_text
from headrace.serve.operate.completeness import freshness_text, held_back_text
from headrace.serve.operate.control import EngineStatus, RebuildReport, ViewReport
from headrace.serve.operate.ledger import ledger_figures
from headrace.serve.parameters import decoded
from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services, own_spelling
from headrace.store.contract import TableTotals

__all__ = [
    "cancel_rebuild",
    "health",
    "metrics",
    "ready",
    "rebuild",
    "rebuild_progress",
    "status",
]


async def health(services: Services, request: Request, name: str) -> Response:
    return json_response(b'{"status":"ok"}')


async def ready(services: Services, request: Request, name: str) -> Response:
    services.require_started()
    return json_response(b'{"status":"ready"}')


async def status(services: Services, request: Request, name: str) -> Response:
    def read() -> bytes:
        engine = services.control.status()
        views = {name: _view(services, name, report) for name, report in engine.views.items()}
        return msgspec.json.encode(status_document(engine, views))

    return json_response(await services.reads.run(read))


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else moment_text(microseconds)


def _freshness(services: Services, report: ViewReport) -> str:
    completeness = services.completeness
    return freshness_text(
        report.watermark_microseconds,
        report.pending_events,
        completeness.of_streams([report.stream]),
        completeness.now_microseconds,
    )


def _held_back(services: Services, report: ViewReport) -> dict[str, Any]:
    """Which partition is least complete, and through whom. Where there is only one, it says nothing
    without a producer."""
    partition, watermark = report.held_back_partition, report.watermark_microseconds
    if partition < 0 or watermark is None:
        return {"held_back_by": "", "held_back_partition": None, "held_back_producer": None}
    completeness = services.completeness
    producer = completeness.origin(report.stream, partition, report.held_back_maximum)
    text = ""
    if producer is not None or len(report.next_offsets) > 1:
        place = f"{report.stream}/{partition}"
        text = held_back_text(place, producer, watermark, completeness.now_microseconds)
    return {
        "held_back_by": text,
        "held_back_partition": partition,
        "held_back_producer": producer,
    }


def _view(services: Services, name: str, report: ViewReport) -> dict[str, Any]:
    totals = _table_totals(services, name)
    return {
        "stream": report.stream,
        "state": report.state,
        "detail": report.detail,
        "next_offsets": report.next_offsets,
        "pending_events": report.pending_events,
        "watermark": _time(report.watermark_microseconds),
        **_held_back(services, report),
        "freshness": _freshness(services, report),
        "counts": dataclasses.asdict(report.counts),
        "table": totals and dataclasses.asdict(totals),
        "rebuild": report.rebuild and dataclasses.asdict(report.rebuild),
    }


def _table_totals(services: Services, view: str) -> TableTotals | None:
    """None of a view that is no table, and of a table that cannot be read just now."""
    entry = services.store.catalog().get(view)
    if entry is None or not entry.is_table or entry.status.is_closed:
        return None
    try:
        return services.store.table_totals(view)
    except QueryError:
        return None  # it has been taken away since, to be filled again


def status_document(engine: EngineStatus, views: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "engine": {
            "state": engine.state,
            "detail": engine.detail,
            "generation": engine.generation,
            "tick": engine.tick,
            "committed_at": _time(engine.committed_at_microseconds),
            "tick_milliseconds": dataclasses.asdict(engine.durations),
        },
        "streams": {name: dataclasses.asdict(r) for name, r in engine.streams.items()},
        "views": dict(views),
    }


class _RebuildAsked(msgspec.Struct, forbid_unknown_fields=True):
    hold: bool = False
    swap: bool = False
    from_oldest: bool = False


async def rebuild(services: Services, request: Request, name: str) -> Response:
    """Ask for a copy of the view, or for one that is held to take its place."""
    asked = decoded(await request.body() or b"{}", _RebuildAsked)

    def ask() -> bytes:
        view = _defined_name(services, name)
        if asked.swap:
            services.control.swap(view)
        else:
            services.control.rebuild(view, hold=asked.hold, from_oldest=asked.from_oldest)
        return msgspec.json.encode({"view": view, "state": "rebuilding"})

    return json_response(await services.reads.run(ask), status=202)


async def rebuild_progress(services: Services, request: Request, name: str) -> Response:
    def read() -> bytes:
        view = _defined_name(services, name)
        found = services.control.rebuilt(view) or RebuildReport("none")
        return msgspec.json.encode({"view": view, **dataclasses.asdict(found)})

    return json_response(await services.reads.run(read))


async def cancel_rebuild(services: Services, request: Request, name: str) -> Response:
    def ask() -> bytes:
        view = _defined_name(services, name)
        services.control.cancel(view)
        return msgspec.json.encode({"view": view, "state": "cancelling"})

    return json_response(await services.reads.run(ask), status=202)


def _defined_name(services: Services, name: str) -> str:
    """The view's own spelling of its name. Raises RequestError."""
    services.require_started()
    views = services.control.status().views
    own = own_spelling(views, name)
    if own is None:
        raise RequestError(
            404,
            "view-unknown",
            f"there is no view {name[:100]!r}",
            hint=f"views are {', '.join(sorted(views)) or 'none'}",
        )
    return own


async def metrics(services: Services, request: Request, name: str) -> Response:
    def read() -> bytes:
        registry = CollectorRegistry()
        registry.register(_Figures(services))
        return generate_latest(registry)

    text = await services.reads.run(read)
    return Response(200, [("content-type", CONTENT_TYPE_PLAIN_0_0_4)], text)


class _Figures(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        status = self._services.control.status()
        yield from _engine_figures(status)
        yield from _view_figures(status)
        yield self._table_figures(status)
        hub = self._services.hub
        yield _figure("queries_waiting", self._services.coverage.waiting)
        yield _figure("subscribers", hub.subscribers)
        yield _figure("subscription_messages_total", hub.messages_total)
        yield _figure("subscriptions_fallen_behind_total", hub.fallen_behind_total)
        yield _figure("reads_under_way", self._services.reads.admitted)
        yield _figure("sql_under_way", self._services.queries.admitted)
        for name, value in self._services.control.metrics().items():
            yield _figure(name, value)
        yield from ledger_figures(self._services.store)
        yield from _store_figures(self._services.store.metrics())

    def _table_figures(self, status: EngineStatus) -> Metric:
        changes = CounterMetricFamily(
            "headrace_table_changes_total",
            "changes of the table that were superseded, or resurrected a deleted row",
            labels=["table", "fate"],
        )
        for name in status.views:
            totals = _table_totals(self._services, name)
            for fate, count in dataclasses.asdict(totals).items() if totals else ():
                changes.add_metric([name, fate], count)
        return changes


def _figure(name: str, value: float) -> Metric:
    text = name.replace("_", " ")
    if name.endswith("_total"):
        return CounterMetricFamily(f"headrace_{name}", text, value=value)
    return GaugeMetricFamily(f"headrace_{name}", text, value=value)


def _engine_figures(status: EngineStatus) -> Iterator[Metric]:
    yield _figure("engine_live", int(status.state == "live"))
    yield _figure("tick", status.tick)
    quantiles = GaugeMetricFamily(
        "headrace_tick_milliseconds", "duration of the newest ticks", labels=["quantile"]
    )
    for quantile, value in (
        ("0.5", status.durations.p50),
        ("0.95", status.durations.p95),
        ("0.99", status.durations.p99),
    ):
        quantiles.add_metric([quantile], value)
    yield quantiles
    pending = GaugeMetricFamily(
        "headrace_stream_pending_events", "events no view has taken yet", labels=["stream"]
    )
    for stream, report in status.streams.items():
        pending.add_metric([stream], report.pending_events)
    yield pending


def _view_figures(status: EngineStatus) -> Iterator[Metric]:
    live = GaugeMetricFamily("headrace_view_live", "1 while the view is live", labels=["view"])
    pending = GaugeMetricFamily(
        "headrace_view_pending_events", "events the view has not taken yet", labels=["view"]
    )
    watermark = GaugeMetricFamily(
        "headrace_view_watermark_seconds", "the view's watermark", labels=["view"]
    )
    events = CounterMetricFamily(
        "headrace_view_events_total", "what became of the view's events", labels=["view", "fate"]
    )
    for view, report in status.views.items():
        live.add_metric([view], int(report.state == "live"))
        pending.add_metric([view], report.pending_events)
        if report.watermark_microseconds is not None:
            watermark.add_metric([view], report.watermark_microseconds / 1e6)
        for fate, count in dataclasses.asdict(report.counts).items():
            events.add_metric([view, fate], count)
    yield from (live, pending, watermark, events)


def _store_figures(figures: Any) -> Iterator[Metric]:
    """Numbers as they are; a mapping of numbers becomes one figure with the label `name`."""
    for name, value in figures.items():
        if isinstance(value, int | float):
            yield _figure(f"store_{name}", value)
        elif isinstance(value, dict):
            family = GaugeMetricFamily(
                f"headrace_store_{name}", name.replace("_", " "), labels=["name"]
            )
            for label, number in value.items():
                family.add_metric([str(label)], number)
            yield family
