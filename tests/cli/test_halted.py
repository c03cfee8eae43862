"""A stream that halts, from the first late event to the last decision: real processes."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.upright import Upright

pytestmark = pytest.mark.end_to_end
DEFINITIONS = """
CREATE STREAM readings (id INT NOT NULL, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 1 SECOND
LATE HALT;

CREATE MATERIALIZED VIEW counted AS
SELECT window.start AS since, count(*) AS readings
FROM readings GROUP BY window(at, '10 seconds');
"""
WHEN = "2026-01-01T00:00:{:02}Z"


class Project:
    def __init__(self, folder: Path, headrace: Callable[..., Any]) -> None:
        folder.mkdir()
        (folder / "headrace.toml").write_text("[gateway]\nport = 0\n")
        (folder / "readings.sql").write_text(DEFINITIONS)
        self.upright = Upright(folder)
        self.url = self.upright.wait_ready(lambda _: None)
        self._headrace = headrace

    def run(self, *words: str) -> Any:
        return self._headrace(*words, "--url", self.url)

    def send(self, *seconds: int) -> None:
        events = [{"id": n, "at": WHEN.format(second)} for n, second in enumerate(seconds)]
        request = urllib.request.Request(
            f"{self.url}/v1/events?name=readings",
            data=json.dumps(events).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["accepted"] == len(events)

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("status", "--json").document["views"]["counted"]
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.run("status").out
            time.sleep(0.1)

    def until_halted_at(self, offset: int) -> None:
        self.until(
            lambda: self.view()["state"] == "halted" and self.view()["next_offsets"]["0"] == offset
        )

    def first_window(self) -> tuple[int, int]:
        sql = "SELECT readings, revision FROM counted ORDER BY since LIMIT 1"
        (row,) = self.run("query", sql, "--json").document["rows"]
        return row["readings"], row["revision"]


@pytest.fixture
def project(tmp_path: Path, headrace: Callable[..., Any]) -> Iterator[Project]:
    made = Project(tmp_path / "sensors", headrace)
    yield made
    made.upright.stop()


def test_every_decision_is_taken_once_and_accounted_for(project: Project) -> None:
    project.send(1, 30, 2, 31, 3, 4, 32)  # 2, 3 and 4 are late for the first window
    project.until_halted_at(2)
    shown = project.run("status")
    assert shown.code == 1
    assert "readings is halted (counted): " in shown.out
    assert project.first_window() == (1, 0)

    for offset, decision in ((2, "--apply"), (4, "--side"), (5, "--drop")):
        project.until_halted_at(offset)
        said = project.run("resume", "readings", decision)
        assert said.code == 0, said.err
        assert f"event {offset} of partition 0 of readings" in said.out
    project.until(lambda: project.view()["state"] == "live")
    project.until(lambda: project.view()["pending_events"] == 0)
    assert project.run("resume", "readings", "--drop").code == 2
    assert project.first_window() == (2, 1)

    late = project.run("late", "list", "readings", "--json").document
    assert late["sided"] == [{"view": "counted", "aside": 1, "applied": 0}]
    taken = sorted((d["offset"], d["decision"]) for d in late["decisions"])
    assert taken == [(2, "apply"), (4, "side"), (5, "drop")]

    assert project.run("late", "apply", "readings", "--view", "counted").code == 0
    project.until(lambda: project.first_window() == (3, 2))
    late = project.run("late", "list", "readings", "--json").document
    assert late["sided"] == [{"view": "counted", "aside": 0, "applied": 1}]
    sums = project.run("ledger", "--json")
    assert sums.code == 0, sums.out
    view = sums.document["views"]["counted"]
    assert {fate: view[fate] for fate in ("read", "applied", "late", "sided", "dropped")} == {
        "read": 7, "applied": 6, "late": 2, "sided": 0, "dropped": 1,
    }  # fmt: skip
