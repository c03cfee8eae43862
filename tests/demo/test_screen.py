from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.demo.screen import Snapshot, plain_line, render, sparkline

ROW = {
    "window_start": "2026-01-01T00:00:03.000000Z",
    "window_end": "2026-01-01T00:00:06.000000Z",
    "income": "70.00",
    "payments": 7,
    "average": "10.000000",
}


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([0, 0], "▁▁"), ([0, 50, 100], "▁▅█"), ([5], "█"), ([1, 7], "▂█")],
)
def test_sparkline(values: list[float], drawn: str) -> None:
    assert sparkline(values) == drawn


def _drawn(look: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(render(look))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_screen_before_the_first_answer() -> None:
    assert "throughput 0/s" in _drawn(Snapshot(0.0, 0, 0.0, note="the engine is starting"))
    assert "no tick yet" in plain_line(Snapshot(0.0, 0, 0.0))


def test_screen_shows_figures_and_windows() -> None:
    look = Snapshot(
        seconds=2,
        sent=12_345,
        per_second=6_000,
        total=20_000,
        tick=17,
        age_milliseconds=42.4,
        pending=3,
        complete_up_to="2026-01-01T00:00:01.000000Z",
        windows=[ROW] * 3,
    )
    drawn = _drawn(look)
    for part in ("12,345 of 20,000", "6,000/s", "42 ms ago", "00:00:03 – 00:00:06", "70.00", "███"):
        assert part in drawn
    line = plain_line(look)
    assert "tick 17" in line
    assert "3 pending" in line
