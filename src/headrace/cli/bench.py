"""`headrace bench`: the benchmarks of a source checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.model.errors import SettingsError

__all__ = ["command"]


def command(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to bench; put -- before options.")
    ] = None,
) -> None:
    """Measure this machine. Checks the results and prints one JSON line per figure."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / "bench" / "__main__.py").exists():
        raise SettingsError(
            "the benchmarks are part of the source checkout, not of the installed package",
            hint="clone the repository and run make bench",
        )
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *(arguments or [])], cwd=checkout, check=False
    )
    raise typer.Exit(ended.returncode)
