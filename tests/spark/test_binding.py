"""Spark accepts every view the compiler accepts, and names types that a store has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.compile import parse_sql, plan_view
from headrace.spark.analysis import Analysis
from headrace.spark.binding import bind
from headrace.spark.leaf import POSITION_COLUMNS

_NO_POSITION = pytest.mark.xfail(
    "_position" not in POSITION_COLUMNS, reason="events have no _position yet", strict=True
)
GOLDEN = [
    pytest.param(file, marks=_NO_POSITION if file.stem == "tables" else ())
    for file in sorted((Path(__file__).parents[1] / "compile" / "golden").glob("*.sql"))
]


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_every_golden_view_is_bound(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    analysis = Analysis(spark, tmp_path / "types.json")
    project = parse_sql(file.read_text(encoding="utf-8"), file.name)
    names = [view.name for view in project.views]
    for stream in project.streams:
        analysis.declare(stream, names)
    for view in project.views:
        stream = project.stream(view.source)
        assert stream is not None
        bound = bind(analysis, stream, plan_view(project, view))
        assert [column.name for column, _ in bound.finals] == [out.name for out in view.outputs]
