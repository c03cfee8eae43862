"""Projects of many views: their definitions, their batch queries, and when an event is visible."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from bench.batch import Snapshot
from bench.load import Acknowledged
from bench.many import MANY_STREAMS, MANY_VIEWS, Many, needed_ticks, write_project
from bench.probe import seen_after
from bench.readings import Readings
from bench.row_view import PROJECT as ROW_VIEW
from bench.shapes import SHAPES, shaped
from bench.state_ratio import PROJECT as STATE
from bench.table_fold import NEWEST
from bench.table_fold import PROJECT as TABLE
from bench.taken_in import Project
from bench.taken_in import write_project as write_one

from headrace.compile import load_project

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("wanted", [MANY_STREAMS, MANY_VIEWS])
def test_the_projects_have_as_many_different_views_as_they_say(
    wanted: Many, tmp_path: Path
) -> None:
    write_project(tmp_path / "project", wanted)
    found = load_project(tmp_path / "project")
    assert len(found.streams) == wanted.streams
    assert len(found.views) == wanted.streams * wanted.views_per_stream
    views = wanted.views()
    assert {view.name for view in found.views} == set(views)
    assert len({view.query.definition for view in views.values()}) == len(views)
    assert {name.rpartition("_")[0] for name in views} == {shape.name for shape in SHAPES}


@pytest.mark.parametrize("project", [ROW_VIEW, STATE, TABLE], ids=lambda project: project.name)
def test_the_projects_of_one_stream_are_valid(project: Project, tmp_path: Path) -> None:
    write_one(tmp_path / "project", project)
    found = load_project(tmp_path / "project")
    assert {view.name for view in found.views} == set(project.queries or NEWEST)


def test_every_batch_query_has_rows() -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        batch = Readings(seed=1, rate=10_000, keys=1_000).columns(0)
        connection.register("readings", pa.Table.from_batches([batch.slice(0, 5_000)]))
        queries = [shaped("readings", number)[1] for number in range(2 * len(SHAPES))]
        for query in [
            *queries,
            *NEWEST.values(),
            *STATE.queries.values(),
            *ROW_VIEW.queries.values(),
        ]:
            text = query.batch or query.definition
            assert connection.execute(text).fetchone() is not None, text


def test_an_event_is_visible_when_all_views_of_its_stream_show_what_was_sent() -> None:
    rows = {
        "fast": Snapshot(Path(), (), ((3, 10), (5, 30))),
        "slow": Snapshot(Path(), (), ((4, 10), (9, 30))),
        "other": Snapshot(Path(), (), ((2, 100),)),
    }
    stream_of = {"fast": "a", "slow": "a", "other": "b"}
    acknowledged = [
        Acknowledged(0.0, 1.0, 5, "a"),  # five events beside the five sent before
        Acknowledged(0.0, 1.5, 6, "a"),
        Acknowledged(0.0, 9.0, 100, "b"),
    ]
    ticks = needed_ticks(acknowledged, {"a": 5, "b": 0}, stream_of, rows)
    assert ticks == [4, 9, 2]
    seen = [(3, 1.1), (6, 1.25), (9, 2.0)]
    assert seen_after(acknowledged, ticks, seen) == pytest.approx([0.25, 0.5, 0.0])
    with pytest.raises(ValueError, match="never seen"):
        seen_after(acknowledged[:1], [10], seen)
