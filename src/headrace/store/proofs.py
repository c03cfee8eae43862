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
    stream's late events, `applied` (partition, offset, window start in microseconds, tick, the
    offset the view had come to in that partition) of those that were set aside and applied to a
    window after all. `ticks` are the ticks that moved it and the offsets each reached, where asked
    for; those before `ticks_from` are not kept. `repairs` are the ticks that replaced rows after a
    proof, and how many. `last_id` is the highest id of the rows, public or not: later writes have
    higher ones."""

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
    applied: tuple[tuple[int, int, int, int, int], ...] = ()
    repairs: tuple[tuple[int, int], ...] = ()
    has_ids: bool = False
    last_id: int = -1
    ticks_from: int = 0
    ticks: tuple[tuple[int, dict[int, int]], ...] = ()


@dataclass(frozen=True)
class Repair:
    """Rows of a view's state as a proof found them at `tick`. The columns of `rows` are those of
    the state table in their order, then the id that the row had (NULL where there was none) and
    whether there is to be one. `values` are, for each distinct, the keys and the value.

    Of windows that look around (sessions, event groups, sliding ones) whole stretches are replaced.
    `stretches` has the keys, and from when to when in microseconds, NULL where all of it is meant;
    `rows` are then just the columns of the state table, `events` those of the events that the
    store keeps of event groups, and `last_id` is that of the snapshot."""

    view: str
    tick: int
    rows: pa.Table = field(repr=False)
    values: tuple[pa.Table, ...] = field(default=(), repr=False)
    stretches: pa.Table | None = field(default=None, repr=False)
    events: pa.Table | None = field(default=None, repr=False)
    last_id: int = -1


@dataclass(frozen=True)
class Repaired:
    """`tick` is the one that replaced the rows, None when there was none left to replace; `moved`
    are rows, or stretches, that events had changed since the proof, which are left as they are."""

    tick: int | None
    rows: int
    moved: int
    changes: Sequence[ViewChange] = ()
