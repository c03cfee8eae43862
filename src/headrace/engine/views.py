"""The views of a running engine: how far each has come, and which move together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headrace.engine.ordered_ranges import ordered_ranges
from headrace.engine.watermarks import Watermark
from headrace.log.contract import LogReader, Range
from headrace.model.definitions import Lookup, Stream
from headrace.model.plan import BoundView
from headrace.store.contract import Counts, Store, ViewStatus, copied_view

__all__ = [
    "Halt",
    "Isolation",
    "LiveView",
    "ViewGroup",
    "choose_ranges",
    "group_views",
    "lookups_of",
    "moved",
    "reached_offsets",
    "up_to_replays",
]

Offsets = tuple[int, ...]


@dataclass
class Isolation:
    """A view that failed on data goes alone until `target`, with fewer and fewer rows per tick
    until a single event is left, which becomes its dead letter."""

    target: Offsets
    rows_max: int
    dead_in_a_row: int = 0
    recent_rows: int = 0
    recent_dead: int = 0


@dataclass(frozen=True)
class Halt:
    """The late event that a stream's views stopped before, and why it is late."""

    partition: int
    offset: int
    reason: str


@dataclass
class LiveView:
    """`bound` is None for a view that Spark does not accept; it is listed, but never runs.
    `replays` are events to be applied again once the view has come as far as it had when they were
    applied after being set aside, see Store.replays. `waits_for` is the table that it joins and
    that has not come as far as the view could go, "" without one."""

    name: str
    stream: Stream
    bound: BoundView | None
    next_offsets: Offsets
    status: ViewStatus
    watermark_microseconds: int | None = None
    totals: Counts = field(default_factory=Counts)
    isolation: Isolation | None = None
    halt: Halt | None = None
    held_back: Watermark = field(default_factory=lambda: Watermark(None))
    replays: tuple[tuple[int, int, int], ...] = ()
    lookups: frozenset[Lookup] = frozenset()
    waits_for: str = ""

    @property
    def is_copy(self) -> bool:
        return copied_view(self.name) is not None

    @property
    def tables(self) -> frozenset[str]:
        """Those that it looks up."""
        return frozenset(lookup.table for lookup in self.lookups)

    @property
    def is_open(self) -> bool:
        return self.bound is not None and self.status.state == "live"

    @property
    def is_running(self) -> bool:
        return self.is_open and self.halt is None

    @property
    def is_ordered(self) -> bool:
        """Whether it must take the events of all partitions in the one order of the log."""
        table = None if self.bound is None else self.bound.plan.table
        return table is not None and table.sequence is not None and self.stream.partitions > 1

    @property
    def running_plan(self) -> BoundView:
        assert self.bound is not None, "only running views are asked for their plan"
        return self.bound


def lookups_of(bound: BoundView) -> frozenset[Lookup]:
    return frozenset(join.lookup for join in bound.plan.joins)


@dataclass(frozen=True)
class ViewGroup:
    """Views of one stream at equal offsets: they share a plan. `limit` is how far it may go. With
    `is_ordered` it takes events in the one order of the log."""

    stream: Stream
    views: tuple[LiveView, ...]
    next_offsets: Offsets
    limit: Offsets
    rows_max: int
    is_leading: bool
    is_ordered: bool = False


def group_views(
    views: Sequence[LiveView],
    ends: Mapping[str, Offsets],
    rows_max: int,
    limits: Mapping[str, Offsets] = MappingProxyType({}),
) -> list[ViewGroup]:
    """Leading groups (one per stream, the furthest) come first and may go to the log's ends. The
    others stop where the leading group stands, so that they meet it and join its plan. A copy goes
    alone, in a plan of its own: it leaves the others' plans as they are, and never leads. `limits`
    are ends of single views, by name: of views at one place those that may go furthest lead."""
    groups: list[ViewGroup] = []
    behind: list[ViewGroup] = []
    by_stream: dict[str, list[LiveView]] = {}
    for view in views:
        if view.is_running:
            by_stream.setdefault(view.stream.name, []).append(view)
    for name, members in by_stream.items():
        together: dict[tuple[Offsets, Offsets], list[LiveView]] = {}
        is_ordered = any(view.is_ordered for view in members)  # who is behind is to meet them
        for view in members:
            if view.isolation is None and not view.is_copy:
                place = view.next_offsets, limits.get(view.name, ends[name])
                together.setdefault(place, []).append(view)
        # Two groups of which neither is the further one in all partitions meet all the same: each
        # takes what the other is ahead.
        foremost = max(together, default=((), ()))
        front = foremost[0]
        for (offsets, end), same in together.items():
            is_leading = (offsets, end) == foremost
            limit = end if is_leading else _least(front, end)
            group = ViewGroup(
                same[0].stream, tuple(same), offsets, limit, rows_max, is_leading, is_ordered
            )
            (groups if is_leading else behind).append(group)
        for view in members:
            end = limits.get(view.name, ends[name])
            limit, rows = _least(front, end) if front else end, rows_max
            if view.isolation is not None:
                limit, rows = view.isolation.target, min(rows_max, view.isolation.rows_max)
                limit = _least(limit, limits.get(view.name, limit))
            elif not view.is_copy:
                continue
            own, offsets = view.is_ordered, view.next_offsets
            alone = ViewGroup(view.stream, (view,), offsets, limit, rows, False, own)
            behind.append(alone)
    return groups + behind


def moved(offsets: Offsets, ranges: Sequence[Range]) -> Offsets:
    """Where a view stands after these ranges."""
    reached = list(offsets)
    for r in ranges:
        reached[r.partition] = r.end
    return tuple(reached)


def reached_offsets(store: Store, stream: Stream) -> Mapping[int, int]:
    """How far the furthest of the stream's views ever came."""
    progress = store.streams().get(stream.name)
    return progress.next_offsets if progress is not None else {}


def _least(first: Offsets, second: Offsets) -> Offsets:
    return tuple(min(a, b) for a, b in zip(first, second, strict=True))


def up_to_replays(group: ViewGroup) -> ViewGroup:
    """The group up to where one of its views applies events again: those after it are judged with
    them."""
    limit = list(group.limit)
    for partition, _, come in (replay for view in group.views for replay in view.replays):
        if come >= group.next_offsets[partition]:
            limit[partition] = min(limit[partition], come)
    return replace(group, limit=tuple(limit))


def choose_ranges(group: ViewGroup, log: LogReader) -> tuple[Range, ...]:
    """The next events of the group, at most `rows_max`, taken from all partitions alike so that
    none starves; a partition that is already at the limit gives none. A view that goes alone takes
    one partition after the other: beside an event that fails it could take the events of others
    only one by one."""
    room = group.rows_max
    stream, starts, limits = group.stream.name, group.next_offsets, group.limit
    if group.is_ordered:
        found = ordered_ranges(log, stream, starts, limits, group.rows_max)
        if found:  # else others have left the order behind, and it goes on as they did
            return found
    behind = [p for p, start in enumerate(starts) if limits[p] > start]
    if any(view.isolation is not None for view in group.views):
        behind = behind[:1]
    waiting = {p: log.rows_of(stream, p, starts[p], limits[p]) for p in behind}
    taken = dict.fromkeys(waiting, 0)
    holes = [p for p, rows in waiting.items() if not rows]  # compaction left nothing: passed over
    while waiting and room > 0:
        share = max(1, room // len(waiting))
        for partition in list(waiting):
            rows = min(share, waiting[partition], room)
            taken[partition] += rows
            waiting[partition] -= rows
            room -= rows
            if waiting[partition] == 0:
                del waiting[partition]
            if room == 0:
                break
    return tuple(
        log.cut(stream, p, starts[p], limits[p], rows)
        for p, rows in taken.items()
        if rows or p in holes
    )
