"""The prepared plan of small ticks: one for all streams and views, one job and one task a tick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.log.contract import LogAddress, Range
from headrace.model.definitions import Stream
from headrace.model.errors import EngineError
from headrace.model.plan import BoundView
from headrace.model.types import type_from_arrow
from headrace.spark.aggregations import groupings_of
from headrace.spark.analysis import Analysis
from headrace.spark.binding import expression_types
from headrace.spark.data_failures import check_texts
from headrace.spark.event_tables import EventTables
from headrace.spark.prepared_plan import assert_reusable, planned
from headrace.spark.projection import StreamViews, build_projection
from headrace.spark.streams_leaf import INPUTS_PROPERTY, StreamInput, encode_inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Part", "PreparedProjection", "stream_views"]


@dataclass(frozen=True)
class Part:
    """What a tick wants of one stream: these events, with their annotations, for these views."""

    stream: str
    views: tuple[str, ...]
    ranges: tuple[Range, ...]
    annotations_file: str


def stream_views(analysis: Analysis, stream: Stream, views: Sequence[BoundView]) -> StreamViews:
    groupings = [g for view in views for g in groupings_of(view.plan, stream)]
    return StreamViews(stream, tuple(views), expression_types(analysis, stream, groupings))


class PreparedProjection:
    """Made on one thread, then run by one at a time."""

    def __init__(
        self, spark: SparkSession, log: LogAddress, streams: Sequence[StreamViews]
    ) -> None:
        """Plans the query and runs it over nothing, so that Spark compiles it. Raises what Spark
        raises."""
        self._spark = spark
        self._projection = build_projection(log, streams)
        self._numbers = {one.stream.name: n for n, one in enumerate(streams)}
        self._views = [{view.name: n for n, view in enumerate(one.views)} for one in streams]
        self._covered = {
            (view.name, view.plan.fingerprint) for one in streams for view in one.views
        }
        self._frame = self._planned()
        self.run([])

    def covers(self, views: Iterable[BoundView]) -> bool:
        return all((view.name, view.plan.fingerprint) in self._covered for view in views)

    def run(self, parts: Sequence[Part]) -> dict[str, EventTables]:
        """By stream, each at most once among the parts. Raises what Spark raises."""
        inputs = [
            StreamInput(
                number := self._numbers[part.stream],
                tuple(self._views[number][name] for name in part.views),
                part.annotations_file,
                part.ranges,
            )
            for part in parts
        ]
        self._spark.sparkContext.setLocalProperty(INPUTS_PROPERTY, encode_inputs(inputs))
        result = self._frame.toArrow()
        check_texts([result])
        found = self._projection.split(result, {one.number: one.views for one in inputs})
        return {part.stream: found[self._numbers[part.stream]] for part in parts}

    def _planned(self) -> DataFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        source = self._projection.source
        leaf = self._spark.range(0, 1, 1, 1).mapInArrow(source.reader_function(), source.ddl())
        frame = planned(self._spark, leaf.coalesce(1), self._projection.sql)
        assert_reusable(frame)
        found = to_arrow_schema(frame.schema, timezone="UTC")
        for name, of_type in self._projection.types.items():
            if type_from_arrow(found.field(name).type).name != of_type:
                raise EngineError(
                    f"column {name} of the plan of small ticks is {found.field(name).type}, and "
                    f"its views were told {of_type}",
                    hint="report this as a fault of Headrace, with the definitions",
                )
        return frame
