"""The example and a new project are tested as their owners would do it, and the example is what the
tutorial says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.demo.shop import write_project

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "payments"
TUTORIAL = REPOSITORY / "docs" / "tutorial" / "test-your-views.md"
FAILING = """

def test_that_fails(project):
    project.send("payments", payment(1, "ada", "1.00", "00:01"))
    project.expect("income").row(user_id="ada", total="2.00")
"""


@pytest.mark.unit
def test_the_example_is_what_the_tutorial_says() -> None:
    blocks = re.findall(
        r"^```(sql|python)\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL
    )
    sql = (EXAMPLE / "definitions" / "payments.sql").read_text()
    tests = (EXAMPLE / "tests" / "test_payments.py").read_text()
    assert len(blocks) == 8
    for language, block in blocks:
        assert block in (sql if language == "sql" else tests)


def test_their_tests_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    """Which starts Spark, and leaves neither files nor processes behind."""
    folder, left = tmp_path / "payments", tmp_path / "left"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    write_project(tmp_path / "shop", "shop")
    left.mkdir()
    with (folder / "tests" / "test_payments.py").open("a") as file:
        file.write(FAILING)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "payments", "shop"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(left)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed, 10 passed" in ran.stdout
    assert "total: expected 2.00, is 1.00" in ran.stdout
    assert "src/headrace/testing" not in ran.stdout  # only the test's own lines are shown
    assert list(left.iterdir()) == []
