"""Every event is a row: it comes once, in the tick that brought it, and says so."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from kind_runner import KindRunner, frozen
from store_cases import bound_view

from headrace.compile import bind_view, parse_sql, plan_view
from headrace.kinds.calculator import Calculator
from headrace.kinds.choice import make_kind
from headrace.kinds.contract import TICK
from headrace.kinds.inputs import partials_schema
from headrace.model.plan import BoundView
from headrace.model.tables import VIEW
from headrace.model.types import parse_type

TYPES = ("INT", "BIGINT", "STRING", "DECIMAL(12,2)", "TIMESTAMP")
SQL = """
CREATE STREAM sales (user STRING, amount DECIMAL(12, 2), at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 2 SECONDS LATE DROP;
CREATE MATERIALIZED VIEW large AS
  SELECT user, amount, user AS again, at FROM sales WHERE amount > 1;
"""


def large() -> BoundView:
    project = parse_sql(SQL, "sales.sql")
    plan = plan_view(project, project.views[0])
    keys = {key.name: parse_type(type_) for key, type_ in zip(plan.keys, TYPES, strict=True)}
    outputs = dict(
        zip(("user", "amount", "again", "at"), (TYPES[i] for i in (2, 3, 2, 4)), strict=True)
    )
    return bind_view(
        plan,
        project.streams[0],
        keys=keys,
        partials={},
        distincts={},
        outputs={name: parse_type(type_) for name, type_ in outputs.items()},
    )


def runner_of(view: BoundView) -> KindRunner:
    return KindRunner(make_kind(view, Calculator(duckdb.connect())), view)


def staged(view: BoundView, rows: Sequence[Sequence[Any]]) -> pa.Table:
    schema = partials_schema(view)
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def test_every_event_is_one_row_of_its_view(seed: int) -> None:
    rng = random.Random(seed)
    view = large()
    runner = runner_of(view)
    wanted: dict[int, Counter[tuple[Any, ...]]] = {1: Counter(), 7: Counter()}
    for number in wanted:
        runner.create(number)
    offset = 0
    for tick in range(1, 9):
        rows = []
        for _ in range(rng.randrange(6)):
            number, offset = rng.choice([1, 7]), offset + 1
            user, amount = rng.choice(["a", None]), rng.choice([Decimal("1.50"), None])
            at = dt.datetime(2026, 1, 1, 0, 0, rng.randrange(3), tzinfo=dt.UTC)
            rows.append((number, rng.randrange(2), offset, user, amount, at, 1))
            wanted[number][(user, amount, user, at)] += 1
        changes = runner.tick(staged(view, rows))
        assert runner.rounds == 0
        assert (0 if changes is None else changes.num_rows) == len(rows)
        if changes is not None:
            assert not any(changes.was_shown.to_pylist())
            found = zip(changes.views.to_pylist(), changes.key.to_pylist(), strict=True)
            assert [(v, *key.values()) for v, key in found] == [row[:3] for row in rows]
        stored = runner.tables.rows[runner.kind.tables[0].name].values()
        assert sum(row[TICK] == tick for row in stored) == len(rows)
        for number, expected in wanted.items():
            assert runner.rows(number) == Counter(
                {tuple(map(frozen, row)): count for row, count in expected.items()}
            )


def test_equal_rows_of_several_events_are_told_apart_and_paged_with_their_tick() -> None:
    view = large()
    runner = runner_of(view)
    runner.create(3)
    same = ("a", Decimal("2.00"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 1)
    runner.tick(staged(view, [(3, 0, 4, *same), (3, 1, 4, *same)]))
    runner.tick(staged(view, [(3, 0, 5, *same)]))
    assert list(runner.rows(3).values()) == [3]
    names = [column.name for column in runner.kind.public]
    sql = runner.kind.keyed_select_sql(3, names, ["partition", "offset"])
    with runner.tables.snapshot() as connection:
        found = connection.execute(
            f'SELECT "partition", "offset", {TICK} FROM ({sql}) ORDER BY ALL'
        ).fetchall()
    assert found == [(0, 4, 1), (0, 5, 2), (1, 4, 1)]
    assert runner.kind.feed_is_rows
    assert [column.name for column in runner.kind.key] == ["k0", "k1"]
    assert runner.kind.tables[0].key == (VIEW, "k0", "k1")


def test_views_with_groups_are_no_rows() -> None:
    view = bound_view("n", keys={"k0": "STRING"}, finals=(("n", "BIGINT", '"n"'),))
    kind = make_kind(view, Calculator(duckdb.connect()))
    assert not kind.feed_is_rows
    assert kind.shape != runner_of(large()).kind.shape
