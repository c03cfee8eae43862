"""Figures: their names, how a failed part shows, and how two commits are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bench.__main__ as front
import pytest
from bench.oracle import Difference
from bench.processes import MemorySample, MemoryWatch, Running
from bench.results import FIGURES, Figure, append, compare, lines, table
from bench.run import Run

pytestmark = pytest.mark.unit
ASKED = (
    "ingest_1",
    "ingest_100",
    "ingest_1000",
    "ingest_10000",
    "end_to_end",
    "tick_p99",
    "freshness_p50_1k",
    "freshness_p99_1k",
    "freshness_p50_10k",
    "freshness_p99_10k",
    "cpu_10k",
    "freshness_p99_50k",
    "many_streams_p99",
    "many_views_p99",
    "state_ratio_600",
    "state_ratio_10k",
    "row_view",
    "table_fold",
    "table_rebuild_10m",
    "enrich_1m",
    "asof",
    "nexmark_bids",
    "nexmark_memory",
    "nexmark_alone",
    "drain",
    "drain_ratio",
    "drain_ratio_tuned",
    "reconcile_5m",
    "dedupe_ratio",
    "sliding",
    "sessions",
    "idle_core",
    "startup",
    "memory",
)


def test_the_figures_have_their_names_and_each_comes_from_one_part() -> None:
    assert tuple(FIGURES) == ASKED
    assert sorted(name for part in front.PARTS for name in part.figures) == sorted(ASKED)


def test_a_line_is_one_json_object_with_figure_value_and_unit() -> None:
    (line,) = lines([Figure("tick_p99", 48.123456, {"p50_ms": 30})]).splitlines()
    assert json.loads(line) == {"figure": "tick_p99", "value": 48.12, "unit": "ms"}


def test_the_table_says_what_was_missed() -> None:
    shown = table([Figure("tick_p99", 148.0), Figure("ingest_1", 15_000)]).splitlines()
    assert "MISSED" in shown[1]
    assert "met" in shown[2]


def test_choosing_takes_figures_by_how_they_begin() -> None:
    assert [part.figures for part in front._chosen(["tick", "memory"])] == [
        ("end_to_end", "memory"),
        ("tick_p99",),
    ]
    assert [part.figures for part in front._chosen(["ingest_1"])] == [("ingest_1",)]
    assert len(front._chosen(["ingest"])) == 4
    with pytest.raises(SystemExit, match="speed"):
        front._chosen(["speed"])


def test_a_wrong_answer_fails_the_figure_and_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def right(work: Path, run: Run) -> Iterator[Figure]:
        yield Figure("tick_p99", 50.0)

    def wrong(work: Path, run: Run) -> Iterator[Figure]:
        yield Figure("startup", 5.0)
        raise Difference("income: expected 1, found 2")

    parts = (front.Part(("tick_p99",), right), front.Part(("startup", "idle_core"), wrong))
    monkeypatch.setattr(front, "PARTS", parts)
    monkeypatch.setattr(front, "CHECKOUT", tmp_path)
    monkeypatch.setattr(front, "append", lambda figures, run: tmp_path / "kept.jsonl")
    assert front._measure([], Run(quick=True, checkout=tmp_path)) == 1
    said = capsys.readouterr()
    assert "FAILED: idle_core" in said.out
    assert "expected 1, found 2" in said.err
    figures = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    assert [figure["figure"] for figure in figures] == ["tick_p99", "startup"]
    assert list((tmp_path / "build").iterdir()) == []


def _run(directory: Path, commit: str, value: float, **changes: object) -> None:
    figure = {"figure": "tick_p99", "value": value, "unit": "ms", "details": {}}
    record = {"commit": commit, "quick": False, "changed": False, "figures": {"tick_p99": figure}}
    with (directory / "runs.jsonl").open("a") as handle:
        handle.write(json.dumps({**record, **changes}) + "\n")


def test_two_commits_are_compared_by_the_medians_of_whole_runs(tmp_path: Path) -> None:
    for value in (90.0, 100.0, 500.0):
        _run(tmp_path, "aaa1", value)
    _run(tmp_path, "bbb2", 50.0)
    _run(tmp_path, "bbb2", 9_000.0, quick=True)
    _run(tmp_path, "bbb2", 9_000.0, changed=True)
    _, row = compare("aaa", "bbb2", tmp_path).splitlines()
    assert row.split() == ["tick_p99", "100", "50", "-50.0%", "better"]
    with pytest.raises(LookupError, match="ccc"):
        compare("aaa", "ccc", tmp_path)


def test_a_run_is_kept_with_its_commit_and_machine(tmp_path: Path) -> None:
    file = append(
        [Figure("drain", 1_000_000.0, {"rounds": 3})], Run(quick=True), directory=tmp_path
    )
    (line,) = file.read_text().splitlines()
    run = json.loads(line)
    assert len(run["commit"]) == 40
    assert run["quick"] is True
    assert run["machine"]["cores"] >= 1
    assert run["figures"]["drain"]["details"] == {"rounds": 3}


def test_growth_is_the_slope_of_the_second_half_without_mapped_files() -> None:
    watch = MemoryWatch.__new__(MemoryWatch)
    mebibyte = 1024 * 1024
    warm = [MemorySample(float(n), (100 + 10 * n) * mebibyte, 0, 0) for n in range(30)]
    flat = [MemorySample(float(n), (400 + n) * mebibyte, n * mebibyte, 0) for n in range(30, 60)]
    watch.samples = warm + flat
    assert watch.mebibytes_per_minute() == pytest.approx(0.0)
    assert watch.mebibytes_max == 459
    grows = [MemorySample(float(n), (400 + n) * mebibyte, 0, 0) for n in range(60)]
    watch.samples = grows
    assert watch.mebibytes_per_minute() == pytest.approx(60.0)


def test_memory_counts_every_process_of_the_tree(tmp_path: Path) -> None:
    import subprocess
    import sys

    child = (
        "import sys; held = b'x' * (64 * 1024 * 1024); print('up', flush=True); sys.stdin.read()"
    )
    parent = (
        "import subprocess, sys; held = b'y' * (96 * 1024 * 1024);"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE);"
        "sys.stdin.read(); child.communicate()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        watch = MemoryWatch(Running(process, 0, tmp_path, tmp_path / "output.log"))
        sample = watch._sample()
        assert 160 * 1024 * 1024 < sample.total < 208 * 1024 * 1024
        assert sample.mapped < sample.total
        assert sample.java == 0
    finally:
        process.communicate()
