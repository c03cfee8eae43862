"""Copies of views that are built beside them.

A copy is a view like any other to the ticks: it begins where its view began, catches up, and takes
in what was applied late where its view did. Once it has come as far as its view it takes its place
in one tick. The store holds it under a name of its own, so it goes on after a crash; one that was
not wholly begun, whose definition is another one by then, or that was held, is dropped instead.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

from headrace.compile import plan_view
from headrace.engine.opening import known_offsets
from headrace.engine.versions import earliest_offsets, missing_of
from headrace.engine.views import LiveView, Offsets, lookups_of
from headrace.log.contract import LogReader
from headrace.model.definitions import Lookup, Project, Stream, View
from headrace.model.errors import EngineError, HeadraceError
from headrace.model.plan import BoundView
from headrace.spark.analysis import Analysis
from headrace.spark.binding import bind
from headrace.store.contract import CatalogEntry, Store, ViewStatus, copy_name

__all__ = ["Asked", "Copy", "RebuildAsked", "Rebuilds"]

log = logging.getLogger("headrace.engine")

LIVE, HELD = ViewStatus("live"), ViewStatus("held", "it waits until somebody says so")


@dataclass(frozen=True)
class RebuildAsked:
    """See Control.rebuild."""

    hold: bool = False
    from_oldest: bool = False


Asked = RebuildAsked | Literal["swap", "cancel"]


@dataclass
class Copy:
    """`target` is how far it must come where its view stands still."""

    live: LiveView
    starts: Offsets
    target: Offsets
    is_held: bool

    def is_ready(self, view: LiveView) -> bool:
        """It has come as far as its view, with all that was applied late."""
        wanted = view.next_offsets if view.is_open else self.target
        mine = self.live.next_offsets
        has_come = all(its >= least for its, least in zip(mine, wanted, strict=True))
        return has_come and self.live.isolation is None and not self.live.replays


class Rebuilds:
    """Used by the tick's thread alone. `copies` are by the names of their views."""

    def __init__(
        self, analysis: Analysis, project: Project, reader: LogReader, store: Store
    ) -> None:
        self._analysis = analysis
        self._project = project
        self._reader = reader
        self._store = store
        self.copies: dict[str, Copy] = {}

    def reopen(self) -> None:
        """Go on with the copies that the store holds, or drop them."""
        for name, entry in self._store.copies().items():
            view = self._project.view(name)
            try:
                if view is None or entry.status != LIVE or name not in self._store.catalog():
                    raise EngineError("it was held or not wholly begun, or its view is gone")
                stream, bound = self._bound(view, copy_name(name))
                self._store.open_view(bound)
                offsets = known_offsets(entry.next_offsets, stream)
                missing = missing_of(
                    self._reader, self._store, stream.name, lookups_of(bound), offsets
                )
                if missing:
                    raise EngineError(missing)
            except HeadraceError as error:
                log.warning("the copy of view %s is dropped: %s", name, error.message)
                self._store.drop_view(copy_name(name))
            else:
                log.info("the copy of view %s goes on", name)
                self._add(name, stream, bound, entry, is_held=False)

    def begin(self, view: View, asked: RebuildAsked) -> None:
        """Raises HeadraceError; then there is no copy."""
        stream, bound = self._bound(view, copy_name(view.name))
        starts = self._starts(view.name, stream, lookups_of(bound), asked)
        self._store.create_view(bound, dict(enumerate(starts)))
        self._store.set_status(bound.name, HELD if asked.hold else LIVE)
        entry = self._store.copies()[view.name]
        self._add(view.name, stream, bound, entry, is_held=asked.hold)

    def _starts(
        self, view: str, stream: Stream, lookups: frozenset[Lookup], asked: RebuildAsked
    ) -> Offsets:
        """Where the copy is to begin: where its view does. Raises EngineError where the log, or a
        table that it joins, no longer reaches that."""
        entry = self._store.catalog()[view]
        oldest = earliest_offsets(self._reader, self._store, stream.name, lookups)
        if entry.stream != stream.name:
            return oldest
        starts = known_offsets(entry.start_offsets, stream)
        missing = missing_of(self._reader, self._store, stream.name, lookups, starts)
        if missing and not asked.from_oldest:
            raise EngineError(
                missing, hint=f"headrace rebuild {view} --from-oldest begins where it can"
            )
        return tuple(map(max, starts, oldest))

    def _bound(self, view: View, name: str) -> tuple[Stream, BoundView]:
        stream = self._project.stream(view.source)
        assert stream is not None, "the compiler saw to it"
        plan = plan_view(self._project, replace(view, name=name))
        return stream, bind(self._analysis, stream, plan)

    def _add(
        self, view: str, stream: Stream, bound: BoundView, entry: CatalogEntry, *, is_held: bool
    ) -> None:
        live = LiveView(
            bound.name,
            stream,
            bound,
            known_offsets(entry.next_offsets, stream),
            LIVE,
            entry.watermark_microseconds,
            entry.totals,
            replays=tuple(self._store.replays(stream.name, bound.name)),
            lookups=lookups_of(bound),
        )
        starts = known_offsets(entry.start_offsets, stream)
        target = tuple(self._reader.ends(stream.name))
        self.copies[view] = Copy(live, starts, target, is_held)

    def applied_late(self, view: LiveView) -> None:
        """Events that were set aside have been applied to the view: the copy is to take them in at
        the same place."""
        if (copy := self.copies.get(view.name)) is not None:
            live = copy.live
            live.replays = tuple(self._store.replays(live.stream.name, live.name))

    def release(self, view: str) -> None:
        if (copy := self.copies.get(view)) is not None:
            self._store.set_status(copy.live.name, LIVE)
            copy.is_held = False

    def drop(self, view: str) -> None:
        self.copies.pop(view, None)
        if view in self._store.copies():
            self._store.drop_view(copy_name(view))

    def bound_as_view(self, view: str) -> BoundView:
        """The plan by which the copy goes on once it has taken its view's place."""
        definition = self._project.view(view)
        assert definition is not None, "the copy is of a view that is defined"
        return self._bound(definition, view)[1]
