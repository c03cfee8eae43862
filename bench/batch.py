"""Views compared with batch queries: whole views as files, against DuckDB over all events at once.

bench/oracle.py does the same for the shop's views in Python, whose rows are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from bench.oracle import Difference

__all__ = ["Query", "Snapshot", "check_views"]

MEMORY_MAX = "4GB"


@dataclass(frozen=True)
class Query:
    """A view as it is defined, and the batch query in DuckDB's SQL that gives its rows: the
    definition itself where it means the same there."""

    definition: str
    batch: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A view's rows at one tick: a Parquet file whose columns c0, c1, … are those named. `reached`
    says how many events of its stream the view had read by which tick, in order."""

    file: Path
    columns: tuple[str, ...]
    reached: tuple[tuple[int, int], ...]


def check_views(
    queries: Mapping[str, Query],
    streams: Mapping[str, Sequence[Path]],
    found: Mapping[str, Snapshot],
) -> None:
    """`streams` are the Parquet files with each stream's events. Raises Difference unless each view
    has the rows of its batch query, each as often; columns that the query lacks are not compared.
    """
    with duckdb.connect(config={"memory_limit": MEMORY_MAX}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for stream, files in streams.items():
            names = ", ".join(f"'{file}'" for file in files)
            connection.execute(f"CREATE VIEW {stream} AS SELECT * FROM read_parquet([{names}])")
        for view, query in queries.items():
            _check(connection, view, query.batch or query.definition, found[view])


def _check(connection: duckdb.DuckDBPyConnection, view: str, batch: str, found: Snapshot) -> None:
    connection.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS {batch}")
    columns = [name for name, *_ in connection.execute("DESCRIBE wanted").fetchall()]
    missing = [name for name in columns if name not in found.columns]
    if missing:
        raise Difference(f"{view} has no columns {missing}; it has {found.columns}")
    chosen = ", ".join(f"c{found.columns.index(name)} AS {name}" for name in columns)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE found AS SELECT {chosen} FROM read_parquet('{found.file}')"
    )
    for one, other in (("wanted", "found"), ("found", "wanted")):
        rows = connection.execute(
            f"SELECT * FROM {one} EXCEPT ALL SELECT * FROM {other} LIMIT 3"
        ).fetchall()
        if rows:
            counts = [
                connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
                for table in ("wanted", "found")
            ]
            raise Difference(
                f"{view}: {columns}: rows in {one} alone: {rows}"
                f" ({counts[0]} rows wanted, {counts[1]} found)"
            )
