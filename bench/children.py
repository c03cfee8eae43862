"""Measurements that need a process of their own, and the views they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from bench.oracle import Rows, rows_of
from bench.shop import CHECKOUT, VIEWS

__all__ = ["ChildFailed", "duckdb_views", "kept_views", "run_child"]

CHILD_SECONDS_MAX = 900


class ChildFailed(Exception):  # noqa: N818
    """The process ended with a fault; its last words follow."""


def run_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m module …` and give back the last line of JSON it said."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        cwd=CHECKOUT,
        check=False,
    )
    said = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not said:
        words = "\n".join(ended.stderr.splitlines()[-20:])
        raise ChildFailed(f"{module} ended with code {ended.returncode}:\n{words}")
    result: dict[str, Any] = json.loads(said[-1])
    return result


def kept_views(directory: Path) -> dict[str, Rows]:
    """What bench/engine_process.py left."""
    return {
        view.name: rows_of(view, pq.read_table(directory / f"{view.name}.parquet").to_pylist())
        for view in VIEWS
    }


def duckdb_views(file: Path) -> dict[str, Rows]:
    """What a hand-written baseline left."""
    with duckdb.connect(str(file), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = {}
        for view in VIEWS:
            columns = connection.sql(f"SELECT * FROM {view.name}").to_arrow_table()
            found[view.name] = rows_of(view, columns.to_pylist())
        return found
