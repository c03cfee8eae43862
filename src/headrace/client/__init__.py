"""The Python client: send events, query views, follow changes."""

from headrace.client.asynchronous import AsyncClient
from headrace.client.outbox import Counts, Quarantined, Refused
from headrace.client.result import Change, Freshness, Result
from headrace.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "Change",
    "Client",
    "Counts",
    "Freshness",
    "Quarantined",
    "Refused",
    "Result",
]
