"""Which benchmark measures which checkout, and what is made of the values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import bench.against as against
import pytest
from bench.run import Run
from bench.shop import CHECKOUT

pytestmark = pytest.mark.unit


def test_the_checkouts_take_turns_and_each_figure_is_taken_by_the_bench_that_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Path, list[str]]] = []
    values = iter([100.0, 50.0, 200.0, 80.0, 1.0, 2.0, 1.0, 4.0])

    def run(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        assert given["env"]["PYTHONPATH"] == str(given["cwd"] / "src")
        asked.append((given["cwd"], command[3:]))
        line = json.dumps({"figure": command[-1], "value": next(values), "unit": ""})
        return subprocess.CompletedProcess(command, 0, f"a table\n{line}\n")

    monkeypatch.setattr(against.subprocess, "run", run)
    parts = [(("cpu_10k",), True), (("drain",), False)]
    assert against.alternate(parts, tmp_path, 2, Run(events=100_000)) == 0
    over_http = [
        (CHECKOUT, ["--checkout", str(place), "--events", "100000", "--only", "cpu_10k"])
        for place in (tmp_path, CHECKOUT)
    ]
    inside = [(place, ["--only", "drain"]) for place in (tmp_path, CHECKOUT)]
    assert asked == [*over_http * 2, *inside * 2]
    said = capsys.readouterr().out
    figures = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert figures == [
        {"figure": "cpu_10k", "before": 150, "after": 65, "ratio": 0.45, "rounds": 2},
        {"figure": "drain", "before": 1, "after": 3, "ratio": 3, "rounds": 2},
    ]


def test_a_round_counts_where_both_checkouts_have_the_figure() -> None:
    shown = against.ratios([{"drain": 10.0}, {"drain": 1.0}], [{"drain": 20.0}, {}])
    (line,) = (line for line in shown.splitlines() if line.startswith("{"))
    assert json.loads(line)["ratio"] == 2
    assert json.loads(line)["rounds"] == 1


def test_what_is_asked_of_a_ratio_is_said_beside_it() -> None:
    before = [{"row_view": 100.0, "freshness_p50_10k": 72.0, "startup": 1.0}]
    after = [{"row_view": 150.0, "freshness_p50_10k": 60.0, "startup": 9.0}]
    _, freshness, row_view, startup, *_ = against.ratios(before, after).splitlines()
    assert freshness.split()[-3:] == ["≤", "0.8333", "met"]
    assert row_view.split()[-3:] == ["≥", "2", "MISSED"]
    assert startup.split()[-1] == "s"
