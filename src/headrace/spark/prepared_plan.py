"""A prepared plan: the passes over one stream for a set of views, built once and run every tick.

A tick runs it as it is, in one lane or in several side by side; each lane is a plan of its own on
one task, so it holds no exchange. Where a shuffle is asked for, the same SQL is planned afresh with
one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.log.contract import LogReader, Range
from headrace.model.definitions import Stream
from headrace.model.errors import EngineError
from headrace.model.plan import ViewPlan
from headrace.spark.aggregations import (
    Grouping,
    groupings_of,
    looked_up_among,
    needed_columns,
    with_beyond,
)
from headrace.spark.analysis import Analysis
from headrace.spark.binding import expression_types
from headrace.spark.data_failures import check_texts
from headrace.spark.decimal_sums import narrow
from headrace.spark.leaf import RANGES_PROPERTY, Source, encode_ranges
from headrace.spark.passes import build_pass, in_passes
from headrace.spark.shared_distincts import share_distincts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PartialTables", "PreparedPlan", "assert_reusable", "planned", "split_ranges"]

PartialTables = dict[tuple[str, str | None], pa.Table]
LANE_ROWS_MIN = 30_000  # below this a second lane costs more than it saves
_NOT_REUSABLE = ("Exchange", "Subquery", "InMemoryTableScan", "AdaptiveSparkPlan")


def split_ranges(
    log: LogReader, stream: str, ranges: Sequence[Range], parts: int
) -> list[list[Range]]:
    """The same events in `parts` lists of about equally many rows, cutting ranges where needed."""
    total = sum(r.rows for r in ranges)
    share = -(-total // parts) if total else 0
    lists: list[list[Range]] = [[]]
    room = share
    for piece in ranges:
        while piece.rows:
            if room == 0:
                lists.append([])
                room = share
            part = piece
            if piece.rows > room:
                part = log.cut(stream, piece.partition, piece.start, piece.end, room)
            lists[-1].append(part)
            room -= part.rows
            piece = replace(piece, start=part.end, rows=piece.rows - part.rows)
    return lists


class PreparedPlan:
    """Safe to run again and again; a run waits for the one before it."""

    def __init__(
        self,
        spark: SparkSession,
        analysis: Analysis,
        log: LogReader,
        stream: Stream,
        plans: Sequence[ViewPlan],
        lanes: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        found = [share_distincts(groupings_of(plan, stream), plan.where) for plan in plans]
        self._shared = {
            (s.grouping.view, s.grouping.distinct): s for _, some in found for s in some
        }
        own = [g for rest, some in found for g in (*rest, *(s.grouping for s in some))]
        narrowed = [narrow(g, stream) for g in own]
        self._log, self._stream = log, stream
        self._narrowed = {(n.grouping.view, n.grouping.distinct): n for n in narrowed}
        every = [n.grouping for n in narrowed]
        types = expression_types(analysis, stream, every)
        self._passes = [
            (_source(log, stream, plans, some), build_pass(some, types))
            for some in in_passes(every, types)
        ]
        self._frames: dict[tuple[int, int], DataFrame] = {}  # by lane and pass, made when first run
        self._lanes = lanes
        self._pool = pool
        self._spark = spark
        self._running = Lock()

    def warm_up(self) -> None:
        """Run the first lane once over nothing: Spark compiles the pass now instead of in the
        first tick. The others run the same code, when a tick is large enough for them."""
        with self._running:
            self._run_lanes([()], "")

    def run(
        self, ranges: Sequence[Range], shuffle: bool, annotations_file: str = ""
    ) -> PartialTables:
        """The partial tables of every view for these events, with their annotations. Raises what
        Spark raises."""
        with self._running:
            if shuffle:
                results = self._run_afresh(self._split(ranges, self._lanes * 2), annotations_file)
            else:
                rows = sum(r.rows for r in ranges)
                count = max(1, min(self._lanes, rows // LANE_ROWS_MIN))
                results = self._run_lanes(self._split(ranges, count), annotations_file)
        return self._merge(results)

    def _split(self, ranges: Sequence[Range], parts: int) -> list[list[Range]]:
        return split_ranges(self._log, self._stream.name, ranges, parts)

    def _run_lanes(
        self, lists: Sequence[Sequence[Range]], annotations_file: str
    ) -> list[PartialTables]:
        for lane in range(len(lists)):
            for number in range(len(self._passes)):
                if (lane, number) not in self._frames:
                    frame = self._frame(number, 1)
                    assert_reusable(frame)
                    self._frames[(lane, number)] = frame
        futures: list[Future[PartialTables]] = [
            self._pool.submit(self._run_lane, lane, number, mine, annotations_file)
            for lane, mine in enumerate(lists)
            for number in range(len(self._passes))
        ]
        wait(futures)  # a lane that fails must not leave another one running into the next tick
        return [future.result() for future in futures]

    def _run_lane(
        self, lane: int, number: int, ranges: Sequence[Range], annotations_file: str
    ) -> PartialTables:
        self._set_ranges([ranges], annotations_file)
        return self._passes[number][1].split(self._frames[(lane, number)].toArrow())

    def _run_afresh(
        self, tasks: Sequence[Sequence[Range]], annotations_file: str
    ) -> list[PartialTables]:
        self._set_ranges(tasks, annotations_file)
        return [
            made.split(self._frame(number, len(tasks)).toArrow())
            for number, (_, made) in enumerate(self._passes)
        ]

    def _set_ranges(self, tasks: Sequence[Sequence[Range]], annotations_file: str) -> None:
        encoded = encode_ranges(tasks, annotations_file)
        self._spark.sparkContext.setLocalProperty(RANGES_PROPERTY, encoded)

    def _frame(self, number: int, tasks: int) -> DataFrame:
        source, made = self._passes[number]
        leaf = self._spark.range(0, tasks, 1, tasks).mapInArrow(
            source.reader_function(), source.ddl()
        )
        # One partition that Spark knows of as one: then it plans no exchange.
        leaf = leaf.coalesce(1) if tasks == 1 else leaf
        return planned(self._spark, leaf, made.sql)

    def _merge(self, results: Sequence[PartialTables]) -> PartialTables:
        merged: dict[tuple[str, str | None], list[pa.Table]] = {}
        for tables in results:
            for key, table in tables.items():
                merged.setdefault(key, []).append(table)
        partials: PartialTables = {}
        for (view, distinct), tables_of in merged.items():
            whole = self._widened((view, distinct), pa.concat_tables(tables_of))
            shared = self._shared.get((view, distinct))
            found = {distinct: whole} if shared is None else shared.split(whole)
            partials |= {(view, name): table for name, table in found.items()}
        check_texts(partials.values())
        return partials

    def _widened(self, key: tuple[str, str | None], table: pa.Table) -> pa.Table:
        known = self._narrowed.get(key)
        return table if known is None else with_beyond(known.widen(table), self._stream)


def _source(
    log: LogReader, stream: Stream, plans: Sequence[ViewPlan], groupings: Sequence[Grouping]
) -> Source:
    """At least one column, so that a row is a row."""
    names = needed_columns(stream, groupings) or (stream.columns[0].name,)
    return Source(log.address, stream, names, looked_up_among(names, plans))


def planned(spark: SparkSession, leaf: DataFrame, sql: Callable[[str], str]) -> DataFrame:
    """The query over the leaf, which `sql` is told the name of. From any thread."""
    name = f"_headrace_{uuid.uuid4().hex}"
    leaf.createOrReplaceTempView(name)
    try:
        return spark.sql(sql(name))
    finally:
        spark.catalog.dropTempView(name)


def assert_reusable(frame: DataFrame) -> None:
    """A plan remembers what an exchange or a subquery gave the first time; with one inside, the
    second tick would show the first tick's data."""
    text = frame._jdf.queryExecution().executedPlan().toString()
    for word in _NOT_REUSABLE:
        if word in text:
            raise EngineError(
                f"a tick's plan holds a {word}, which cannot be run again",
                hint="rewrite the view without subqueries",
            )
