from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.model.settings import StoreSettings
from headrace.store.contract import Store
from headrace.store.duckdb.backend import open_store

BACKENDS: dict[str, Callable[[Path, StoreSettings], Store]] = {"duckdb": open_store}


@pytest.fixture(params=list(BACKENDS))
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens the same store each time it is called; whatever is open at the end is closed."""
    opened: list[Store] = []

    def open_(settings: StoreSettings | None = None) -> Store:
        store = BACKENDS[request.param](tmp_path / "store.duckdb", settings or StoreSettings())
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_backend: Callable[..., Store]) -> Store:
    return open_backend()


@pytest.fixture(scope="module", params=list(BACKENDS))
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """For the many tests of a module that only read."""
    file = tmp_path_factory.mktemp("shared") / "store.duckdb"
    store = BACKENDS[request.param](file, StoreSettings())
    yield store
    store.close()


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
