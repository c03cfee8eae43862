"""The process that test_killed.py kills: commits ticks, and says after each that it is durable.

Each tick t brings every key 1 event, so a store at tick t holds t in every row. To the table it
brings an older change of every key after the newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from change_cases import Change, table_view
from store_backends import BACKENDS
from store_cases import SECOND, sales, tick_write, view_write, windowed_sales

from headrace.model.plan import BoundView
from headrace.model.settings import StoreSettings
from headrace.store.contract import Counts, copy_name

KEYS = 40


def views() -> tuple[BoundView, BoundView, BoundView]:
    plain, windows = sales("plain", distincts={"cards": "BIGINT"}), windowed_sales("windows")
    return plain, windows, table_view("newest")


def changes_of(tick: int, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """The older ones are counted, not applied: as many in every tick."""
    older = len(keys) // 2
    names = [*keys[older:], *keys[older:]]
    return [
        Change(0, tick * KEYS + i, key, str(tick), False, tick - (i >= older), tick, tick).partial
        for i, key in enumerate(names)
    ]


def write_until_killed(file: Path, backend: str, said: Connection) -> None:
    store = BACKENDS[backend](file, StoreSettings(changes_ticks_max=50))
    plain, windows, newest = views()
    for view in (plain, windows, newest):
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
                view_write(newest, changes_of(tick, keys), offsets={0: tick * KEYS}),
            )
        )
        said.send(tick)
        if tick % 17 == 0:
            store.checkpoint()


def swap_until_killed(file: Path, backend: str, said: Connection) -> None:
    """Each round brings every key 1 event, fills a copy of the view with all events so far and lets
    it take the view's place; then it says so."""
    store = BACKENDS[backend](file, StoreSettings())
    view, copy = sales("plain"), sales(copy_name("plain"))
    if "plain" in store.catalog():
        store.open_view(view)
    else:
        store.create_view(view, {0: 0})
    generation = store.claim()
    if store.copies():  # what a kill left goes on if it was filled, else it is dropped
        store.open_view(copy)
        if store.copies()["plain"].next_offsets == store.catalog()["plain"].next_offsets:
            store.swap(tick_write(store, generation), "plain")
        else:
            store.drop_view(copy.name)
    rounds = store.catalog()["plain"].next_offsets[0] // KEYS
    said.send(rounds)
    keys = [f"user {i}" for i in range(KEYS)]

    def come(one: BoundView, events: int) -> None:
        rows = [(key, events, Decimal(events), events, Decimal(1)) for key in keys]
        counts = Counts(read=events * KEYS, applied=events * KEYS)
        write = view_write(one, rows, offsets={0: rounds * KEYS}, counts=counts)
        store.commit(tick_write(store, generation, write))

    while True:
        rounds += 1
        come(view, 1)
        store.create_view(copy, {0: 0})
        come(copy, rounds)
        change = store.swap(tick_write(store, generation), "plain")
        assert change is not None
        assert change.after.num_rows == 0, "the copy is equal to its view"
        said.send(rounds)
        if rounds % 17 == 0:
            store.checkpoint()
