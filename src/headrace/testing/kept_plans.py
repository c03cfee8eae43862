"""What was planned for one project serves the next one with the same definitions."""

from __future__ import annotations

import atexit
from collections.abc import Hashable
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.engine.shared_plan import Planning
from headrace.model.definitions import Project
from headrace.spark.session import shared_spark
from headrace.testing.current_log import CurrentLog

__all__ = ["KeptPlan", "close_all", "give_back", "take_plan"]

KEPT_MAX = 16  # of projects that are closed; the one that has waited longest goes


class KeptPlan:
    """The plans of a project's views, and the address of the log that they read."""

    def __init__(self, definitions: Project) -> None:
        self.spark = shared_spark()
        self.definitions = _known_by(definitions)
        self._directory = TemporaryDirectory(prefix="headrace-plan-")
        folder = Path(self._directory.name)
        self.log = CurrentLog(folder / "project")
        self.planning = Planning(self.spark, self.log, folder / "types.json")

    def close(self) -> None:
        self.planning.close()
        self._directory.cleanup()


_kept: list[KeptPlan] = []


def take_plan(definitions: Project) -> KeptPlan:
    """One that nobody uses, or a new one. Raises EngineError as `shared_spark` does."""
    spark, wanted = shared_spark(), _known_by(definitions)
    for plan in _kept:
        if plan.spark is spark and plan.definitions == wanted:
            _kept.remove(plan)
            return plan
    return KeptPlan(definitions)


def give_back(plan: KeptPlan) -> None:
    _kept.append(plan)
    if len(_kept) > KEPT_MAX:
        _kept.pop(0).close()


def _known_by(definitions: Project) -> Hashable:
    return definitions.streams, definitions.views


@atexit.register
def close_all() -> None:
    while _kept:
        _kept.pop().close()
