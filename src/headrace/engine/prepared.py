"""A prepared plan: one pass over one stream for a set of views, built once and run every tick.

Small and middling ticks run it as it is, in one lane or in several side by side; each lane is a
plan of its own on one task, so it holds no exchange. Large ticks take the same SQL, planned afresh
with a shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.binding import expression_types
from headrace.engine.groupings import Grouping, groupings_of, is_hashable, needed_columns
from headrace.engine.passes import Pass, build_pass
from headrace.engine.source import RANGES_PROPERTY, Range, Source, encode_ranges
from headrace.engine.unscaled import narrow
from headrace.model.definitions import Stream
from headrace.model.errors import EngineError
from headrace.model.plan import ViewPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PartialTables", "PreparedPlan", "split_ranges"]

PartialTables = dict[tuple[str, str | None], pa.Table]
LANE_ROWS_MIN = 30_000  # below this a second lane costs more than it saves
_SOURCE_NAME = "_headrace_source"
_NOT_REUSABLE = ("Exchange", "Subquery", "InMemoryTableScan", "AdaptiveSparkPlan")


def split_ranges(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """The same events in `parts` lists of about equally many rows, cutting ranges where needed."""
    total = sum(r.rows for r in ranges)
    share = -(-total // parts) if total else 0
    lists: list[list[Range]] = [[]]
    room = share
    for piece in ranges:
        start = piece.start
        while start < piece.end:
            if room == 0:
                lists.append([])
                room = share
            end = min(piece.end, start + room)
            lists[-1].append(Range(piece.partition, start, end))
            room -= end - start
            start = end
    return lists


@dataclass(frozen=True)
class _Lane:
    frames: tuple[DataFrame, ...]


class PreparedPlan:
    """Safe to run again and again; not to be run by two threads at once."""

    def __init__(
        self,
        spark: SparkSession,
        log_directory: Path,
        stream: Stream,
        plans: Sequence[ViewPlan],
        lanes: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        narrowed = [narrow(g, stream) for plan in plans for g in groupings_of(plan)]
        self._narrowed = {(n.grouping.view, n.grouping.distinct): n for n in narrowed}
        groupings = [n.grouping for n in narrowed]
        types = expression_types(spark, stream, groupings)
        hashable = [g for g in groupings if is_hashable(g, types)]
        sorting = [g for g in groupings if not is_hashable(g, types)]
        self._spark = spark
        self._pool = pool
        self._stream = stream
        self._parts: list[tuple[Source, Pass]] = []
        for part in (hashable, sorting):
            if part:
                source = Source(log_directory, stream, _columns(stream, part))
                self._parts.append((source, build_pass(part, types)))
        self._lanes = tuple(self._make_lane() for _ in range(lanes))

    def warm_up(self) -> None:
        """Run every lane once over nothing: Spark compiles the pass and forks its workers now
        instead of in the first tick."""
        lanes = [
            self._pool.submit(self._run_part, lane, number, ())
            for lane in self._lanes
            for number in range(len(self._parts))
        ]
        for lane in lanes:
            lane.result()

    def run(self, ranges: Sequence[Range], shuffle: bool) -> PartialTables:
        """The partial tables of every view for these events. Raises what Spark raises."""
        rows = sum(r.rows for r in ranges)
        if shuffle:
            results = [self._run_afresh(number, ranges) for number in range(len(self._parts))]
            return self._merge(results)
        count = max(1, min(len(self._lanes), rows // LANE_ROWS_MIN))
        lists = split_ranges(ranges, count)
        futures: list[Future[PartialTables]] = [
            self._pool.submit(self._run_part, lane, number, mine)
            for lane, mine in zip(self._lanes, lists, strict=False)
            for number in range(len(self._parts))
        ]
        results = []
        failure: Exception | None = None
        for future in futures:
            try:
                results.append(future.result())
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return self._merge(results)

    def _run_part(self, lane: _Lane, number: int, ranges: Sequence[Range]) -> PartialTables:
        context = self._spark.sparkContext
        context.setLocalProperty(RANGES_PROPERTY, encode_ranges([ranges]))
        return self._parts[number][1].split(lane.frames[number].toArrow())

    def _run_afresh(self, number: int, ranges: Sequence[Range]) -> PartialTables:
        tasks = split_ranges(ranges, len(self._lanes) * 2)
        context = self._spark.sparkContext
        context.setLocalProperty(RANGES_PROPERTY, encode_ranges(tasks))
        return self._parts[number][1].split(self._frame(number, len(tasks)).toArrow())

    def _merge(self, results: Sequence[PartialTables]) -> PartialTables:
        merged: dict[tuple[str, str | None], list[pa.Table]] = {}
        for tables in results:
            for key, table in tables.items():
                merged.setdefault(key, []).append(table)
        return {
            key: self._narrowed[key].widen(pa.concat_tables(tables))
            for key, tables in merged.items()
        }

    def _make_lane(self) -> _Lane:
        frames = tuple(self._frame(number, 1) for number in range(len(self._parts)))
        for frame in frames:
            _assert_reusable(frame)
        return _Lane(frames)

    def _frame(self, number: int, tasks: int) -> DataFrame:
        source, made = self._parts[number]
        leaf = self._spark.range(0, tasks, 1, tasks).mapInArrow(
            source.reader_function(), source.ddl()
        )
        # One partition that Spark knows of as one: then it plans no exchange.
        leaf = leaf.coalesce(1) if tasks == 1 else leaf
        leaf.createOrReplaceTempView(_SOURCE_NAME)
        return self._spark.sql(made.sql(_SOURCE_NAME))


def _columns(stream: Stream, groupings: Sequence[Grouping]) -> tuple[str, ...]:
    """At least one column, so that a row is a row."""
    return needed_columns(stream, groupings) or (stream.columns[0].name,)


def _assert_reusable(frame: DataFrame) -> None:
    """A plan remembers what an exchange or a subquery gave the first time; with one inside, the
    second tick would show the first tick's data."""
    text = frame._jdf.queryExecution().executedPlan().toString()
    for word in _NOT_REUSABLE:
        if word in text:
            raise EngineError(
                f"a tick's plan holds a {word}, which cannot be run again",
                hint="rewrite the view without subqueries",
            )
