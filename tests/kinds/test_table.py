"""The newest change of each key is its row, however the log is cut into ticks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from change_cases import (
    HISTORY,
    LASTING,
    START,
    Change,
    as_of,
    folded,
    microseconds,
    moment,
    partials,
    random_changes,
    table_view,
)
from kind_runner import KindRunner

from headrace.kinds import table
from headrace.kinds.calculator import Calculator
from headrace.kinds.choice import make_kind
from headrace.kinds.table import TableKind, totals_sql
from headrace.model.plan import BoundColumn, BoundView
from headrace.model.types import parse_type


def runner_of(view: BoundView) -> KindRunner:
    kind = make_kind(view, Calculator(calculating()))
    assert isinstance(kind, TableKind)
    return KindRunner(kind, view)


def calculating() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def totals(runner: KindRunner, view: int = 1) -> tuple[int, int]:
    with runner.tables.snapshot() as connection:
        found = connection.execute(totals_sql(runner.kind.shape, view)).fetchone()
    return (0, 0) if found is None else (found[0], found[1])


def needed(runner: KindRunner, partition: int, below: int, view: int = 1) -> list[int]:
    assert isinstance(runner.kind, TableKind)
    with runner.tables.snapshot() as connection:
        sql = runner.kind.needed_sql(view, partition, below)
        return [row[0] for row in connection.execute(sql).fetchall()]


def cut(rng: random.Random, changes: list[Change]) -> list[list[Change]]:
    """Ticks: what is next in the order of the log, in any order within a tick."""
    ticks, start = [], 0
    while start < len(changes):
        end = min(len(changes), start + rng.choice([1, 2, 5, 20]))
        ticks.append(rng.sample(changes[start:end], end - start))
        start = end
    return ticks


@pytest.mark.parametrize("is_sequenced", [True, False])
@pytest.mark.parametrize("part", range(6))
def test_ticks_make_no_difference(seed: int, part: int, is_sequenced: bool) -> None:
    rng = random.Random(seed * 100 + part)
    view = table_view(is_sequenced=is_sequenced)
    runner = runner_of(view)
    changes = {number: random_changes(rng, 60) for number in (1, 7)}
    ticks = {number: cut(rng, changes[number]) for number in changes}
    for number in changes:
        runner.create(number)
    while any(ticks.values()):
        fed = {n: mine.pop(0) for n, mine in ticks.items() if mine and rng.random() < 0.8}
        staged = [partials(view, tick, number) for number, tick in fed.items()]
        runner.tick(pa.concat_tables(staged) if staged else None)
    for number, all_ in changes.items():
        wanted = folded(all_, is_sequenced=is_sequenced)
        assert runner.rows(number) == Counter(wanted.rows)
        assert totals(runner, number) == (wanted.superseded, wanted.resurrected)
        bare = microseconds(moment(0)) - int(START.timestamp() * 1_000_000)
        stored = runner.tables.rows[runner.kind.tables[0].name].values()
        mine = [r for r in stored if r["_view"] == number and r["_deleted"] is not None]
        ages = {(r["k2"], r.get("k5"), r["_deleted"] + bare) for r in mine}
        counting = {age for age in ages if wanted.now - age[2] <= 2 * LASTING}
        if is_sequenced:
            assert counting == wanted.tombstones
        newest = {(c.partition, c.offset) for c, _ in wanted.newest.values() if not c.deletes}
        newest |= {(r["k0"], r["k1"]) for r in mine}
        for partition in range(2):
            offsets = sorted(offset for p, offset in newest if p == partition)
            assert needed(runner, partition, 40, number) == [o for o in offsets if o < 40]


@pytest.mark.parametrize(
    ("of_type", "typed"),
    [
        ("STRING", lambda n: ["", "A", "a", "z", "ä", "\U0001f600"][n]),
        ("DOUBLE", lambda n: [-float("inf"), -1.5, 0.0, 1e300, float("inf"), float("nan")][n]),
        ("TIMESTAMP", moment),
        ("DECIMAL(38,2)", Decimal),
        ("BINARY", lambda n: bytes([50 * n])),
    ],
)
def test_sequences_of_any_type_have_its_order(
    seed: int, of_type: str, typed: Callable[[int], Any]
) -> None:
    """As Spark has it: texts by their bytes, and NaN above all other numbers."""
    made = (random_changes(random.Random(f"{seed} {n}"), 150) for n in range(100))
    changes = next(some for some in made if folded(some).resurrected)
    view = table_view()
    keys = tuple(
        BoundColumn(key.name, parse_type(of_type) if key.name == "k5" else key.type)
        for key in view.keys
    )
    view = replace(view, keys=keys)
    runner = runner_of(view)
    runner.create(1)
    for start in range(0, len(changes), 15):
        tick = changes[start : start + 15]
        given = [None if c.sequence is None else typed(c.sequence) for c in tick]
        plain = [replace(change, sequence=None) for change in tick]
        rows = partials(view, plain)
        place = rows.column_names.index("k5")
        runner.tick(rows.set_column(place, "k5", pa.array(given, keys[5].type.arrow)))
    wanted = folded(changes)
    assert runner.rows(1) == Counter(wanted.rows)
    assert totals(runner) == (wanted.superseded, wanted.resurrected)


def test_a_change_that_changes_nothing_is_heard_by_nobody() -> None:
    view = table_view()
    runner = runner_of(view)
    runner.create(1)
    same = [Change(0, n, "a", "x", False, n, n, n) for n in range(3)]
    assert runner.tick(partials(view, same[:1])) is not None
    assert runner.tick(partials(view, same[1:])) is None
    assert runner.tick(partials(view, [Change(0, 3, "b", None, True, 3, 3, 3)])) is None
    assert totals(runner) == (0, 0)
    assert needed(runner, 0, 10) == [2, 3]
    gone = runner.tick(partials(view, [Change(0, 4, "a", None, True, 4, 4, 4)]))
    assert gone is not None
    assert (gone.was_shown.to_pylist(), gone.is_shown.to_pylist()) == ([True], [False])


def test_a_tombstone_goes_by_the_times_of_later_changes() -> None:
    view = table_view()
    runner = runner_of(view)
    runner.create(1)
    runner.tick(partials(view, [Change(0, 0, "a", None, True, 5, 0, 0)]))
    for number in range(1, 70):  # the view's turn comes once in 64 ticks
        runner.tick(partials(view, [Change(0, number, "b", "x", False, number, number, 20)]))
    assert needed(runner, 0, 10) == [0]
    for number in range(70, 140):
        runner.tick(partials(view, [Change(0, number, "b", "x", False, number, number, 21)]))
    assert needed(runner, 0, 200) == [139]
    runner.tick(partials(view, [Change(0, 140, "a", "y", False, 0, 140, 21)]))
    assert runner.rows(1) == Counter([("a", "y"), ("b", "x")])
    assert totals(runner) == (0, 0)


@pytest.mark.parametrize("part", range(4))
def test_versions_answer_for_all_times_of_the_history(
    seed: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "is_turn", lambda tick, _: tick % 3 == 0)
    rng = random.Random(seed * 100 + part)
    view = table_view(has_history=True)
    runner = runner_of(view)
    runner.create(1)
    changes = random_changes(rng, 80)
    seen: list[Change] = []
    for tick in cut(rng, changes):
        runner.tick(partials(view, tick))
        seen += tick
        rows = runner.tables.rows[runner.kind.tables[3].name].values()
        kept = [
            Change(
                *(r["k0"], r["k1"], r["k2"], r["k3"], r["_is_delete"], r["k5"], r["k6"]),
                microseconds(r["_received"]),
                microseconds(r["_valid_from"]),
            )
            for r in rows
        ]
        now = max(change.received for change in seen)
        for id_ in ("a", "b", "c", None):
            for time in range(now - HISTORY, now + 10):
                assert as_of(kept, id_, time) == as_of(seen, id_, time), (id_, time)
        places = {(c.partition, c.offset) for c in kept}
        for partition in range(2):
            offsets = set(needed(runner, partition, 10_000))
            assert {o for p, o in places if p == partition} <= offsets
    assert len(kept) < len(changes), "no version went"
    assert runner.rows(1) == Counter(folded(changes).rows)
