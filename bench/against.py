"""Two checkouts measured by turns, the other one first in each round.

A figure that is taken over HTTP is taken by this checkout's benchmark from both. One that is taken
inside the engine's process is taken by each checkout's own benchmark, since the modules it imports
are that commit's. Both checkouts run with the packages of this process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.results import FIGURES, Goal, shown
from bench.run import Run
from bench.shop import CHECKOUT

__all__ = ["alternate", "ratios"]

Values = list[dict[str, float]]  # by round, from a figure's name to its value


def alternate(
    parts: Sequence[tuple[tuple[str, ...], bool]], other: Path, rounds: int, run: Run
) -> int:
    """`parts` are the names of figures taken together, and whether they are taken over HTTP. Prints
    the ratios, as a table and as one JSON object per figure."""
    before: Values = [{} for _ in range(rounds)]
    after: Values = [{} for _ in range(rounds)]
    codes = []
    for figures, over_http in parts:
        for number in range(rounds):
            for checkout, values in ((other, before), (CHECKOUT, after)):
                loaded = os.getloadavg()[0]
                print(
                    f"round {number + 1} of {rounds}: {', '.join(figures)} in {checkout};"
                    f" load average {loaded:.1f}",
                    file=sys.stderr,
                    flush=True,
                )
                code, found = _taken(figures, checkout, over_http, run)
                codes.append(code)
                values[number].update(found)
    print(ratios(before, after))
    return 1 if any(codes) else 0


def _taken(
    figures: Sequence[str], checkout: Path, over_http: bool, run: Run
) -> tuple[int, dict[str, float]]:
    command = [sys.executable, "-m", "bench", *(["--quick"] if run.quick else [])]
    runs_in = CHECKOUT if over_http else checkout
    if over_http:
        command += ["--checkout", str(checkout)]
        command += [] if run.events is None else ["--events", str(run.events)]
    ended = subprocess.run(
        [*command, "--only", *figures],
        cwd=runs_in,
        env={**os.environ, "PYTHONPATH": str(runs_in / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return ended.returncode, {
        each["figure"]: each["value"] for each in said if each["figure"] in figures
    }


def ratios(before: Values, after: Values) -> str:
    """Per figure the medians of both, and after ÷ before within the rounds that have both: their
    median, least and most, beside what is asked of the median."""
    rows = [
        f"{'figure':<18} {'before':>12} {'after':>12} {'ratio':>7} {'least':>7} {'most':>7}"
        f"  {'unit':<17}  asked"
    ]
    lines = []
    for name, goal in FIGURES.items():
        pairs = [
            (first[name], second[name])
            for first, second in zip(before, after, strict=True)
            if name in first and name in second
        ]
        if not pairs:
            continue
        found = [second / first if first else float("nan") for first, second in pairs]
        medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
        ratio = statistics.median(found)
        row = (
            f"{name:<18} {shown(medians[0]):>12} {shown(medians[1]):>12} {ratio:>7.3f}"
            f" {min(found):>7.3f} {max(found):>7.3f}  {goal.unit:<17}  {_asked(goal, ratio)}"
        )
        rows.append(row.rstrip())
        said = {"figure": name, "before": medians[0], "after": medians[1], "ratio": ratio}
        lines.append(json.dumps({**said, "rounds": len(pairs)}))
    return "\n".join([*rows, "", *lines])


def _asked(goal: Goal, ratio: float) -> str:
    if goal.ratio_asked is None:
        return ""
    met = "met" if goal.is_met_by_ratio(ratio) else "MISSED"
    return f"{'≤' if goal.less_is_better else '≥'} {shown(goal.ratio_asked)} {met}"
