"""Tables in a running engine: the newest change of each key, whatever ticks, crashes and rebuilds
do in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from change_cases import LASTING, Change, folded, moment, random_changes
from engine_fixtures import Rig

from headrace.model.settings import EngineSettings
from headrace.store.contract import Counts, TableTotals

PARTITIONS = 2
SQL = f"""
CREATE STREAM customer_changes (id STRING, name STRING, gone BOOLEAN, version INT)
INTO {PARTITIONS} PARTITIONS;

CREATE TABLE customers FROM customer_changes KEY (id) SEQUENCE BY version
APPLY AS DELETE WHEN gone COLUMNS * EXCEPT (gone, version)
TOMBSTONES FOR INTERVAL {LASTING} SECONDS;

CREATE MATERIALIZED VIEW names AS
SELECT name, count(*) AS changes FROM customer_changes GROUP BY name;
"""
Rigs = Callable[..., Rig]


def changes_of(seed: int, count: int) -> list[Change]:
    """With a key: an event without one is no change."""
    found = random_changes(random.Random(seed), count, partitions=PARTITIONS)
    return [replace(change, id=change.id or "d") for change in found]


def append(rig: Rig, changes: Sequence[Change]) -> list[Change]:
    """A group commit for each position; gives the changes with their places in the log."""
    placed = []
    for position in dict.fromkeys(change.position for change in changes):
        parts: dict[int, list[dict[str, Any]]] = {}
        for change in (c for c in changes if c.position == position):
            row = {
                "id": change.id,
                "name": change.name,
                "gone": change.deletes,
                "version": change.sequence,
                "_received_at": moment(change.received * 1_000_000),
            }
            parts.setdefault(change.partition, []).append(row)
            offset = rig.reader.ends("customer_changes")[change.partition]
            offset += len(parts[change.partition]) - 1
            placed.append(replace(change, offset=offset))
        rig.append_parts("customer_changes", parts)
    return placed


def assert_folded(rig: Rig, changes: Sequence[Change]) -> None:
    wanted = folded(changes)
    rows = [(row["id"], row["name"]) for row in rig.rows("customers")]
    assert len(rows) == len(wanted.rows)
    assert set(rows) == wanted.rows
    assert rig.store is not None
    totals = TableTotals(wanted.superseded, wanted.resurrected)
    assert rig.store.table_totals("customers") == totals
    counts = rig.store.catalog()["customers"].totals
    assert counts == Counts(read=len(changes), applied=len(changes))


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("rows_max", [1, 7, 1_000])
def test_a_table_follows_its_stream(make_rig: Rigs, seed: int, rows_max: int) -> None:
    """Small ticks and large ones, an engine that dies in between, and a copy built anew."""
    rig = make_rig(SQL, engine=EngineSettings(tick_rows_max=rows_max))
    changes = changes_of(seed + rows_max, 90)
    engine = rig.start()
    log = append(rig, changes[:30])
    rig.settle()
    assert_folded(rig, log)
    log += append(rig, changes[30:60])
    engine.step()
    rig.lose_store()
    engine = rig.start()
    rig.settle()
    assert_folded(rig, log)
    log += append(rig, changes[60:])
    engine.step()
    assert rig.control is not None
    rig.control.rebuild("customers")
    engine.rebuild_what_was_asked()
    rig.settle()
    found = rig.control.rebuilt("customers")
    assert found is not None
    assert found.state == "done"
    assert_folded(rig, log)
    assert rig.store is not None
    followed: set[tuple[str | None, ...]] = set()
    for told in rig.store.changes("customers", 0, 1_000):
        followed -= {tuple(row.values()) for row in told.before.to_pylist()}
        followed |= {tuple(row.values()) for row in told.after.to_pylist()}
    assert followed == folded(log).rows
