from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from store_backends import BACKENDS, end_memory

from headrace.model.settings import StoreSettings
from headrace.store.contract import Store


@pytest.fixture(scope="session", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def open_backend(backend: str, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens the same store each time it is called; whatever is open at the end is closed."""
    opened: list[Store] = []

    def open_(settings: StoreSettings | None = None) -> Store:
        store = BACKENDS[backend](tmp_path / "store.duckdb", settings or StoreSettings())
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
    end_memory()


@pytest.fixture
def store(open_backend: Callable[..., Store]) -> Store:
    return open_backend()


@pytest.fixture(scope="module")
def shared_store(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For the many tests of a module that only read."""
    file = tmp_path_factory.mktemp("shared") / "store.duckdb"
    store = BACKENDS[backend](file, StoreSettings())
    yield store
    store.close()
    end_memory()


@pytest.fixture(scope="module")
def sold(shared_store: Store) -> Store:
    """With a view of 100 users who paid once; to be read."""
    from store_cases import sales, tick_write, view_write

    view, one = sales(), Decimal("1.00")
    shared_store.create_view(view, {})
    rows = [(f"user {i}", 1, one, 1, one) for i in range(100)]
    shared_store.commit(tick_write(shared_store, shared_store.claim(), view_write(view, rows)))
    return shared_store


os.environ.setdefault("TZ", "America/New_York")  # a store must not care
