"""No event vanishes: the sums of every tick, checked before anything of it is stored.

Each sum is counted in two ways by different code: how far a view moves by the log, what became of
the events by Spark and by the look-up of duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model.errors import ConservationError
from headrace.store.contract import CatalogEntry, StreamWrite, TickWrite, ViewWrite

__all__ = ["check_sums"]


def check_sums(write: TickWrite, views: Mapping[str, CatalogEntry]) -> None:
    """Raises ConservationError naming the stream whose events do not add up."""
    for stream in write.streams:
        _check_stream(stream)
    for view in write.views:
        if view.view in views:
            _check_view(view, views[view.view])


def _check_stream(write: StreamWrite) -> None:
    counts = write.counts
    if not counts.is_conserved:
        raise ConservationError(
            write.stream,
            f"stream {write.stream}: {counts.advanced} offsets were advanced, but "
            f"{counts.accepted} events accepted, {counts.duplicate} duplicate, {counts.dead} dead",
        )


def _check_view(write: ViewWrite, entry: CatalogEntry) -> None:
    counts, stream = write.counts, entry.stream
    if not counts.is_conserved:
        raise ConservationError(
            stream,
            f"view {write.view}: {counts.read} events were read, but {counts.applied} applied, "
            f"{counts.filtered} filtered, {counts.sided} set aside, {counts.dropped} dropped, "
            f"{counts.dead} dead",
        )
    before = entry.next_offsets
    if write.moved is None:
        moved = sum(end - before.get(p, 0) for p, end in write.next_offsets.items())
    else:
        moved = write.moved.events
        counted_from = write.moved.previous_offsets
        if any(counted_from.get(p, 0) != before.get(p, 0) for p in write.next_offsets):
            raise ConservationError(
                stream,
                f"view {write.view}: it stands at offsets {dict(before)}, but its events were "
                f"counted from {dict(counted_from)} on",
            )
    if moved != counts.read + counts.duplicate:
        raise ConservationError(
            stream,
            f"view {write.view}: it moved by {moved} events, but {counts.read} were read "
            f"and {counts.duplicate} left out as duplicates",
        )
