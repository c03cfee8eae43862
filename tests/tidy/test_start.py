"""A verb imports what it needs and no more: `headrace` starts at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "duckdb",
    "faker",
    "granian",
    "httptools",
    "httpx",
    "msgspec",
    "numpy",
    "pandas",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pyspark",
    "rich.markdown",
}
PROJECT = """
CREATE STREAM orders (id STRING NOT NULL, amount DECIMAL(18, 2) NOT NULL);
CREATE MATERIALIZED VIEW income AS SELECT sum(amount) AS income FROM orders;
"""
LOADED = """
import sys
from headrace.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def _loaded(directory: Path, *words: str) -> set[str]:
    """The modules that are loaded when the command ends."""
    (directory / "headrace.toml").write_text("")
    (directory / "orders.sql").write_text(PROJECT)
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, *words], cwd=directory, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", ["--help", "validate", "validate --json", "token list"])
def test_nothing_heavy_is_loaded(tmp_path: Path, words: str) -> None:
    loaded = _loaded(tmp_path, *words.split())
    assert loaded & HEAVY == set()
    assert "headrace.cli.app" in loaded


def test_validate_loads_no_other_verb_and_no_network(tmp_path: Path) -> None:
    from headrace.cli.app import VERBS

    loaded = _loaded(tmp_path, "validate")
    assert {f"headrace.cli.{verb}" for verb in VERBS} & loaded == {"headrace.cli.validate"}
    assert loaded & {"http.client", "ssl", "headrace.client", "headrace.engine"} == set()
