"""Figures: what was measured, what was asked, how they are shown, kept and compared."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.run import Run

__all__ = ["FIGURES", "Figure", "Goal", "append", "compare", "lines", "shown", "table"]

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Goal:
    """`asked` is the value to reach: at least, or at most where `less_is_better`; None where the
    figure is only reported. `ratio_asked` is the same of after ÷ before, where two checkouts are
    measured by turns."""

    unit: str
    asked: float | None = None
    less_is_better: bool = False
    ratio_asked: float | None = None

    def is_met_by(self, value: float) -> bool:
        return self._reaches(value, self.asked)

    def is_met_by_ratio(self, ratio: float) -> bool:
        return self._reaches(ratio, self.ratio_asked)

    def _reaches(self, value: float, asked: float | None) -> bool:
        if asked is None:
            return True
        return value <= asked if self.less_is_better else value >= asked


FIGURES: Mapping[str, Goal] = {
    "ingest_1": Goal("events/s", 15_000, ratio_asked=0.9),
    "ingest_100": Goal("events/s", ratio_asked=0.9),
    "ingest_1000": Goal("events/s", 500_000, ratio_asked=0.9),
    "ingest_10000": Goal("events/s", ratio_asked=0.9),
    "end_to_end": Goal("events/s", 300_000, ratio_asked=0.9),
    "tick_p99": Goal("ms", 100, less_is_better=True),
    "freshness_p50_1k": Goal("ms", less_is_better=True),
    "freshness_p99_1k": Goal("ms", less_is_better=True),
    "freshness_p50_10k": Goal("ms", 60, less_is_better=True, ratio_asked=60 / 72),
    "freshness_p99_10k": Goal("ms", 120, less_is_better=True, ratio_asked=120 / 142),
    "cpu_10k": Goal("cores", 0.9, less_is_better=True),
    "freshness_p99_50k": Goal("ms", less_is_better=True),
    "many_streams_p99": Goal("ms", 500, less_is_better=True),
    "many_views_p99": Goal("ms", 400, less_is_better=True),
    "state_ratio_600": Goal("ratio", 2, less_is_better=True),
    "state_ratio_10k": Goal("ratio", 4, less_is_better=True),
    "row_view": Goal("events/s", 300_000, ratio_asked=2),
    "table_fold": Goal("changes/s", 100_000),
    "table_rebuild_10m": Goal("s", 60, less_is_better=True),
    "enrich_1m": Goal("events/s", 250_000),
    "asof": Goal("events/s", 200_000),
    "nexmark_bids": Goal("events/s", ratio_asked=4),
    "nexmark_memory": Goal("MiB", 3_072, less_is_better=True),
    "nexmark_alone": Goal("CPU-s per million", less_is_better=True),
    "drain": Goal("events/s", ratio_asked=0.9),
    "drain_ratio": Goal("ratio", 4),
    "drain_ratio_tuned": Goal("ratio", 1.3),
    "reconcile_5m": Goal("s", 60, less_is_better=True),
    "dedupe_ratio": Goal("ratio", 0.5, ratio_asked=0.9),
    "sliding": Goal("events/s", 100_000, ratio_asked=0.9),
    "sessions": Goal("events/s", 200_000, ratio_asked=0.9),
    "idle_core": Goal("cores", 0.03, less_is_better=True),
    "startup": Goal("s", 15, less_is_better=True),
    "memory": Goal("MiB", 900, less_is_better=True),
}


@dataclass(frozen=True)
class Figure:
    """`details` are further measurements of the same run, kept with it and shown beside it."""

    name: str
    value: float
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def goal(self) -> Goal:
        return FIGURES[self.name]

    def as_json(self) -> dict[str, Any]:
        return {"figure": self.name, "value": rounded(self.value), "unit": self.goal.unit}


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def table(figures: Sequence[Figure]) -> str:
    """For people: one row per figure, with what was asked and the details."""
    rows = [("figure", "value", "unit", "asked", "", "details")]
    for figure in figures:
        goal = figure.goal
        asked, met = "", ""
        if goal.asked is not None:
            asked = f"{'≤' if goal.less_is_better else '≥'} {shown(goal.asked)}"
            met = "met" if goal.is_met_by(figure.value) else "MISSED"
        details = ", ".join(f"{name} {shown(value)}" for name, value in figure.details.items())
        rows.append((figure.name, shown(figure.value), goal.unit, asked, met, details))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in (1, 3) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, [*widths, 0], strict=True))
        ).rstrip()
        for row in rows
    )


def shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{rounded(value):,.0f}" if abs(value) >= 1_000 else f"{rounded(value):g}"


def lines(figures: Sequence[Figure]) -> str:
    """For programs: one JSON object per line and figure."""
    return "\n".join(json.dumps(figure.as_json()) for figure in figures)


def append(figures: Sequence[Figure], run: Run, directory: Path = RESULTS) -> Path:
    """Add the run to the results of its day; short runs are kept apart, outside the repository."""
    now = datetime.now(UTC)
    is_short = run.quick or run.events is not None
    record = {
        "at": now.isoformat(timespec="seconds"),
        "commit": _git(run.checkout, "rev-parse", "HEAD"),
        "changed": bool(_git(run.checkout, "status", "--porcelain", "--", ".", ":!bench/results")),
        "quick": is_short,
        "machine": _machine(),
        "figures": {
            figure.name: {**figure.as_json(), "details": dict(figure.details)} for figure in figures
        },
    }
    directory.mkdir(exist_ok=True)
    file = directory / ("quick.jsonl" if is_short else f"{now:%Y-%m-%d}.jsonl")
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(record, ensure_ascii=False) + "\n")
    return file


def _git(checkout: Path, *arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=checkout, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip()


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "memory_mebibytes": memory // (1024 * 1024),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def compare(first: str, second: str, directory: Path = RESULTS) -> str:
    """The medians of two commits side by side; runs with changed files or short times are left
    out. Raises LookupError when a commit has no run that counts."""
    before, after = _medians(first, directory), _medians(second, directory)
    rows = [f"{'figure':<18} {first[:12]:>14} {second[:12]:>14} {'change':>9}"]
    for name, goal in FIGURES.items():
        if name in before and name in after:
            change = after[name] / before[name] - 1 if before[name] else 0.0
            better = (change < 0) == goal.less_is_better
            mark = "" if abs(change) < 0.05 else " better" if better else " worse"
            values = f"{shown(before[name]):>14} {shown(after[name]):>14}"
            rows.append(f"{name:<18} {values} {change:>+9.1%}{mark}")
    return "\n".join(rows)


def _medians(commit: str, directory: Path) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for file in sorted(directory.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            if run["commit"].startswith(commit) and not run["quick"] and not run["changed"]:
                for name, figure in run["figures"].items():
                    values.setdefault(name, []).append(figure["value"])
    if not values:
        raise LookupError(f"no whole run of an unchanged commit {commit} in {directory}")
    return {name: statistics.median(found) for name, found in values.items()}
