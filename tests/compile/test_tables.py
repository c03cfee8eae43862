"""What a table is, by its query in plain Spark SQL, for every short history of a key."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.compile import parse_sql, plan_view

# How far the changes of a key are apart: in one position, in two partitions, then in the next one.
PLACES = ((1, 0, 5), (1, 1, 3), (2, 0, 6))
HISTORIES = list(product(product((None, 1, 2), ("u", "d", None)), repeat=len(PLACES)))


def _newest(history: tuple[tuple[int | None, str | None], ...], has_sequence: bool) -> int | None:
    """Which of the changes the table's row comes from, one by one; None if there is no row."""
    newest = 0
    for place, (sequence, _) in enumerate(history):
        known = history[newest][0]
        is_above = sequence is not None and (known is None or sequence > known)
        if is_above or not has_sequence:
            newest = place
    return None if history[newest][1] == "d" else newest


@pytest.mark.parametrize("clause", ["", "SEQUENCE BY sequence"])
def test_the_current_row_of_a_key(spark_alone: SparkSession, clause: str) -> None:
    project = parse_sql(
        "CREATE STREAM changes (id INT, sequence INT, op STRING, place INT);"
        f"CREATE TABLE t FROM changes KEY (id) {clause} APPLY AS DELETE WHEN op = 'd' "
        "COLUMNS * EXCEPT (op, sequence);"
    )
    rows: list[dict[str, Any]] = [
        {"id": key, "sequence": sequence, "op": operation, "place": place}
        | dict(zip(("_position", "_partition", "_offset"), PLACES[place], strict=True))
        for key, history in enumerate(HISTORIES)
        for place, (sequence, operation) in enumerate(history)
    ]
    rows.append({**rows[0], "id": None})  # a change without a key
    spark_alone.createDataFrame(pa.Table.from_pylist(rows)).createOrReplaceTempView("changes")
    plan = plan_view(project, project.views[0])
    found = spark_alone.sql(plan.sql).toArrow().to_pylist()
    wanted = {key: _newest(history, bool(clause)) for key, history in enumerate(HISTORIES)}
    assert {row["id"]: row["place"] for row in found} == {
        key: place for key, place in wanted.items() if place is not None
    }
    assert len(found) == len([place for place in wanted.values() if place is not None])
