"""Tests of a project's own definitions: rows in, time by hand, and what its views must say.

    from headrace.testing import Project

    def test_a_late_payment_still_counts():
        with Project("path/to/project") as project:
            project.send("transactions", [{"user_id": "a", "amount": "10.00", …}])
            project.expect("income").row(user_id="a", income="10.00")

Events go through the gateway's own code into a real log, and the engine's own ticks through Spark
into views; only the store is in memory, and nothing happens but when a test asks for it. One Spark
session serves all projects of a process. docs/tutorial/test-your-views.md shows how to use it.
"""

from headrace.testing.expectation import Expectation
from headrace.testing.ingest import Answer
from headrace.testing.project import Project

__all__ = ["Answer", "Expectation", "Project"]
