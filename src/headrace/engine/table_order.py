"""Tables before those who join them.

A tick of a project whose views join tables takes one cut of the log. The tables are brought to it
first, in a tick of their own; a view that joins them then takes events up to the last position of
which all its tables have taken every change, and none beyond: so each event finds the rows of its
own position, wherever ticks begin and end. A table that stands still holds back the views that join
it, and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.engine.reach import first_position
from headrace.engine.views import LiveView, Offsets
from headrace.log.contract import NO_POSITION, LogReader
from headrace.model.definitions import Project

__all__ = ["Bounds", "Cut", "TableOrder"]

_NOTHING = NO_POSITION - 1  # a table that is closed is complete at no position


@dataclass(frozen=True)
class Bounds:
    """Which views a tick moves, and how far: by stream, and some of them by name."""

    views: Sequence[LiveView]
    ends: Callable[[str], Offsets]
    limits: Mapping[str, Offsets] = field(default_factory=dict)


class Cut:
    """The log as it was at one position, for the streams of the tables that are joined and of the
    views that join them; of other streams as far as it goes."""

    def __init__(
        self,
        log: LogReader,
        streams: frozenset[str],
        tables: frozenset[str],
        views: Sequence[LiveView],
    ) -> None:
        sources = {view.stream.name for view in views if view.name in tables}
        self._log = log
        self._streams = streams
        self._tables = tables
        self._views = views
        # With the tables the other views of their streams go, but for those that join.
        self._first = [v for v in views if v.stream.name in sources and not v.tables]
        self._position = log.position()
        self._ends: dict[str, Offsets] = {}

    def tables_first(self) -> Bounds:
        return Bounds(self._first, self._end)

    def then_others(self) -> Bounds:
        """Of the tables as they stand now."""
        first = {view.name for view in self._first}
        others = [view for view in self._views if view.name not in first]
        return Bounds(others, self._end, self._limits())

    def all(self) -> Bounds:
        return Bounds(self._views, self._end, self._limits())

    def _end(self, stream: str) -> Offsets:
        if stream not in self._ends:
            is_cut = stream in self._streams
            found = self._log.cut_at(stream, self._position) if is_cut else self._log.ends(stream)
            self._ends[stream] = found
        return self._ends[stream]

    def _limits(self) -> dict[str, Offsets]:
        """Of the views that join tables. Notes which table each of them waits for."""
        complete = {t.name: self._complete(t) for t in self._first if t.name in self._tables}
        limits: dict[str, Offsets] = {}
        for view in self._views:
            if not view.tables:
                continue
            slowest = min(view.tables, key=lambda name: (complete[name], name))
            limits[view.name] = self._limit(view, complete[slowest])
            is_held = limits[view.name] != self._end(view.stream.name)
            view.waits_for = slowest if is_held else ""
        return limits

    def _complete(self, table: LiveView) -> int:
        """The last position of which the table has taken all changes; none while it is closed."""
        if not table.is_open:
            return _NOTHING
        name, reached = table.stream.name, self._position
        for partition, end in enumerate(self._end(name)):
            start = table.next_offsets[partition]
            following = first_position(self._log, name, partition, start, end)
            if following is not None:
                reached = min(reached, following - 1)
        return reached

    def _limit(self, view: LiveView, position: int) -> Offsets:
        """Of what only the archive has it takes nothing before its tables have taken everything:
        the log cuts no archive."""
        name, mine = view.stream.name, view.next_offsets
        if position == _NOTHING:
            return mine
        if position >= self._position:
            return tuple(map(max, mine, self._end(name)))
        found = zip(mine, self._log.cut_at(name, position), self._log.starts(name), strict=True)
        return tuple(max(at, cut) if at >= start else at for at, cut, start in found)


class TableOrder:
    """Which tables and streams of a project a cut is for."""

    def __init__(self, project: Project, log: LogReader) -> None:
        joining = [view for view in project.views if view.joins]
        self._log = log
        self._tables = frozenset(join.lookup.table for view in joining for join in view.joins)
        tables = [view for view in project.views if view.name in self._tables]
        self._streams = frozenset(view.source for view in (*joining, *tables))

    def cut(self, views: Sequence[LiveView]) -> Cut | None:
        """None where no view joins a table: then all go together."""
        if not self._tables:
            return None
        return Cut(self._log, self._streams, self._tables, views)
