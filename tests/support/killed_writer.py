"""The process that test_killed.py kills: commits ticks, and says after each that it is durable.

Each tick t brings every key 1 event, so a store at tick t holds t in every row.
"""

from __future__ import annotations

from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path

from store_backends import BACKENDS
from store_cases import SECOND, sales, tick_write, view_write, windowed_sales

from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings

KEYS = 40


def views() -> tuple[BoundView, BoundView]:
    return sales("plain", distincts={"cards": "BIGINT"}), windowed_sales("windows")


def write_until_killed(file: Path, backend: str, said: Connection) -> None:
    store = BACKENDS[backend](file, StoreSettings(changes_ticks_max=50))
    plain, windows = views()
    for view in (plain, windows):
        if view.name in store.catalog():
            store.open_view(view)
        else:
            store.create_view(view, {0: 0})
    generation = store.claim()
    said.send(store.last_tick())
    one = Decimal("1.00")
    keys = [f"user {i}" for i in range(KEYS)]
    while True:
        tick = store.last_tick() + 1
        store.commit(
            tick_write(
                store,
                generation,
                view_write(
                    plain,
                    [(key, 1, one, 1, one) for key in keys],
                    values={"cards": [(key, tick) for key in keys]},
                    offsets={0: tick * KEYS},
                ),
                view_write(
                    windows,
                    [(key, tick // 10 * 3 * SECOND, 0, 1, one, 1, one) for key in keys],
                    offsets={0: tick * KEYS},
                ),
            )
        )
        said.send(tick)
        if tick % 17 == 0:
            store.checkpoint()
