"""What is DuckDB's own about its backend: one file, its crashes, its memory, its hashes."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from killed_commits import KEYS, TICKS, commit_until_killed, last_tick
from table_model import definition

from headrace.model.errors import MemoryShortError, StoreError, StoreLockedError
from headrace.model.settings import StoreSettings
from headrace.model.tables import ROW, Fetch, TableDelta
from headrace.store.backend import Commit
from headrace.store.duckdb import keyed_tables
from headrace.store.duckdb.keyed_tables import DuckBackend

KILLS = 8
LOOKS_MAX = 2_000
ANSWER_SECONDS_MAX = 120
SUMS = definition("sums", {"k": "STRING", "n": "BIGINT"}, ("k",))


@pytest.fixture
def open_(tmp_path: Path, closing: Callable[..., Any]) -> Callable[..., DuckBackend]:
    def opened(settings: StoreSettings | None = None) -> DuckBackend:
        backend: DuckBackend = closing(
            DuckBackend(tmp_path / "store.duckdb", settings or StoreSettings())
        )
        return backend

    return opened


def sums(first: int, end: int, n: int = 0) -> pa.Table:
    keys = pa.array([f"key {i}" for i in range(first, end)], pa.string())
    return pa.table({"k": keys, "n": pa.array(np.full(end - first, n))})


def total(backend: DuckBackend) -> tuple[int, int]:
    with backend.snapshot() as connection:
        ((rows, n),) = connection.execute("SELECT count(*), sum(n) FROM _headrace.sums").fetchall()
    return rows, int(n or 0)


# One opener


def test_only_one_may_have_it_open(open_: Callable[..., DuckBackend]) -> None:
    first = open_()
    with pytest.raises(StoreLockedError, match="already open in this process"):
        open_()
    first.close()
    open_()


def test_another_process_is_named_as_the_holder(
    tmp_path: Path, open_: Callable[..., DuckBackend]
) -> None:
    with writer(tmp_path / "store.duckdb") as (process, heard):
        assert heard.poll(ANSWER_SECONDS_MAX)
        with pytest.raises(StoreLockedError, match=str(process.pid)):
            open_()
    open_()


def test_what_was_committed_is_there_when_it_opens_again(
    open_: Callable[..., DuckBackend],
) -> None:
    nested = definition(
        "nested", {"a b": "ARRAY<STRUCT<`x y`: INT, z: DECIMAL(4,1)>>"}, ("a b",), ("a b",)
    )
    nested = replace(nested, is_brief=True)
    first = open_()
    assert first.claim() == 1
    put = TableDelta("sums", put=sums(0, 5, 2))
    first.commit(Commit(1, [put], [SUMS, nested], views={"all": "SELECT n FROM _headrace.sums"}))
    first.close()
    again = open_()
    assert (again.generation, again.definitions()) == (1, {"sums": SUMS, "nested": nested})
    assert total(again) == (5, 10)
    with again.snapshot() as connection:
        assert connection.execute('SELECT sum(n) FROM "all"').fetchall() == [(10,)]
    assert again.claim() == 2
    assert again.metrics()["file_bytes"] > 0


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_file_of_another_format_is_refused(
    tmp_path: Path, open_: Callable[..., DuckBackend], is_ours: bool
) -> None:
    if is_ours:
        open_().close()
    with duckdb.connect(str(tmp_path / "store.duckdb")) as connection:
        connection.execute(
            "UPDATE _backend.about SET format = 99" if is_ours else "CREATE TABLE other (a INTEGER)"
        )
    with pytest.raises(StoreError, match="another version"):
        open_()


def test_a_file_that_is_none_of_duckdb_is_refused(
    tmp_path: Path, open_: Callable[..., DuckBackend]
) -> None:
    (tmp_path / "store.duckdb").write_bytes(b"no database" * 1_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be opened"):
            open_()


# Crashes


@contextmanager
def writer(file: Path) -> Iterator[tuple[ForkServerProcess, Connection]]:
    """A process of its own, forked from one that has done the imports and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headrace.store.duckdb.keyed_tables", "pandas"])
    heard, said = context.Pipe(duplex=False)
    process = context.Process(target=commit_until_killed, args=(file, said), daemon=True)
    process.start()
    said.close()
    try:
        yield process, heard
    finally:
        process.kill()
        process.join(ANSWER_SECONDS_MAX)
        process.close()
        heard.close()


def run_and_kill(file: Path, ticks: int, looks: int) -> int:
    """Kills the process a while after so many commits, as long as some looks at what it says take.
    Returns the last one it said was durable."""
    with writer(file) as (process, heard):
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


def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "store.duckdb"
    chance = random.Random(seed)
    for kill in range(KILLS):
        acknowledged = run_and_kill(file, chance.randrange(20), chance.randrange(LOOKS_MAX))
        backend = DuckBackend(file, StoreSettings())
        try:
            assert backend.generation == kill + 1
            if TICKS.name not in backend.definitions():
                assert acknowledged == 0
                continue
            tick = last_tick(backend)
            assert tick in (acknowledged, acknowledged + 1)
            with backend.snapshot() as connection:
                rows = connection.execute(
                    "SELECT count(*), count(DISTINCT k), min(tick) FROM _headrace.ticks"
                ).fetchall()
            assert rows == [(KEYS, KEYS, tick) if tick else (0, 0, None)]
        finally:
            backend.close()


def test_a_commit_that_cannot_be_written_has_not_happened(
    tmp_path: Path, open_: Callable[..., DuckBackend]
) -> None:
    """The file may not grow beyond what it is, so writing the commit fails."""
    backend = open_()
    generation = backend.claim()
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(0, 10, 1))], [SUMS]))
    log = tmp_path / "store.duckdb.wal"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 100, hard))
        with pytest.raises(StoreError):
            backend.commit(Commit(generation, [TableDelta("sums", put=sums(10, 20_000, 1))]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    backend.close()
    again = open_()
    assert total(again) == (10, 10)
    again.commit(Commit(again.claim(), [TableDelta("sums", put=sums(10, 20, 1))]))
    assert total(again) == (20, 20)


# Memory


def test_memory_that_is_short_is_said_and_nothing_has_happened(
    open_: Callable[..., DuckBackend],
) -> None:
    backend = open_(StoreSettings(memory_mebibytes=16))
    generation = backend.claim()
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(0, 10, 1))], [SUMS]))
    long = pa.table({"k": pa.array([f"{i}" * 2_000 for i in range(40_000)]), "n": [1] * 40_000})
    with pytest.raises(MemoryShortError, match="needs more memory"):
        backend.commit(Commit(generation, [TableDelta("sums", put=long)]))
    assert total(backend) == (10, 10)
    with pytest.raises(MemoryShortError):
        backend.fetch([Fetch("sums", ("k",), long)])
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(10, 20, 1))]))
    assert total(backend) == (20, 20)


# Hashes and indexes


@pytest.fixture
def grown(
    open_: Callable[..., DuckBackend], monkeypatch: pytest.MonkeyPatch
) -> tuple[DuckBackend, int]:
    """A table of 500 rows counts as large here, one of 1,000 as very large."""
    monkeypatch.setattr(keyed_tables, "HASH_ROWS_MIN", 500)
    monkeypatch.setattr(keyed_tables, "INDEX_ROWS_MIN", 1_000)
    monkeypatch.setattr(keyed_tables, "KEEP_UP_COMMITS", 1)
    backend = open_()
    generation = backend.claim()
    backend.commit(Commit(generation, create=[SUMS]))
    return backend, generation


def columns(backend: DuckBackend) -> list[str]:
    with backend.snapshot() as connection:
        found = connection.execute("DESCRIBE _headrace.sums").fetchall()
        indexes = connection.execute("SELECT index_name FROM duckdb_indexes()").fetchall()
    return [row[0] for row in (*found, *indexes)]


def test_a_table_that_grows_gets_hashes_and_then_an_index(
    grown: tuple[DuckBackend, int], open_: Callable[..., DuckBackend]
) -> None:
    backend, generation = grown
    stages = []
    for first in range(0, 1_500, 100):
        wanted = sums(max(0, first - 50), first + 100)
        (found,) = backend.fetch([Fetch("sums", ("k",), wanted.select(["k"]))])
        assert found.num_rows == (50 if first else 0)
        put = TableDelta("sums", found.select([ROW]), sums(max(0, first - 50), first + 100, 1))
        backend.commit(Commit(generation, [put]))
        assert total(backend) == (first + 100, first + 100)
        if columns(backend) not in stages:
            stages.append(columns(backend))
        with pytest.raises(StoreError, match="two rows"):
            backend.commit(Commit(generation, [TableDelta("sums", put=sums(first, first + 1))]))
    assert stages == [["k", "n"], ["k", "n", "_hash_0"], ["k", "n", "_hash_0", "sums_hash_0"]]
    backend.close()
    again = open_()
    assert columns(again) == stages[-1]
    (found,) = again.fetch([Fetch("sums", ("k",), sums(700, 720).select(["k"]))])
    again.commit(Commit(generation, [TableDelta("sums", found.select([ROW]), sums(700, 720, 5))]))
    assert total(again) == (1_500, 1_580)


def test_hashes_of_another_duckdb_are_dropped(
    tmp_path: Path, grown: tuple[DuckBackend, int], open_: Callable[..., DuckBackend]
) -> None:
    backend, generation = grown
    backend.fetch([Fetch("sums", ("k",), sums(0, 1).select(["k"]))])
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(0, 2_000, 1))]))
    assert len(columns(backend)) == 4
    backend.close()
    with duckdb.connect(str(tmp_path / "store.duckdb")) as connection:
        connection.execute("UPDATE _backend.about SET hash_probe = hash_probe + 1")
    again = open_()
    assert columns(again) == ["k", "n"]
    assert total(again) == (2_000, 2_000)
    again.close()
    open_()


def test_a_reader_of_an_older_state_delays_a_table_that_grows(
    grown: tuple[DuckBackend, int],
) -> None:
    backend, generation = grown
    backend.fetch([Fetch("sums", ("k",), sums(0, 1).select(["k"]))])
    with backend.snapshot() as connection:
        backend.commit(Commit(generation, [TableDelta("sums", put=sums(0, 2_000, 1))]))
        assert connection.execute("SELECT count(*) FROM _headrace.sums").fetchall() == [(0,)]
    assert total(backend) == (2_000, 2_000)
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(2_000, 2_010, 1))]))
    assert len(columns(backend)) == 4
    assert total(backend) == (2_010, 2_010)


def test_handles_hold_while_readers_and_checkpoints_come_between(
    open_: Callable[..., DuckBackend], seed: int
) -> None:
    """Rows move in the file when a checkpoint finds room; the handles of later fetches follow."""
    chance = np.random.default_rng(seed)
    backend = open_()
    generation = backend.claim()
    backend.commit(Commit(generation, [TableDelta("sums", put=sums(0, 200_000))], [SUMS]))
    expected = np.zeros(200_000, dtype=np.int64)
    for tick in range(12):
        changed = np.sort(chance.choice(200_000, 40_000, replace=False))
        keys = pa.table({"k": pa.array([f"key {i}" for i in changed.tolist()])})
        (found,) = backend.fetch([Fetch("sums", ("k",), keys)])
        assert found.num_rows == 40_000
        with backend.snapshot():
            put = keys.append_column("n", pa.array(expected[changed] + 1))
            backend.commit(Commit(generation, [TableDelta("sums", found.select([ROW]), put)]))
        expected[changed] += 1
        if tick % 2:
            backend.checkpoint()
    with backend.snapshot() as connection:
        rows = dict(connection.execute("SELECT k, n FROM _headrace.sums").fetchall())
        highest = connection.execute("SELECT max(rowid) FROM _headrace.sums").fetchall()[0][0]
    assert rows == {f"key {i}": n for i, n in enumerate(expected.tolist())}
    assert highest < 600_000  # of 680,000 rows put, so some checkpoint moved rows
