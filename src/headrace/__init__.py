"""Live, exact answers from streams of events.

`headrace.stream(...)` and `headrace.table(...)` define streams, views and tables in Python files of
a project; `headrace.Client` and `headrace.AsyncClient` send events and read answers. Names are
imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.compile.python.definitions import stream, table
    from headrace.model.errors import DefinitionError, DefinitionErrors, HeadraceError

__all__ = [
    "AsyncClient",
    "Client",
    "DefinitionError",
    "DefinitionErrors",
    "HeadraceError",
    "stream",
    "table",
]

_HOMES = {
    "AsyncClient": "headrace.client",
    "Client": "headrace.client",
    "DefinitionError": "headrace.model.errors",
    "DefinitionErrors": "headrace.model.errors",
    "HeadraceError": "headrace.model.errors",
    "stream": "headrace.compile.python.definitions",
    "table": "headrace.compile.python.definitions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
