"""What the store says of a view to those who prove it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """`start_offsets` are where the view began, `next_offsets` how far it had come. `dead` are the
    (partition, offset) of its dead letters, `decisions` (partition, offset, decision) of its
    stream's late events, `applied` (partition, offset, window start in microseconds, tick, the
    offset the view had come to in that partition) of those that were set aside and applied to a
    window after all. `ticks` are the ticks that moved it and the offsets each reached, where asked
    for; those before `ticks_from` are not kept."""

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
    ticks_from: int = 0
    ticks: tuple[tuple[int, dict[int, int]], ...] = ()
