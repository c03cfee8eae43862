"""The ledger of conservation: what became of every event, by stream and by view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services
from headrace.store.contract import CatalogEntry, Store

__all__ = ["ledger", "ledger_figures"]


async def ledger(services: Services, request: Request, name: str) -> Response:
    def read() -> bytes:
        return msgspec.json.encode(ledger_document(services.store))

    return json_response(await services.reads.run(read))


def ledger_document(store: Store) -> dict[str, Any]:
    return {
        "engine": {"tick": store.last_tick()},
        "streams": {
            name: {
                **asdict(progress.totals),
                "is_conserved": progress.totals.is_conserved,
                "next_offsets": progress.next_offsets,
            }
            for name, progress in sorted(store.streams().items())
        },
        "views": {
            name: {
                "stream": entry.stream,
                **asdict(entry.totals),
                "is_conserved": _is_conserved(entry),
                "incident": entry.status.detail if entry.status.is_incident else "",
            }
            for name, entry in sorted(_entries(store).items())
        },
    }


def _entries(store: Store) -> dict[str, CatalogEntry]:
    return {n: e for n, e in store.catalog().items() if e.status.state != "removed"}


def _is_conserved(entry: CatalogEntry) -> bool:
    """A tick whose sums did not come out even left no trace in the totals, but in the status."""
    return entry.totals.is_conserved and not entry.status.is_incident


def ledger_figures(store: Store) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "headrace_stream_events_total",
        "what became of the stream's events: advanced = accepted + duplicate + dead",
        labels=["stream", "fate"],
    )
    holds = GaugeMetricFamily(
        "headrace_conservation_holds",
        "1 while the sums of the stream and of its views come out even",
        labels=["stream"],
    )
    streams, entries = store.streams(), _entries(store).values()
    sound = dict.fromkeys([*streams, *(entry.stream for entry in entries)], True)
    for name, progress in streams.items():
        for fate, count in asdict(progress.totals).items():
            events.add_metric([name, fate], count)
        sound[name] = progress.totals.is_conserved
    for entry in entries:
        sound[entry.stream] = sound[entry.stream] and _is_conserved(entry)
    for name, is_sound in sorted(sound.items()):
        holds.add_metric([name], int(is_sound))
    yield from (events, holds)
