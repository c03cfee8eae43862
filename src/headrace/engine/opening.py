"""Opening the views of a project: which of them run, from where, and why the others do not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.compile import looked_up_columns, plan_view
from headrace.engine.versions import earliest_offsets, tables_text
from headrace.engine.views import LiveView, lookups_of
from headrace.engine.watermarks import read_watermark
from headrace.log.contract import LogReader
from headrace.model.definitions import Project, Stream, View
from headrace.model.errors import EngineError, HeadraceError, StoreError, ViewChangedError
from headrace.model.plan import BoundView
from headrace.spark.analysis import Analysis
from headrace.spark.binding import bind
from headrace.spark.windows import sets_aside
from headrace.store.contract import CatalogEntry, Store, ViewStatus, copy_name

__all__ = ["known_offsets", "open_view_anew", "open_views"]

log = logging.getLogger("headrace.engine")

REMOVED = ViewStatus("removed", "it is no longer defined")


def open_views(
    analysis: Analysis, project: Project, reader: LogReader, store: Store
) -> dict[str, LiveView]:
    """Every view of the project, running or refused with the reason; no view keeps another from
    being opened. Views that the store holds but the project no longer defines are kept, closed."""
    catalog = store.catalog()
    for stream in project.streams:
        views = [view for view in project.views if view.source == stream.name]
        names = [view.name for view in views]
        looked_up = looked_up_columns(project, views)
        analysis.declare(stream, [*names, *map(copy_name, names)], looked_up)
        store.open_stream(stream)
        if sets_aside(stream):
            store.declare_stream(stream)
    for name in catalog.keys() - {view.name for view in project.views}:
        if catalog[name].status != REMOVED:
            log.warning("view %s is no longer defined: it is closed, and its state is kept", name)
            store.set_status(name, REMOVED)
    opened = {
        view.name: _open_view(analysis, project, view, reader, store, catalog.get(view.name))
        for view in sorted(project.views, key=lambda view: bool(view.joins))  # tables first
    }
    return {view.name: opened[view.name] for view in project.views}


def open_view_anew(
    analysis: Analysis, project: Project, view: View, reader: LogReader, store: Store
) -> LiveView:
    """Of a view that the store has nothing of, because it could not be opened before."""
    return _open_view(analysis, project, view, reader, store, None)


def _with_replays(view: LiveView, store: Store) -> LiveView:
    return replace(view, replays=tuple(store.replays(view.stream.name, view.name)))


def _open_view(
    analysis: Analysis,
    project: Project,
    view: View,
    reader: LogReader,
    store: Store,
    entry: CatalogEntry | None,
) -> LiveView:
    stream = project.stream(view.source)
    assert stream is not None, "the compiler saw to it"
    bound: BoundView | None = None
    try:
        bound = bind(analysis, stream, plan_view(project, view))
        if entry is None:
            return _with_replays(_begin(bound, stream, reader, store), store)
        store.open_view(bound)
        status = entry.status if entry.status.state == "failed" else ViewStatus("live")
        store.set_status(view.name, status)
        _check_log(bound, known_offsets(entry.next_offsets, stream), reader, store)
    except ViewChangedError as error:
        status = ViewStatus("changed", f"{error.message}; {error.hint}")
        store.set_status(view.name, status)
    except HeadraceError as error:
        # Not kept: the next start may find it mended.
        log.error("view %s cannot run: %s", view.name, error.message)
        status = ViewStatus("failed", error.message)
    lookups = frozenset(join.lookup for join in view.joins)
    if entry is None:
        start = (0,) * stream.partitions
        return LiveView(view.name, stream, None, start, status, lookups=lookups)
    offsets = known_offsets(entry.next_offsets, stream)
    opened = LiveView(
        view.name,
        stream,
        bound if status.state == "live" else None,
        offsets,
        status,
        entry.watermark_microseconds,
        entry.totals,
        lookups=lookups,
    )
    if opened.is_running:
        opened.held_back = read_watermark(reader, stream, offsets)
    return _with_replays(opened, store)


def _begin(bound: BoundView, stream: Stream, reader: LogReader, store: Store) -> LiveView:
    lookups, oldest = lookups_of(bound), reader.oldest(stream.name)
    starts = earliest_offsets(reader, store, stream.name, lookups)
    store.create_view(bound, dict(enumerate(starts)))
    detail = ""
    if starts != oldest:
        detail = (
            f"begins at offsets {list(starts)}: the rows that earlier events find in "
            f"{tables_text(lookups)} are not known any more"
        )
    elif any(starts):
        detail = (
            f"begins at offsets {list(starts)}: earlier events are neither in the log nor archived"
        )
    if detail:
        log.warning("view %s %s", bound.name, detail)
    status = ViewStatus("live", detail)
    return LiveView(bound.name, stream, bound, starts, status, lookups=lookups)


def _check_log(bound: BoundView, offsets: Sequence[int], reader: LogReader, store: Store) -> None:
    """Retention never passes a view that is defined; it may have passed one that was not. Nor does
    a table let rows go that a view which joins it has yet to find."""
    stream, lookups = bound.plan.stream, lookups_of(bound)
    oldest = earliest = reader.oldest(stream)
    with suppress(StoreError):  # of a table that is closed: the view waits for it
        earliest = earliest_offsets(reader, store, stream, lookups)
    if any(mine < first for mine, first in zip(offsets, earliest, strict=True)):
        begins = f"the log begins at {list(oldest)}"
        if earliest != oldest:
            begins = f"what events find in {tables_text(lookups)} is known from {list(earliest)} on"
        raise EngineError(
            f"it stands at offsets {list(offsets)}, but {begins}: "
            f"headrace rebuild {bound.name} --from-oldest begins there",
            hint=f"headrace rebuild {bound.name} --from-oldest",
        )


def known_offsets(stored: Mapping[int, int], stream: Stream) -> tuple[int, ...]:
    """A partition that was added to the stream later begins at 0."""
    return tuple(stored.get(partition, 0) for partition in range(stream.partitions))
