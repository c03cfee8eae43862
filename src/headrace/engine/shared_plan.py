"""The plan that serves small ticks, and its replacement when views have begun that it lacks.

A view that is behind, halted, failed or gone is left out of a tick's input, and the plan stays. A
view that begins runs alone, in a plan of its own, until the next shared plan has been prepared
beside the one that serves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.views import LiveView, ViewGroup
from headrace.log.contract import LogAddress, Range
from headrace.model.definitions import Stream
from headrace.model.errors import EngineError
from headrace.model.plan import BoundView
from headrace.spark.analysis import Analysis
from headrace.spark.event_tables import EventTables
from headrace.spark.prepared_projection import Part, PreparedProjection, stream_views
from headrace.spark.projection import is_projectable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ROWS_TIMES_VIEWS_MAX", "Planning", "SharedPlan"]

logger = logging.getLogger("headrace.engine")

# Beyond them grouping in Spark costs less than merging single events; see docs/ARCHITECTURE.md.
STREAM_ROWS_MAX = 10_000
ROWS_TIMES_VIEWS_MAX = 200_000  # of all streams of a job


class SharedPlan:
    """Used by the tick's thread alone."""

    def __init__(
        self,
        spark: SparkSession,
        analysis: Analysis,
        log: LogAddress,
        planning: ThreadPoolExecutor,
    ) -> None:
        self._spark = spark
        self._analysis = analysis
        self._log = log
        self._planning = planning
        self._plan: PreparedProjection | None = None
        self._next: Future[PreparedProjection] | None = None
        self._wanted: frozenset[tuple[str, str]] = frozenset()

    def prepare(self, views: Sequence[LiveView]) -> None:
        """The first plan. Waits until it can be run."""
        self.follow(views)
        if self._next is not None:
            self._take(self._next)

    def follow(self, views: Sequence[LiveView]) -> None:
        """Begins a new plan if these views ask for one, and takes one that is ready."""
        if self._next is not None and self._next.done():
            self._take(self._next)
        by_stream: dict[Stream, list[BoundView]] = {}
        for view in views:
            if view.is_open and not view.is_copy and is_projectable(view.running_plan):
                by_stream.setdefault(view.stream, []).append(view.running_plan)
        wanted = frozenset((v.name, v.plan.fingerprint) for vs in by_stream.values() for v in vs)
        if wanted <= self._wanted or self._next is not None:
            return
        self._wanted = wanted
        streams = [stream_views(self._analysis, s, found) for s, found in by_stream.items()]
        self._next = self._planning.submit(PreparedProjection, self._spark, self._log, streams)

    def _take(self, made: Future[PreparedProjection]) -> None:
        from pyspark.errors import PySparkException

        self._next = None
        try:
            self._plan = made.result()
        except (EngineError, PySparkException) as error:
            logger.error("small ticks have no plan for all views together: %s", error)

    def packed(
        self, work: Sequence[tuple[ViewGroup, tuple[Range, ...]]]
    ) -> list[list[tuple[ViewGroup, tuple[Range, ...]]]]:
        """Those of the groups that are small and in the plan, in as few jobs as may be."""
        jobs: list[list[tuple[ViewGroup, tuple[Range, ...]]]] = []
        room = 0
        for group, ranges in work:
            rows = sum(r.rows for r in ranges)
            size = rows * len(group.views)
            if rows > STREAM_ROWS_MAX or size > ROWS_TIMES_VIEWS_MAX or not self._covers(group):
                continue
            if size > room:
                jobs.append([])
                room = ROWS_TIMES_VIEWS_MAX
            jobs[-1].append((group, ranges))
            room -= size
        return jobs

    def _covers(self, group: ViewGroup) -> bool:
        bound = [view.running_plan for view in group.views]
        return self._plan is not None and self._plan.covers(bound)

    def run(self, parts: Sequence[Part]) -> dict[str, EventTables]:
        """By stream. Raises what Spark raises."""
        assert self._plan is not None, "only what `packed` found is run"
        return self._plan.run(parts)


class Planning:
    """What Spark was asked and what is planned. It may serve one engine after the other in a
    process, if they have the same definitions and logs of one address."""

    def __init__(self, spark: SparkSession, log: LogAddress, types_file: Path) -> None:
        self.analysis = Analysis(spark, types_file)
        self.pool = ThreadPoolExecutor(1, "headrace-plan")
        self.shared = SharedPlan(spark, self.analysis, log, self.pool)

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
