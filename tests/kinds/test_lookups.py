"""An event finds the row of its position, however changes were cut into ticks and what went."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from change_cases import (
    Change,
    Request,
    partials,
    random_changes,
    random_requests,
    requests_table,
    table_view,
)
from kind_runner import KindRunner

from headrace.kinds import table
from headrace.kinds.calculator import Calculator
from headrace.kinds.lookups import FOUND, Keys, latest, latest_visible
from headrace.kinds.table import COMPLETE, VERSIONS_COMPLETE, TableKind
from headrace.model.errors import LookUpError

PARTITIONS = 2


class Looked:
    """A table that is looked up, and the plain list of its changes."""

    def __init__(self, *, is_sequenced: bool = True, has_history: bool = False) -> None:
        self.view = table_view(is_sequenced=is_sequenced, has_history=has_history)
        self.kind = TableKind(self.view, Calculator(calculating()))
        self.runner = KindRunner(self.kind, self.view)
        self.runner.create(1)
        self.is_sequenced = is_sequenced
        self.modes = (False, True) if has_history else (False,)
        self.seen: list[Change] = []

    def tick(self, changes: Sequence[Change], since: int | None) -> None:
        self.seen += changes
        told = None if since is None else {1: since}
        self.runner.tick(partials(self.view, changes), since=told)

    def complete(self, as_of: bool = False) -> int:
        totals = self.runner.run(self.kind.totals(1))
        return int(totals[VERSIONS_COMPLETE if as_of else COMPLETE])

    def look_up(self, requests: Sequence[Request], as_of: bool) -> list[tuple[bool, str | None]]:
        names = ["k2", "_position", *(["_time", "_received"] if as_of else [])]
        asked = requests_table(requests, "k2").select(names)
        found = self.runner.run(self.kind.look_up("customers", 1, asked, ["k3"], as_of))
        assert found.column_names == [FOUND, "k3"]
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def check(self, rng: random.Random, lowest: int = 0) -> None:
        for as_of in self.modes:
            from_ = max(lowest, self.complete(as_of))
            requests = random_requests(rng, self.seen, from_, 40)
            wanted = [r.found(self.seen, as_of, is_sequenced=self.is_sequenced) for r in requests]
            assert self.look_up(requests, as_of) == wanted

    def past(self) -> int:
        return len(self.runner.tables.rows[self.kind.tables[2].name])

    def needed(self) -> set[tuple[int, int]]:
        with self.runner.tables.snapshot() as connection:
            return {
                (partition, row[0])
                for partition in range(PARTITIONS)
                for row in connection.execute(
                    self.kind.needed_sql(1, partition, 1_000_000)
                ).fetchall()
            }


def calculating() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view's turn to let go what has expired."""
    monkeypatch.setattr(table, "is_turn", lambda tick, _: tick % 3 == 0)


KINDS = [
    {"is_sequenced": True},
    {"is_sequenced": False},
    {"is_sequenced": True, "has_history": True},
    {"is_sequenced": False, "has_history": True},
]


def random_since(rng: random.Random, seen: Sequence[Change], before: int) -> int:
    """Mostly it moves on, at times far, at times beyond what has been read."""
    newest = max([0, *(change.position for change in seen)])
    return max(before, newest + rng.choice([-60, -20, -20, -5, -5, -5, 0, 3]))


@pytest.mark.parametrize("how", KINDS)
def test_an_event_finds_the_row_of_its_position(seed: int, how: dict[str, bool]) -> None:
    rng = random.Random(seed)
    looked, changes, since = Looked(**how), random_changes(rng, 120), 0
    kept = 0
    while changes:
        count = rng.choice([1, 4, 9, 20])
        looked.tick(rng.sample(changes[:count], len(changes[:count])), since)
        changes = changes[count:]
        assert all(looked.complete(as_of) <= since for as_of in looked.modes)
        looked.check(rng)
        kept = max(kept, looked.past())
        since = random_since(rng, looked.seen, since)
    assert kept, "nothing was in the past"


@pytest.mark.parametrize("how", KINDS)
def test_since_may_be_put_back_and_not_be_said(seed: int, how: dict[str, bool]) -> None:
    rng = random.Random(seed)
    looked, changes = Looked(**how), random_changes(rng, 120)
    while changes:
        count = rng.choice([1, 4, 9, 20])
        said = rng.choice([None, 0, *(change.position for change in looked.seen[-20:])])
        looked.tick(changes[:count], said)
        changes = changes[count:]
        looked.check(rng)


@pytest.mark.parametrize("how", KINDS)
def test_what_is_needed_of_the_log_gives_the_same_answers(seed: int, how: dict[str, bool]) -> None:
    rng, has_history = random.Random(seed), how.get("has_history", False)
    looked, since, latest_time = Looked(**how), 0, 0
    changes = []
    for change in random_changes(rng, 120):  # whose clock is never put back
        latest_time = max(latest_time, change.received)
        changes.append(replace(change, received=latest_time))
    while changes:
        count = rng.choice([4, 9, 20])
        looked.tick(changes[:count], since)
        changes = changes[count:]
        if len(looked.seen) > 30 and rng.random() < 0.2:
            again, needed = Looked(**how), looked.needed()
            left = [c for c in looked.seen if (c.partition, c.offset) in needed]
            for start in range(0, len(left), 20):
                again.tick(left[start : start + 20], since)
            lowest = max(looked.complete(as_of) for as_of in looked.modes)
            again.seen = list(looked.seen)
            again.check(rng, lowest)
            again.tick(changes[:3], since)
            again.check(rng, lowest)
        since = random_since(rng, looked.seen, since)
    assert has_history or len(looked.needed()) < 100


@pytest.mark.parametrize(("behind", "staying"), [(30, 30), (12, 20), (0, 5), (None, 4)])
def test_versions_stay_for_events_that_are_yet_to_come(behind: int | None, staying: int) -> None:
    looked = Looked(has_history=True)
    for n in range(30):
        since = None if behind is None else max(n - behind, 0)
        looked.tick([Change(0, n, "a", str(n), False, n, n, 10 * n)], since)
        assert looked.complete(as_of=True) <= (n if since is None else since)
        lowest = max(looked.complete(as_of=True), n - 3)
        times = [(p, 10 * p - back) for p in range(lowest, n + 1) for back in (0, 25)]
        requests = [Request("a", p, time, 10 * p) for p, time in times]
        found = looked.look_up(requests, True)
        assert found == [(t >= 0, str(t // 10) if t >= 0 else None) for _, t in times]
    assert len(looked.runner.tables.rows[looked.kind.tables[3].name]) == staying


def test_a_table_that_nobody_looks_up_keeps_nothing() -> None:
    looked = Looked()
    changes = [Change(0, n, "a", "x", False, n, n, n) for n in range(1, 20)]
    looked.tick(changes[:1], None)
    looked.tick([Change(1, 0, "b", "x", False, 1, 2, 2)], None)
    assert looked.complete() == 0, "no row was replaced"
    looked.tick(changes[2:], None)
    assert (looked.complete(), looked.past()) == (19, 0)
    with pytest.raises(LookUpError, match="customers no longer knows its rows of position 18"):
        looked.look_up([Request("a", 19, None, 0), Request("b", 18, None, 0)], False)
    assert looked.look_up([], False) == []


def test_the_past_goes_by_and_by() -> None:
    looked = Looked()
    ids = [str(number) for number in range(6_000)]
    for n in range(1, 4):
        looked.tick(
            [Change(0, n * 6_000 + i, k, "x", False, n, n, n) for i, k in enumerate(ids)], 0
        )
    assert looked.past() == 12_000
    looked.tick([Change(0, 30_000, "0", "x", False, 4, 4, 4)], 3)
    assert looked.past() == 2_001, "at most ten thousand in a small tick"
    assert len(looked.needed()) == 6_001
    looked.tick([Change(0, 30_001, "0", "x", False, 5, 5, 5)], 3)
    assert looked.past() == 2


def test_rows_that_nobody_can_see_are_not_kept() -> None:
    looked = Looked(is_sequenced=False)
    looked.tick([Change(0, n, "a", str(n), False, n, 7, n) for n in range(50)], 0)
    looked.tick([Change(1, n, "a", str(n), False, n, 7, n) for n in range(3)], 0)
    assert looked.past() == 0
    assert looked.look_up([Request("a", p, None, 0) for p in (6, 7)], False) == [
        (False, None),
        (True, "2"),
    ]


def test_keys_of_several_columns_are_numbered() -> None:
    rng = random.Random(5)
    pairs = [(rng.choice([1, 2, 3, None]), rng.choice(["a", "b", None])) for _ in range(200)]
    columns = list(zip(*pairs, strict=True))
    rows = pa.table({"x": pa.array(columns[0]), "y": pa.array(columns[1])})
    keys = Keys(rows)
    named = {i: tuple(row.values()) for i, row in enumerate(keys.distinct.to_pylist())}
    wanted = [pair if None not in pair else None for pair in pairs]
    assert [named.get(number) for number in keys.numbers.tolist()] == wanted
    known = rows.filter(pa.array([pair is not None for pair in wanted])).combine_chunks()
    assert keys.numbers_of(known).tolist() == [n for n in keys.numbers.tolist() if n >= 0]


def test_of_equal_times_the_highest_rank_counts() -> None:
    ranks = pa.table({"x": [1.0, None, float("nan"), 2.0], "y": [9, 9, 1, 1]})
    one = np.ones(1, np.int64)
    for left, best in (([0, 1, 2, 3], 2), ([0, 1, 3], 3), ([0, 1], 0), ([1], 1)):
        same = np.ones(len(left), np.int64)
        some = ranks.take(pa.array(left))
        (found,) = latest_visible(0 * same, same, some, same, 0 * one, one, one)
        assert left[found] == best


@pytest.mark.parametrize("times", [range(20), [-(2**62), 0, 5, 2**62]])
def test_the_last_one_by_time_is_found(seed: int, times: Sequence[int]) -> None:
    rng = random.Random(seed)
    rows = [(rng.randrange(9), rng.choice(times), rng.randrange(30)) for _ in range(300)]
    rows.sort(key=lambda row: row[2])
    wanted = [(rng.randrange(12), rng.choice(times) + 1, rng.randrange(30)) for _ in range(500)]
    keys, at, positions = (np.array(column) for column in zip(*rows, strict=True))
    of, until, visible = (np.array(column) for column in zip(*wanted, strict=True))
    ranks = pa.table({"rank": pa.array(range(len(rows)))})
    found = latest_visible(keys, at, ranks, positions, of, until, visible)
    for (key, time, position), place in zip(wanted, found.tolist(), strict=True):
        fits = [i for i, r in enumerate(rows) if r[0] == key and r[1] <= time and r[2] <= position]
        assert place == max(fits, key=lambda i: (rows[i][1], i), default=-1)
    unique = {(key, time): i for i, (key, time, _) in enumerate(rows)}
    keys, at = (np.array(column) for column in zip(*unique, strict=True))
    for (key, time, _), place in zip(wanted, latest(keys, at, of, until).tolist(), strict=True):
        fits = [i for i, one in enumerate(unique) if one[0] == key and one[1] <= time]
        assert place == max(fits, key=lambda i: list(unique)[i][1], default=-1)
