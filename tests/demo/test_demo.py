"""A whole demo with real processes, as `make demo` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end
SECONDS_MAX = 300


def test_a_demo_ends_exact(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace",
            "demo",
            "--events",
            "8000",
            "--senders",
            "3",
            "--faults",
            "--json",
            "--directory",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["exact"] is True
    assert outcome["events"] == 8_000
    assert outcome["retried"] > 0
    assert outcome["quarantined"] > 0
    assert outcome["rows"]["income_by_user"] >= outcome["rows"]["income"] > 0
    assert not (tmp_path / ".headrace" / "run" / "gateway.json").exists()
