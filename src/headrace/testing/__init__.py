"""Tests of a project's own definitions: rows in, time by hand, and what its views must say.

    from headrace.testing import Project

    def test_a_late_payment_still_counts():
        with Project("path/to/project") as project:
            project.send("transactions", [{"user_id": "a", "amount": "10.00", …}])
            project.expect("income").row(user_id="a", income="10.00")

Events go through the gateway's own code into a real log, and the engine's own ticks through Spark
into views; only the store is in memory, and nothing happens but when a test asks for it. One Spark
session serves all projects of a process. docs/tutorial/test-your-views.md shows how to use it.

Names are imported when first used: Spark's workers import a module of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.expectation import Expectation
    from headrace.testing.ingest import Answer
    from headrace.testing.project import Project

__all__ = ["Answer", "Expectation", "Project"]

_HOMES = {
    "Answer": "headrace.testing.ingest",
    "Expectation": "headrace.testing.expectation",
    "Project": "headrace.testing.project",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    return getattr(import_module(home), name)
