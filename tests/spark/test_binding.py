"""Spark accepts every view the compiler accepts, and names types that a store has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.compile import looked_up_columns, parse_sql, plan_view
from headrace.model.definitions import Project
from headrace.model.errors import DefinitionError
from headrace.spark.analysis import Analysis
from headrace.spark.binding import bind

GOLDEN = sorted((Path(__file__).parents[1] / "compile" / "golden").glob("*.sql"))


pytestmark = pytest.mark.usefixtures("joins_run")


def declared(spark: SparkSession, project: Project, folder: Path) -> Analysis:
    analysis = Analysis(spark, folder / "types.json")
    for stream in project.streams:
        views = [view for view in project.views if view.source == stream.name]
        names = [view.name for view in project.views]
        analysis.declare(stream, names, looked_up_columns(project, views))
    return analysis


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_every_golden_view_is_bound(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    project = parse_sql(file.read_text(encoding="utf-8"), file.name)
    analysis = declared(spark, project, tmp_path)
    for view in project.views:
        stream = project.stream(view.source)
        assert stream is not None
        bound = bind(analysis, stream, plan_view(project, view))
        assert [column.name for column, _ in bound.finals] == [out.name for out in view.outputs]


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ("users u ON u.id = length(s.id)", "id of users is looked up by length(id), which is INT"),
        (
            "users FOR SYSTEM_TIME AS OF date_add(s.at, 1) u ON u.id = s.n",
            "FOR SYSTEM_TIME AS OF date_add(at, 1), which is DATE, not TIMESTAMP",
        ),
        ("users u ON u.id = s.n AND s.n ELSE DEAD LETTER", "Spark does not accept it"),
    ],
)
def test_what_a_join_compares_has_the_types_of_the_table(
    spark: SparkSession, join: str, message: str, tmp_path: Path
) -> None:
    project = parse_sql(
        "CREATE STREAM s (id STRING, n BIGINT, at TIMESTAMP);"
        "CREATE TABLE users (id BIGINT, name STRING, PRIMARY KEY (id)) WITH HISTORY;"
        f"CREATE MATERIALIZED VIEW v AS SELECT u.name FROM s JOIN {join}"
    )
    analysis = declared(spark, project, tmp_path)
    view = project.view("v")
    stream = project.stream("s")
    assert view is not None
    assert stream is not None
    with pytest.raises(DefinitionError) as caught:
        bind(analysis, stream, plan_view(project, view))
    assert message in caught.value.message
