"""Projects with the same definitions share what was planned, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.engine import shared_plan
from headrace.model.errors import EngineError
from headrace.spark import session
from headrace.spark.prepared_projection import PreparedProjection
from headrace.testing import Project, kept_plans

Make = Callable[..., Project]

ORDERS = """
CREATE STREAM orders (n INT) INTO 2 PARTITIONS;
CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n FROM orders;
"""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[PreparedProjection]:
    """What is planned while a test runs, by projects that find nothing kept."""
    made: list[PreparedProjection] = []

    class Noted(PreparedProjection):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(shared_plan, "PreparedProjection", Noted)
    monkeypatch.setattr(kept_plans, "_kept", [])
    return made


def test_a_plan_serves_one_project_after_the_other(
    spark: object, planned: list[PreparedProjection]
) -> None:
    """Each reads its own log alone, though Spark's workers know them by one address."""
    for n in range(1, 5):
        with Project(sql=ORDERS) as project:
            project.expect("total").rows([{"n": None}])
            project.send("orders", {"n": n})
            project.expect("total").rows([{"n": n}])
    assert len(planned) == 1
    kept_plans.close_all()


def test_projects_that_run_at_once_have_a_plan_each(
    make: Make, planned: list[PreparedProjection]
) -> None:
    first, second = make(sql=ORDERS), make(sql=ORDERS)
    for n, project in enumerate((first, second, first), 1):
        project.send("orders", {"n": n})
    first.expect("total").rows([{"n": 4}])
    second.expect("total").rows([{"n": 2}])
    make(sql=ORDERS.replace("sum(n)", "max(n)")).expect("total").rows([{"n": None}])
    assert len(planned) == 3


def test_so_many_plans_are_kept_and_no_more(
    spark: object, planned: list[PreparedProjection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_plans, "KEPT_MAX", 1)
    for function in ("sum", "max", "sum"):
        Project(sql=ORDERS.replace("sum", function)).close()
    assert len(planned) == 3
    Project(sql=ORDERS).close()
    assert len(planned) == 3
    kept_plans.close_all()


def test_a_session_of_others_is_refused(spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are others."""
    monkeypatch.setattr(session, "_DAEMON_MODULE", "another.daemon")
    with pytest.raises(EngineError, match="a Spark session that Headrace did not start"):
        Project(sql=ORDERS)
