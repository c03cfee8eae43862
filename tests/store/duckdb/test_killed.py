"""kill -9 at any moment: the store is at the last acknowledged tick or the one in flight, whole."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from killed_writer import KEYS, swap_until_killed, views, write_until_killed
from store_backends import BACKENDS, counted
from store_cases import rows_of

from headrace.model.errors import StoreLockedError
from headrace.model.settings import StoreSettings
from headrace.store.contract import Store

KILLS = 12
KILLS_OF_REBUILDS = 8
LOOKS_MAX = 2_000
ANSWER_SECONDS_MAX = 120


@contextmanager
def writer(
    file: Path, backend: str, target: Callable[..., None] = write_until_killed
) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """A process of its own, forked from one that has done the imports and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["store_backends", "pandas"])
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(file, backend, said), daemon=True)
    process.start()
    said.close()
    try:
        yield process, heard
    finally:
        process.kill()
        process.join(ANSWER_SECONDS_MAX)
        process.close()
        heard.close()


def run_and_kill(
    file: Path,
    backend: str,
    ticks: int,
    looks: int,
    target: Callable[..., None] = write_until_killed,
) -> int:
    """Kills the process a while after so many ticks, as long as some looks at what it says take.
    Returns the last tick it said was durable."""
    with writer(file, backend, target) as (process, heard):
        for _ in range(1 + ticks):  # first it says where it begins
            assert heard.poll(ANSWER_SECONDS_MAX)
            acknowledged = int(heard.recv())
        for _ in range(looks):
            if heard.poll(0):
                acknowledged = heard.recv()
        process.kill()
        try:
            while True:
                acknowledged = heard.recv()
        except (EOFError, ConnectionResetError):
            pass
        process.join(ANSWER_SECONDS_MAX)
        assert process.exitcode == -signal.SIGKILL
        return acknowledged


def feed_of(store: Store, view: str, from_tick: int) -> Counter[Any]:
    feed: Counter[Any] = Counter()
    for change in store.changes(view, from_tick, 10_000):
        feed.subtract(tuple(row.values()) for row in change.before.to_pylist())
        feed.update(tuple(row.values()) for row in change.after.to_pylist())
    return feed


@pytest.mark.parametrize("backend", ["duckdb"])
def test_killed_at_random_moments(backend: str, tmp_path: Path, seed: int) -> None:
    file = tmp_path / "store.duckdb"
    chance = random.Random(seed)
    checked_tick, checked_rows = 0, {view.name: Counter[Any]() for view in views()}
    for _ in range(KILLS):
        acknowledged = run_and_kill(
            file, backend, chance.randrange(20), chance.randrange(LOOKS_MAX)
        )
        store = BACKENDS[backend](file, StoreSettings(changes_ticks_max=50))
        try:
            tick = store.last_tick()
            assert tick in (acknowledged, acknowledged + 1)
            assert store.ledger(1).column("tick").to_pylist() == ([tick] if tick else [])
            if tick == 0:
                continue
            assert {entry.next_offsets[0] for entry in store.catalog().values()} == {tick * KEYS}
            assert {entry.totals.read for entry in store.catalog().values()} == {tick * KEYS}
            assert set(rows_of(store, "SELECT payments FROM plain")) == {(tick,)}
            assert rows_of(store, "SELECT count(*) FROM plain") == [(KEYS,)]
            assert rows_of(store, "SELECT sum(payments)::BIGINT FROM windows") == [(tick * KEYS,)]
            assert set(rows_of(store, "SELECT name FROM newest")) == {(str(tick),)}
            assert rows_of(store, "SELECT count(*) FROM newest") == [(KEYS // 2,)]
            assert store.table_totals("newest").superseded == tick * (KEYS // 2)
            if tick - checked_tick < 50:
                for view, before in checked_rows.items():
                    now = Counter(rows_of(store, f"SELECT * FROM {view}"))
                    feed = Counter(before)
                    feed.update(feed_of(store, view, checked_tick))
                    assert +feed == now
            checked_tick = tick
            checked_rows = {v: Counter(rows_of(store, f"SELECT * FROM {v}")) for v in checked_rows}
        finally:
            store.close()
    assert checked_tick > KILLS


def test_killed_while_copies_are_built_and_take_over(tmp_path: Path, seed: int) -> None:
    """Every round rebuilds the view. Readers see it whole, and the feed leads across the swaps."""
    file = tmp_path / "store.duckdb"
    chance = random.Random(seed)
    checked_tick, checked_rows, rounds = 0, Counter[Any](), 0
    for _ in range(KILLS_OF_REBUILDS):
        acknowledged = run_and_kill(
            file, "duckdb", chance.randrange(4), chance.randrange(LOOKS_MAX), swap_until_killed
        )
        store = BACKENDS["duckdb"](file, StoreSettings())
        try:
            if not store.catalog():
                continue
            rounds = store.catalog()["plain"].next_offsets[0] // KEYS
            assert rounds in (acknowledged, acknowledged + 1)
            assert store.catalog()["plain"].totals.read == rounds * KEYS
            rows = Counter(rows_of(store, "SELECT * FROM plain"))
            assert len(rows) == (KEYS if rounds else 0)
            assert all(row[2] == rounds for row in rows)
            filled = store.copies()["plain"].totals.read if store.copies() else 0
            assert counted(store, "plain", 0) == len(rows) + (KEYS if filled else 0)
            feed = Counter(checked_rows)
            feed.update(feed_of(store, "plain", checked_tick))
            assert +feed == rows
            checked_tick, checked_rows = store.last_tick(), rows
        finally:
            store.close()
    assert rounds > KILLS_OF_REBUILDS


@pytest.mark.parametrize("backend", ["duckdb"])
def test_another_process_is_named_as_the_holder(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "store.duckdb"
    with writer(file, backend) as (process, heard):
        assert heard.poll(ANSWER_SECONDS_MAX)
        with pytest.raises(StoreLockedError, match=str(process.pid)):
            BACKENDS[backend](file, StoreSettings())
    BACKENDS[backend](file, StoreSettings()).close()
