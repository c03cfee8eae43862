"""What the store says of a view to those who prove it, and what they ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from headrace.store.contract import ViewChange

__all__ = ["Repair", "Repaired", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """`start_offsets` are where the view began, `next_offsets` how far it had come. `dead` are the
    (partition, offset) of its dead letters, `decisions` (partition, offset, decision) of its
    stream's late events, `applied` (partition, offset, window start in microseconds, tick) of
    those that were set aside and applied to a window after all. `ticks` are the ticks that moved
    it and the offsets each reached, where asked for; those before `ticks_from` are not kept.
    `repairs` are the ticks that replaced rows after a proof, and how many."""

    view: str
    stream: str
    fingerprint: str
    tick: int
    created_tick: int
    rows: int
    columns: tuple[str, ...]
    keys: int
    start_offsets: dict[int, int]
    next_offsets: dict[int, int]
    watermark_microseconds: int | None
    dead: tuple[tuple[int, int], ...]
    decisions: tuple[tuple[int, int, str], ...] = ()
    applied: tuple[tuple[int, int, int, int], ...] = ()
    repairs: tuple[tuple[int, int], ...] = ()
    has_ids: bool = False
    ticks_from: int = 0
    ticks: tuple[tuple[int, dict[int, int]], ...] = ()


@dataclass(frozen=True)
class Repair:
    """Rows of a view's state as a proof found them at `tick`. The columns of `rows` are those of
    the state table in their order, then the id that the row had (NULL where there was none) and
    whether there is to be one. `values` are, for each distinct, the keys and the value."""

    view: str
    tick: int
    rows: pa.Table = field(repr=False)
    values: tuple[pa.Table, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Repaired:
    """`tick` is the one that replaced the rows, None when there was none left to replace; `moved`
    are rows that events had changed since the proof, which are left as they are."""

    tick: int | None
    rows: int
    moved: int
    changes: Sequence[ViewChange] = ()
