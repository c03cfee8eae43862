"""The process that tests/store/duckdb/test_keyed_tables.py kills: each commit moves all rows on.

After commit t every row of the table holds t; after each it says that t is durable.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
from table_model import definition

from headrace.model.settings import StoreSettings
from headrace.model.tables import ROW, Fetch, TableDelta
from headrace.store.backend import Commit
from headrace.store.duckdb.keyed_tables import DuckBackend

__all__ = ["KEYS", "TICKS", "commit_until_killed", "last_tick"]

KEYS = 40
TICKS = definition("ticks", {"k": "BIGINT", "tick": "BIGINT"}, ("k",))


def last_tick(backend: DuckBackend) -> int:
    with backend.snapshot() as connection:
        found = connection.execute("SELECT max(tick) FROM _headrace.ticks").fetchall()
    return int(found[0][0] or 0)


def commit_until_killed(file: Path, said: Connection) -> None:
    backend = DuckBackend(file, StoreSettings())
    generation = backend.claim()
    if TICKS.name not in backend.definitions():
        backend.commit(Commit(generation, create=[TICKS]))
    keys = pa.table({"k": pa.array(range(KEYS), pa.int64())})
    tick = last_tick(backend)
    said.send(tick)
    while True:
        tick += 1
        (found,) = backend.fetch([Fetch("ticks", ("k",), keys)])
        put = keys.append_column("tick", pa.array([tick] * KEYS, pa.int64()))
        backend.commit(Commit(generation, [TableDelta("ticks", found.select([ROW]), put)]))
        said.send(tick)
        if tick % 17 == 0:
            backend.checkpoint()
