"""What every backend does: the contract in headrace/store/backend.py."""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from table_model import TableModel, counted, definition, plain, rows_table

from headrace.kinds.calculator import Calculator, arrow_table
from headrace.model.errors import FencedError, StoreError
from headrace.model.settings import StoreSettings
from headrace.model.tables import HIGH, LOW, ROW, Fetch, TableDefinition, TableDelta
from headrace.store.backend import Backend, Commit
from headrace.store.duckdb import keyed_tables, stored_table
from headrace.store.duckdb.keyed_tables import DuckBackend
from headrace.store.memory.backend import MemoryBackend

BACKENDS = ("duckdb", "memory")
SALES = definition(
    "sales", {"_view": "INT", "user": "STRING", "total": "BIGINT"}, ("_view", "user")
)
VISITS = definition(
    "visits",
    {"_view": "INT", "user": "STRING", "at": "TIMESTAMP", "pages": "BIGINT"},
    ("_view", "user", "at"),
    ("_view", "user"),
)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    opened: Backend = (
        DuckBackend(tmp_path / "store.duckdb", StoreSettings())
        if request.param == "duckdb"
        else MemoryBackend(StoreSettings())
    )
    yield opened
    opened.close()


def commit(
    backend: Backend, *deltas: TableDelta, generation: int | None = None, **more: Any
) -> None:
    backend.commit(Commit(backend.generation if generation is None else generation, deltas, **more))


def rows(table: TableDefinition, *values: tuple[Any, ...]) -> pa.Table:
    return rows_table(table, (dict(zip(table.schema.names, row, strict=True)) for row in values))


def stored(backend: Backend, table: TableDefinition) -> list[tuple[Any, ...]]:
    names = ", ".join(f'"{name}"' for name in table.schema.names)
    with backend.snapshot() as connection:
        found = arrow_table(connection, f"SELECT {names} FROM _headrace.{table.name}")
    assert found.cast(table.schema).schema == table.schema
    return sorted(counted(found.cast(table.schema)).elements(), key=repr)


def fetched(backend: Backend, fetch: Fetch) -> pa.Table:
    (answer,) = backend.fetch([fetch])
    return answer


@pytest.fixture
def sold(backend: Backend) -> Backend:
    put = rows(SALES, (1, "anna", 10), (1, None, 20), (2, "anna", 30))
    commit(backend, TableDelta("sales", put=put), create=[SALES])
    return backend


def asked(*keys: tuple[Any, ...]) -> pa.Table:
    return rows_table(
        SALES, ({"_view": view, "user": user} for view, user in keys), ("_view", "user")
    )


# Fetching


def test_null_equals_null_and_repeated_rows_count_once(sold: Backend) -> None:
    wanted = asked((1, None), (1, None), (2, "anna"), (3, "anna"), (2, None))
    found = fetched(sold, Fetch("sales", ("_view", "user"), wanted))
    assert counted(found) == {(1, None, 20): 1, (2, "anna", 30): 1}
    assert found.schema == pa.schema([*SALES.schema, (ROW, pa.int64())])


def test_only_the_columns_asked_for(sold: Backend) -> None:
    everything = fetched(sold, Fetch("sales", ("user",), asked((0, "anna")), columns=("total",)))
    assert everything.column_names == ["total", ROW]
    assert counted(everything) == {(10,): 1, (30,): 1}
    assert fetched(sold, Fetch("sales", (), asked((0, "")), columns=())).column_names == [ROW]


def test_on_nothing_is_every_row_unless_nothing_is_asked(sold: Backend) -> None:
    assert fetched(sold, Fetch("sales", (), asked((9, "nobody")))).num_rows == 3
    assert fetched(sold, Fetch("sales", (), asked())).num_rows == 0
    assert fetched(sold, Fetch("sales", ("_view", "user"), asked())).num_rows == 0


def at(second: int | None) -> datetime.datetime | None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return None if second is None else epoch + datetime.timedelta(seconds=second)


def bounds(*values: tuple[Any, ...]) -> pa.Table:
    """(user, low, high) in seconds."""
    return rows_table(
        VISITS,
        (
            {
                "_view": 1,
                "user": user,
                LOW: None if low is None else low * 1_000_000,
                HIGH: None if high is None else high * 1_000_000,
            }
            for user, low, high in values
        ),
        ("_view", "user"),
        with_bounds=True,
    )


@pytest.fixture
def visited(backend: Backend) -> Backend:
    visits = [(user, second) for user in ("anna", None) for second in (10, 20, 30, -40, None)]
    put = rows(VISITS, *((1, user, at(second), 1) for user, second in visits))
    commit(backend, TableDelta("visits", put=put), create=[VISITS])
    return backend


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([("anna", 10, 20)], {("anna", 10), ("anna", 20)}),
        ([("anna", 11, 19)], set()),
        ([("anna", None, 10)], {("anna", -40), ("anna", 10)}),
        ([(None, 20, None)], {(None, 20), (None, 30)}),
        ([("anna", None, None)], {("anna", s) for s in (-40, 10, 20, 30)}),
        ([("anna", 30, 30), (None, -40, -40), ("anna", 25, 35)], {("anna", 30), (None, -40)}),
        (
            [("anna", 10, None), (None, None, 10)],
            {*(("anna", s) for s in (10, 20, 30)), (None, 10), (None, -40)},
        ),
        ([("bert", None, None)], set()),
        ([("anna", 20, 10)], set()),
    ],
)
def test_bounds_are_included_and_null_is_no_bound(
    visited: Backend, wanted: list[tuple[Any, ...]], expected: set[tuple[Any, ...]]
) -> None:
    fetch = Fetch("visits", ("_view", "user"), bounds(*wanted), time="at", columns=("user", "at"))
    found = {(r["user"], r["at"]) for r in fetched(visited, fetch).to_pylist()}
    assert found == {(user, at(second)) for user, second in expected}


def test_bounds_alone(visited: Backend) -> None:
    def seconds(*wanted: tuple[int | None, int | None]) -> list[int]:
        asked = bounds(*(("", *pair) for pair in wanted)).select([LOW, HIGH])
        found = fetched(visited, Fetch("visits", (), asked, time="at", columns=("at",)))
        return sorted(int(row["at"].timestamp()) for row in found.to_pylist())

    assert seconds((None, 10)) == [-40, -40, 10, 10]
    assert seconds((20, 20), (-40, 0), (20, 25)) == [-40, -40, 20, 20]
    assert seconds((None, None)) == sorted([-40, 10, 20, 30] * 2)
    assert seconds((None, -41), (31, None)) == []


def test_bounds_over_a_whole_number(sold: Backend) -> None:
    limits = pa.table(
        {"user": ["anna"], LOW: pa.array([-(2**63)], pa.int64()), HIGH: pa.array([29], pa.int64())}
    )
    found = fetched(sold, Fetch("sales", ("user",), limits, time="total"))
    assert counted(found) == {(1, "anna", 10): 1}


@pytest.mark.parametrize("extreme", [-(2**63), 2**63 - 1])
def test_bounds_beyond_what_a_time_can_be(visited: Backend, extreme: int) -> None:
    limits = pa.table({LOW: pa.array([extreme], pa.int64()), HIGH: pa.array([extreme], pa.int64())})
    assert fetched(visited, Fetch("visits", (), limits, time="at")).num_rows == 0
    wide = pa.table({LOW: pa.array([-(2**63)]), HIGH: pa.array([2**63 - 1])})
    assert fetched(visited, Fetch("visits", (), wide, time="at")).num_rows == 8


def test_many_fetches_at_once_in_their_order(sold: Backend) -> None:
    wanted = [Fetch("sales", ("user",), asked((0, user))) for user in ("anna", None, "bert")]
    assert [answer.num_rows for answer in sold.fetch(wanted)] == [2, 1, 0]


def test_what_does_not_fit_is_refused(sold: Backend) -> None:
    with pytest.raises(StoreError, match="no table nobody"):
        sold.fetch([Fetch("nobody", (), asked((0, "")))])
    with pytest.raises(StoreError, match="no column nothing"):
        sold.fetch([Fetch("sales", ("nothing",), asked((0, "")))])
    with pytest.raises(StoreError, match="no column nothing"):
        sold.fetch([Fetch("sales", ("user",), asked((0, "")), columns=("nothing",))])
    with pytest.raises(StoreError, match="_view"):
        sold.fetch([Fetch("sales", ("_view",), pa.table({"user": ["anna"]}))])


# Changing


def test_rows_go_by_the_handle_of_a_fetch(sold: Backend) -> None:
    found = fetched(sold, Fetch("sales", ("user",), asked((0, "anna")), columns=()))
    again = rows(SALES, (2, "anna", 31))
    commit(sold, TableDelta("sales", gone=found, put=again))
    assert stored(sold, SALES) == [(1, None, 20), (2, "anna", 31)]


def test_rows_go_by_what_they_are_equal_to(sold: Backend) -> None:
    commit(sold, TableDelta("sales", gone=asked((1, None), (1, None), (7, "anna"))))
    assert stored(sold, SALES) == [(1, "anna", 10), (2, "anna", 30)]
    commit(sold, TableDelta("sales", gone=pa.table({"total": pa.array([30], pa.int64())})))
    assert stored(sold, SALES) == [(1, "anna", 10)]


def test_a_handle_is_good_until_the_next_commit(sold: Backend) -> None:
    found = fetched(sold, Fetch("sales", ("user",), asked((0, "anna")), columns=()))
    commit(sold)
    with pytest.raises(StoreError, match="before the last commit"):
        commit(sold, TableDelta("sales", gone=found))


def test_a_checkpoint_between_leaves_no_wrong_handle(sold: Backend) -> None:
    """Either the rows go that were meant, or nothing happens."""
    found = fetched(sold, Fetch("sales", (), asked((0, "")), columns=()))
    sold.checkpoint()
    try:
        commit(sold, TableDelta("sales", gone=found))
    except StoreError:
        assert len(stored(sold, SALES)) == 3
    else:
        assert stored(sold, SALES) == []


def test_deltas_of_one_table_come_one_after_the_other(sold: Backend) -> None:
    commit(
        sold,
        TableDelta("sales", gone=asked((1, "anna")), put=rows(SALES, (1, "anna", 11))),
        TableDelta("sales", gone=asked((1, "anna")), put=rows(SALES, (1, "anna", 12))),
        TableDelta("sales", put=rows(SALES, (5, "bert", 1))),
    )
    assert stored(sold, SALES) == [
        (1, "anna", 12),
        (1, None, 20),
        (2, "anna", 30),
        (5, "bert", 1),
    ]


@pytest.mark.parametrize(
    "put",
    [
        [(1, "anna", 99)],
        [(1, None, 99)],
        [(7, "new", 1), (7, "new", 2)],
        [(7, None, 1), (7, None, 2)],
    ],
)
def test_two_rows_of_one_key_are_refused_and_nothing_happened(
    sold: Backend, put: list[tuple[Any, ...]]
) -> None:
    before = stored(sold, SALES)
    with pytest.raises(StoreError, match="sales would have two rows"):
        commit(
            sold,
            TableDelta("visits", put=rows(VISITS, (1, "anna", at(1), 1))),
            TableDelta("sales", gone=asked((2, "anna"))),
            TableDelta("sales", put=rows(SALES, *put)),
            create=[VISITS],
            views={"seen": "SELECT * FROM _headrace.sales"},
        )
    assert stored(sold, SALES) == before
    assert set(sold.definitions()) == {"sales"}
    with sold.snapshot() as connection, pytest.raises(duckdb.CatalogException):
        connection.execute("SELECT * FROM seen")
    commit(sold, TableDelta("sales", put=rows(SALES, (7, "new", 1))), create=[VISITS])
    assert len(stored(sold, SALES)) == 4


@pytest.mark.parametrize(
    ("left_out", "put"),
    [
        ([(1, "anna")], [(1, "anna", 11), (1, None, 21)]),
        ([], [(1, "anna", 11), (1, "anna", 12)]),
        ([], [(1, None, 21), (1, None, 22)]),
        ([], [(7, "new", 1), (7, "new", 2)]),
        ([], [(1, "anna", 11), (2, "anna", 31)]),
    ],
)
def test_a_merge_that_makes_two_rows_of_a_key_it_has_fetched_is_refused(
    sold: Backend, left_out: list[tuple[int, str]], put: list[tuple[Any, ...]]
) -> None:
    """A fetched row is left where it is, a row comes twice, or one comes that was not asked for."""
    before = stored(sold, SALES)

    def merged(left_out: list[tuple[int, str]], put: list[tuple[Any, ...]]) -> None:
        wanted = asked((1, "anna"), (1, None), (7, "new"))
        found = fetched(sold, Fetch("sales", SALES.key, wanted)).to_pylist()
        gone = [row[ROW] for row in found if (row["_view"], row["user"]) not in left_out]
        commit(sold, TableDelta("sales", pa.table({ROW: gone}), rows(SALES, *put)))

    with pytest.raises(StoreError, match="sales would have two rows"):
        merged(left_out, put)
    assert stored(sold, SALES) == before
    merged([], [(1, "anna", 11), (1, None, 21)])
    assert stored(sold, SALES) == [(1, "anna", 11), (1, None, 21), (2, "anna", 30)]


def test_rows_of_one_key_are_refused_also_where_it_is_said_which_could_have_it(
    sold: Backend,
) -> None:
    before = stored(sold, SALES)
    for going, put, is_refused in (
        ([], [(1, "anna", 11)], True),
        (["anna"], [(1, "anna", 11), (1, None, 21)], True),
        (["anna"], [(1, "anna", 11), (1, "anna", 12)], True),
        (["anna"], [(1, "new", 1), (1, "new", 2)], True),
        (["anna"], [(1, "anna", 11), (1, "new", 1)], False),
    ):
        ones = asked((1, "")).select(["_view"])
        known = fetched(sold, Fetch("sales", ("_view",), ones))
        gone = known.filter(pc.is_in(known.column("user"), pa.array(going, pa.string())))
        delta = TableDelta("sales", gone.select([ROW]), rows(SALES, *put), known=known)
        if is_refused:
            with pytest.raises(StoreError, match="sales would have two rows"):
                commit(sold, delta)
            assert stored(sold, SALES) == before
        else:
            commit(sold, delta)
    assert stored(sold, SALES) == [(1, "anna", 11), (1, "new", 1), (1, None, 20), (2, "anna", 30)]


def test_rows_that_do_not_fit_their_table_are_refused(sold: Backend) -> None:
    before = stored(sold, SALES)
    wrong = pa.table({"_view": [1], "user": ["bert"], "total": ["much"]})
    for delta in (
        TableDelta("sales", put=wrong),
        TableDelta("sales", put=wrong.drop_columns(["total"])),
        TableDelta("sales", gone=pa.table({"nothing": [1]})),
        TableDelta("nobody", put=wrong),
    ):
        with pytest.raises(StoreError):
            commit(sold, TableDelta("sales", gone=asked((1, "anna"))), delta)
        assert stored(sold, SALES) == before


def test_a_key_of_no_columns_is_one_row(backend: Backend) -> None:
    only = definition("only", {"total": "BIGINT"}, ())
    commit(backend, TableDelta("only", put=rows(only, (1,))), create=[only])
    for put in (rows(only, (2,)), rows(only, (2,), (3,))):
        with pytest.raises(StoreError, match="two rows"):
            commit(backend, TableDelta("only", put=put))
    row = fetched(backend, Fetch("only", (), rows(only, (0,)), columns=()))
    commit(backend, TableDelta("only", gone=row, put=rows(only, (4,))))
    assert stored(backend, only) == [(4,)]


def test_tables_and_views_come_and_go(sold: Backend) -> None:
    commit(sold, create=[VISITS], views={"paid": "SELECT total FROM _headrace.sales"})
    assert dict(sold.definitions()) == {"sales": SALES, "visits": VISITS}
    with sold.snapshot() as connection:
        assert connection.execute("SELECT sum(total) FROM paid").fetchall() == [(60,)]
    commit(sold, views={"paid": "SELECT total + 1 AS total FROM _headrace.sales"})
    with sold.snapshot() as connection:
        assert connection.execute("SELECT sum(total) FROM main.paid").fetchall() == [(63,)]
    commit(sold, drop=["sales"], views={"paid": None, "never": None})
    assert dict(sold.definitions()) == {"visits": VISITS}
    with sold.snapshot() as connection:
        for name in ("paid", "_headrace.sales"):
            with pytest.raises(duckdb.CatalogException):
                connection.execute(f"SELECT * FROM {name}")
    other = definition("sales", {"day": "DATE"}, ("day",))
    commit(sold, TableDelta("sales", put=rows(other, (datetime.date(2026, 1, 1),))), create=[other])
    assert stored(sold, other) == [(datetime.date(2026, 1, 1),)]


@pytest.mark.parametrize(
    "more",
    [
        {"create": [SALES]},
        {"create": [VISITS, VISITS]},
        {"drop": ["nobody"]},
        {"drop": ["sales", "sales"]},
        {"views": {"wrong": "SELECT nothing FROM _headrace.sales"}},
        {"views": {"wrong": "SELECT"}},
    ],
)
def test_tables_and_views_that_cannot_be_are_refused(sold: Backend, more: dict[str, Any]) -> None:
    before = stored(sold, SALES)
    with pytest.raises(StoreError):
        commit(sold, TableDelta("sales", gone=asked((1, "anna"))), **more)
    assert stored(sold, SALES) == before
    assert set(sold.definitions()) == {"sales"}


# The fence


def test_an_older_generation_is_fenced(sold: Backend) -> None:
    first = sold.claim()
    commit(sold, generation=first)
    second = sold.claim()
    assert (second, sold.generation) == (first + 1, first + 1)
    with pytest.raises(FencedError):
        commit(sold, TableDelta("sales", gone=asked((1, "anna"))), generation=first)
    assert len(stored(sold, SALES)) == 3
    commit(sold, TableDelta("sales", gone=asked((1, "anna"))), generation=second)
    assert len(stored(sold, SALES)) == 2


# Readers


def test_a_snapshot_shows_one_commit_until_it_is_left(sold: Backend) -> None:
    commit(sold, views={"paid": "SELECT total FROM _headrace.sales"})
    with sold.snapshot() as before:
        commit(
            sold,
            TableDelta("sales", gone=asked((1, "anna"))),
            create=[VISITS],
            views={"paid": "SELECT 1 AS total", "further": "SELECT 1 AS one"},
        )
        commit(sold, drop=["sales"])
        assert before.execute("SELECT sum(total) FROM paid").fetchall() == [(60,)]
        assert before.execute("SELECT count(*) FROM _headrace.sales").fetchall() == [(3,)]
        with pytest.raises(duckdb.CatalogException):
            before.execute("SELECT * FROM further")
    with sold.snapshot() as after:
        assert after.execute("SELECT sum(total) FROM paid").fetchall() == [(1,)]


def test_what_a_snapshot_creates_is_gone_and_it_changes_nothing(sold: Backend) -> None:
    with sold.snapshot() as connection:
        connection.execute("CREATE TEMP TABLE noted AS SELECT 1 AS one")
        connection.register("given", pa.table({"user": ["anna"]}))
        joined = "SELECT count(*) FROM _headrace.sales JOIN given USING (user)"
        assert connection.execute(joined).fetchall() == [(2,)]
        with pytest.raises(duckdb.Error):
            connection.execute("CREATE TABLE main.left_behind (one INTEGER)")
    with sold.snapshot() as connection:
        for name in ("noted", "given", "left_behind"):
            with pytest.raises(duckdb.CatalogException):
                connection.execute(f"SELECT * FROM {name}")


def test_a_reader_can_be_interrupted(
    sold: Backend, beside: Callable[..., Any], until: Callable[..., None]
) -> None:
    reading, endless = threading.Event(), "SELECT count(*) FROM range(10000000000000) r(i)"
    failed: list[Exception] = []
    with sold.snapshot() as connection:

        def read() -> None:
            reading.set()
            try:
                connection.execute(endless).fetchall()
            except duckdb.Error as error:
                failed.append(error)

        def interrupted() -> bool:
            connection.interrupt()
            return bool(failed)

        with beside(read):
            reading.wait()
            until(interrupted)
    assert isinstance(failed[0], duckdb.InterruptException)
    assert len(stored(sold, SALES)) == 3


def test_readers_beside_commits_see_whole_commits(
    backend: Backend, beside: Callable[..., Any]
) -> None:
    """Each commit moves a sum from one table to the other."""
    left = definition("left_side", {"id": "BIGINT", "total": "BIGINT"}, ("id",))
    right = definition("right_side", {"id": "BIGINT", "total": "BIGINT"}, ("id",))
    count = 40
    start = rows(left, *((i, 1) for i in range(count)))
    commit(backend, TableDelta("left_side", put=start), create=[left, right])
    is_done = threading.Event()

    def look(connection: duckdb.DuckDBPyConnection) -> int:
        left, right = (
            connection.execute(f"SELECT count(*) FROM _headrace.{side}").fetchall()[0][0]
            for side in ("left_side", "right_side")
        )
        assert left + right == count
        return int(right)

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = is_done.is_set()
            with backend.snapshot() as connection:
                moved = look(connection)
                assert look(connection) == moved
        assert moved == count

    with beside(read, read):
        try:
            for i in range(count):
                gone = fetched(backend, Fetch("left_side", ("id",), rows(left, (i, 0))))
                commit(
                    backend,
                    TableDelta("left_side", gone=gone.select([ROW])),
                    TableDelta("right_side", put=rows(right, (i, 1))),
                )
        finally:
            is_done.set()


def test_a_calculator_computes_beside_the_tables(sold: Backend) -> None:
    calculator = Calculator(sold.computing())
    schema = pa.schema([("x", pa.int64())])
    doubled = calculator.prepare(
        {"given": schema}, lambda slot: f"SELECT 2 * x AS y FROM {slot['given']}"
    )
    for x in (1, 21):
        commit(sold, TableDelta("sales", put=rows(SALES, (9, f"user {x}", x))))
        assert doubled.run(given=pa.table({"x": [x]})).to_pydict() == {"y": [2 * x]}


def test_metrics_say_how_large_it_is(sold: Backend) -> None:
    metrics = sold.metrics()
    assert metrics["rows"] == {"sales": 3}
    assert metrics["file_bytes"] >= 0
    assert metrics["write_ahead_bytes"] >= 0


def test_closing_twice_is_closing_once(sold: Backend) -> None:
    sold.close()
    sold.close()


# Against plain Python


TYPES: dict[str, Callable[[random.Random], Any]] = {
    "INT": lambda chance: chance.randrange(-2, 3),
    "BIGINT": lambda chance: chance.choice([0, 1, -(2**63), 2**63 - 1]),
    "STRING": lambda chance: chance.choice(["", "a", "A", "ä", "a' \"", "long " * 9]),
    "BOOLEAN": lambda chance: chance.random() < 0.5,
    "DOUBLE": lambda chance: chance.choice([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "DECIMAL(18,2)": lambda chance: Decimal(
        chance.choice(["0.00", "-1.25", "9999999999999999.99"])
    ),
    "DATE": lambda chance: datetime.date(2026, 1, chance.randrange(1, 4)),
    "TIMESTAMP": lambda chance: at(chance.randrange(-3, 4)),
    "BINARY": lambda chance: chance.choice([b"", b"\0\xff"]),
    "ARRAY<INT>": lambda chance: chance.choice([[], [1], [None, 1]]),
    "STRUCT<a: INT, b: STRING>": lambda chance: {"a": chance.choice([1, None]), "b": "x"},
}


def made_value(chance: random.Random, type_: str) -> Any:
    return None if chance.random() < 0.2 else TYPES[type_](chance)


def made_table(chance: random.Random, name: str) -> TableDefinition:
    types = chance.sample(list(TYPES), chance.randrange(1, 5))
    columns = {f"c {i}": type_ for i, type_ in enumerate(types)}
    columns |= {"time": chance.choice(["TIMESTAMP", "BIGINT"]), "n": "BIGINT"}
    names = list(columns)
    keys = [names[:-1], names[: chance.randrange(len(names))], [*names[:1], "n"]]
    index = chance.sample(names, chance.randrange(1, len(names)))
    return definition(name, columns, chance.choice(keys), index)


def made_rows(chance: random.Random, table: TableDefinition, count: int) -> list[dict[str, Any]]:
    return [{c.name: made_value(chance, c.type.name) for c in table.columns} for _ in range(count)]


@pytest.fixture
def reopened(backend: Backend, tmp_path: Path) -> Iterator[Callable[[Backend], Backend]]:
    """What a backend is after it was closed and opened again, where that is the same."""
    opened: list[Backend] = []

    def reopen(now: Backend) -> Backend:
        if isinstance(now, MemoryBackend):
            return now
        now.close()
        opened.append(DuckBackend(tmp_path / "store.duckdb", StoreSettings()))
        return opened[-1]

    yield reopen
    for one in opened:
        one.close()


def test_any_changes_leave_what_plain_rows_would_be(
    backend: Backend,
    reopened: Callable[[Backend], Backend],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables get hashes and indexes after a few rows here, and many keys share their hash."""
    monkeypatch.setattr(stored_table, "HASH_SQL", "(hash({}) % 3)::BIGINT")
    monkeypatch.setattr(keyed_tables, "HASH_ROWS_MIN", 5)
    monkeypatch.setattr(keyed_tables, "INDEX_ROWS_MIN", 8)
    monkeypatch.setattr(keyed_tables, "KEEP_UP_COMMITS", 3)
    chance = random.Random(seed)
    for name in ("one", "two", "three", "four"):
        table = made_table(chance, name)
        model = TableModel(table)
        commit(backend, create=[table])
        for _ in range(25):
            step(chance, backend, model)
            if chance.random() < 0.05:
                backend.checkpoint()
            if chance.random() < 0.05:
                backend = reopened(backend)
                assert backend.definitions()[name] == table
            found = stored(backend, table)
            assert found == sorted(model.counted().elements(), key=repr)


def step(chance: random.Random, backend: Backend, model: TableModel) -> None:
    """Looks rows up in some way, lets some go in some way, and puts some."""
    table = model.table
    names = table.schema.names
    on = tuple(chance.choice([table.key, table.indexes[0], chance.sample(names, 2), ()]))
    time = chance.choice([None, "time"])
    wanted = made_rows(chance, table, chance.randrange(4)) + chance.sample(
        model.rows, min(len(model.rows), chance.randrange(3))
    )
    if time is not None:
        for i, row in enumerate(wanted):
            low, high = (chance.choice([None, -1_000_000, 0, 1, 2_000_000]) for _ in range(2))
            wanted[i] = {**row, LOW: low, HIGH: high}
    # A table of no columns could not say how many rows are asked.
    columns = names if not on and time is None else list(on)
    asked = rows_table(table, wanted, columns, with_bounds=time is not None)
    found = fetched(backend, Fetch(table.name, on, asked, time))
    expected = model.fetch(on, wanted, time)
    assert counted(found) == counted(rows_table(table, expected))
    assert len(set(found.column(ROW).to_pylist())) == found.num_rows
    put: list[dict[str, Any]] = []
    if chance.random() < 0.5:
        some = chance.sample(range(found.num_rows), chance.randrange(found.num_rows + 1))
        gone = found.take(pa.array(some, pa.int64())).select([ROW])
        left = counted(found.take(pa.array(some, pa.int64())))
        kept = []
        for row in model.rows:
            value = tuple(plain(row[name]) for name in names)
            if left[value]:
                left[value] -= 1
            else:
                kept.append(row)
        after = kept
    else:
        by = list(chance.sample(names, chance.randrange(1, len(names) + 1)))
        going = made_rows(chance, table, 2) + model.rows[:1]
        gone = rows_table(table, going, by)
        copy = TableModel(table)
        copy.rows = list(model.rows)
        copy.remove(by, going)
        after = copy.rows
    there = {model.key(row) for row in after}
    is_double = chance.random() < 0.1
    for row in made_rows(chance, table, chance.randrange(6)):
        if is_double or model.key(row) not in there:
            put.append(row)
            there.add(model.key(row))
    all_rows = [*after, *put]
    delta = TableDelta(table.name, gone=gone, put=rows_table(table, put))
    if len({model.key(row) for row in all_rows}) < len(all_rows):
        with pytest.raises(StoreError, match="two rows"):
            commit(backend, delta)
        return
    commit(backend, delta)
    model.rows = all_rows
