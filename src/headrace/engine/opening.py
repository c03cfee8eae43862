"""Opening the views of a project: which of them run, from where, and why the others do not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.compile import plan_view
from headrace.engine.binding import bind, declare_stream
from headrace.engine.views import LiveView
from headrace.log.contract import LogReader
from headrace.model.definitions import Project, Stream, View
from headrace.model.errors import HeadraceError, ViewChangedError
from headrace.model.plan import BoundView
from headrace.store.contract import CatalogEntry, Store, ViewStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["open_views", "restart_view"]

log = logging.getLogger("headrace.engine")


def open_views(
    spark: SparkSession, project: Project, reader: LogReader, store: Store
) -> dict[str, LiveView]:
    """Every view of the project, running or refused with the reason; no view keeps another from
    being opened. Views that the store holds but the project no longer defines stay readable."""
    catalog = store.catalog()
    for stream in project.streams:
        declare_stream(spark, stream)
    for name in catalog.keys() - {view.name for view in project.views}:
        log.warning("the store holds view %s, which is no longer defined: it stays as it is", name)
    return {
        view.name: _open_view(spark, project, view, reader, store, catalog.get(view.name))
        for view in project.views
    }


def restart_view(
    spark: SparkSession, project: Project, view: View, reader: LogReader, store: Store
) -> LiveView:
    """Throw the view's state away and begin again from the start of the log, with the definition
    as it is now."""
    if view.name in store.catalog():
        store.drop_view(view.name)
    return _open_view(spark, project, view, reader, store, None)


def _open_view(
    spark: SparkSession,
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
        bound = bind(spark, stream, plan_view(project, view))
        if entry is None:
            return _begin(bound, stream, reader, store)
        store.open_view(bound)
        status = entry.status if entry.status.state == "failed" else ViewStatus("live")
    except ViewChangedError as error:
        status = ViewStatus("changed", f"{error.message}; {error.hint}")
    except HeadraceError as error:
        log.error("view %s cannot run: %s", view.name, error.message)
        status = ViewStatus("failed", error.message)
    if entry is None:
        return LiveView(view.name, stream, None, (0,) * stream.partitions, status)
    if status != entry.status:
        store.set_status(view.name, status)
    return LiveView(
        view.name,
        stream,
        bound if status.state == "live" else None,
        _offsets(entry.next_offsets, stream),
        status,
        entry.watermark_microseconds,
        entry.totals,
    )


def _begin(bound: BoundView, stream: Stream, reader: LogReader, store: Store) -> LiveView:
    starts = reader.oldest(stream.name)
    store.create_view(bound, dict(enumerate(starts)))
    detail = ""
    if any(starts):
        detail = (
            f"begins at offsets {list(starts)}: earlier events are neither in the log nor archived"
        )
        log.warning("view %s %s", bound.name, detail)
    return LiveView(bound.name, stream, bound, starts, ViewStatus("live", detail))


def _offsets(stored: Mapping[int, int], stream: Stream) -> tuple[int, ...]:
    """A partition that was added to the stream later begins at 0."""
    return tuple(stored.get(partition, 0) for partition in range(stream.partitions))
