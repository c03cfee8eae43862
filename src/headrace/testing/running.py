"""One project, opened for a test: a real log in a directory of its own, a store in memory, and the
engine, which ticks only when it is told to."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.engine.control import EngineControl
from headrace.engine.loop import Engine, NoSubscribers
from headrace.log.opening import open_writer
from headrace.model.definitions import Project
from headrace.model.errors import EngineError
from headrace.model.settings import Settings
from headrace.serve.operate.control import ViewReport
from headrace.store.contract import ViewChange
from headrace.store.memory.backend import MemoryBackend
from headrace.store.store import ViewStore
from headrace.testing.kept_plans import give_back, take_plan

__all__ = ["Running"]

TICKS_MAX = 100_000  # that one look at a view waits for
PAGE_ROWS = 10_000
CHANGES_TICKS = 1_000  # that one step reads


class Running:
    """For one thread. What it has opened is closed, and its directory gone, with `close`."""

    def __init__(self, definitions: Project, settings: Settings) -> None:
        """Raises EngineError for a view that Spark does not accept."""
        self._opened = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="headrace-test-"))
            self.settings = replace(settings, directory=Path(directory))
            self.settings.run_directory.mkdir(parents=True)
            self.writer = open_writer(self.settings, definitions.streams)
            opened.callback(self.writer.close)
            plan = take_plan(definitions)
            opened.push(lambda kind, *_: plan.close() if kind else give_back(plan))
            plan.log.lead_to(self.settings.directory)
            self.reader = plan.log.open(definitions.streams)
            backend = MemoryBackend(self.settings.store)
            self.store = ViewStore(backend, self.settings.store)
            opened.callback(self.store.close)
            self.control = EngineControl(self.reader, self.store)
            self._engine = Engine(
                self.settings,
                definitions,
                plan.spark,
                self.reader,
                self.store,
                self.control,
                NoSubscribers(),
                plan.planning,
            )
            opened.callback(self._engine.close)
            self._engine.open()
            self._require_all_views()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def _require_all_views(self) -> None:
        reports = self.reports()
        refused = [f"view {v}: {r.detail}" for v, r in reports.items() if r.state == "failed"]
        if refused:
            raise EngineError(
                f"{len(refused)} of {len(reports)} views cannot run: {'; '.join(refused)}",
                hint="correct the definitions",
            )

    def reports(self) -> Mapping[str, ViewReport]:
        return self.control.status().views

    def settle(self) -> None:
        """Tick until every view that runs has taken in everything. Raises EngineError when Spark or
        the store fail again and again."""
        for _ in range(TICKS_MAX):
            self.control.wake.set()  # a tick that failed is done again at once
            if self._engine.step() is None and not self._is_unfinished():
                return
        raise EngineError(
            f"after {TICKS_MAX} ticks there are still events to take in",
            hint="send fewer events in one test, or look at the views in between",
        )

    def _is_unfinished(self) -> bool:
        return self._engine.is_isolating or self._engine.is_failing

    def do_what_was_asked(self) -> None:
        """Of `control`: rebuilds, decisions about late events, late events to be applied."""
        self._engine.rebuild_what_was_asked()
        self._engine.decide_what_was_asked()
        self.settle()

    def rows(self, view: str) -> pa.Table:
        """All of a view."""
        pages = list(self._pages(view))
        return pa.concat_tables(pages)

    def _pages(self, view: str) -> Iterator[pa.Table]:
        limit = min(PAGE_ROWS, self.settings.store.query_rows_max)
        page = self.store.read_view(view, {}, [], limit, None)
        yield page.table
        while page.next_cursor is not None:
            page = self.store.read_view(view, {}, [], limit, page.next_cursor)
            yield page.table

    def query(self, sql: str) -> pa.Table:
        result = self.store.query(sql)
        return pa.Table.from_batches(list(result.batches), result.schema)

    def changes(self, view: str, after_tick: int) -> list[ViewChange]:
        found: list[ViewChange] = []
        while some := self.store.changes(view, after_tick, CHANGES_TICKS):
            found += some
            after_tick = some[-1].tick
        return found
