"""Which backend a project's store has: the only place above the backends that knows one."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.model.settings import StoreSettings
from headrace.model.tables import TableDefinition, TableDelta
from headrace.store.backend import Commit
from headrace.store.books import DECISIONS, REPLAYS, number_delta, rows_of
from headrace.store.contract import Store, StoreDeadLetter, TickWrite
from headrace.store.duckdb.keyed_tables import DuckBackend, OtherFormatError
from headrace.store.duckdb.old_format import OldStore, carry_over, check_reach
from headrace.store.ledger import dead_letters_delta, ledger_delta
from headrace.store.store import RESERVED, ViewStore

__all__ = ["Refill", "open_store"]


@dataclass(frozen=True)
class Refill:
    """What a store of an older format can be filled again with: the project's views, and by stream
    the oldest offset of each partition that the log still holds."""

    views: Collection[str]
    oldest: Mapping[str, Sequence[int]]


def open_store(file: Path, settings: StoreSettings, refill: Refill | None = None) -> Store:
    """Open or create the store; a store left by a crash is at its last durable tick. With `refill`
    a store of the format before this one is carried over first; without it, it is refused.

    Raises StoreLockedError naming the holder when the file is open elsewhere, also in this
    process.
    """
    if refill is not None and not file.exists():
        _carry_over(file, settings, refill)
    try:
        return ViewStore(DuckBackend(file, settings), settings)
    except OtherFormatError:
        if refill is None or not _carry_over(file, settings, refill):
            raise
    return ViewStore(DuckBackend(file, settings), settings)


def _carry_over(file: Path, settings: StoreSettings, refill: Refill) -> bool:
    def check(old: OldStore) -> None:
        check_reach(file, old, refill.oldest, refill.views)

    def write(old: OldStore, new: Path) -> None:
        backend = DuckBackend(new, settings)
        if old.generation:
            backend.claim(above=old.generation - 1)
        store = ViewStore(backend, settings)  # it makes the books
        try:
            backend.commit(Commit(backend.generation, _carried(old, refill.oldest)))
        finally:
            store.close()

    return carry_over(file, settings, check, write)


def _carried(old: OldStore, oldest: Mapping[str, Sequence[int]]) -> list[TableDelta]:
    """As rows of the books. Views are created anew, under the numbers that are set apart here for
    those with dead letters that the log cannot give again."""
    letters = [
        (tick, letter)
        for tick, letter in old.dead_letters
        if letter.offset < _first(oldest, letter.stream, letter.partition)
    ]
    views = {view: n for n, view in enumerate(sorted({x.view for _, x in letters}), start=1)}
    by_tick: dict[int, list[tuple[int, StoreDeadLetter]]] = {}
    for tick, letter in letters:
        by_tick.setdefault(tick, []).append((views[letter.view], letter))
    deltas = [delta for tick, some in by_tick.items() for delta in dead_letters_delta(tick, some)]
    numbers = {RESERVED + view: number for view, number in views.items()}
    deltas.append(number_delta(**numbers, next_view=len(views) + 1))
    if old.last_tick:
        now = time.time_ns() // 1000
        last = TickWrite(old.last_tick, old.generation, now, ())
        deltas.append(ledger_delta(last, now, ()))
    decisions = {
        **_columns([decision.decision for decision in old.decisions], DECISIONS),
        "decided_at": [decision.decided_at_microseconds for decision in old.decisions],
    }
    deltas.append(TableDelta(DECISIONS.name, put=rows_of(DECISIONS, decisions)))
    deltas.append(TableDelta(REPLAYS.name, put=rows_of(REPLAYS, _columns(old.replays, REPLAYS))))
    return deltas


def _first(oldest: Mapping[str, Sequence[int]], stream: str, partition: int) -> int:
    firsts = oldest.get(stream, ())
    return firsts[partition] if partition < len(firsts) else 0


def _columns(rows: Sequence[Any], book: TableDefinition) -> dict[str, list[Any]]:
    """The columns of the book that these have as attributes."""
    names = [column.name for column in book.columns]
    return {n: [getattr(row, n) for row in rows] for n in names if not rows or hasattr(rows[0], n)}
