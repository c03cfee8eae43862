"""Rows that are durable before they are in their table: nobody may ever see the difference."""

from __future__ import annotations

import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from store_cases import Opener, sales, tick_write, view_write

from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import Store
from headrace.store.duckdb import merge as merge_module
from headrace.store.duckdb.backend import DuckStore, open_store
from headrace.store.duckdb.deferred_rows import TICKS_MAX

ONE = Decimal("1.00")
KEYS = ("a", "b", "c", None)


@pytest.fixture(scope="session")
def backend() -> str:
    """No other defers rows."""
    return "old"


def _begun(open_backend: Opener, *views: BoundView) -> tuple[Store, int]:
    store = open_backend()
    for view in views:
        store.create_view(view, {0: 0})
    return store, store.claim()


def _commit(store: Store, generation: int, view: BoundView, turn: int) -> None:
    """Every third tick meets a new key; the others change known ones."""
    keys = [KEYS[turn % 4], f"k{turn // 3}"]
    rows = [(key, 1, ONE, 1, ONE) for key in keys]
    store.commit(tick_write(store, generation, view_write(view, rows)))


def _expected(ticks: int) -> dict[str | None, int]:
    counts: dict[str | None, int] = {}
    for turn in range(ticks):
        for key in (KEYS[turn % 4], f"k{turn // 3}"):
            counts[key] = counts.get(key, 0) + 1
    return counts


def _found(store: Store, name: str = "sales") -> tuple[dict[str | None, int], int]:
    result = store.query(f"SELECT user, payments FROM {name}")
    rows = [row for batch in result.batches for row in batch.to_pylist()]
    assert len({row["user"] for row in rows}) == len(rows), "a key stands twice"
    return {row["user"]: row["payments"] for row in rows}, result.freshness.tick


def _is_behind(store: Store, name: str = "sales") -> bool:
    return cast(DuckStore, store)._views.merges[name].behind_since is not None


def _in_table(store: Store) -> int:
    found = cast(DuckStore, store)._connection.execute("SELECT count(*) FROM _headrace.state_0")
    return int(found.fetchall()[0][0])


def test_unread_rows_wait_and_the_first_reader_sees_them(open_backend: Opener) -> None:
    view = sales()
    store, generation = _begun(open_backend, view)
    for turn in range(5):
        _commit(store, generation, view, turn)
    assert _is_behind(store)
    assert _in_table(store) < len(_expected(5))
    assert _found(store) == (_expected(5), 5)
    assert not _is_behind(store)
    _commit(store, generation, view, 5)
    assert not _is_behind(store), "a view that is being read is written in every tick"


@pytest.mark.parametrize("ticks", [1, 2, TICKS_MAX - 1, TICKS_MAX, 3 * TICKS_MAX + 1])
def test_a_crash_loses_none_even_of_a_view_that_is_not_opened_again(
    open_backend: Opener, tmp_path: Path, ticks: int
) -> None:
    view = sales()
    store, generation = _begun(open_backend, view)
    for turn in range(ticks):
        _commit(store, generation, view, turn)
    for suffix in ("", ".wal"):  # the files as a kill would leave them
        source = tmp_path / f"store.duckdb{suffix}"
        if source.exists():
            shutil.copy(source, tmp_path / f"copy.duckdb{suffix}")
    copy = open_store(tmp_path / "copy.duckdb", StoreSettings())
    try:
        assert _found(copy) == (_expected(ticks), ticks)
        copy.open_view(view)
        generation = copy.claim()
        for turn in range(ticks, ticks + 3):
            _commit(copy, generation, view, turn)
        assert _found(copy) == (_expected(ticks + 3), ticks + 3)
    finally:
        copy.close()


def test_pruning_keeps_rows_that_are_behind(open_backend: Opener, tmp_path: Path) -> None:
    quiet, busy = sales("quiet"), sales("busy")
    store = open_backend(StoreSettings(changes_ticks_max=4))
    for view in (quiet, busy):
        store.create_view(view, {0: 0})
    generation = store.claim()
    _commit(store, generation, quiet, 0)
    assert _is_behind(store, "quiet")
    for turn in range(40):
        _commit(store, generation, busy, turn)
    assert _is_behind(store, "quiet")
    shutil.copy(tmp_path / "store.duckdb", tmp_path / "copy.duckdb")
    shutil.copy(tmp_path / "store.duckdb.wal", tmp_path / "copy.duckdb.wal")
    copy = open_store(tmp_path / "copy.duckdb", StoreSettings(changes_ticks_max=4))
    try:
        assert _found(copy, "quiet")[0] == _expected(1)
        assert _found(copy, "busy")[0] == _expected(40)
    finally:
        copy.close()


def test_readers_beside_ticks_see_each_tick_whole(
    open_backend: Opener, monkeypatch: pytest.MonkeyPatch, beside: Any, until: Any
) -> None:
    """With an interest that is forgotten at once, ticks and readers write in turns."""
    monkeypatch.setattr(merge_module, "READ_SECONDS", 0.0005)
    view = sales()
    store, generation = _begun(open_backend, view)
    seen: set[int] = set()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            found, tick = _found(store)
            assert found == _expected(tick), f"tick {tick}"
            seen.add(tick)

    with beside(read, read, read):
        try:
            for turn in range(120):
                _commit(store, generation, view, turn)
                if turn % 8 == 7:
                    until(lambda: turn + 1 in seen)  # noqa: B023
        finally:
            ended.set()
    assert _found(store) == (_expected(120), 120)


def test_a_tick_that_fails_leaves_what_was_behind(open_backend: Opener) -> None:
    view = sales()
    store, generation = _begun(open_backend, view)
    for turn in range(3):
        _commit(store, generation, view, turn)
    too_much = view_write(view, [("a", 1, Decimal(10**26) - ONE, 1, ONE)] * 2)
    with pytest.raises(Exception, match="sales"):
        store.commit(tick_write(store, generation, too_much))
    assert _found(store) == (_expected(3), 3)
