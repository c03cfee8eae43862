"""What a handler needs to answer, and the freshness of what it reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.model.errors import QueryError, RequestError
from headrace.model.settings import Settings
from headrace.serve.changes.subscriptions import Hub
from headrace.serve.operate.completeness import Completeness
from headrace.serve.operate.control import Control
from headrace.serve.pool import Pool
from headrace.serve.query.covers import Coverage
from headrace.serve.query.progress import Progress, ProgressReader
from headrace.store.contract import LATE_SUFFIX, Store

__all__ = ["Services", "own_spelling"]

READS_AT_ONCE_MAX = 4
READS_WAITING_MAX = 256

_WORD = re.compile(r"\w+")


def own_spelling(names: Iterable[str], name: str) -> str | None:
    """The one of these names that is this one, case aside."""
    wanted = name.lower()
    return next((own for own in names if own.lower() == wanted), None)


class Services:
    """`reads` and `queries` are apart, so that long ad-hoc queries never hold up view reads."""

    def __init__(
        self,
        store: Store,
        control: Control,
        settings: Settings,
        hub: Hub,
        coverage: Coverage,
        completeness: Completeness,
    ) -> None:
        self.store = store
        self.control = control
        self.completeness = completeness
        self._progress = ProgressReader(control, completeness)
        self.settings = settings
        self.hub = hub
        self.coverage = coverage
        self.reads = Pool("read", READS_AT_ONCE_MAX, READS_WAITING_MAX)
        at_once = settings.store.queries_at_once_max
        self.queries = Pool("sql", at_once, waiting_max=4 * at_once)

    def close(self) -> None:
        self.reads.close()
        self.queries.close()

    def view_name(self, name: str) -> str:
        """The view's own spelling of its name. Blocking. Raises RequestError: 404 for a view that
        does not exist, 409 for one whose definition changed under its state, 503 while it is
        being rebuilt."""
        stored = self.store.catalog()
        catalog = {view: e for view, e in stored.items() if e.status.state != "removed"}
        own = own_spelling(catalog, name)
        if own is None and self._is_defined(name):
            raise self._absent(name)
        if own is None:
            self.require_started()
            raise RequestError(
                404,
                "view-unknown",
                f"there is no view {name!r}",
                hint=f"views are {', '.join(sorted(catalog))}" if catalog else "define one first",
            )
        try:
            with self.reading(own):
                self.store.describe(own)
        except QueryError as error:
            if error.status == 503:
                raise
            raise _closed(own, catalog[own].status.detail or error.message) from error
        return own

    def require_started(self) -> None:
        """Raises RequestError 503 while the engine has yet to open its views: none of them is
        unknown before that."""
        engine = self.control.status()
        if engine.state == "starting":
            raise RequestError(
                503,
                "engine-starting",
                f"the engine is starting and has not opened its views yet: {engine.detail}",
                hint="try again shortly",
                retry_after_seconds=2,
            )

    def _is_defined(self, name: str) -> bool:
        return own_spelling(self.control.status().views, name) is not None

    def _absent(self, name: str) -> RequestError | QueryError:
        """About a view that is defined, but that the store does not have: it is being rebuilt, or
        could not be opened."""
        reports = self.control.status().views
        own = own_spelling(reports, name) or name
        status = self.control.standstill(own)
        return _rebuilding(own) if status is None else _closed(own, status.detail)

    @contextmanager
    def reading(self, view: str) -> Iterator[None]:
        """A view that the store has no longer, or not yet: QueryError (503)."""
        try:
            yield
        except QueryError as error:
            if error.status == 404:
                raise _rebuilding(view) from error
            raise

    @contextmanager
    def querying(self) -> Iterator[None]:
        """The same for views that SQL names."""
        try:
            yield
        except QueryError as error:
            if error.view is not None and self._is_defined(error.view):
                self.view_name(error.view)  # raises for what stands in its way, if that lasts
                raise self._absent(error.view) from error
            if error.view is not None:
                self.require_started()
            raise

    def views_read_by(self, sql: str) -> list[str]:
        """Exactly the views that a query reads; who reads STREAM_late reads what all views of the
        stream have come to. Blocking. Raises QueryError for what is no query, and for a view that
        is not there just now."""
        with self.querying():
            names = {name.lower() for name in self.store.views_in(sql)}
        catalog = self.store.catalog()
        for name in names - {view.lower() for view in catalog}:
            if self._is_defined(name):  # taken away since, to be filled again
                raise self._absent(name)
        return [
            view
            for view, entry in catalog.items()
            if view.lower() in names
            or (f"{entry.stream.lower()}{LATE_SUFFIX}" in names and not entry.status.is_closed)
        ]

    def progress(self, views: Iterable[str]) -> Progress:
        return self._progress.of(views)

    def views_named_in(self, sql: str) -> list[str]:
        """Every view whose name is a word of the text: all that it reads, at times more. Who reads
        STREAM_late reads what the views of the stream have come to."""
        words = {word.lower() for word in _WORD.findall(sql)}
        return [
            view
            for view, entry in self.store.catalog().items()
            if not words.isdisjoint((view.lower(), f"{entry.stream.lower()}{LATE_SUFFIX}"))
        ]


def _rebuilding(view: str) -> QueryError:
    return QueryError(f"view {view} is being rebuilt", hint="try again shortly", status=503)


def _closed(view: str, detail: str) -> RequestError:
    return RequestError(
        409,
        "view-closed",
        f"view {view} cannot be read: {detail}",
        hint=f"headrace rebuild {view} fills it again from the log",
    )
