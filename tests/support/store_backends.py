"""Every way to open a store, for the tests that all of them must pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.model.errors import StoreLockedError
from headrace.model.settings import StoreSettings
from headrace.model.tables import SCHEMA
from headrace.store.contract import Store
from headrace.store.memory.backend import MemoryBackend
from headrace.store.opening import open_store
from headrace.store.store import ViewStore

__all__ = ["BACKENDS", "counted", "end_memory"]


class _KeptInMemory(MemoryBackend):
    """Is still there when a store that used it is closed."""

    is_open = True

    def close(self) -> None:
        self.is_open = False

    def end(self) -> None:
        super().close()


class _MemoryFiles:
    """Memory in the place of files: what is opened again under a name is what was left there."""

    def __init__(self) -> None:
        self._kept: dict[Path, _KeptInMemory] = {}

    def open(self, file: Path, settings: StoreSettings) -> Store:
        backend = self._kept.get(file)
        if backend is None:
            backend = self._kept[file] = _KeptInMemory(settings)
        elif backend.is_open:
            raise StoreLockedError(f"{file} is open", hint="close it first")
        backend.is_open = True
        return ViewStore(backend, settings)

    def end(self) -> None:
        """Those that no store uses are gone."""
        for file in [file for file, backend in self._kept.items() if not backend.is_open]:
            self._kept.pop(file).end()


_MEMORY = _MemoryFiles()
BACKENDS: dict[str, Callable[[Path, StoreSettings], Store]] = {
    "duckdb": open_store,
    "memory": _MEMORY.open,
}


def counted(store: Store, view: str, place: int) -> int:
    """The rows of a table of the view's kind, of all views of its shape."""
    assert isinstance(store, ViewStore)
    name = store._views[view].tables[place]
    with store._backend.snapshot() as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {SCHEMA}.{name}").fetchall()
    return int(count)


def end_memory() -> None:
    _MEMORY.end()
